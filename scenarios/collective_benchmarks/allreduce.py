"""AllReduce over every GPU of the cluster: the gradient exchange of data-parallel training.

::

      host 0         host 1                    host 5
    +-----------+  +-----------+             +-----------+
    | 0 1 2 3   |  | 0 1 2 3   |    . . .    | 0 1 2 3   |     GPUs, NVLink inside a host
    +-|-|-|-|---+  +-|-|-|-|---+             +-|-|-|-|---+
      | | | |        | | | |                   | | | |
      | | | +--------|-|-|-+-------- rail3 ----|-|-|-+
      | | +----------|-|-+---------- rail2 ----|-|-+
      | +------------|-+------------ rail1 ----|-+
      +--------------+-------------- rail0 ----+
                                       |
                               spines (two here)

Traffic: ring AllReduce as NCCL does it, a reduce-scatter followed by an all-gather over flat rings
of all n GPUs, one ring (channel) per local rank.  Inside a host the ring walks over
NVLink; between hosts it leaves and enters through NICs of the same rail (drawing in
``scenarios.collectives.ring``).  Each GPU sums real numbers, and the result of every GPU is
compared with numpy's sum, element by element.

Measured: for each size the time from a common start until the last GPU is done, and from it

- algbw = size / time, busbw = algbw * 2(n-1)/n, as the NCCL tests define them, in GB/s;
- ideal, a lower bound from link rates, header octets, cable and NVLink delays
  (``emulator.run.measures.ideal``), and how close the run came to it;
- data packets sent and sent again.

What should be seen: small sizes are bound by latency, 2(n-1) hops one after the other, so time
hardly grows with size.  Large sizes are bound by the NICs.  Each hop of a ring sends 2(n-1)/n of
its channel's share, and each NIC serves one hop of one channel. So with g GPUs per host the busbw
of a cluster may reach g times a NIC's rate, less headers: 4 x 50 GB/s for 400G NICs.  The spines
stay idle, because rings stay on their rails.

``algorithm`` chooses another way.  Trees and recursive doubling need fewer steps for small sizes;
``hierarchical`` sums inside hosts over NVLink first.  ``tree`` and ``double-tree`` lead over hosts,
with the GPUs of a host in a chain (``scenarios.collectives.algorithms``).

``algorithm=auto`` takes ring or double-tree for each size, by NCCL's model of time
(``scenarios.collectives.tuning``); the table names the choice, and ``result.json`` the times.

``order=shuffled`` places the ranks on the GPUs at random.  Most hops of a ring then cross the
fabric, and many of them change rail and climb to the spines. Each NIC serves several hops, and
busbw falls by the same factor.  With an odd number of hosts the hop that closes each ring has to
change rail even in rail order; ``cross_rail_hops`` counts such hops.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulator.errors import UserError
from emulator.scenario import Contents, parameter
from scenarios.collectives.algorithm_registry import algorithms
from scenarios.collectives.blocks import Block
from scenarios.collectives.collective import (
    INPUT,
    OUTPUT,
    CollectiveBenchmark,
    all_peers,
)
from scenarios.collectives.collective import (
    PLACED_COLUMNS as COLUMNS,
)
from scenarios.collectives.collective_data import CollectiveData
from scenarios.collectives.collective_parameters import (
    ChannelParameters,
    InPlaceParameters,
    ReductionParameters,
)
from scenarios.collectives.tuning import AUTO
from topologies.parts.design_parameters import TEXT

__all__ = ["COLUMNS", "Parameters", "measures", "schedules", "topology"]


@dataclass(frozen=True, kw_only=True)
class Parameters(ReductionParameters, InPlaceParameters, ChannelParameters):
    """The parameters of ``allreduce``."""

    algorithm: str = parameter(
        "ring",
        choices=(*algorithms("allreduce", first="ring"), AUTO),
        help="how the data travel; auto: as NCCL's model chooses for each size",
    )
    tuning: str = parameter(
        "", TEXT, help="for algorithm=auto: a YAML file of constants instead of NCCL's"
    )

    def __post_init__(self) -> None:
        if self.tuning and self.algorithm != AUTO:
            raise UserError(
                f"tuning={self.tuning} decides nothing with algorithm={self.algorithm}; take "
                f"algorithm={AUTO}, or leave tuning out"
            )
        super().__post_init__()

    @property
    def tuning_file(self) -> str:
        """Return the file of constants by which an algorithm is chosen, or nothing."""
        return self.tuning


def _buffers(data: CollectiveData, root: int, position: int) -> dict[str, int]:
    return {INPUT: data.size, OUTPUT: data.size}


def _inputs(data: CollectiveData, root: int, position: int) -> Contents:
    return {INPUT: data.operand(position)}


def _expected(data: CollectiveData, root: int, position: int) -> Contents:
    return {OUTPUT: data.total_value}


def _result(data: CollectiveData, root: int, position: int) -> Block:
    return Block(0, data.size)


COLLECTIVE = CollectiveBenchmark(
    name="all_reduce",
    title="AllReduce",
    key="allreduce",
    bus_factor=lambda members: 2 * all_peers(members),
    buffers=_buffers,
    inputs=_inputs,
    expected=_expected,
    result=_result,
)

topology = COLLECTIVE.topology
schedules = COLLECTIVE.schedules
measures = COLLECTIVE.measures
