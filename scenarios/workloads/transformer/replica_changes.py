"""State that moves when a job loses or gains a replica between two steps.

A new replica gets the weights from one that was there, in 16 bits, and 14 octets of states for
each.  That is Adam in mixed precision (Rajbhandari et al., SC'20, section 3.1).  Where ZeRO divides
the states, every replica that was there sends a part of the new one's share.  One that leaves
gives its share to those that stay.  GPUs stay at their places in the widest layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scenarios.workloads.transformer.parallel_layout import ParallelLayout
from scenarios.workloads.transformer.step_operations.training_step import Handover
from scenarios.workloads.transformer.step_shape import STATE_BYTES, WEIGHT_BYTES, StepShape


def handovers(before: StepShape, after: StepShape, widest: ParallelLayout) -> Iterator[Handover]:
    """Yield what GPUs send before the step ``after``, if ``before`` was the one before it."""
    old, new = before.layout.dp, after.layout.dp
    weights = int(after.gpu_weights)
    for rank in range(widest.ranks):
        place = widest.place(rank)
        peers = [widest.rank(replace(place, dp=dp)) for dp in range(widest.dp)]
        if old <= place.dp < new:
            source = peers[(place.dp - old) % old]
            octets = weights * WEIGHT_BYTES
            if not after.zero:
                octets += weights * STATE_BYTES
            yield Handover(source, rank, octets)
            if after.zero:
                share = weights * STATE_BYTES // new // old
                yield from (Handover(peers[other], rank, share) for other in range(old))
        elif new <= place.dp < old and after.zero:
            each = STATE_BYTES + (WEIGHT_BYTES if after.zero == 3 else 0)
            share = weights * each // old // new
            yield from (Handover(rank, peers[other], share) for other in range(new))
