"""Figures over time of what no switch counts: load of NIC ports, and pauses of all ports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from emulator.dataplane.switch.pfc.pause_frame import ETHERTYPE
from emulator.report.observation_points import ENDPOINT
from emulator.report.run.figures import vega_lite as vl
from emulator.report.run.figures.figure import Figure
from emulator.report.run.figures.port_heat import PortHeat, Records
from emulator.report.run.port_series import capture_filters, cut_series, read_series
from emulator.report.run_folder import NO_ROW, RunRecord
from emulator.run_files import PAUSES
from emulator.sim import line_telemetry

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
