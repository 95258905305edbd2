"""Why a packet was repeated, from the event logs of its source (``--event-log``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.report.follow.packet_view import FlowKey
from emulator.run_files import EPOCH_S, EVENT_LOGS

#: Characters of a line that is read, and events that are kept, at most.
_LONGEST_LINE, _MOST_EVENTS = 1 << 20, 256
_TRIGGERS = {
    "rto": "retransmission timeout",
    "nack": "NACK",
    "loss_inferred": "inferred loss",
    "go_back": "go-back-N",
    "renumbered": "a renumbered PDC",
}


@dataclass(frozen=True)
class RepeatCause:
    """The source repeated the packet at ``at_ns`` of the capture's clock, for this reason."""

    at_ns: int
    reason: str


def repeat_causes(folder: Path, node: str, flow: FlowKey, psn: int) -> list[RepeatCause] | None:
    """Return the retransmissions that ``node`` logged; None if it wrote no event log."""
    files = [
        path
        for path in sorted((folder / EVENT_LOGS).glob("*.sqlog"))
        if path.name.partition(".")[0] == node
    ]
    if not files:
        return None
    found: list[RepeatCause] = []
    for path in files:
        for event in _events(path, psn):
            data = event.get("data")
            time_ms = event.get("time")
            if (
                event.get("name") == "uet:packet_retransmitted"
                and isinstance(data, dict)
                and isinstance(time_ms, int | float)
                and (data.get("pdc"), data.get("psn")) == (flow.context, psn)
                and len(found) < _MOST_EVENTS
            ):
                trigger = str(data.get("trigger"))
                at_ns = EPOCH_S * 10**9 + round(time_ms * 1e6)
                found.append(RepeatCause(at_ns, _TRIGGERS.get(trigger, trigger)))
    return sorted(found, key=lambda one: one.at_ns)


def _events(path: Path, psn: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a log that name ``psn``; a damaged line is passed over."""
    mark = f'"psn":{psn}'
    with path.open(encoding="utf-8", errors="replace") as file:
        while line := file.readline(_LONGEST_LINE):
            if mark not in line:
                continue
            try:
                event = json.loads(line.lstrip("\x1e"))
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield event
