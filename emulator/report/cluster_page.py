"""The report of a cluster's run, read from its folder: a page with all networks over time.

The data of its figures are beside it.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulator.cluster.run.cluster_runner import SCHEMA
from emulator.dataplane.switch.telemetry import FILE
from emulator.errors import UserError
from emulator.report.run.figures import vega_lite
from emulator.report.run.figures.figure import Figure
from emulator.report.run.figures.vega_lite import encoding, tooltip
from emulator.report.run.page import rendered, write_with_data
from emulator.report.run.port_series import PortSeries, read_series
from emulator.report.run.report_tables import ReportTable
from topologies.model import NETWORKS

RESULT, SAMPLES = "result.json", "networks.csv"


@dataclass(frozen=True, kw_only=True)
class ClusterRecord:
    """``result`` is the content of ``result.json``, ``samples`` are the lines of ``networks.csv``.

    A sample has its time ``at_s``, its ``network``, and the octets and drops since the run began.
    """

    path: Path
    result: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path) -> ClusterRecord:
        """Read the folder ``path``.  Raises UserError if it is not that of a cluster's run."""
        try:
            result = json.loads((path / RESULT).read_text(encoding="utf-8"))
            with (path / SAMPLES).open(newline="", encoding="utf-8") as file:
                samples = [
                    {
                        "at_s": float(row["at_s"]),
                        "network": row["network"],
                        "octets": int(row["octets"]),
                        "drops": int(row["drops"]),
                    }
                    for row in csv.DictReader(file)
                ]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{path} is no complete folder of uetemu cluster: {error}") from None
        return cls(path=path, result=result, samples=samples)

    def dilation(self, network: str) -> float:
        """Return the machine's seconds for one of ``network``; 1 where the result has none."""
        rows = (one for one in self.result.get("networks", ()) if one["network"] == network)
        return float(next((one["dilation"] for one in rows), 1.0))


def is_cluster_run(path: Path) -> bool:
    """Return whether ``path`` is the folder of a cluster's run."""
    try:
        content = json.loads((path / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("schema") == SCHEMA


STARTS, STARTS_TITLE = "job-start", "Start of jobs: the slowest rank in each phase"
STARTS_POINT = "processes of the ranks, by the host's clock"
STARTS_NOTE = (
    "Milliseconds of this machine: register, barrier and exchange of addresses over management, "
    "then the broadcast of the first parameters."
)
PHASES = ("register", "barrier", "exchange", "broadcast")
#: Of a job's bar, with the space to the next (px).
BAR_HEIGHT = 40


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
            name=STARTS,
            title=STARTS_TITLE,
            point=STARTS_POINT,
            note=STARTS_NOTE,
            records=records,
            spec=_bars_of_starts(len(records) // len(PHASES)),
        )


def _bars_of_starts(jobs: int) -> vega_lite.Json:
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
    return vega_lite.figure([bars], by_row=False, height=jobs * BAR_HEIGHT)


NETWORK_POINT = "all ports of the network, sampled by the machine's time"
CURVE_HEIGHT = 130
BITS_PER_GBIT = 1e9


def network_figures(record: ClusterRecord) -> Iterator[Figure]:
    """Yield a figure for each network, in the order of the project's lists."""
    known = {sample["network"] for sample in record.samples}
    for network in (name for name in NETWORKS if name in known):
        rows = list(_network_rates(record, network))
        title = f"{network[:1].upper()}{network[1:]}: load over time"
        if len(rows) < 2:
            yield Figure.none(network, title, NETWORK_POINT, "the run was over before two samples")
            continue
        yield Figure(
            name=network,
            title=title,
            point=NETWORK_POINT,
            note=(
                f"Gb/s of the network's own time, summed over its ports: a second of it is "
                f"{record.dilation(network):g} of the machine's.  Dashed lines are the events "
                "that are listed below."
            ),
            records=rows,
            spec=_network_curve(record.result.get("events", ())),
        )


def _network_rates(record: ClusterRecord, network: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rate between each two samples of ``network``."""
    samples = [one for one in record.samples if one["network"] == network]
    dilation = record.dilation(network)
    for first, second in itertools.pairwise(samples):
        span_s = second["at_s"] - first["at_s"]
        if span_s > 0:
            bits = 8 * (second["octets"] - first["octets"])
            yield {
                "at_s": round(second["at_s"], 3),
                "gbps": bits / span_s * dilation / BITS_PER_GBIT,
                "drops": second["drops"] - first["drops"],
            }


def _network_curve(events: Sequence[Mapping[str, Any]]) -> vega_lite.Json:
    time = encoding("at_s", "Q", "machine's time since the run began (s)")
    layers: list[vega_lite.Json] = [
        {
            "mark": {"type": "area", "interpolate": "step-before", "opacity": 0.7},
            "encoding": {
                "x": time,
                "y": encoding("gbps", "Q", "Gb/s"),
                "tooltip": tooltip(("at_s", "at (s)"), ("gbps", "Gb/s"), ("drops", "drops")),
            },
        }
    ]
    if events:
        layers.append(
            {
                "data": {"values": [dict(event) for event in events]},
                "mark": {"type": "rule", "strokeDash": [5, 3], "size": 1.5},
                "encoding": {
                    "x": {"field": "at_s", "type": "quantitative"},
                    "tooltip": tooltip(("text", "event"), ("at_s", "at (s)")),
                },
            }
        )
    return vega_lite.figure(layers, by_row=False, height=CURVE_HEIGHT)


STORAGE, STORAGE_TITLE = "storage-ports", "Storage: use of the storage nodes' ports"
STORAGE_POINT = "clients, by octets and time; virtual rows: messages of the run by RDMA"
STORAGE_NOTE = (
    "Bars of the host's clock that the machine binds say how fast this machine is; those in "
    "virtual time are the network's and the transport's."
)
#: What a row has to have.
STORAGE_KEYS = ("what", "transport", "clock", "port_share", "busy_share", "bound_by", "GBps")
STORAGE_HEIGHT = 220


def storage_figures(record: ClusterRecord) -> Iterator[Figure]:
    """Yield the figure, if the run has rows over several transports."""
    rows = [row for row in record.result.get("rows", ()) if all(key in row for key in STORAGE_KEYS)]
    if not rows:
        return
    records = [{key: row[key] for key in STORAGE_KEYS} | {"by": _over(row)} for row in rows]
    drawn = [one for one in records if one["port_share"] is not None]
    order = list(dict.fromkeys(one["what"] for one in records))
    yield Figure(
        name=STORAGE,
        title=STORAGE_TITLE,
        point=STORAGE_POINT,
        note=STORAGE_NOTE,
        records=drawn,
        spec=_bars_of_storage(order),
    )


def _over(row: Mapping[str, Any]) -> str:
    return f"{row['transport']}, {row['clock']} clock"


def _bars_of_storage(order: list[str]) -> vega_lite.Json:
    bars = {
        "mark": {"type": "bar"},
        "encoding": {
            "x": encoding("what", "N", None, sort=order, axis={"labelAngle": 0}),
            "xOffset": {"field": "by", "sort": None},
            "y": encoding("port_share", "Q", "use of ports (1 is all)", scale={"domain": [0, 1]}),
            "color": encoding("by", "N", None, sort=None),
            "tooltip": tooltip(
                ("what", "work"),
                ("by", "over"),
                ("port_share", "use of ports"),
                ("GBps", "GB/s of a server"),
                ("bound_by", "bound by"),
                ("busy_share", "processors busy"),
            ),
        },
    }
    return vega_lite.figure([bars], by_row=False, height=STORAGE_HEIGHT)


VIRTUAL_POINT = "all switch ports of the run's fabric, in virtual time"
#: Steps of a curve.
STEPS = 120
BITS_PER_US_TO_GBPS = 1e-3


def virtual_run_figures(record: ClusterRecord) -> Iterator[Figure]:
    """Yield a figure for each run whose folder is in that of ``record``."""
    for file in sorted(record.path.glob(f"*/{FILE}")):
        run = file.parent.name
        name, title = f"virtual-{run}", f"{run[:1].upper()}{run[1:]}: load over virtual time"
        series = read_series(file)
        if isinstance(series, str):
            yield Figure.none(name, title, VIRTUAL_POINT, series)
            continue
        yield Figure(
            name=name,
            title=title,
            point=VIRTUAL_POINT,
            note=(
                f"Gb/s, summed over the ports, by the run's own clock.  It ran beside the networks "
                f"above, on a fabric of its own; its folder is {run}/."
            ),
            records=list(_virtual_rates(series)),
            spec=_virtual_curve(),
        )


def _virtual_rates(series: Mapping[str, PortSeries]) -> Iterator[Mapping[str, Any]]:
    """Yield the rate of all ports together in equal steps of time."""
    edges = np.linspace(0.0, max(float(one.t_us[-1]) for one in series.values()), STEPS + 1)
    octets = np.sum([one.growth("tx_bytes", edges) for one in series.values()], axis=0)
    step_us = edges[1] - edges[0]
    if step_us <= 0:
        return
    for at_us, sent in zip(edges[1:], octets, strict=True):
        yield {
            "t_us": round(float(at_us), 3),
            "gbps": float(8 * sent / step_us * BITS_PER_US_TO_GBPS),
        }


def _virtual_curve() -> vega_lite.Json:
    layer = {
        "mark": {"type": "area", "interpolate": "step-before", "opacity": 0.7},
        "encoding": {
            "x": encoding("t_us", "Q", "virtual time (us)"),
            "y": encoding("gbps", "Q", "Gb/s"),
            "tooltip": tooltip(("t_us", "at (us)"), ("gbps", "Gb/s")),
        },
    }
    return vega_lite.figure([layer], by_row=False, height=CURVE_HEIGHT)


@dataclass(frozen=True)
class FigureSection:
    """Figures of the page below one heading; ``name`` is its anchor."""

    name: str
    heading: str
    figures: Sequence[Figure]


def cluster_tables(record: ClusterRecord) -> Iterator[ReportTable]:
    """Yield the rows of the result, a table for each set of columns, then what surrounds them."""
    groups: dict[tuple[str, ...], list[Sequence[str]]] = {}
    for row in record.result.get("rows", ()):
        groups.setdefault(tuple(row), []).append([_cell(value) for value in row.values()])
    for number, (columns, rows) in enumerate(groups.items(), start=1):
        title = str(rows[0][0]) if len(rows) == 1 else f"{rows[0][0]} and {len(rows) - 1} more"
        yield _table(f"rows-{number}", title[:1].upper() + title[1:], columns, rows)
    yield _listed("networks", "Networks and their clocks", record.result.get("networks", ()))
    yield _listed("events", "Events", record.result.get("events", ()))
    yield _listed("services", "Services", record.result.get("services", ()))


def write_cluster_report(folder: Path, output: Path | None = None) -> Path:
    """Write the report of the folder of a cluster's run; return the page's path.

    The page is ``report.html`` in the folder, or ``output``; the data of its figures are beside it.
    """
    record = ClusterRecord.read(folder)
    sections = [
        FigureSection("compared", "Over TCP and by RDMA", list(storage_figures(record))),
        FigureSection("starts", "Jobs start", list(job_start_figures(record))),
        FigureSection("over-time", "The networks over time", list(network_figures(record))),
        FigureSection("virtual", "Beside them, in virtual time", list(virtual_run_figures(record))),
    ]
    figures = [figure for section in sections for figure in section.figures]
    return write_with_data(cluster_html(record, sections), folder, output, figures)


def cluster_html(record: ClusterRecord, sections: Sequence[FigureSection]) -> str:
    """Return the page with all ``sections`` that have figures.

    It needs no other file and no network.
    """
    figures = [figure for section in sections for figure in section.figures]
    specs = {
        figure.name: {
            **figure.spec,
            "data": {"values": list(figure.records)},
            "config": vega_lite.CONFIG,
        }
        for figure in figures
        if figure.spec is not None
    }
    result = record.result
    failed = [str(row.get("what")) for row in result.get("rows", ()) if not row.get("ok", True)]
    return rendered(
        "cluster.html.j2",
        bool(specs),
        result=result,
        sections=[section for section in sections if section.figures],
        tables=list(cluster_tables(record)),
        specs=specs,
        failed=failed,
        errors=list(result.get("errors", ())),
        command=_command(record),
    )


def _command(record: ClusterRecord) -> str:
    """Return the command that runs the same scenario again."""
    result = record.result
    words = [f"uetemu cluster {result.get('scenario')} --topology {result.get('topology')}"]
    for name, value in result.get("parameters", {}).items():
        text = ",".join(map(str, value)) if isinstance(value, list) else value
        words.append(f"--param {name}={text}")
    words.append(f"--seed {result.get('seed')}")
    return " ".join(words)


def _listed(name: str, title: str, rows: Sequence[dict[str, object]]) -> ReportTable:
    if not rows:
        return ReportTable(name, title, (), (), (), reason="the run had none")
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    return _table(name, title, columns, cells)


def _table(
    name: str, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> ReportTable:
    return ReportTable(name, title, [("", len(columns))], columns, rows)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
