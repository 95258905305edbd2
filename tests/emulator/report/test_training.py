"""The course of trainings: by hand, from folders of other versions, and as TensorBoard's files."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emulator.cli.reports.tensorboard_verb import command
from emulator.errors import UserError
from emulator.report.run_folder import RunRecord
from emulator.report.training import training_courses, write_event_files
from tests.harness.runs.event_records import scalars
from tests.harness.runs.written_folder import messages, result, row, write_folder


def learning(**changes: Any) -> dict[str, Any]:
    return row(losses=[2.0, 0.5], time_us=30.0, began_us=[50.0, 100.0], collective="fnn") | changes


def operation(gpu: int, name: str, at: float, lasts: float, cat: str = "compute") -> dict[str, Any]:
    return {"ph": "X", "pid": gpu, "tid": gpu, "name": name, "cat": cat, "ts": at, "dur": lasts}


#: Two GPUs and two epochs of 10 and 20 us, of which they compute 8 and 6, and 10 and 10 us.
TIMELINE = {
    "otherData": {"row": 1},
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "h0g0"}},
        operation(1, "epoch 1, layer 1 forward", 0, 8),
        operation(1, "epoch 1 to h1g0", 8, 2, "NIC"),
        operation(2, "epoch 1, layer 2 forward", 0, 6),
        operation(1, "epoch 2, layer 1 forward", 10, 10),
        operation(2, "epoch 2, layer 2 forward", 20, 10),
        operation(1, "epoch 1", 0, 99, "step"),
        operation(1, "warming up", 0, 99),
        {"ph": "C", "name": "queue", "ts": 3},
    ],
}


def folder(place: Path, *rows: dict[str, Any], timeline: object = TIMELINE) -> Path:
    events = []
    for number, one in enumerate(rows, start=1):
        events += [{"event": "row"}, messages(number, [one["time_us"]] * 2)]
    made = write_folder(place / "run", result(*rows), events)
    (made / "timeline.json").write_text(json.dumps(timeline))
    return made


def test_losses_steps_and_shares_by_hand(tmp_path: Path) -> None:
    run = folder(tmp_path, learning(), learning(transport="rocev2"))
    first, second = write_event_files(run)
    found = scalars(first)
    assert found["loss"] == [(1, 2.0, pytest.approx(110e-6)), (2, 0.5, pytest.approx(130e-6))]
    assert [one[:2] for one in found["time/step_us"]] == [(1, 10.0), (2, 20.0)]
    assert found["time/mean_step_us"] == [(2, 15.0, pytest.approx(130e-6))]
    assert [one[:2] for one in found["share/not_computing"]] == [
        (1, pytest.approx(0.3)),
        (2, 0.5),
    ]
    # the timeline is of the first row: of the second the end alone is known
    assert set(scalars(second)) == {"loss", "time/mean_step_us"}
    assert scalars(second)["loss"][0] == (1, 2.0, pytest.approx(130e-6))
    assert first.parent.name == "row-1-uet-fnn-64-KiB"
    assert "tfevents" in first.name


def test_a_replayed_step_has_shares_and_no_loss(tmp_path: Path) -> None:
    step = row(exposed=0.2, compute_share=0.5, bubble_share=0.3, dp_share=0.2)
    (path,) = write_event_files(folder(tmp_path, step, timeline=None))
    found = scalars(path)
    assert "loss" not in found
    assert found["share/communication"] == [(2, pytest.approx(0.2), pytest.approx(110e-6))]
    assert found["time/step_us"] == [
        (1, 10.0, pytest.approx(60e-6)),
        (2, 10.0, pytest.approx(110e-6)),
    ]


def test_equal_runs_leave_equal_octets(tmp_path: Path) -> None:
    one, two = (write_event_files(folder(tmp_path / name, learning()))[0] for name in "ab")
    assert one.read_bytes() == two.read_bytes()
    before = one.read_bytes()
    write_event_files(one.parents[2])  # again, over the same file
    assert one.read_bytes() == before
    assert [path.name for path in one.parent.iterdir()] == [one.name]


@pytest.mark.parametrize(
    "timeline",
    [None, {}, {"otherData": 7, "traceEvents": 7}, {"otherData": {"row": 1}, "traceEvents": [7]},
     {"otherData": {"row": 1, "gpus": "the first 2 of 9"}, "traceEvents": TIMELINE["traceEvents"]},
     {"otherData": {"row": 1}, "traceEvents": [{"ph": "X", "cat": "NIC", "name": 1}]}],
)  # fmt: skip
def test_without_a_whole_timeline_there_are_losses_alone(tmp_path: Path, timeline: object) -> None:
    (course,) = training_courses(RunRecord.read(folder(tmp_path, learning(), timeline=timeline)))
    assert {point.tag for point in course.points} == {"loss", "time/mean_step_us"}


def test_a_hostile_name_stays_in_its_folder(tmp_path: Path) -> None:
    run = folder(tmp_path, learning(transport="../../../etc/x\n", collective="/\0/.." * 50))
    (path,) = write_event_files(run)
    assert path.parents[1] == run / "tensorboard"


def test_what_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="has no training: rows of a neural training"):
        write_event_files(folder(tmp_path / "none", row()))
    run = folder(tmp_path, learning())
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*--output"):
        write_event_files(run, tmp_path / "file")
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UserError, match="not installed: pip install tensorboardX"):
        write_event_files(run)


def test_the_verb_names_what_it_wrote(tmp_path: Path) -> None:
    run = folder(tmp_path, learning())
    done = CliRunner().invoke(command, [str(run), "--output", str(tmp_path / "there")])
    assert done.exit_code == 0
    assert [Path(line).is_file() for line in done.output.splitlines()] == [True]
    done = CliRunner().invoke(command, [str(run), str(run), "-o", str(tmp_path)])
    assert isinstance(done.exception, UserError)
