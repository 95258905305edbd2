"""ReduceScatter over every GPU of the cluster: each GPU gets the sum of its part of the gradients.

::

    before                          after
    rank 0   [a0 b0 c0 d0]          rank 0   [A . . .]     A = a0 + a1 + a2 + a3
    rank 1   [a1 b1 c1 d1]          rank 1   [. B . .]
    rank 2   [a2 b2 c2 d2]  ----->  rank 2   [. . C .]
    rank 3   [a3 b3 c3 d3]          rank 3   [. . . D]

Traffic: ring ReduceScatter as NCCL does it, over flat rings of all n GPUs, one ring (channel) per
local rank, which stay on their rails between hosts (drawing in ``scenarios.collectives.ring``),
float32, sum.  Each GPU sums real numbers, and its part is compared with numpy's sum, element by
element.

Measured: for each size, which is that of the input of a rank, the time from a common start until
the last GPU is done, and from it

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
from scenarios.collectives.size_sweep import DTYPE, SizeSweep, nccl_columns
from topologies.model import Topology
from topologies.parts.design_parameters import SIZE


@dataclass(frozen=True, kw_only=True)
class Parameters(SizeSweep):
    """The parameters of ``reducescatter``."""

    slice_bytes: int = parameter(64 * 2**10, SIZE, help="pieces in which a part moves on")


def topology(parameters: Parameters) -> str:
    """Six hosts with four GPUs each, four rail switches, two spines."""
    return "rail_clos"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    rings = owned_parts.rings_of(topology, "ReduceScatter")
    parts = parameters.parts(len(topology.gpus))
    return [_trial(parameters, topology, rings, part, seed) for part in parts]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    ranks = len(topology.gpus)
    factor = (ranks - 1) / ranks
    return nccl_columns(trial, outcome, redop="sum", bus_factor=factor, parts=ranks)


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
            program.allocate(rank, "input", size)
            program.allocate(rank, "output", size)
        ring.reduce_scatter(
            program,
            owned_parts.channels(rings, part),
            source="input",
            result="output",
            staging="staging",
            slice_bytes=parameters.slice_bytes,
            dtype=DTYPE,
        )
        return program.schedules()

    def piece(rank: int, owner: int) -> np.ndarray:
        """Return what ``rank`` adds to the part of ``owner``."""
        return owned_parts.numbers(seed, ranks, rank, owner, octets=part)

    def inputs(rank: int) -> Contents:
        values = np.concatenate([piece(rank, owner) for owner in range(ranks)])
        return {"input": values, "output": np.zeros_like(values)}

    def expected(rank: int) -> Contents:
        total = np.zeros((ranks, part // np.dtype(DTYPE).itemsize), DTYPE)
        for other in range(ranks):
            total[rank] += piece(other, rank)
        return {"output": total.reshape(-1)}

    return Trial(
        collective="reduce_scatter",
        size_bytes=size,
        compile=compile_schedules,
        inputs=inputs,
        expected=expected,
        memory_bytes=3 * size,
        warmups=parameters.warmups,
        iterations=parameters.iterations,
        facts={
            "channels": len(rings),
            "cross_rail_hops": ring.cross_rail_hops(rings, topology),
        },
    )
