"""The figure of a job's start has a part for each phase, and is there only if one has started."""

from __future__ import annotations

from pathlib import Path

from emulator.report.cluster.cluster_record import ClusterRecord
from emulator.report.cluster.job_start_figure import job_start_figures


def record(*rows: dict[str, object]) -> ClusterRecord:
    return ClusterRecord(path=Path("none"), result={"rows": rows}, samples=())


def test_every_phase_of_every_job_is_drawn() -> None:
    phases = {"register_ms": 1.0, "barrier_ms": 2.0, "exchange_ms": 3.0, "broadcast_ms": 4.0}
    (figure,) = job_start_figures(
        record({"what": "start of tenant0", **phases}, {"what": "rank 3 missing"})
    )
    assert [(one["job"], one["phase"], one["ms"]) for one in figure.records] == [
        ("start of tenant0", "register", 1.0),
        ("start of tenant0", "barrier", 2.0),
        ("start of tenant0", "exchange", 3.0),
        ("start of tenant0", "broadcast", 4.0),
    ]


def test_without_a_job_there_is_none() -> None:
    assert not list(job_start_figures(record({"what": "requests", "sent": 5})))
