"""Test what stands in the folder of a run that was killed early."""

import json
from pathlib import Path

from emulator.pytest_plugin.runs import RunProcess
from emulator.run.run_start import UNFINISHED, note_end


def test_a_run_that_has_begun_has_a_result_to_complete(tmp_path: Path) -> None:
    run = RunProcess(tmp_path, "allreduce", "--fabric", "model", "--iterations", "1000")
    run.event("begin")
    run.process.kill()
    run.process.communicate()
    assert run.result["errors"] == [UNFINISHED]
    (run.folder / ".fabric.json.1234").touch()
    note_end(str(run.folder), "rank 1 was killed")
    assert run.result["errors"] == ["rank 1 was killed"]
    assert not list(run.folder.glob(".*"))


def test_a_run_that_says_why_it_ended_is_left_alone(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"errors": ["no room"]}))
    note_end(str(tmp_path), "rank 1 was killed")
    assert json.loads(result.read_text()) == {"errors": ["no room"]}
