"""The figure of jobs that start: how long the slowest rank was in each phase."""

from __future__ import annotations

from collections.abc import Iterator

from emulator.report.cluster.cluster_record import ClusterRecord
from emulator.report.run.figures import vega_lite
from emulator.report.run.figures.figure import Figure
from emulator.report.run.figures.vega_lite import encoding, tooltip

NAME, TITLE = "job-start", "Start of jobs: the slowest rank in each phase"
POINT = "processes of the ranks, by the host's clock"
NOTE = (
    "Milliseconds of this machine: register, barrier and exchange of addresses over management, "
    "then the broadcast of the first parameters."
)
PHASES = ("register", "barrier", "exchange", "broadcast")
#: Of a job's bar, with the space to the next (px).
HEIGHT = 40


def job_start_figures(record: ClusterRecord) -> Iterator[Figure]:
    """Yield the figure, if a job has started in the run."""
    records = [
        {"job": row["what"], "phase": phase, "order": order, "ms": row[f"{phase}_ms"]}
        for row in record.result.get("rows", ())
        if all(f"{phase}_ms" in row for phase in PHASES)
        for order, phase in enumerate(PHASES)
    ]
    if records:
        yield Figure(
            name=NAME,
            title=TITLE,
            point=POINT,
            note=NOTE,
            records=records,
            spec=_spec(len(records) // len(PHASES)),
        )


def _spec(jobs: int) -> vega_lite.Json:
    bars = {
        "mark": {"type": "bar"},
        "encoding": {
            "y": encoding("job", "N", None, sort=None),
            "x": encoding("ms", "Q", "ms of this machine"),
            "color": encoding("phase", "N", None, sort=list(PHASES)),
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": tooltip(("job", "job"), ("phase", "phase"), ("ms", "ms")),
        },
    }
    return vega_lite.figure([bars], by_row=False, height=jobs * HEIGHT)
