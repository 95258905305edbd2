"""Samples of ports: windows of iterations, and counts that begin anew."""

from pathlib import Path

import numpy as np
import pytest

from emulator.dataplane.switch.telemetry import COLUMNS, FILE
from emulator.report.run.port_series import PortSeries, read_series, unbroken


def written(folder: Path, *samples: tuple[float, int, int]) -> PortSeries:
    """Samples as time, queue and octets sent."""
    lines = [",".join(COLUMNS)]
    lines += [f"{t},a:b,{queue},{queue},0,{sent},0,0,0,0,0,0" for t, queue, sent in samples]
    (folder / FILE).write_text("\n".join(lines) + "\n")
    read = read_series(folder / FILE)
    assert not isinstance(read, str)
    return read["a:b"]


def test_counts_go_on_where_a_stage_counts_anew() -> None:
    assert unbroken(np.array([0.0, 5, 9, 0, 4, 4, 2])).tolist() == [0, 5, 9, 9, 13, 13, 15]
    assert unbroken(np.array([3.0])).tolist() == [3]


def test_growth_begins_with_the_reset(tmp_path: Path) -> None:
    series = written(tmp_path, (90, 5, 900), (100, 0, 1000), (101, 0, 0), (105, 7, 400))
    window = series.window(100, 105)
    assert window.growth("tx_bytes", np.array([100.0, 101, 103, 105])).tolist() == [0, 200, 200]
    assert window.values["queue_bytes"].tolist() == [0, 0, 7]


def test_a_window_holds_what_was_before_it_and_goes_on_to_its_end(tmp_path: Path) -> None:
    window = written(tmp_path, (0, 4, 0), (6, 9, 10), (20, 1, 50)).window(5, 15)
    assert window.t_us.tolist() == [5, 6, 15]
    assert window.values["queue_bytes"].tolist() == [4, 9, 9]
    assert window.values["peak_bytes"].tolist() == [4, 9, 9]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "another version"),
        ("time,port\n1,2\n", "another version"),
        (",".join(COLUMNS) + "\n", "no samples"),
        (",".join(COLUMNS) + "\n" + "x,a:b" + ",0" * 10 + "\n", "damaged"),
    ],
)
def test_what_cannot_be_read_has_a_reason(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / FILE).write_text(content)
    read = read_series(tmp_path / FILE)
    assert isinstance(read, str)
    assert words in read


def test_the_last_line_of_a_killed_run_is_left_out(tmp_path: Path) -> None:
    written(tmp_path, (0, 1, 2))
    with (tmp_path / FILE).open("a") as stream:
        stream.write("3.5,a:b,1")
    read = read_series(tmp_path / FILE)
    assert not isinstance(read, str)
    assert len(read["a:b"].t_us) == 1
