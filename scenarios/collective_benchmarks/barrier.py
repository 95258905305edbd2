"""Barrier over every GPU of the cluster: how long it takes until all know that all have come.

::

    step 0: rank r notifies r+1      step 1: rank r notifies r+2      step 2: rank r notifies r+4

    0 -> 1 -> 2 -> 3 -> ...          0 ------> 2 ------> ...          0 ----------------> 4 ...

Traffic: a dissemination barrier.  In step k each GPU sends a notice to the GPU 2^k ahead, once it
has had the notice of the step before.  After ceil(log2 n) steps every GPU has evidence that all
others have come (Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, 1988).  A
notice has 4 octets by default, and its value is compared.

Measured: the time from a common start until the last GPU is done; ideal, a lower bound from link
rates, header octets, cable and NVLink delays (``emulator.run.measures.ideal``); data packets.

What should be seen: nothing but latency: ceil(log2 n) hops one after the other, of which only those
inside a host are short.  Ring AllReduce of one element, which also is a barrier, needs 2(n-1) hops
(``uetemu run allreduce --param minbytes=4 --param maxbytes=4``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.scenario import Contents, parameter
from scenarios.collectives.algorithm_registry import algorithms
from scenarios.collectives.collective import (
    COLUMNS,
    INPUT,
    CollectiveBenchmark,
)
from scenarios.collectives.collective_call import STAGING
from scenarios.collectives.collective_data import CollectiveData
from scenarios.collectives.collective_parameters import CollectiveParameters
from topologies.parts.design_parameters import SIZE

__all__ = ["COLUMNS", "Parameters", "measures", "schedules", "topology"]


@dataclass(frozen=True, kw_only=True)
class Parameters(CollectiveParameters):
    """The parameters of ``barrier``."""

    min_size: int = parameter(4, SIZE, help="smallest size of a notice", aliases=("minbytes",))
    max_size: int = parameter(4, SIZE, help="largest size of a notice", aliases=("maxbytes",))
    algorithm: str = parameter(
        "dissemination",
        choices=algorithms("barrier", first="dissemination"),
        help="how the notices travel",
    )


def _buffers(data: CollectiveData, root: int, position: int) -> dict[str, int]:
    return {INPUT: data.size}


def _inputs(data: CollectiveData, root: int, position: int) -> Contents:
    return {INPUT: data.whole(position)}


def _expected(data: CollectiveData, root: int, position: int) -> Contents:
    steps = (data.members - 1).bit_length()
    senders = [(position - (1 << step)) % data.members for step in range(steps)]
    return {STAGING: np.concatenate([data.whole(sender) for sender in senders])}


COLLECTIVE = CollectiveBenchmark(
    name="barrier",
    title="Barrier",
    key="barrier",
    bus_factor=lambda members: 1,
    buffers=_buffers,
    inputs=_inputs,
    expected=_expected,
)

topology = COLLECTIVE.topology
schedules = COLLECTIVE.schedules
measures = COLLECTIVE.measures
