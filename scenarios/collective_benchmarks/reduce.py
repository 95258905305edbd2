"""Reduce over all GPUs to one: the sum of all buffers ends at the root.

::

    before                     after
    rank 0   [a0 b0 c0 d0]     rank 0   [A B C D]     A = a0 + a1 + a2 + a3
    rank 1   [a1 b1 c1 d1]     rank 1   [. . . .]
    rank 2   [a2 b2 c2 d2] --> rank 2   [. . . .]
    rank 3   [a3 b3 c3 d3]     rank 3   [. . . .]

Traffic: partial sums go along each rail ring towards the root in slices, one ring (channel) per
local rank (drawing in ``scenarios.collectives.ring``), as NCCL's Reduce does.
``algorithm=binomial`` halves the number of GPUs that hold a part of the sum in each step.  Every
element of the root's result is compared.

Measured: for each size the time from a common start until the last GPU is done, and from it

- algbw = size / time, and busbw = algbw, as the NCCL tests define them, in GB/s;
- ideal, a lower bound from link rates, header octets, cable and NVLink delays
  (``emulator.run.measures.ideal``), and how close the run came to it;
- data packets sent and sent again.

What should be seen: the picture of Broadcast, the other way round.  In a binomial tree the root
receives the whole of the data log2(n) times, at times from several GPUs at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulator.scenario import Contents, parameter
from scenarios.collectives.algorithm_registry import algorithms
from scenarios.collectives.blocks import Block
from scenarios.collectives.collective import (
    INPUT,
    OUTPUT,
    CollectiveBenchmark,
)
from scenarios.collectives.collective import (
    PLACED_COLUMNS as COLUMNS,
)
from scenarios.collectives.collective_data import CollectiveData
from scenarios.collectives.collective_parameters import (
    ChannelParameters,
    InPlaceParameters,
    ReductionParameters,
    RootedParameters,
)

__all__ = ["COLUMNS", "Parameters", "measures", "schedules", "topology"]


@dataclass(frozen=True, kw_only=True)
class Parameters(ReductionParameters, InPlaceParameters, RootedParameters, ChannelParameters):
    """The parameters of ``reduce``."""

    algorithm: str = parameter(
        "ring", choices=algorithms("reduce", first="ring"), help="how the data travel"
    )


def _buffers(data: CollectiveData, root: int, position: int) -> dict[str, int]:
    return {INPUT: data.size, OUTPUT: data.size if position == root else 0}


def _inputs(data: CollectiveData, root: int, position: int) -> Contents:
    return {INPUT: data.operand(position)}


def _expected(data: CollectiveData, root: int, position: int) -> Contents:
    return {OUTPUT: data.total_value} if position == root else {}


def _result(data: CollectiveData, root: int, position: int) -> Block:
    return Block(0, data.size if position == root else 0)


COLLECTIVE = CollectiveBenchmark(
    name="reduce",
    title="Reduce",
    key="reduce",
    bus_factor=lambda members: 1,
    buffers=_buffers,
    inputs=_inputs,
    expected=_expected,
    result=_result,
    rooted=True,
)

topology = COLLECTIVE.topology
schedules = COLLECTIVE.schedules
measures = COLLECTIVE.measures
