"""ReduceScatter over every GPU of the cluster: each GPU gets the sum of its part of the gradients.

::

    before                          after
    rank 0   [a0 b0 c0 d0]          rank 0   [A . . .]     A = a0 + a1 + a2 + a3
    rank 1   [a1 b1 c1 d1]          rank 1   [. B . .]
    rank 2   [a2 b2 c2 d2]  ----->  rank 2   [. . C .]
    rank 3   [a3 b3 c3 d3]          rank 3   [. . . D]

Traffic: ring ReduceScatter as NCCL does it, over flat rings of all n GPUs; float32, sum. There is
one ring (channel) per local rank, and rings stay on their rails between hosts (drawing in
``scenarios.collectives.ring``).  Each GPU sums real numbers, and its part is compared with numpy's
sum, element by element.

Measured: for each size (the input of a rank) the time from a common start until the last GPU is
done, and from it

- algbw = size / time, busbw = algbw * (n-1)/n, as the NCCL tests define them, in GB/s;
- ideal, a lower bound from link rates, header octets, cable and NVLink delays
  (``emulator.run.measures.ideal``), and how close the run came to it;
- data packets sent and sent again.

What should be seen: half of an AllReduce of that size.  Small sizes are bound by the latency of
n-1 hops, large ones by the NICs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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

__all__ = ["COLUMNS", "Parameters", "measures", "schedules", "topology"]


@dataclass(frozen=True, kw_only=True)
class Parameters(ReductionParameters, InPlaceParameters, ChannelParameters):
    """The parameters of ``reducescatter``."""

    algorithm: str = parameter(
        "ring", choices=algorithms("reducescatter", first="ring"), help="how the data travel"
    )


def _buffers(data: CollectiveData, root: int, position: int) -> dict[str, int]:
    return {INPUT: data.size, OUTPUT: data.size}


def _inputs(data: CollectiveData, root: int, position: int) -> Contents:
    whole = data.operand(position)
    return {INPUT: whole, OUTPUT: np.zeros_like(whole)}


def _expected(data: CollectiveData, root: int, position: int) -> Contents:
    octets = data.datatype.octets
    own = _result(data, root, position)
    begin = own.offset // octets
    return {OUTPUT: data.total_value[begin : begin + own.length // octets]}


def _result(data: CollectiveData, root: int, position: int) -> Block:
    return Block(position * data.part, data.part)


COLLECTIVE = CollectiveBenchmark(
    name="reduce_scatter",
    title="ReduceScatter",
    key="reducescatter",
    bus_factor=all_peers,
    buffers=_buffers,
    inputs=_inputs,
    expected=_expected,
    result=_result,
    by_parts=True,
)

topology = COLLECTIVE.topology
schedules = COLLECTIVE.schedules
measures = COLLECTIVE.measures
