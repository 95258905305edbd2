"""The report of a running endpoint: one JSON object a line, or lines for people.

Every event has ``event`` and ``time`` (seconds since the endpoint began).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import TextIO

_WIDTH = 10
#: What a line for people leaves out, because it is long or reported elsewhere.
_HIDDEN = frozenset({"config", "counters", "nic", "sha256", "unix_time"})


class EventReport:
    """Writes events to ``out``, each as soon as it happens."""

    def __init__(self, out: TextIO, *, table: bool) -> None:
        self._out = out
        self._table = table
        self._begun = time.monotonic_ns()

    def event(self, name: str, **data: object) -> None:
        """Report one event; fields that are ``None`` are left out."""
        elapsed = (time.monotonic_ns() - self._begun) / 1e9
        reported = {key: value for key, value in data.items() if value is not None}
        if self._table:
            self._out.write(_line(name, elapsed, reported))
        else:
            line = {"event": name, "time": round(elapsed, 6), **reported}
            self._out.write(json.dumps(line, separators=(", ", ": ")) + "\n")
        self._out.flush()


def _line(name: str, elapsed: float, reported: Mapping[str, object]) -> str:
    head = f"{elapsed:12.6f}  {name:<{_WIDTH}}"
    pairs = [f"{key}={_short(value)}" for key, value in reported.items() if key not in _HIDDEN]
    lines = [f"{head}  {'  '.join(pairs)}".rstrip()]
    counters = reported.get("counters")
    if isinstance(counters, Mapping):
        widest = max(map(len, counters), default=0)
        indent = " " * 14
        lines += [f"{indent}{key:<{widest}}  {value}" for key, value in sorted(counters.items())]
    return "\n".join(lines) + "\n"


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{item}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ",".join(map(_short, value)) or "-"
    return str(value)


_PREFIXES = ("rx_drop_", "tss_")
_NAMES = frozenset(
    {
        "rx_requests_refused", "rx_malformed_requests", "rx_datagrams_dropped",
        "rx_naks_fatal", "rx_bad_responses", "qp_errors",
    }
)  # fmt: skip


def is_refusal(name: str) -> bool:
    """Return whether a counter of that name counts what was refused or dropped."""
    return name in _NAMES or name.startswith(_PREFIXES)


class Refusals:
    """Reports each kind of refusal once to ``report``; ``counts`` are those of the endpoint.

    The numbers at the end are their counts.  Nothing here is on the path of packets: counters are
    looked at once a turn, and a counter that stands at zero costs one comparison.
    """

    def __init__(self, counts: Mapping[str, int], report: EventReport) -> None:
        self._counts, self._report = counts, report
        self._seen = 0  # counters that have been there
        self._silent: list[str] = []  # of these, refusals that have not happened yet
        self._reported: set[str] = set()

    def look(self, frames: Sequence[memoryview]) -> None:
        """Report refusals since the last call, during which ``frames`` arrived."""
        counts = self._counts
        if len(counts) != self._seen:
            self._seen = len(counts)
            self._silent = [
                name for name in counts if name not in self._reported and is_refusal(name)
            ]
        for name in [name for name in self._silent if counts[name]]:
            self._silent.remove(name)
            self._reported.add(name)
            self._report.event("refused", what=name, peer=_only_source(frames))


def _only_source(frames: Sequence[memoryview]) -> str | None:
    """Return whose the frames are, if they are all of one."""
    sources = {
        bytes(frame[26:30] if bytes(frame[12:14]) == b"\x08\x00" else frame[22:38])
        for frame in frames
    }
    if len(sources) != 1:
        return None
    (source,) = sources
    return str(ip_address(source)) if len(source) in (4, 16) else None
