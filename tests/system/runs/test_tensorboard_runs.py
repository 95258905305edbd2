"""TensorBoard's files of real trainings: their losses, and equal octets of equal runs."""

from collections.abc import Callable

import pytest

from emulator.pytest_plugin.runs import RunProcess
from emulator.report.training import write_event_files
from tests.harness.runs.event_records import scalars

pytestmark = pytest.mark.root


def test_a_training_over_both_transports(start: Callable[..., RunProcess]) -> None:
    arguments = ["--param", "epochs=3", "--transport", "uet,rocev2", "--seeds", "1"]
    arguments += ["--capture", "none"]
    files = []
    for _ in range(2):
        run = start(*arguments, scenario="data_parallel")
        assert run.finish().status == 0
        files.append(write_event_files(run.folder))
    assert [one.read_bytes() for one in files[0]] == [one.read_bytes() for one in files[1]]
    rows = run.result["rows"]
    assert len(files[0]) == len(rows) == 2
    for path, row in zip(files[0], rows, strict=True):
        losses = [value for _, value, _ in scalars(path)["loss"]]
        assert losses == pytest.approx([row["loss_first"], row["losses"][1], row["loss_last"]])
    steps = scalars(files[0][1])["time/step_us"]  # of the row that the timeline is of
    assert sum(value for _, value, _ in steps) == pytest.approx(rows[1]["time_us"])
    shares = scalars(files[0][1])["share/not_computing"]
    assert all(0 < value < 1 for _, value, _ in shares)
