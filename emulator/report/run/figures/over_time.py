"""Figures over the time of an iteration: load of ports, queues, marks, trims, drops and pauses.

Switches count what their ports saw (``telemetry.csv``), the lines of a virtual clock what NICs sent
and how long pauses stopped each port (``line_telemetry.csv``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.dataplane.switch.code_points import LAB
from emulator.dataplane.switch.pause import ETHERTYPE
from emulator.dataplane.switch.telemetry import FILE
from emulator.metrics import ENDPOINT, SWITCH
from emulator.report.run.figures import vega_lite as vl
from emulator.report.run.figures.figure import Figure
from emulator.report.run.port_series import (
    IterationWindow,
    PortSeries,
    capture_filters,
    cut_series,
    read_series,
)
from emulator.report.run_folder import NO_ROW, RunRecord
from emulator.run_files import PAUSES
from emulator.sim import line_telemetry

#: Columns of a map, and ports of it at most: those that had most.
BINS, MOST_PORTS = 60, 32
#: A share of a cell below which it stays empty (per cent).
LEAST_PERCENT = 0.05
LAST = "The last iteration of the row; its start is 0."
ZOOM = "Shift and wheel zoom the time, shift and drag move it."
TIME = "time since the start of the iteration (us)"
Records = list[dict[str, Any]]
#: Row, and its samples by port, in its window.
Cut = dict[int, dict[str, PortSeries]]
Windows = dict[int, IterationWindow]


@dataclass(frozen=True, kw_only=True)
class PortHeat:
    """A map of the growth of ``column`` over what ``full`` allows in a us, by port.

    ``key`` and ``legend`` name the share in the data and beside the drawing.  ``colour`` is one
    hue: it reads on light and dark pages, and in print.  ``nothing`` is the reason where every cell
    is empty.  ``filters`` are Wireshark's that show the cause, by row.
    """

    name: str
    title: str
    point: str
    note: str
    column: str
    full: Mapping[str, float]
    key: str
    legend: str
    colour: str
    nothing: str
    filters: Mapping[int, str] = field(default_factory=dict)

    def none(self, reason: str) -> Figure:
        """Return the figure without a drawing, and the reason."""
        return Figure.none(self.name, self.title, self.point, reason)

    def figure(self, cut: Cut, windows: Windows, faults: Records) -> Figure:
        """Return the map of every row in ``cut``."""
        records: Records = []
        left_out = 0
        for row, ports in cut.items():
            found, more = self._records(row, ports, windows[row])
            records += found
            left_out = max(left_out, more)
        if not records:
            return self.none(self.nothing)
        more_words = (
            f" The {MOST_PORTS} ports with most; at most {left_out} more had less."
            if left_out > 0
            else ""
        )
        spans = spans_of(windows)
        layers = [self._layer(), *vl.fault_layers(faults)]
        return Figure(
            name=self.name,
            title=self.title,
            point=self.point,
            note=f"{LAST} {self.note}{more_words} {ZOOM}",
            records=records,
            spec=vl.time_figure(layers, spans, height={"step": 17}),
            filters=self.filters,
            by_row=True,
        )

    def _records(
        self, row: int, ports: Mapping[str, PortSeries], window: IterationWindow
    ) -> tuple[Records, int]:
        """Return the cells of a row, and how many ports had something and have none."""
        known = {port: one for port, one in ports.items() if port in self.full}
        edges = edges_of(known, window.begin_us)
        width = 0.0 if edges is None else float(edges[1] - edges[0])
        if edges is None or width <= 0:
            return [], 0
        grown = {
            port: series.growth(self.column, edges)
            for port, series in known.items()
            if len(series.t_us) > 1
        }
        order = sorted(grown, key=lambda port: (-float(grown[port].sum()), port))
        some = [port for port in order if grown[port].sum() > 0]
        records: Records = []
        for port in some[:MOST_PORTS]:
            share = grown[port] / (self.full[port] * width) * 100
            for number in np.flatnonzero(share > LEAST_PERCENT).tolist():
                records.append(
                    {
                        "row": row,
                        "port": port,
                        "t_us": round(float(edges[number] - window.begin_us), 4),
                        "until_us": round(float(edges[number + 1] - window.begin_us), 4),
                        self.key: round(float(share[number]), 2),
                    }
                )
        return records, len(some) - MOST_PORTS

    def _layer(self) -> vl.Json:
        order = {"op": "sum", "field": self.key, "order": "descending"}
        scale = {"domain": [0, 100], "range": [0.06, 1], "clamp": True}
        return {
            "mark": {"type": "rect", "color": self.colour, "clip": True},
            "params": [vl.zoom()],
            "encoding": {
                "x": vl.time_axis(TIME),
                "x2": {"field": "until_us"},
                "y": vl.encoding("port", "N", None, sort=order),
                "opacity": vl.encoding(self.key, "Q", self.legend, scale=scale),
                "tooltip": vl.tooltip(
                    ("port", "port"),
                    ("t_us", "from (us)"),
                    ("until_us", "until (us)"),
                    (self.key, self.legend),
                ),
            },
        }


def edges_of(ports: Mapping[str, PortSeries], begin: float) -> npt.NDArray[np.float64] | None:
    """Return edges of time bins, none of them shorter than two samples are apart."""
    series: Sequence[PortSeries] = [one for one in ports.values() if len(one.t_us)]
    if max((len(one.t_us) for one in series), default=0) < 2:
        return None
    end = max(float(one.t_us[-1]) for one in series)
    moments = np.unique(np.concatenate([one.t_us for one in series]))
    bins = min(BINS, max(1, len(moments) - 1))
    return np.linspace(begin, end, bins + 1)


def spans_of(windows: Windows) -> dict[int, float]:
    """Return the length of each row's iteration (us)."""
    return {row: one.end_us - one.begin_us for row, one in windows.items()}


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


PAUSED_PORT = "port that was paused: switch or NIC"
_ABSENT = f"the run folder has no {line_telemetry.FILE}, which a run with --clock virtual writes"
#: ns of a us: a port that is paused all the time.
_ALL_NS = 1000.0
_NO_PAUSES, _NEVER = "no switch of this run sends pauses", "switches could pause, and none did"


def line_figures(record: RunRecord, faults: Records) -> list[Figure]:
    """Return the load of NIC ports and the pauses over time, then the pauses by port."""
    rates: dict[str, float] = {}
    ends: list[str] = []
    topology = record.topology
    for link in topology.links if topology is not None else ():
        for end in link.ends:
            ends.append(str(end))
            if topology is not None and not topology.node(end.node).is_switch:
                rates[str(end)] = link.rate_bps / 8e6
    nics, pauses = _nics(rates), _paused(record, ends)
    read = NO_ROW if not record.rows else record.missing.get("fabric.json")
    series = read or read_series(record.path / line_telemetry.FILE, line_telemetry.COLUMNS, _ABSENT)
    if isinstance(series, str):
        return [nics.none(series), pauses.none(_no_pauses(record) or series), _sums(record)]
    cut, windows = cut_series(record, series)
    no_pauses = _no_pauses(record)
    return [
        nics.figure(cut, windows, faults),
        pauses.none(no_pauses) if no_pauses else pauses.figure(cut, windows, faults),
        _sums(record),
    ]


def _nics(rates: Mapping[str, float]) -> PortHeat:
    return PortHeat(
        name="nic-load",
        title="Load of NIC ports over time",
        point=ENDPOINT,
        note="What left each NIC port, all packets but PAUSE frames, over its link's rate.",
        column="sent_bytes",
        full=rates,
        key="load_percent",
        legend="load (%)",
        colour="#3d8fd1",
        nothing="no NIC sent anything in these iterations",
    )


def _paused(record: RunRecord, ends: Iterable[str]) -> PortHeat:
    return PortHeat(
        name="pauses-over-time",
        title="Pauses over time (PFC)",
        point=PAUSED_PORT,
        note="The share of each bin of time in which a pause stopped the port's lossless class.",
        column="paused_ns",
        full=dict.fromkeys(ends, _ALL_NS),
        key="paused_percent",
        legend="paused (%)",
        colour="#a64d82",
        nothing="no port was paused in these iterations",
        filters=capture_filters(record, f"eth.type == {ETHERTYPE:#06x}"),
    )


def _observed(record: RunRecord) -> list[int]:
    return [row for row, one in record.ports.items() if PAUSES in one.observes]


def _no_pauses(record: RunRecord) -> str | None:
    if not record.rows:
        return NO_ROW
    return None if _observed(record) else _NO_PAUSES


def _sums(record: RunRecord) -> Figure:
    title = "Pauses by port (PFC)"
    reason = _no_pauses(record)
    if reason is not None:
        return Figure.none("pauses", title, PAUSED_PORT, reason)
    records = [
        {
            "row": row,
            "port": port,
            "paused_us": counts.get("paused_ns", 0) / 1000,
            "xoff_sent": counts.get("xoff_sent", 0),
        }
        for row in _observed(record)
        for port, counts in record.ports[row].ports.items()
        if counts.get("paused_ns") or counts.get("xoff_sent")
    ]
    if not records:
        return Figure.none("pauses", title, PAUSED_PORT, _NEVER)
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
        point=PAUSED_PORT,
        note="Sums over the iterations of the row; a port without time has asked others to pause.",
        records=records,
        spec=vl.figure([bars], by_row=True, height={"step": 17}),
        by_row=True,
    )
