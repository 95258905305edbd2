"""The report of a running endpoint: one JSON object a line, or lines for people.

Every event has ``event`` and ``time`` (seconds since the endpoint began).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
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
