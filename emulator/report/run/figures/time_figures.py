"""Figures over the time of an iteration of what switches count: load, queues, marks, drops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emulator.dataplane.switch.code_points import LAB
from emulator.dataplane.switch.telemetry import FILE
from emulator.report.observation_points import SWITCH
from emulator.report.run.figures import vega_lite as vl
from emulator.report.run.figures.figure import Figure
from emulator.report.run.figures.port_heat import (
    LAST,
    TIME,
    ZOOM,
    Cut,
    PortHeat,
    Records,
    Windows,
    edges_of,
    spans_of,
)
from emulator.report.run.port_series import capture_filters, cut_series, read_series
from emulator.report.run_folder import NO_ROW, RunRecord

#: Lines of the figure of queues: the deepest ones; and points of a line at most.
MOST_QUEUES, MOST_POINTS = 8, 400
#: One hue, whose strength is the load: it reads on light and dark pages, and in print.
HEAT = "#d1442f"


def time_figures(record: RunRecord) -> list[Figure]:
    """Return the figures over time of what switches count, or for each why there is none."""
    load = _load(record)
    read = NO_ROW if not record.rows else read_series(record.path / FILE)
    if isinstance(read, str):
        return [
            load.none(read),
            Figure.none("queues", "Queues over time", SWITCH, read),
            Figure.none("congestion", "Marks, trims and drops over time", SWITCH, read),
        ]
    cut, windows = cut_series(record, read)
    faults = fault_records(record)
    missing = record.missing.get("fabric.json")
    return [
        load.none(missing) if missing else load.figure(cut, windows, faults),
        _queues(cut, windows, faults),
        _congestion(record, cut, windows, faults),
    ]


def fault_records(record: RunRecord) -> Records:
    """Return the faults as records of a time axis, row by row in the order of time."""
    found = [{"row": one.row, "t_us": one.at_us, "event": one.text} for one in record.faults]
    return sorted(found, key=lambda one: (one["row"], one["t_us"]))


def _load(record: RunRecord) -> PortHeat:
    links = record.topology.links if record.topology is not None else ()
    return PortHeat(
        name="link-load",
        title="Load of links over time",
        point=SWITCH,
        note="What left each switch port, all classes, over its link's rate.",
        column="tx_bytes",
        full={str(end): link.rate_bps / 8e6 for link in links for end in link.ends},
        key="load_percent",
        legend="load (%)",
        colour=HEAT,
        nothing="no sample fell into an iteration",
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
        spec=vl.time_figure([line, peaks, *vl.fault_layers(faults)], spans_of(windows)),
        by_row=True,
    )


def _thinned(count: int) -> Sequence[int]:
    """Return the numbers of the samples that are drawn: all, or as many as a line can show."""
    if count <= MOST_POINTS:
        return range(count)
    picked: list[int] = np.unique(np.linspace(0, count - 1, MOST_POINTS).astype(int)).tolist()
    return picked


def _congestion(record: RunRecord, cut: Cut, windows: Windows, faults: Records) -> Figure:
    title = "Marks, trims and drops over time"
    trimmed = f"{LAB.trimmed}, {LAB.trimmed_last_hop}"
    kinds = {"marked": "marked CE", "trimmed": "trimmed", "dropped": "dropped"}
    records: Records = []
    for row, ports in cut.items():
        edges = edges_of(ports, windows[row].begin_us)
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
        spec=vl.time_figure([bars, *vl.fault_layers(faults)], spans_of(windows), height=200),
        filters=capture_filters(
            record, f"(ip.dsfield.ecn == 3 || ip.dsfield.dscp in {{{trimmed}}})"
        ),
        by_row=True,
    )
