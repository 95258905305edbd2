"""The figure of storage has a bar for each transport, and says of which clock it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.report.cluster.cluster_record import ClusterRecord
from emulator.report.cluster.storage_figure import storage_figures


def record(*rows: dict[str, object]) -> ClusterRecord:
    return ClusterRecord(path=Path("none"), result={"rows": rows}, samples=())


def row(transport: str, clock: str, port_share: float | None) -> dict[str, object]:
    known = {"what": "epoch 1", "busy_share": 1.0, "bound_by": "machine", "GBps": 2.0}
    return {**known, "transport": transport, "clock": clock, "port_share": port_share}


def test_every_bar_names_its_clock() -> None:
    (figure,) = storage_figures(
        record(row("nvme/tcp", "host/100", 0.1), row("uet", "virtual", 0.9), {"what": "clocks"})
    )
    assert [(one["by"], one["port_share"]) for one in figure.records] == [
        ("nvme/tcp, host/100 clock", pytest.approx(0.1)),
        ("uet, virtual clock", pytest.approx(0.9)),
    ]
    assert figure.spec is not None


def test_an_epoch_of_the_cache_has_no_bar() -> None:
    (figure,) = storage_figures(
        record(row("nvme/tcp", "host/100", 0.1), row("uet", "virtual", None))
    )
    assert len(figure.records) == 1


def test_other_scenarios_have_no_such_figure() -> None:
    assert list(storage_figures(record({"what": "requests", "sent": 5}))) == []
