"""What ports saw in a row: the fabric's drawing, coloured by load, and losses with reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.html_page import DrawingError, drawn_by_graphviz
from emulator.metrics import SWITCH as AT_SWITCH
from emulator.report import row_heat
from emulator.report.row_heat import MEASURES
from emulator.report.run.figures.figure import Figure
from emulator.report.run_folder import NO_ROW, RunRecord, drawn_rows
from emulator.run_files import SWITCH
from topologies.exports.dot import to_dot

#: Octets of all drawings together: more rows than fit are not drawn.
MOST_OCTETS = 3_000_000


def drawing_figure(record: RunRecord) -> Figure:
    """Return the drawing of each drawn row, or why there is none."""
    name, title, point = "fabric", "The fabric, coloured by load", "port that sent: switch or NIC"
    if record.topology is None:
        return Figure.none(name, title, point, record.missing["fabric.json"])
    if not record.rows:
        return Figure.none(name, title, point, NO_ROW)
    drawings: dict[int, str] = {}
    octets = 0
    for row in reversed(drawn_rows(len(record.rows))):
        if row not in record.ports:
            continue
        try:
            svg = drawn_by_graphviz(
                to_dot(record.topology, heat=row_heat.heat(record, row, "utilisation"))
            )
        except DrawingError:
            return Figure.none(
                name,
                title,
                point,
                "Graphviz's program dot is missing, or could not draw it: "
                "vagrant/provision.sh --with drawings brings it",
            )
        octets += len(svg)
        if drawings and octets > MOST_OCTETS:
            break
        drawings[row] = svg
    if not drawings:
        reason = record.missing.get("events.jsonl", "events.jsonl does not tell what ports saw")
        return Figure.none(name, title, point, reason)
    left_out = len(record.ports) - len(drawings)
    more = f" {left_out} rows are not drawn." if left_out > 0 else ""
    records = [
        {
            "row": row,
            "port": str(port),
            "to": str(to),
            "utilisation_percent": round(
                MEASURES["utilisation"].value(counted, str(port), link), 3
            ),
        }
        for row, counted in record.ports.items()
        if row in drawings
        for link in record.topology.links
        for port, to in (link.ends, link.ends[::-1])
    ]
    return Figure(
        name=name,
        title=title,
        point=point,
        note="Share of the row's time in which each link sent, all classes, in its busier "
        f"direction. Boxes that are alike are drawn as one; uetemu graph --full draws all.{more}",
        records=records,
        svg=drawings,
        by_row=True,
    )


#: Why packets are lost, in words, by the reason's name in ``result.json``.
REASONS: Mapping[str, str] = {
    "tail": "the queue was at its limit",
    "headroom": "the lossless buffer of the incoming port was full (PFC)",
    "pool": "the pool that the switch's ports share had no room for it",
    "watchdog": "the PFC watchdog emptied a queue that was paused too long",
    "link_down": "fault: the cable had no carrier",
    "black_hole": "fault: the port swallowed everything",
    "loss": "fault: independent loss",
    "burst": "fault: loss in bursts",
    "failure": "the kernel had no memory to trim it",
    "nic": "a shared NIC had no room in front of its PCIe",
    "in_queue": "fault: it waited at the port that lost its carrier",
    "in_flight": "fault: it was on the cable",
    "no_carrier": "fault: its NIC had no port with carrier",
    "dead_port": "fault: sent to a port without carrier (what no other counter has)",
    "no_route": "fault: a switch had no way left for it",
    "gpu_dead": "fault: the NIC of a dead GPU dropped it",
    "corrupted": "fault: its octets were changed",
}
_PART = "dropped_"


def loss_figure(record: RunRecord) -> Figure:
    """Return the losses as a table: a row, a port, a reason, packets."""
    title = "What was lost, where and why"
    if not record.rows:
        return Figure.none("losses", title, AT_SWITCH, NO_ROW)
    names = record.labels
    records: list[dict[str, Any]] = []
    unseen = []
    for number, row in enumerate(record.rows, 1):
        counted = record.ports.get(number)
        if counted is None or SWITCH not in counted.observes:
            unseen.append(number)
            continue
        where: dict[str, int] = {}
        for port, counts in counted.ports.items():
            for key, packets in counts.items():
                if key.startswith(_PART) and packets:
                    reason = key.removeprefix(_PART)
                    where[reason] = where.get(reason, 0) + packets
                    records.append(_lost(names[number - 1], number, port, reason, packets))
        for reasons in (row.get("drops") or {}, row.get("lost_packets") or {}):
            for reason, packets in reasons.items():
                if isinstance(packets, int) and packets > where.get(reason, 0):
                    rest = packets - where.get(reason, 0)
                    where[reason] = packets
                    records.append(_lost(names[number - 1], number, _place(row), reason, rest))
    if not records and unseen:
        return Figure.none(
            "losses", title, AT_SWITCH, "plain queues and older runs do not say what they dropped"
        )
    if not records:
        return Figure.none("losses", title, AT_SWITCH, "nothing was lost in any row")
    return Figure(
        name="losses",
        title=title,
        point=AT_SWITCH,
        note="Packets over the iterations of each row. Trimmed packets are not lost: their headers "
        "arrive. What endpoints sent again is in the table of rows.",
        records=records,
    )


def _place(row: Mapping[str, Any]) -> str:
    """Return where packets were lost that no port counts: at what the row's faults broke."""
    told = [str(fault.get("said")) for fault in row.get("faults") or ()]
    broken = [text.partition(" ")[2] for text in told if not text.endswith(" up")]
    return f"at the fault: {'; '.join(dict.fromkeys(broken))}" if broken else "port not told"


def _lost(label: str, row: int, port: str, reason: str, packets: int) -> dict[str, Any]:
    return {
        "row": row,
        "label": label,
        "port": port,
        "reason": reason,
        "packets": packets,
        "why": REASONS.get(reason, reason),
    }
