"""The result of one rank in one execution of its schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

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
