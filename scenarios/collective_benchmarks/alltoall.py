"""AlltoAll over every GPU of the cluster: tokens go to their experts, and come back.

::

    before                          after
    rank 0   [00 01 02 03]          rank 0   [00 10 20 30]
    rank 1   [10 11 12 13]          rank 1   [01 11 21 31]
    rank 2   [20 21 22 23]  ----->  rank 2   [02 12 22 32]
    rank 3   [30 31 32 33]          rank 3   [03 13 23 33]

Traffic: every GPU sends a part of its buffer to every other one.  In round k, from 1 to n-1, rank
r sends to rank r+k and receives from rank r-k (mod n); ``peers`` rounds are under way at a time,
as NCCL has eight.  Between GPUs of a host the parts go over NVLink.  What a rank sends to itself
does not leave its memory: that part lies in its result from the start.  Every element of every
result is compared.

Measured: for each size (the buffer of a rank) the time from a common start until the last GPU is
done, and from it

- algbw = size / time, busbw = algbw * (n-1)/n, as the NCCL tests define them, in GB/s;
- ideal, a lower bound from link rates, header octets, cable and NVLink delays
  (``emulator.run.measures.ideal``), and how close the run came to it;
- data packets sent and sent again.

What should be seen: with g GPUs in each host, (n-g)/n of each buffer crosses the NIC of its GPU.
What goes to another rail climbs to the spines, unless ``--pxn`` relays it over NVLink.  Rounds keep
receivers from an incast: each receives from ``peers`` senders at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
)

__all__ = ["COLUMNS", "Parameters", "measures", "schedules", "topology"]


@dataclass(frozen=True, kw_only=True)
class Parameters(ExchangeParameters):
    """The parameters of ``alltoall``."""

    algorithm: str = parameter(
        "shift", choices=algorithms("alltoall", first="shift"), help="how the data travel"
    )


def _buffers(data: CollectiveData, root: int, position: int) -> dict[str, int]:
    return {INPUT: data.size, OUTPUT: data.size}


def _inputs(data: CollectiveData, root: int, position: int) -> Contents:
    return {INPUT: np.concatenate([data.piece(position, to) for to in range(data.members)])}


def _expected(data: CollectiveData, root: int, position: int) -> Contents:
    return {OUTPUT: np.concatenate([data.piece(one, position) for one in range(data.members)])}


COLLECTIVE = CollectiveBenchmark(
    name="alltoall",
    title="AlltoAll",
    key="alltoall",
    bus_factor=all_peers,
    buffers=_buffers,
    inputs=_inputs,
    expected=_expected,
    by_parts=True,
)

topology = COLLECTIVE.topology
schedules = COLLECTIVE.schedules
measures = COLLECTIVE.measures
