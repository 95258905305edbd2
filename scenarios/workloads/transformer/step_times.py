"""Where the time of a step goes at each GPU: computing, and what it waits for.

The times of messages are measured, those of computing are known.  A computation starts when the
last of what it needs is there: its wait counts as that of the exchange which that was part of.
It may be a message of another stage, or the norm that all wait for.  Then the time before its
sender began to send it is the pipeline's bubble.  So is what is left after a GPU's last operation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.run.measures.gpu_execution import GpuExecution
from emulator.sim.endpoint.operations.operation_table import (
    APPLY,
    RECEIVE,
    OperationTable,
)

COMPUTE, BUBBLE = "compute", "bubble"


@dataclass(frozen=True)
class Cause:
    """The last wait of an operation: a message for ``label``, sent at ``start_ns``."""

    label: str
    start_ns: int


@dataclass(frozen=True)
class StepTimes:
    """Times of one iteration (ns): ``shares`` by GPU and by what they were spent on, and ends."""

    shares: Mapping[int, Mapping[str, float]]
    ends_ns: Mapping[int, float]

    def end_ns(self, gpus: Iterable[int]) -> float:
        """Return when the last of ``gpus`` was done."""
        return max(self.ends_ns[gpu] for gpu in gpus)

    def mean_shares(self, gpus: Sequence[int]) -> dict[str, float]:
        """Return the shares (0..1) of the time of ``gpus``, their mean; idle ends are bubble."""
        whole = self.end_ns(gpus)
        total: dict[str, float] = {}
        for gpu in gpus:
            for what, spent in self.shares[gpu].items():
                total[what] = total.get(what, 0.0) + spent
            idle = whole - self.ends_ns[gpu]
            total[BUBBLE] = total.get(BUBBLE, 0.0) + idle
        return {what: spent / whole / len(gpus) for what, spent in total.items()}


@dataclass(frozen=True)
class GpuOperations:
    """The meaning of a GPU's operations: of receives by index, and which ones compute."""

    labels: Mapping[int, str]
    stream: frozenset[int]


def gpu_times(
    gpu: GpuExecution, what: GpuOperations, waited_for: Collection[str]
) -> tuple[dict[str, float], float]:
    """Return what a GPU's time in an iteration was spent on (ns), and when it was done.

    Messages of ``waited_for`` may come late because their sender had not begun.
    """
    table = OperationTable.of(gpu.schedule.operations)
    sent = (gpu.sent_ns - gpu.origin_ns).tolist()
    received = (gpu.result.operation_end - gpu.origin_ns).tolist()
    labels, stream = what.labels, what.stream
    kinds = table.columns["kind"].tolist()
    numbers = table.columns["number"].tolist()
    begin, after = table.begin.tolist(), table.after.tolist()
    ends = np.zeros(len(kinds)).tolist()
    causes: list[Cause | None] = [None] * len(kinds)
    spent: dict[str, float] = {}
    free = 0.0
    latest: Cause | None = None
    last = 0.0
    for at, kind in enumerate(kinds):
        if kind == RECEIVE:
            ends[at] = received[at]
            causes[at] = Cause(labels[at], sent[at])
        else:
            for one in after[begin[at] : begin[at + 1]]:
                if ends[one] > ends[at]:
                    ends[at], causes[at] = ends[one], causes[one]
        if at in stream:
            _wait(spent, free, ends[at], causes[at], waited_for)
            spent[COMPUTE] = spent.get(COMPUTE, 0.0) + numbers[at]
        if kind == APPLY:
            ends[at] += numbers[at]
        if at in stream:
            free = ends[at]
            causes[at] = None
        if ends[at] > last:
            last, latest = ends[at], causes[at]
    if latest is not None:
        _wait(spent, free, last, latest, waited_for)
    return spent, max(last, free)


def _wait(
    spent: dict[str, float],
    free: float,
    until: float,
    cause: Cause | None,
    waited_for: Collection[str],
) -> None:
    """Count the time from ``free`` to ``until``, in which a GPU did not compute."""
    if until <= free:
        return
    if cause is None:
        spent[BUBBLE] = spent.get(BUBBLE, 0.0) + until - free
        return
    begun = min(until, max(free, cause.start_ns)) if cause.label in waited_for else free
    spent[BUBBLE] = spent.get(BUBBLE, 0.0) + begun - free
    spent[cause.label] = spent.get(cause.label, 0.0) + until - begun
