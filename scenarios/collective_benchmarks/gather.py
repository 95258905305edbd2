"""Gather from all GPUs to one: the root gets a part of every other GPU at once.

::

    before               after
    rank 0   [a]         rank 0   [a b c d]
    rank 1   [b]         rank 1   [b]
    rank 2   [c]  -----> rank 2   [c]
    rank 3   [d]         rank 3   [d]

Traffic: every GPU sends its part straight to the root, all at the same time: an incast of n-1 GPUs,
less those of the root's host, which use NVLink.  Every element of the root's result is compared.

Measured: for each size, which is that of the root's result, the time from a common start until the
last GPU is done, and from it

- algbw = size / time, busbw = algbw * (n-1)/n, as the NCCL tests define them, in GB/s;
- ideal, a lower bound from link rates, header octets, cable and NVLink delays
  (``emulator.run.measures.ideal``), and how close the run came to it;
- data packets sent and sent again.

What should be seen: the NIC of the root is the bound, so that busbw stays below one NIC's rate; the
queue in front of it shows what congestion control and trimming do (see ``incast``).
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
    RootedParameters,
)

__all__ = ["COLUMNS", "Parameters", "measures", "schedules", "topology"]


@dataclass(frozen=True, kw_only=True)
class Parameters(RootedParameters):
    """The parameters of ``gather``."""

    algorithm: str = parameter(
        "direct", choices=algorithms("gather", first="direct"), help="how the data travel"
    )


def _buffers(data: CollectiveData, root: int, position: int) -> dict[str, int]:
    return {INPUT: data.part, OUTPUT: data.size if position == root else 0}


def _inputs(data: CollectiveData, root: int, position: int) -> Contents:
    return {INPUT: data.piece(position, position)}


def _expected(data: CollectiveData, root: int, position: int) -> Contents:
    return {OUTPUT: data.gathered} if position == root else {}


COLLECTIVE = CollectiveBenchmark(
    name="gather",
    title="Gather",
    key="gather",
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
