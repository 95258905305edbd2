"""Bounds of rows: what they mean, and which texts are none."""

from pathlib import Path

import pytest

from emulator.errors import UserError
from emulator.pytest_plugin.runs import RunFactory, RunProcess, parse_bound


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


ROW = {"efficiency": 0.9, "dropped_packets": 0, "time_us": 12.5, "jain": None, "wrong": 0}


@pytest.mark.parametrize(
    "text",
    ["efficiency>=90%", "efficiency>=0.9", "drops==0", "time<12.6", "time_us > 12", "wrong!=1"],
)
def test_a_bound_that_is_kept(text: str) -> None:
    assert parse_bound(text).trouble(ROW) is None


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("efficiency>90%", "efficiency is 0.9"),
        ("drops>=1", "dropped_packets is 0"),
        ("time<=12.4", "time_us is 12.5"),
        ("jain>0", "jain was not measured"),
        ("busbw>0", "busbw_gbps was not measured"),
    ],
)
def test_a_bound_that_is_broken(text: str, trouble: str) -> None:
    assert parse_bound(text).trouble(ROW) == trouble


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("efficiency", "is no condition; write for example drops==0"),
        ("efficiency=>1", "is no condition"),
        ("speed>1", "speed is no value of a row; known are time, ideal, "),
        ("time<5%", "time_us is no share; leave % out"),
    ],
)
def test_what_is_no_bound(text: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_bound(text)
    assert words in str(refused.value)
    assert str(refused.value).startswith(f"bound {text!r}")
