"""SendRecv: every GPU sends its buffer to the next one, as pipeline stages do.

::

    rank 0 ---> rank 1 ---> rank 2 ---> rank 3
      ^                                   |
      +-----------------------------------+

Traffic: each GPU sends the whole buffer to the GPU of the next rank, and receives that of the one
before.  Hops inside a host use NVLink.  Every element is compared.

Measured: for each size the time from a common start until the last GPU is done, and from it

- algbw = size / time, and busbw = algbw, as the NCCL tests define them, in GB/s;
- ideal, a lower bound from link rates, header octets, cable and NVLink delays
  (``emulator.run.measures.ideal``), and how close the run came to it;
- data packets sent and sent again.

What should be seen: the hops between hosts decide.  They go from the last GPU of a host to the
first one of the next.  With several GPUs in each host they change rail and climb to the spines.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulator.scenario import Contents, parameter
from scenarios.collectives.algorithm_registry import algorithms
from scenarios.collectives.collective import (
    COLUMNS,
    INPUT,
    OUTPUT,
    CollectiveBenchmark,
)
from scenarios.collectives.collective_data import CollectiveData
from scenarios.collectives.collective_parameters import (
    CollectiveParameters,
)

__all__ = ["COLUMNS", "Parameters", "measures", "schedules", "topology"]


@dataclass(frozen=True, kw_only=True)
class Parameters(CollectiveParameters):
    """The parameters of ``sendrecv``."""

    algorithm: str = parameter(
        "shift", choices=algorithms("sendrecv", first="shift"), help="how the data travel"
    )


def _buffers(data: CollectiveData, root: int, position: int) -> dict[str, int]:
    return {INPUT: data.size, OUTPUT: data.size}


def _inputs(data: CollectiveData, root: int, position: int) -> Contents:
    return {INPUT: data.whole(position)}


def _expected(data: CollectiveData, root: int, position: int) -> Contents:
    return {OUTPUT: data.whole((position - 1) % data.members)}


COLLECTIVE = CollectiveBenchmark(
    name="sendrecv",
    title="SendRecv",
    key="sendrecv",
    bus_factor=lambda members: 1,
    buffers=_buffers,
    inputs=_inputs,
    expected=_expected,
)

topology = COLLECTIVE.topology
schedules = COLLECTIVE.schedules
measures = COLLECTIVE.measures
