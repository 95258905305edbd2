"""Figures over the time of an iteration: load of links, queues, marks, trims, drops, pauses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.asic.code_points import LAB
from emulator.run.report.row_ports import PAUSES
from emulator.run_report.figures import vega_lite as vl
from emulator.run_report.figures.figure import Figure
from emulator.run_report.observation_points import SWITCH
from emulator.run_report.port_series import (
    CAPTURE,
    IterationWindow,
    PortSeries,
    capture_filter,
    read_series,
    window_of,
)
from emulator.run_report.row_labels import drawn_rows
from emulator.run_report.run_record import NO_ROW, RunRecord

#: Columns of the heat map, and ports of it at most: those that carried most.
BINS, MOST_PORTS = 60, 32
#: Lines of the figure of queues: the deepest ones; and points of a line at most.
MOST_QUEUES, MOST_POINTS = 8, 400
#: One hue, whose strength is the load: it reads on light and dark pages, and in print.
HEAT = "#d1442f"
LAST = "The last iteration of the row; its start is 0."
ZOOM = "Shift and wheel zoom the time, shift and drag move it."
TIME = "time since the start of the iteration (us)"

Records = list[dict[str, Any]]
#: Row, and its samples by port, in its window.
Cut = dict[int, dict[str, PortSeries]]
Windows = dict[int, IterationWindow]


def time_figures(record: RunRecord) -> list[Figure]:
    """Return the figures over time, or for each of them why there is none."""
    read = NO_ROW if not record.rows else read_series(record.path)
    if isinstance(read, str):
        return [
            Figure.none("link-load", "Load of links over time", SWITCH, read),
            Figure.none("queues", "Queues over time", SWITCH, read),
            Figure.none("congestion", "Marks, trims and drops over time", SWITCH, read),
            _pauses(record),
        ]
    cut: Cut = {}
    windows: dict[int, IterationWindow] = {}
    for row in drawn_rows(len(record.rows)):
        window = window_of(record, row)
        if window is None:
            continue
        windows[row] = window
        cut[row] = {
            port: series.window(window.begin_us, window.end_us) for port, series in read.items()
        }
    faults = fault_records(record)
    return [
        _load(record, cut, windows, faults),
        _queues(cut, windows, faults),
        _congestion(record, cut, windows, faults),
        _pauses(record),
    ]


def fault_records(record: RunRecord) -> Records:
    """Return the faults as records of a time axis."""
    return [{"row": one.row, "t_us": one.at_us, "event": one.text} for one in record.faults]


def _spans(windows: Windows) -> dict[int, float]:
    return {row: one.end_us - one.begin_us for row, one in windows.items()}


def _edges(ports: dict[str, PortSeries], begin: float) -> np.ndarray | None:
    """Edges of time bins, none of them shorter than two samples are apart."""
    series = max(ports.values(), key=lambda one: len(one.t_us), default=None)
    if series is None or len(series.t_us) < 2:
        return None
    end = max(float(one.t_us[-1]) for one in ports.values() if len(one.t_us))
    moments = np.unique(np.concatenate([one.t_us for one in ports.values()]))
    bins = min(BINS, max(1, len(moments) - 1))
    return np.linspace(begin, end, bins + 1)


def _load(record: RunRecord, cut: Cut, windows: Windows, faults: Records) -> Figure:
    title = "Load of links over time"
    if record.topology is None:
        return Figure.none("link-load", title, SWITCH, record.missing["fabric.json"])
    rates = {str(end): link.rate_bps for link in record.topology.links for end in link.ends}
    records: Records = []
    left_out = 0
    for row, ports in cut.items():
        edges = _edges(ports, windows[row].begin_us)
        if edges is None:
            continue
        width = float(edges[1] - edges[0])
        if width <= 0:
            continue
        grown = {
            port: series.growth("tx_bytes", edges)
            for port, series in ports.items()
            if port in rates and len(series.t_us) > 1
        }
        busiest = sorted(grown, key=lambda port: (-float(grown[port].sum()), port))
        carrying = [port for port in busiest if grown[port].sum() > 0]
        left_out = max(left_out, len(carrying) - MOST_PORTS)
        for port in carrying[:MOST_PORTS]:
            load = grown[port] * 8e6 / (rates[port] * width) * 100
            for number in np.flatnonzero(load > 0.05).tolist():
                records.append(
                    {
                        "row": row,
                        "port": port,
                        "t_us": round(float(edges[number] - windows[row].begin_us), 4),
                        "until_us": round(float(edges[number + 1] - windows[row].begin_us), 4),
                        "load_percent": round(float(load[number]), 2),
                    }
                )
    if not records:
        return Figure.none("link-load", title, SWITCH, "no sample fell into an iteration")
    more = (
        f" The busiest {MOST_PORTS} ports; at most {left_out} more carried less."
        if left_out > 0
        else ""
    )
    heat = {
        "mark": {"type": "rect", "color": HEAT, "clip": True},
        "params": [vl.zoom()],
        "encoding": {
            "x": vl.time_axis(TIME),
            "x2": {"field": "until_us"},
            "y": vl.encoding(
                "port",
                "N",
                None,
                sort={"op": "sum", "field": "load_percent", "order": "descending"},
            ),
            "opacity": vl.encoding(
                "load_percent",
                "Q",
                "load (%)",
                scale={"domain": [0, 100], "range": [0.06, 1], "clamp": True},
            ),
            "tooltip": vl.tooltip(
                ("port", "port"),
                ("t_us", "from (us)"),
                ("until_us", "until (us)"),
                ("load_percent", "load (%)"),
            ),
        },
    }
    return Figure(
        name="link-load",
        title=title,
        point=SWITCH,
        note=f"{LAST} What left each switch port, all classes, over its link's rate. Ports of NICs "
        f"are not sampled.{more} {ZOOM}",
        records=records,
        spec=vl.time_figure([heat, *vl.fault_layers(faults)], _spans(windows), height={"step": 17}),
        by_row=True,
    )


def _queues(cut: Cut, windows: Windows, faults: Records) -> Figure:
    records: Records = []
    for row, ports in cut.items():
        busy = [
            port
            for port, one in ports.items()
            if len(one.t_us) and one.values["peak_bytes"].max() > 0
        ]
        busy.sort(key=lambda port: (-float(ports[port].values["peak_bytes"].max()), port))
        for port in busy[:MOST_QUEUES]:
            series = ports[port]
            for number in _thinned(len(series.t_us)):
                records.append(
                    {
                        "row": row,
                        "port": port,
                        "t_us": round(float(series.t_us[number]) - windows[row].begin_us, 4),
                        "queue_bytes": int(series.values["queue_bytes"][number]),
                        "peak_bytes": int(series.values["peak_bytes"][number]),
                    }
                )
    if not records:
        return Figure.none(
            "queues", "Queues over time", SWITCH, "no sample found a packet in a queue"
        )
    encoding = {
        "x": vl.time_axis(TIME),
        "y": vl.encoding("queue_bytes", "Q", "data in the queue (octets on the wire)"),
        "color": vl.encoding("port", "N", "port"),
        "tooltip": vl.tooltip(
            ("port", "port"),
            ("t_us", "at (us)"),
            ("queue_bytes", "waiting (B)"),
            ("peak_bytes", "deepest since the sample before (B)"),
        ),
    }
    line = {
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.6, "clip": True},
        "params": [vl.zoom()],
        "encoding": encoding,
    }
    peaks = {
        "transform": [{"filter": "datum.peak_bytes > 0"}],
        "mark": {"type": "point", "filled": True, "size": 22, "clip": True},
        "encoding": {**encoding, "y": {"field": "peak_bytes", "type": "quantitative"}},
    }
    return Figure(
        name="queues",
        title="Queues over time",
        point=SWITCH,
        note=f"{LAST} The {MOST_QUEUES} deepest data queues. The line is what waited when a sample "
        f"was taken; a point is the deepest since the sample before. {ZOOM}",
        records=records,
        spec=vl.time_figure([line, peaks, *vl.fault_layers(faults)], _spans(windows)),
        by_row=True,
    )


def _thinned(count: int) -> Sequence[int]:
    """Return the numbers of the samples that are drawn: all, or as many as a line can show."""
    if count <= MOST_POINTS:
        return range(count)
    picked: list[int] = np.unique(np.linspace(0, count - 1, MOST_POINTS).astype(int)).tolist()
    return picked


def _filters(record: RunRecord, condition: str) -> dict[int, str]:
    """Display filters for the last iteration of each drawn row, where the capture has its times."""
    if not (record.path / CAPTURE).exists() or record.result.get("digest") is None:
        return {}
    windows = {row: window_of(record, row) for row in drawn_rows(len(record.rows))}
    return {
        row: f"{condition} && {capture_filter(window)}"
        for row, window in windows.items()
        if window is not None
    }


def _congestion(record: RunRecord, cut: Cut, windows: Windows, faults: Records) -> Figure:
    title = "Marks, trims and drops over time"
    trimmed = f"{LAB.trimmed}, {LAB.trimmed_last_hop}"
    kinds = {"marked": "marked CE", "trimmed": "trimmed", "dropped": "dropped"}
    records: Records = []
    for row, ports in cut.items():
        edges = _edges(ports, windows[row].begin_us)
        if edges is None:
            continue
        for column, kind in kinds.items():
            total = sum(
                (one.growth(column, edges) for one in ports.values() if len(one.t_us) > 1),
                np.zeros(len(edges) - 1),
            )
            for number in np.flatnonzero(total > 0).tolist():
                records.append(
                    {
                        "row": row,
                        "kind": kind,
                        "t_us": round(float(edges[number] - windows[row].begin_us), 4),
                        "until_us": round(float(edges[number + 1] - windows[row].begin_us), 4),
                        "packets": round(float(total[number]), 2),
                    }
                )
    if not records:
        reason = "no switch marked, trimmed or dropped a packet in these iterations"
        return Figure.none("congestion", title, SWITCH, reason)
    bars = {
        "mark": {"type": "bar", "clip": True},
        "params": [vl.zoom()],
        "encoding": {
            "x": vl.time_axis(TIME, bin="binned"),
            "x2": {"field": "until_us"},
            "y": vl.encoding("packets", "Q", "packets in a bin of time", stack=True),
            "color": vl.encoding(
                "kind",
                "N",
                None,
                scale={"domain": [*kinds.values()], "range": ["#56b4e9", "#e69f00", "#d55e00"]},
            ),
            "tooltip": vl.tooltip(
                ("kind", "packets"),
                ("packets", "number"),
                ("t_us", "from (us)"),
                ("until_us", "until (us)"),
            ),
        },
    }
    return Figure(
        name="congestion",
        title=title,
        point=SWITCH,
        note=f"{LAST} All switch ports together; counts between two samples are spread evenly. "
        f"{ZOOM}",
        records=records,
        spec=vl.time_figure([bars, *vl.fault_layers(faults)], _spans(windows), height=200),
        filters=_filters(record, f"(ip.dsfield.ecn == 3 || ip.dsfield.dscp in {{{trimmed}}})"),
        by_row=True,
    )


def _pauses(record: RunRecord) -> Figure:
    title, point = "Pauses (PFC)", "port that was paused: switch or NIC"
    if not record.rows:
        return Figure.none("pauses", title, point, NO_ROW)
    observed = [row for row, one in record.ports.items() if PAUSES in one.observes]
    if not observed:
        return Figure.none("pauses", title, point, "no switch of this run sends pauses")
    records = [
        {
            "row": row,
            "port": port,
            "paused_us": counts.get("paused_ns", 0) / 1000,
            "xoff_sent": counts.get("xoff_sent", 0),
        }
        for row in observed
        for port, counts in record.ports[row].ports.items()
        if counts.get("paused_ns") or counts.get("xoff_sent")
    ]
    if not records:
        return Figure.none("pauses", title, point, "switches could pause, and none did")
    bars = {
        "mark": {"type": "bar", "color": "#cc79a7"},
        "encoding": {
            "x": vl.encoding("paused_us", "Q", "time paused (us), all iterations of the row"),
            "y": vl.encoding("port", "N", None, sort="-x"),
            "tooltip": vl.tooltip(
                ("port", "port"),
                ("paused_us", "paused (us)"),
                ("xoff_sent", "pauses that it asked for"),
            ),
        },
    }
    return Figure(
        name="pauses",
        title=title,
        point=point,
        note="Sums over the iterations of the row. Pauses are counted, not sampled, so that their "
        "times within an iteration are not known.",
        records=records,
        spec=vl.figure([bars], by_row=True, height={"step": 17}),
        by_row=True,
    )
