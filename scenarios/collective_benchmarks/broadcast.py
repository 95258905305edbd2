"""Broadcast from one GPU to all others: initial weights leave the master rank.

::

    before                     after
    rank 0   [a b c d]         rank 0   [a b c d]
    rank 1   [. . . .]         rank 1   [a b c d]
    rank 2   [. . . .]  -----> rank 2   [a b c d]
    rank 3   [. . . .]         rank 3   [a b c d]

Traffic: the root's data go once round each rail ring in slices, one ring (channel) per local rank
(drawing in ``scenarios.collectives.ring``), as NCCL's Broadcast does.  With ``algorithm=binomial``
each step doubles the number of GPUs that have the data.  Every element of every result is compared.

Measured: for each size the time from a common start until the last GPU is done, and from it

- algbw = size / time, and busbw = algbw, as the NCCL tests define them, in GB/s;
- ideal, a lower bound from link rates, header octets, cable and NVLink delays
  (``emulator.run.measures.ideal``), and how close the run came to it;
- data packets sent and sent again.

What should be seen: with c slices a ring takes c + n-2 steps.  Small slices fill the pipeline soon,
and large sizes come near the rate of all NICs of a host together.  A binomial tree needs log2(n)
steps, but its root sends the whole of the data log2(n) times.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulator.scenario import Contents, parameter
from scenarios.collectives.algorithm_registry import algorithms
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
    RootedParameters,
)

__all__ = ["COLUMNS", "Parameters", "measures", "schedules", "topology"]


@dataclass(frozen=True, kw_only=True)
class Parameters(InPlaceParameters, RootedParameters, ChannelParameters):
    """The parameters of ``broadcast``."""

    algorithm: str = parameter(
        "ring", choices=algorithms("broadcast", first="ring"), help="how the data travel"
    )


def _buffers(data: CollectiveData, root: int, position: int) -> dict[str, int]:
    return {INPUT: data.size if position == root else 0, OUTPUT: data.size}


def _inputs(data: CollectiveData, root: int, position: int) -> Contents:
    return {INPUT: data.whole(root)} if position == root else {}


def _expected(data: CollectiveData, root: int, position: int) -> Contents:
    return {OUTPUT: data.whole(root)}


COLLECTIVE = CollectiveBenchmark(
    name="broadcast",
    title="Broadcast",
    key="broadcast",
    bus_factor=lambda members: 1,
    buffers=_buffers,
    inputs=_inputs,
    expected=_expected,
    rooted=True,
)

topology = COLLECTIVE.topology
schedules = COLLECTIVE.schedules
measures = COLLECTIVE.measures
