"""The files of a run folder, as their writers and their readers know them.

``events.jsonl`` has a line for each event.  Behind each row (``row``, with the row's own keys) come
what its ports counted, how long its messages took, and what its endpoints counted::

    {"event": "ports", "row": 2, "span_us": 364.4, "observes": ["traffic", "switch", "pauses"],
     "ports": {"rail0:down0": {"tx_packets": 310, "tx_bytes": 1284310, "marked": 12}, ...}}
    {"event": "messages", "row": 2, "times_us": [46.8], "count": 64,
     "latency_us": [[0.0, 3.1], [0.01, 3.2], ..., [1.0, 19.4]],
     "flows": [{"from": "h1g0", "to": "h0g0", "bytes": 524288, "messages": 32,
                "time_us": 44.1, "goodput_gbps": 11.9}, ...], "flows_left_out": 0}
    {"event": "endpoints", "row": 2, "transport": "uet",
     "counters": {"tx_data_packets": 4416, "rx_acks": 1104, "rto_expirations": 3, ...}}

``row`` counts from 1.  ``span_us`` is the fabric time of its iterations together, in which the
counts came about.  ``observes`` names what was counted at all: a count that is left out was 0.

``times_us`` are the iterations that count.  ``latency_us`` has pairs of a share of the messages and
the time that these took at most (nearest rank), from a message's start until its receiver has
verified it.  ``bytes`` and ``messages`` of a flow are sums over the iterations; ``time_us`` is the
mean from its first start to its last end, and ``goodput_gbps`` the payload over the sum of these
times.  Victims stand under ``victims`` in the same form.

``counters`` are sums over all endpoints and the iterations that count; those that did not change
may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.ethernet import FRAMING_OCTETS

SCHEMA = "uetemu.result/1"
RESULT, EVENTS = "result.json", "events.jsonl"
FABRIC, ENVIRONMENT, TIMELINE = "fabric.json", "environment.json", "timeline.json"
CAPTURE, EVENT_LOGS = "capture.pcapng", "event-logs"
#: 2000-01-01T00:00:00Z, the time 0 of a run in its capture and event logs (s since 1970).
EPOCH_S = 946_684_800

#: Events of a row.
ROW, PORTS, MESSAGES, ENDPOINTS = "row", "ports", "messages", "endpoints"
#: What ports of a row were counted for.
TRAFFIC, SWITCH, PAUSES = "traffic", "switch", "pauses"

UNITS = {
    "_bytes": "octets",
    "_us": "microseconds of fabric time",
    "_ns": "nanoseconds of fabric time",
    "_s": "seconds of the machine's own time",
    "_gbps": "gigabytes per second of fabric time, 10^9 octets/s, as nccl-tests prints them",
    "efficiency": "ideal_us / time_us",
    "jain": "Jain's fairness index, 1/n to 1",
    "max_mean": "load of the busiest link over the mean of its like",
    "_packets": "packets",
    "_share": "1 is all that is fair, or possible",
    "dilation": "seconds of the machine's time for one second of fabric time",
}

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPorts:
    """Counters of ports by ``node:port``, of one row."""

    row: int
    span_us: float
    observes: frozenset[str]
    ports: Mapping[str, Mapping[str, int]]

    def utilisation(self, port: str, rate_bps: int) -> float:
        """Share of the time (1 is all) in which ``port`` sent, preamble and gap included."""
        counts = self.ports.get(port, {})
        octets = counts.get("tx_bytes", 0) + FRAMING_OCTETS * counts.get("tx_packets", 0)
        return octets * 8e6 / (rate_bps * self.span_us) if self.span_us else 0.0


def read_object(path: Path, most_octets: int) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises OSError if it cannot be read, and ValueError if it is none, or larger than
    ``most_octets``.
    """
    if path.stat().st_size > most_octets:
        raise ValueError(f"it has more than {most_octets // 2**20} MiB")
    try:
        content = json.loads(path.read_bytes(), parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content


def events_of(lines: Iterable[str | bytes]) -> Iterator[Event]:
    """Yield the events in lines of ``events.jsonl``.

    Other lines are passed over, such as the last one of a run that was killed.
    """
    for line in lines:
        try:
            event = json.loads(line, parse_constant=_no_number)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
