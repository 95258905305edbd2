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

Measured: for each size, which is that of the buffer of a rank, the time from a common start until
the last GPU is done, and from it

- algbw = size / time, busbw = algbw * (n-1)/n, as the NCCL tests define them, in GB/s;
- ideal, a lower bound from link rates, header octets, cable and NVLink delays
  (``emulator.measures.ideal``), and how close the run came to it;
- data packets sent and sent again.

What should be seen: with g GPUs in each host, (n-g)/n of each buffer crosses the NIC of its GPU,
and all of it that goes to another rail climbs to the spines, unless ``--pxn`` relays it over
NVLink.  Rounds keep receivers from an incast: each receives from ``peers`` senders at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.endpoint.operations.schedule import Region, Schedule
from emulator.scenario import Contents, Outcome, Trial, parameter
from scenarios.collectives import owned_parts
from scenarios.collectives.program import Program
from scenarios.collectives.size_sweep import SizeSweep, nccl_columns
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT


@dataclass(frozen=True, kw_only=True)
class Parameters(SizeSweep):
    """The parameters of ``alltoall``."""

    peers: int = parameter(8, COUNT, help="rounds that are under way at a time")


def topology(parameters: Parameters) -> str:
    """Six hosts with four GPUs each, four rail switches, two spines."""
    return "rail_clos"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    owned_parts.check_ranks(topology, "AlltoAll")
    parts = parameters.parts(len(topology.gpus))
    return [_trial(parameters, topology, part, seed) for part in parts]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    ranks = len(topology.gpus)
    factor = (ranks - 1) / ranks
    return nccl_columns(trial, outcome, redop="none", bus_factor=factor, parts=ranks)


def _trial(parameters: Parameters, topology: Topology, part: int, seed: int) -> Trial:
    ranks = len(topology.gpus)
    size = part * ranks

    def compile_schedules() -> Sequence[Schedule]:
        program = Program.on(topology)
        for rank in range(ranks):
            program.allocate(rank, "input", size)
            program.allocate(rank, "output", size)
        ended: list[list[tuple[int, ...]]] = [[] for _ in range(ranks)]
        for number in range(1, ranks):
            over = number - 1 - parameters.peers
            waits = [own[over] if over >= 0 else () for own in ended]
            sends, receives = [0] * ranks, [0] * ranks
            for rank in range(ranks):
                peer = (rank + number) % ranks
                sends[rank], receives[peer] = program.transfer(
                    rank,
                    peer,
                    Region("input", peer * part, part),
                    Region("output", rank * part, part),
                    after=waits[rank],
                )
            for rank in range(ranks):
                ended[rank].append((sends[rank], receives[rank]))
        return program.schedules()

    def piece(rank: int, to: int) -> np.ndarray:
        """Return what ``rank`` sends to rank ``to``."""
        return owned_parts.numbers(seed, 1, rank, to, octets=part)

    def inputs(rank: int) -> Contents:
        values = np.concatenate([piece(rank, to) for to in range(ranks)])
        result = np.zeros((ranks, len(values) // ranks), values.dtype)
        result[rank] = piece(rank, rank)
        return {"input": values, "output": result.reshape(-1)}

    def expected(rank: int) -> Contents:
        return {"output": np.concatenate([piece(source, rank) for source in range(ranks)])}

    return Trial(
        collective="alltoall",
        size_bytes=size,
        compile=compile_schedules,
        inputs=inputs,
        expected=expected,
        memory_bytes=2 * size,
        warmups=parameters.warmups,
        iterations=parameters.iterations,
        facts={"peers": parameters.peers},
    )
