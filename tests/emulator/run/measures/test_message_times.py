"""Messages of iterations as they are recorded."""

import numpy as np

from emulator.run.measures.message_times import Recorder
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Compute, Schedule


def test_schedules_without_messages_have_none() -> None:
    recorder = Recorder([Schedule(rank=0, buffers={}, operations=(Compute(duration_ns=5),))])
    recorder.add(
        [
            RankResult(
                rank=0,
                node="g0",
                execution=1,
                start_ns=100,
                end_ns=105,
                operation_start=np.array([100]),
                operation_end=np.array([105]),
                error=None,
                detail="",
            )
        ]
    )
    (iteration,) = recorder
    assert len(iteration.length) == 0
    assert iteration.origin_ns == 100
