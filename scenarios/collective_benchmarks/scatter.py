"""Scatter from one GPU to all: every GPU gets a part of its own from the root.

::

    before                     after
    rank 0   [a b c d]         rank 0   [a]
    rank 1   [. . . .]         rank 1   [b]
    rank 2   [. . . .]  -----> rank 2   [c]
    rank 3   [. . . .]         rank 3   [d]

Traffic: the root sends to its peers one after the other, ``peers`` of them at a time, those of its
own host over NVLink.  Every element of every result is compared.

Measured: for each size, which is that of the root's buffer, the time from a common start until the
last GPU is done, and from it

- algbw = size / time, busbw = algbw * (n-1)/n, as the NCCL tests define them, in GB/s;
- ideal, a lower bound from link rates, header octets, cable and NVLink delays
  (``emulator.run.measures.ideal``), and how close the run came to it;
- data packets sent and sent again.

What should be seen: the NIC of the root is the bound, and no queue builds up behind it.
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
    all_peers,
)
from scenarios.collectives.collective_data import CollectiveData
from scenarios.collectives.collective_parameters import (
    ExchangeParameters,
    RootedParameters,
)

__all__ = ["COLUMNS", "Parameters", "measures", "schedules", "topology"]


@dataclass(frozen=True, kw_only=True)
class Parameters(RootedParameters, ExchangeParameters):
    """The parameters of ``scatter``."""

    algorithm: str = parameter(
        "direct", choices=algorithms("scatter", first="direct"), help="how the data travel"
    )


def _buffers(data: CollectiveData, root: int, position: int) -> dict[str, int]:
    return {INPUT: data.size if position == root else 0, OUTPUT: data.part}


def _inputs(data: CollectiveData, root: int, position: int) -> Contents:
    return {INPUT: data.gathered} if position == root else {}


def _expected(data: CollectiveData, root: int, position: int) -> Contents:
    return {OUTPUT: data.piece(position, position)}


COLLECTIVE = CollectiveBenchmark(
    name="scatter",
    title="Scatter",
    key="scatter",
    bus_factor=all_peers,
    buffers=_buffers,
    inputs=_inputs,
    expected=_expected,
    by_parts=True,
    rooted=True,
)

topology = COLLECTIVE.topology
schedules = COLLECTIVE.schedules
measures = COLLECTIVE.measures
