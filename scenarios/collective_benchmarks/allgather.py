"""AllGather over every GPU of the cluster: sharded weights are made whole before a layer.

::

    before                          after
    rank 0   [A . . .]              rank 0   [A B C D]
    rank 1   [. B . .]              rank 1   [A B C D]
    rank 2   [. . C .]    ------>   rank 2   [A B C D]
    rank 3   [. . . D]              rank 3   [A B C D]

Traffic: ring AllGather as NCCL does it, over flat rings of all n GPUs. There is one ring (channel)
per local rank, and rings stay on their rails between hosts (drawing in
``scenarios.collectives.ring``). It is in place: the part of each rank lies in its result from the
start.  Every element of every result is compared.

Measured: for each size, which is that of the whole result, the time from a common start until the
last GPU is done, and from it

- algbw = size / time, busbw = algbw * (n-1)/n, as the NCCL tests define them, in GB/s;
- ideal, a lower bound from link rates, header octets, cable and NVLink delays
  (``emulator.run.measures.ideal``), and how close the run came to it;
- data packets sent and sent again.

What should be seen: half of an AllReduce of that size.  Small sizes are bound by the latency of
n-1 hops, large ones by the NICs.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulator.scenario import Contents, parameter
from scenarios.collectives.algorithm_registry import algorithms
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
)

__all__ = ["COLUMNS", "Parameters", "measures", "schedules", "topology"]


@dataclass(frozen=True, kw_only=True)
class Parameters(InPlaceParameters, ChannelParameters):
    """The parameters of ``allgather``."""

    algorithm: str = parameter(
        "ring", choices=algorithms("allgather", first="ring"), help="how the data travel"
    )


def _buffers(data: CollectiveData, root: int, position: int) -> dict[str, int]:
    return {INPUT: data.part, OUTPUT: data.size}


def _inputs(data: CollectiveData, root: int, position: int) -> Contents:
    return {INPUT: data.piece(position, position)}


def _expected(data: CollectiveData, root: int, position: int) -> Contents:
    return {OUTPUT: data.gathered}


COLLECTIVE = CollectiveBenchmark(
    name="all_gather",
    title="AllGather",
    key="allgather",
    bus_factor=all_peers,
    buffers=_buffers,
    inputs=_inputs,
    expected=_expected,
    by_parts=True,
)

topology = COLLECTIVE.topology
schedules = COLLECTIVE.schedules
measures = COLLECTIVE.measures
