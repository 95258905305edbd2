"""AllGather over every GPU of the cluster: sharded weights are made whole before a layer.

::

    before                          after
    rank 0   [A . . .]              rank 0   [A B C D]
    rank 1   [. B . .]              rank 1   [A B C D]
    rank 2   [. . C .]    ------>   rank 2   [A B C D]
    rank 3   [. . . D]              rank 3   [A B C D]

Traffic: ring AllGather as NCCL does it, over flat rings of all n GPUs, one ring (channel) per
local rank, which stay on their rails between hosts (drawing in ``scenarios.collectives.ring``).
It is in place: the part of each rank lies in its result from the start.  Every element of every
result is compared.

Measured: for each size, which is that of the whole result, the time from a common start until the
last GPU is done, and from it

- algbw = size / time, busbw = algbw * (n-1)/n, as the NCCL tests define them, in GB/s;
- ideal, a lower bound from link rates, header octets, cable and NVLink delays
  (``emulator.measures.ideal``), and how close the run came to it;
- data packets sent and sent again.

What should be seen: half of an AllReduce of that size.  Small sizes are bound by the latency of
n-1 hops, large ones by the NICs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.endpoint.operations.schedule import Schedule
from emulator.scenario import Contents, Outcome, Trial, parameter
from scenarios.collectives import owned_parts, ring
from scenarios.collectives.program import Program
from scenarios.collectives.size_sweep import SizeSweep, nccl_columns
from topologies.model import Topology
from topologies.parts.design_parameters import SIZE


@dataclass(frozen=True, kw_only=True)
class Parameters(SizeSweep):
    """The parameters of ``allgather``."""

    slice_bytes: int = parameter(64 * 2**10, SIZE, help="pieces in which a part moves on")


def topology(parameters: Parameters) -> str:
    """Six hosts with four GPUs each, four rail switches, two spines."""
    return "rail_clos"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    rings = owned_parts.rings_of(topology, "AllGather")
    parts = parameters.parts(len(topology.gpus))
    return [_trial(parameters, topology, rings, part, seed) for part in parts]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    ranks = len(topology.gpus)
    factor = (ranks - 1) / ranks
    return nccl_columns(trial, outcome, redop="none", bus_factor=factor, parts=ranks)


def _trial(
    parameters: Parameters,
    topology: Topology,
    rings: Sequence[ring.Ring],
    part: int,
    seed: int,
) -> Trial:
    ranks = len(topology.gpus)
    size = part * ranks

    def compile_schedules() -> Sequence[Schedule]:
        program = Program.on(topology)
        for rank in range(ranks):
            program.allocate(rank, "output", size)
        ring.all_gather(
            program,
            owned_parts.channels(rings, part),
            result="output",
            slice_bytes=parameters.slice_bytes,
            ready=None,
        )
        return program.schedules()

    def own(rank: int) -> np.ndarray:
        return owned_parts.numbers(seed, 1, rank, octets=part)

    def inputs(rank: int) -> Contents:
        values = np.zeros((ranks, len(own(rank))), own(rank).dtype)
        values[rank] = own(rank)
        return {"output": values.reshape(-1)}

    def expected(rank: int) -> Contents:
        return {"output": np.concatenate([own(one) for one in range(ranks)])}

    return Trial(
        collective="all_gather",
        size_bytes=size,
        compile=compile_schedules,
        inputs=inputs,
        expected=expected,
        memory_bytes=size,
        warmups=parameters.warmups,
        iterations=parameters.iterations,
        facts={
            "in_place": True,
            "channels": len(rings),
            "cross_rail_hops": ring.cross_rail_hops(rings, topology),
        },
    )
