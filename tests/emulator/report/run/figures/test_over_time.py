"""Test the figures of NIC ports and pauses over time."""

from pathlib import Path

import pytest

from emulator.report.run.figures.over_time import line_figures
from emulator.report.run_folder import RunRecord
from tests.harness.runs.written_folder import BEGAN_US, result, row, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "run", result(row()))


def test_load_and_pauses_of_a_nic_in_its_iteration(folder: Path) -> None:
    nics, paused, sums = line_figures(RunRecord.read(folder), [])
    assert [figure.reason for figure in (nics, paused, sums)] == [None] * 3
    (sent,) = nics.records
    assert sent == {
        "row": 1, "port": "h1g0:eth0", "t_us": 0.0, "until_us": 5.0, "load_percent": 50.0,
    }  # fmt: skip
    (stopped,) = paused.records
    assert (stopped["t_us"], stopped["until_us"], stopped["paused_percent"]) == (5.0, 10.0, 40.0)
    assert {one["port"]: one["paused_us"] for one in sums.records} == {
        "h1g0:eth0": 2.5, "rail0:down1": 0.0,
    }  # fmt: skip


def test_each_figure_has_a_reason_without_the_samples(folder: Path) -> None:
    (folder / "line_telemetry.csv").unlink()
    nics, paused, sums = line_figures(RunRecord.read(folder), [])
    assert nics.reason == paused.reason
    assert "no line_telemetry.csv, which a run with --clock virtual writes" in str(nics.reason)
    assert sums.reason is None


def test_a_port_that_was_never_paused_is_no_empty_map(folder: Path) -> None:
    lines = (folder / "line_telemetry.csv").read_text().replace(",2000", ",0")
    (folder / "line_telemetry.csv").write_text(lines)
    _, paused, _ = line_figures(RunRecord.read(folder), [])
    assert paused.reason == "no port was paused in these iterations"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("t_us,port,other\n", "is of another version"),
        ("t_us,port,sent_bytes,paused_ns\n", "holds no samples"),
        ("t_us,port,sent_bytes,paused_ns\n1,h1g0:eth0,x,0\n", "is damaged"),
    ],
)
def test_a_damaged_file_becomes_a_reason(folder: Path, text: str, words: str) -> None:
    (folder / "line_telemetry.csv").write_text(text)
    nics, _, _ = line_figures(RunRecord.read(folder), [])
    assert words in str(nics.reason)


def test_pauses_have_the_display_filter_of_pause_frames(folder: Path) -> None:
    (folder / "capture.pcapng").touch()
    _, paused, _ = line_figures(RunRecord.read(folder), [])
    begin = f"946684800.{round(BEGAN_US * 1000):09d}"
    assert paused.filters[1].startswith(f"eth.type == 0x8808 && frame.time_epoch >= {begin}")
