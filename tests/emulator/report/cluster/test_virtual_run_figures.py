"""A run in virtual time has a figure of all its ports, or the reason why it has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.dataplane.switch.telemetry import COLUMNS, FILE
from emulator.report.cluster.cluster_record import ClusterRecord
from emulator.report.cluster.virtual_run_figures import virtual_run_figures

ZEROS = ",0" * (len(COLUMNS) - 6)


def written(folder: Path, *samples: tuple[float, str, int]) -> None:
    folder.mkdir()
    lines = [f"{at},{port},0,0,0,{octets}{ZEROS}" for at, port, octets in samples]
    (folder / FILE).write_text("\n".join([",".join(COLUMNS), *lines, ""]))


def test_the_rates_of_all_ports_are_added(tmp_path: Path) -> None:
    assert COLUMNS[5] == "tx_bytes"
    written(
        tmp_path / "training1",
        *((0.0, "rail0:up0", 0), (0.0, "rail0:up1", 0)),
        *((10.0, "rail0:up0", 5000), (10.0, "rail0:up1", 2500)),
    )
    (figure,) = virtual_run_figures(ClusterRecord(path=tmp_path, result={}, samples=()))
    assert figure.name == "virtual-training1"
    assert {round(record["gbps"], 9) for record in figure.records} == {6.0}
    assert figure.records[-1]["t_us"] == pytest.approx(10.0)


def test_a_damaged_file_and_no_run_at_all(tmp_path: Path) -> None:
    record = ClusterRecord(path=tmp_path, result={}, samples=())
    assert not list(virtual_run_figures(record))
    written(tmp_path / "training1", (0.0, "rail0:up0", 0))
    (tmp_path / "training1" / FILE).write_text("t_us\n")
    (figure,) = virtual_run_figures(record)
    assert figure.reason is not None
    assert "another version" in figure.reason
