"""Results of one rank in an execution of its schedule, and executions joined into one.

Of executions that are joined, indices and tags of the later ones are shifted, so that each message
has its own.  What an execution that was cut short never reached has times of -1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from emulator.sim.endpoint.operations.schedule import Copy, Operation, Receive, Schedule, Write

_NO_TIMES = np.zeros(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """The results of one rank in one execution.  Times are fabric ns, -1 where never reached.

    ``operation_start[i]`` is when operation i began (all before it were done) and
    ``operation_end[i]`` when it completed.

    ``error`` is ``None``, or the error's name: ``checksum``, ``misplaced``, ``transport``,
    ``scale-up``, ``schedule``, ``deadline``, ``dead`` or ``aborted``; ``detail`` explains it in one
    sentence.
    """

    rank: int
    node: str
    execution: int
    start_ns: int
    end_ns: int
    operation_start: npt.NDArray[np.int64]
    operation_end: npt.NDArray[np.int64]
    error: str | None = None
    detail: str = ""

    def brief(self) -> RankResult:
        """Return the result without the times of operations."""
        return replace(self, operation_start=_NO_TIMES, operation_end=_NO_TIMES)


#: The schedules of all ranks, and their results, both in rank order.
Part = tuple[Sequence[Schedule], Sequence[RankResult]]


def joined(parts: Sequence[Part], largest: Callable[[int], int] = lambda tag: tag) -> Part:
    """Return the schedules and results of all ``parts`` as those of one execution.

    ``largest`` returns the largest of the numbers that all processes have, each of which may have
    the schedules of some GPUs.
    """
    schedules, results = list(parts[0][0]), list(parts[0][1])
    for later_schedules, later_results in parts[1:]:
        highest = max((_tag(one) for each in schedules for one in each.operations), default=-1)
        tags = 1 + largest(highest)
        for place, (schedule, result) in enumerate(
            zip(later_schedules, later_results, strict=True)
        ):
            schedules[place] = _after(schedules[place], schedule, tags)
            results[place] = _followed(results[place], result)
    return schedules, results


def _tag(operation: Operation) -> int:
    return operation.tag if isinstance(operation, Write | Copy | Receive) else -1


def _after(earlier: Schedule, later: Schedule, tags: int) -> Schedule:
    first = len(earlier.operations)

    def moved(operation: Operation) -> Operation:
        after = tuple(index + first for index in operation.after)
        if isinstance(operation, Write | Copy | Receive):
            return replace(operation, after=after, tag=operation.tag + tags)
        return replace(operation, after=after)

    spans = [replace(span, first=span.first + first, end=span.end + first) for span in later.spans]
    return Schedule(
        rank=earlier.rank,
        buffers={**earlier.buffers, **later.buffers},
        operations=(*earlier.operations, *map(moved, later.operations)),
        spans=(*earlier.spans, *spans),
        gpu_time=earlier.gpu_time,
    )


def _followed(earlier: RankResult, later: RankResult) -> RankResult:
    return replace(
        later,
        start_ns=earlier.start_ns,
        operation_start=np.concatenate([earlier.operation_start, later.operation_start]),
        operation_end=np.concatenate([earlier.operation_end, later.operation_end]),
    )
