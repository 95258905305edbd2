"""The part that one GPU had in an iteration, which a trial observes where the GPU is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class GpuExecution:
    """The part that one GPU had in an iteration, for the process that has its schedule and times.

    ``schedule`` is the GPU's as it was compiled, and ``result`` has the times of its operations.
    ``sent_ns[i]`` is when the message that operation i receives began to be sent, on the same
    clock; -1 for operations that receive nothing.  ``origin_ns`` is the common start.
    """

    schedule: Schedule
    result: RankResult
    sent_ns: npt.NDArray[np.int64]
    origin_ns: int
