"""The plugin reads whole events of a run that is under way, or was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.pytest_plugin.run_factory import RunFactory
from emulator.pytest_plugin.run_process import RunProcess


def test_a_line_that_is_being_written_is_no_event_yet(tmp_path: Path) -> None:
    run = RunProcess.__new__(RunProcess)  # one that reads, and starts nothing
    run.folder = tmp_path
    assert run.events() == []
    (tmp_path / "events.jsonl").write_text('{"event": "begin"}\n{"event": "bui')
    assert run.events() == [{"event": "begin"}]
    (tmp_path / "events.jsonl").write_text('{"event": "begin"}\n{"event": "built"}\n')
    assert [one["event"] for one in run.events()] == ["begin", "built"]


def test_an_unknown_argument_is_told_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r'no argument sizes: .* params=\{"sizes": \.\.\.\}'):
        RunFactory(tmp_path)("allreduce", sizes="64KiB")
    assert list(tmp_path.iterdir()) == []
