"""The timeline of one execution: what is in it, and what is left out of a large one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.endpoint.operations.rank_result import RankResult
from emulator.endpoint.operations.schedule import Compute, Schedule
from emulator.results import RunFolder
from emulator.run.report import timeline

RANKS, OPERATIONS = 4, 3


def written(folder: Path) -> dict[str, Any]:
    """The timeline of ranks that compute, as it stands in a run folder."""
    schedules = [
        Schedule(rank=rank, buffers={}, operations=(Compute(duration_ns=5),) * OPERATIONS)
        for rank in range(RANKS)
    ]
    begins = np.arange(OPERATIONS) * 5
    results = [
        RankResult(
            rank=rank,
            node=f"g{rank}",
            execution=1,
            start_ns=0,
            end_ns=15,
            operation_start=begins,
            operation_end=begins + 5,
        )
        for rank in range(RANKS)
    ]
    names = [result.node for result in results]
    run = RunFolder.create("timeline", folder / "run")
    path = run.write("timeline.json", timeline.timeline(names, schedules, results))
    run.close()
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def gpus(content: dict[str, Any]) -> set[object]:
    events = content["traceEvents"]
    assert isinstance(events, list)
    return {event["pid"] for event in events}


def test_all_operations_are_in_it(tmp_path: Path) -> None:
    content = written(tmp_path)
    assert gpus(content) == set(range(RANKS))
    assert sum(event["ph"] == "X" for event in content["traceEvents"]) == RANKS * OPERATIONS
    assert "gpus" not in content["otherData"]


@pytest.mark.parametrize(("most", "shown"), [(2 * OPERATIONS, 2), (1, 1), (4 * OPERATIONS, 4)])
def test_of_too_many_those_of_the_first_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, shown: int
) -> None:
    monkeypatch.setattr(timeline, "SHOWN", most)
    content = written(tmp_path)
    assert gpus(content) == set(range(shown))
    stated = content["otherData"].get("gpus")
    left_out = f"the first {shown} of {RANKS}: all have {RANKS * OPERATIONS} operations"
    assert stated == (left_out if shown < RANKS else None)
