"""The losses of a run: where, why, and how many packets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.report.observation_points import SWITCH as AT_SWITCH
from emulator.report.run.figures.figure import Figure
from emulator.report.run_folder import NO_ROW, RunRecord, labels
from emulator.run_files import SWITCH

#: Why packets are lost, in words, by the reason's name in ``result.json``.
REASONS: Mapping[str, str] = {
    "tail": "the queue was at its limit",
    "headroom": "the lossless buffer of the incoming port was full (PFC)",
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
    names = labels(record.rows)
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
