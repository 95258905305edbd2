"""The order in which a pipeline stage computes micro-batches, forward and backward.

``gpipe``: all forward, then all backward (Huang et al., arXiv 1811.06965).  ``1f1b``: as many
forward as there are later stages, then one forward and one backward in turns.  Interleaved
1F1B has several chunks of layers in each stage (Narayanan et al., SC'21, section 2.2).
Micro-batches then go through chunk 0 of all stages, and after that through chunk 1.  They go in
groups of as many as there are stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from emulator.errors import UserError
from scenarios.workloads.network.parallel_training import FORWARD, micro_batch_order

GPIPE, ONE_F_ONE_B = "gpipe", "1f1b"
ORDERS = (ONE_F_ONE_B, GPIPE)


class Task(NamedTuple):
    """One micro-batch through one chunk of a stage, forward or not."""

    forward: bool
    chunk: int
    micro: int


def pipeline_order(
    order: str, stage: int, stages: int, micro_batches: int, chunks: int = 1
) -> list[Task]:
    """Return the tasks of ``stage`` in their order.

    Raises UserError for an order that has no chunks.
    """
    if chunks == 1:
        found = micro_batch_order(order, stage, stages, micro_batches)
        return [Task(what == FORWARD, 0, micro) for what, micro in found]
    if order == GPIPE:
        raise UserError("order=gpipe has one chunk of layers a stage; take interleave=1, or 1f1b")
    forward = [_interleaved(True, turn, stages, chunks) for turn in range(micro_batches * chunks)]
    backward = [_interleaved(False, turn, stages, chunks) for turn in range(micro_batches * chunks)]
    early = min(len(forward), 2 * (stages - 1 - stage) + (chunks - 1) * stages)
    tasks = forward[:early]
    for one, other in zip(forward[early:], backward, strict=False):
        tasks += [one, other]
    return tasks + backward[len(forward) - early :]


def _interleaved(forward: bool, turn: int, stages: int, chunks: int) -> Task:
    groups, within = divmod(turn, stages * chunks)
    chunk = within // stages
    micro = groups * stages + within % stages
    return Task(forward, chunk if forward else chunks - 1 - chunk, micro)


def bubble(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Return the share of the time in which a stage is idle, messages left out.

    (p-1) / (v m + p-1) with p stages, v chunks and m micro-batches (SC'21, section 2.2).
    """
    return (stages - 1) / (chunks * micro_batches + stages - 1)


def stage_layers(layers: int, chunks: int) -> list[range]:
    """Divide ``layers`` over ``chunks``; chunks at the ends, with embedding and head, have fewer.

    Llama 3 takes a layer from the first and from the last of 16 stages, of 126 layers (arXiv
    2407.21783, section 3.3.2).
    """
    least, larger = divmod(layers, chunks)
    counts = [least + 1] * chunks
    for number in range(chunks - larger if larger else chunks):
        counts[number // 2 if number % 2 else -1 - number // 2] = least
    return _ranges(counts)


def _ranges(counts: Sequence[int]) -> list[range]:
    first, found = 0, []
    for count in counts:
        found.append(range(first, first + count))
        first += count
    return found
