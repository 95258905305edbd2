"""Figures and tables of the traffic of a run's last row: what ``uetemu traffic`` counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from emulator.report.run.figures import vega_lite as vl
from emulator.report.run.figures.figure import Figure
from emulator.report.run.report_tables import ReportTable, figure_table
from emulator.report.run_folder import RunRecord
from emulator.report.traffic.tables import Bounds, run_tables
from topologies.units import format_size

#: Octets of a capture that is counted for a page, at most: some hundred thousand packets.
LARGEST_CAPTURE = 128 * 2**20
#: GPUs of a figure, at most.
MOST_GPUS = 32
TABLES = (
    *("messages", "message-flows", "packet-phases", "packets", "services", "entropy", "bursts"),
    "parallel-links",
)
_STATES = {
    "computes_percent": "computes",
    "waits_for_fabric_percent": "waits for the fabric",
    "idle_otherwise_percent": "idle otherwise",
}
#: Pixels of a line of a figure.
_STEP = {"step": 20}


def traffic_figures(record: RunRecord) -> tuple[list[Figure], list[ReportTable]]:
    """Return the figures and the tables of the last row."""
    bounds = Bounds(largest_capture=LARGEST_CAPTURE)
    found = {one.name: one for one in run_tables(record, len(record.rows), bounds)}
    figures = [
        _sizes(found["message-sizes"], "network", "message"),
        _matrix(found["servers"]),
        _gpus(found["gpus"]),
        _sizes(found["packet-sizes"], "tier", "packet"),
        _over_time(found["utilisation-over-time"]),
    ]
    of = f"Row {len(record.rows)}."
    tables = [
        figure_table(
            found[name],
            {key: _heading(key) for key in _keys(found[name])},
            note=f"{of} {found[name].note}",
        )
        for name in TABLES
    ]
    return [replace(one, note=f"{of} {one.note}".strip()) for one in figures], tables


def _keys(table: Figure) -> list[str]:
    return list(dict.fromkeys(key for record in table.records for key in record))


def _heading(key: str) -> str:
    return key.replace("_", " ").replace(" percent", " %").replace(" bytes", " B")


def _drawn(table: Figure, records: Sequence[Mapping[str, Any]], spec: vl.Json) -> Figure:
    """Return the table with ``records`` as its data and their drawing, if it has any."""
    return table if table.reason is not None else replace(table, records=records, spec=spec)


def _sizes(table: Figure, by: str, what: str) -> Figure:
    records = [{**one, "size": format_size(one["up_to_bytes"])} for one in table.records]
    order = [format_size(one) for one in sorted({one["up_to_bytes"] for one in table.records})]
    bars: vl.Json = {
        "mark": {"type": "bar"},
        "encoding": {
            "x": vl.encoding("size", "O", f"{what}, at most", sort=order, axis={"labelAngle": 0}),
            "xOffset": {"field": by},
            "y": vl.encoding("count", "Q", f"{what}s"),
            "color": vl.encoding(by, "N", None),
            "tooltip": vl.tooltip(
                (by, by), ("size", "at most"), ("count", f"{what}s"), ("sum_bytes", "octets")
            ),
        },
    }
    return _drawn(table, records, vl.figure([bars], by_row=False))


def _matrix(table: Figure) -> Figure:
    servers = sorted(
        {one[end] for one in table.records for end in ("from", "to")},
        key=lambda name: (len(name), name),
    )
    cells: vl.Json = {
        "mark": {"type": "rect"},
        "encoding": {
            "x": vl.encoding("to", "N", "to", sort=servers, axis={"labelAngle": 0}),
            "y": vl.encoding("from", "N", "from", sort=servers),
            "color": vl.encoding("network", "N", None),
            "opacity": vl.encoding("bytes", "Q", "octets", scale={"range": [0.1, 1]}, legend=None),
            "tooltip": vl.tooltip(
                ("from", "from"),
                ("to", "to"),
                ("network", "network"),
                ("relation", "relation"),
                ("bytes", "octets"),
                ("messages", "messages"),
            ),
        },
    }
    return _drawn(table, table.records, vl.figure([cells], by_row=False, height=_STEP))


def _gpus(table: Figure) -> Figure:
    records = [
        {"gpu": one["gpu"], "state": state, "order": order, "percent": one[key]}
        for one in table.records[:MOST_GPUS]
        for order, (key, state) in enumerate(_STATES.items())
    ]
    bars: vl.Json = {
        "mark": {"type": "bar"},
        "encoding": {
            "y": vl.encoding("gpu", "N", None, sort=None),
            "x": vl.encoding("percent", "Q", "of the iteration (%)", scale={"domain": [0, 100]}),
            "color": vl.encoding("state", "N", None, sort=list(_STATES.values())),
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": vl.tooltip(("gpu", "GPU"), ("state", "state"), ("percent", "%")),
        },
    }
    return _drawn(table, records, vl.figure([bars], by_row=False, height=_STEP))


def _over_time(table: Figure) -> Figure:
    line: vl.Json = {
        "mark": {"type": "line", "interpolate": "step-before", "strokeWidth": 2, "clip": True},
        "params": [vl.zoom()],
        "encoding": {
            "x": vl.encoding("t_us", "Q", "time since the start of the iteration (us)"),
            "y": vl.encoding("mean_percent", "Q", "mean use of links (%)"),
            "color": vl.encoding("tier", "N", None),
            "tooltip": vl.tooltip(("tier", "tier"), ("t_us", "until (us)"), ("mean_percent", "%")),
        },
    }
    return _drawn(table, table.records, vl.figure([line], by_row=False))
