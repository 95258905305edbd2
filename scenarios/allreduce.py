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
of all n GPUs, one ring (channel) per local rank, float32, sum.  Inside a host the ring walks over
NVLink; between hosts it leaves and enters through NICs of the same rail (drawing in
``scenarios.collectives.ring``).  Each GPU sums real numbers, and the result of every GPU is
compared with numpy's sum, element by element.

Measured: for each size the time from a common start until the last GPU is done, and from it

- algbw = size / time, busbw = algbw * 2(n-1)/n, as the NCCL tests define them, in GB/s;
- ideal, a lower bound from link rates, header octets, cable and NVLink delays
  (``emulator.measures.ideal``), and how close the run came to it;
- data packets sent and sent again.

What should be seen: small sizes are bound by latency, 2(n-1) hops one after the other, so time
hardly grows with size.  Large sizes are bound by the NICs.  Each hop of a ring sends 2(n-1)/n of
its channel's share, and each NIC serves one hop of one channel, so the busbw of a cluster with g
GPUs per host may reach g times a NIC's rate, less headers: 4 x 50 GB/s for 400G NICs.  The spines
stay idle, because rings stay on their rails.

``order=shuffled`` places the ranks on the GPUs at random.  Most hops of a ring then cross the
fabric, many of them change rail and climb to the spines, each NIC serves several hops, and busbw
falls by the same factor.  With an odd number of hosts the hop that closes each ring has to change
rail even in rail order; ``cross_rail_hops`` counts such hops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from emulator.endpoint.operations.schedule import Schedule
from emulator.errors import UserError
from emulator.scenario import Contents, Outcome, Trial, parameter
from scenarios.collectives import ring
from scenarios.collectives.program import Program
from scenarios.collectives.size_sweep import DTYPE, ELEMENT_BYTES, SizeSweep, nccl_columns
from topologies.model import Topology
from topologies.parts.design_parameters import SIZE

#: Beyond this, a run would take hours.
MAX_OPERATIONS = 20_000_000
#: Inputs are made so many elements at a time: those of a large size need no room twice.
ELEMENTS_AT_ONCE = 2**20


@dataclass(frozen=True, kw_only=True)
class Parameters(SizeSweep):
    """The parameters of ``allreduce``."""

    slice_bytes: int = parameter(64 * 2**10, SIZE, help="pieces in which a block moves on")
    order: str = parameter("rail", choices=("rail", "shuffled"), help="how rings visit the GPUs")

    def __post_init__(self) -> None:
        if self.slice_bytes % ELEMENT_BYTES:
            raise UserError(
                f"slice_bytes is {self.slice_bytes}, not a whole number of {ELEMENT_BYTES}-octet "
                f"elements; give a multiple of {ELEMENT_BYTES}"
            )
        super().__post_init__()


def topology(parameters: Parameters) -> str:
    """Six hosts with four GPUs each, four rail switches, two spines."""
    return "rail_clos"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    ranks = len(topology.gpus)
    if ranks < 2:
        raise UserError(
            f"AllReduce needs at least two GPUs and topology {topology.name} has {ranks}; "
            "add hosts or GPUs"
        )
    servers = ring.servers_of(topology)
    neighbours = ring.joined_in_rings(topology)
    rings = {
        "rail": lambda: ring.rail_rings(servers, neighbours=neighbours),
        "shuffled": lambda: ring.shuffled_rings(servers, seed, neighbours=neighbours),
    }[parameters.order]()
    return [_trial(parameters, topology, rings, size, seed) for size in parameters.sweep]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    ranks = len(topology.gpus)
    return nccl_columns(trial, outcome, redop="sum", bus_factor=2 * (ranks - 1) / ranks)


def _check_slices(parameters: Parameters, rings: Sequence[ring.Ring], size: int) -> None:
    ranks = len(rings[0])
    block = -(-size // (len(rings) * ranks))
    # Send and receive of each slice in each of 2(n-1) steps, and a sum in half of them.
    per_slice = 5 * ranks * (ranks - 1) * len(rings)
    operations = per_slice * -(-block // parameters.slice_bytes)
    if operations > MAX_OPERATIONS:
        most = max(1, MAX_OPERATIONS // per_slice)
        enough = -(-block // most // ELEMENT_BYTES) * ELEMENT_BYTES
        raise UserError(
            f"a size of {size} B in slices of {parameters.slice_bytes} B makes {operations} "
            f"operations, more than {MAX_OPERATIONS}; take slice_bytes={enough} or more"
        )


def _trial(
    parameters: Parameters, topology: Topology, rings: Sequence[ring.Ring], size: int, seed: int
) -> Trial:
    ranks = len(topology.gpus)
    count = size // ELEMENT_BYTES

    def compile_schedules() -> Sequence[Schedule]:
        _check_slices(parameters, rings, size)
        program = Program.on(topology)
        for rank in range(ranks):
            program.allocate(rank, "input", size)
            program.allocate(rank, "output", size)
        parts = ring.channels(rings, count, ELEMENT_BYTES)
        summed = ring.reduce_scatter(
            program,
            parts,
            source="input",
            result="output",
            staging="staging",
            slice_bytes=parameters.slice_bytes,
            dtype=DTYPE,
        )
        ring.all_gather(
            program,
            parts,
            result="output",
            slice_bytes=parameters.slice_bytes,
            ready=summed,
        )
        return program.schedules()

    def inputs(rank: int) -> Contents:
        values = np.zeros(count, DTYPE)
        _add_input(values, seed, rank, ranks)
        _sum(seed, ranks, count).add(rank, values)
        return {"input": values}

    return Trial(
        collective="all_reduce",
        size_bytes=size,
        compile=compile_schedules,
        inputs=inputs,
        expected=lambda rank: {"output": _sum(seed, ranks, count).total()},
        memory_bytes=3 * size,
        warmups=parameters.warmups,
        iterations=parameters.iterations,
        facts={
            "order": parameters.order,
            "channels": len(rings),
            "cross_rail_hops": ring.cross_rail_hops(rings, topology),
        },
    )


def _add_input(into: np.ndarray, seed: int, rank: int, ranks: int) -> None:
    """Add what ``rank`` puts into the sum to ``into``."""
    # Whole numbers so small that float32 holds every partial sum exactly: the order in which
    # the ring adds cannot matter, and the comparison needs no tolerance.
    bound = 2**24 // ranks
    rng = np.random.default_rng((seed, rank, into.nbytes))
    for start in range(0, len(into), ELEMENTS_AT_ONCE):
        part = into[start : start + ELEMENTS_AT_ONCE]
        part += rng.integers(-bound, bound, len(part), np.int32)


class _Sum:
    """The sum of all ranks' inputs, which grows as they are made."""

    def __init__(self, seed: int, ranks: int, count: int) -> None:
        self._seed, self._ranks = seed, ranks
        self._missing = set(range(ranks))
        self._total = np.zeros(count, DTYPE)

    def add(self, rank: int, values: np.ndarray) -> None:
        """Add the input of ``rank``, unless it is in the sum already."""
        if rank in self._missing:
            self._missing.remove(rank)
            self._total += values

    def total(self) -> np.ndarray:
        """The sum over all ranks."""
        while self._missing:
            _add_input(self._total, self._seed, self._missing.pop(), self._ranks)
        self._total.flags.writeable = False
        return self._total


@lru_cache(maxsize=1)  # the same for all ranks; that of another size is not kept
def _sum(seed: int, ranks: int, count: int) -> _Sum:
    return _Sum(seed, ranks, count)
