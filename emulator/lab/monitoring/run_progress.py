"""The rows of a run as they are finished: read from its folder while it is written.

``events.jsonl`` grows by whole lines.  What is new is read with each look, at most
:data:`MOST_OCTETS` of it; a line longer than that is left out.  Only sums and the latest rows are
kept, so that memory does not grow with the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulator.run_files import ENDPOINTS, EVENTS, MESSAGES, PORTS, ROW, Event, events_of

MOST_OCTETS = 1 << 24
#: Rows that are kept, each the latest of its transport, switch, pattern and size.
MOST_ROWS = 64
#: Transports whose counters are kept apart: a run has a handful.
MOST_TRANSPORTS = 16
#: Flows of the latest row that are kept.
MOST_FLOWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RowName:
    """The properties of a row that tell it from the others of a run."""

    transport: str
    switch: str
    collective: str
    size_bytes: int


@dataclass
class RunProgress:
    """A run up to now.

    ``ports`` are sums over all ports and finished rows, ``transports`` those of endpoints'
    counters by transport.  ``errors`` is None until the run has ended.
    """

    folder: Path
    scenario: str = ""
    finished: int = 0
    latest: Mapping[RowName, Mapping[str, Any]] = field(default_factory=dict)
    ports: Counter[str] = field(default_factory=Counter)
    transports: dict[str, Counter[str]] = field(default_factory=dict)
    flows: tuple[Mapping[str, Any], ...] = ()
    errors: int | None = None
    _at: int = 0

    def read(self) -> None:
        """Take in what the run has written since the last call."""
        try:
            with (self.folder / EVENTS).open("rb") as stream:
                stream.seek(self._at)
                found = stream.read(MOST_OCTETS)
        except OSError:  # the folder was moved or removed: what is known stays
            return
        whole = found.rfind(b"\n") + 1
        if not whole and len(found) == MOST_OCTETS:
            whole = len(found)  # a line of that length is none of ours
        self._at += whole
        for event in events_of(found[:whole].splitlines()):
            try:
                self.take(event)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # of another version

    def take(self, event: Event) -> None:
        kind = event["event"]
        if kind == "begin":
            self.scenario = str(event["scenario"])
        elif kind == ROW:
            self._take_row(event)
        elif kind == PORTS:
            for counts in event["ports"].values():
                self.ports.update({name: int(count) for name, count in counts.items()})
        elif kind == MESSAGES:
            self.flows = tuple(event["flows"][:MOST_FLOWS])
        elif kind == ENDPOINTS:
            name = str(event["transport"])
            if name in self.transports or len(self.transports) < MOST_TRANSPORTS:
                counters = self.transports.setdefault(name, Counter())
                counters.update({key: int(count) for key, count in event["counters"].items()})
        elif kind == "end":
            self.errors = len(event["errors"])

    def _take_row(self, event: Event) -> None:
        name = RowName(
            transport=str(event["transport"]),
            switch=str(event["switch"] or "none"),
            collective=str(event["collective"]),
            size_bytes=int(event["size_bytes"]),
        )
        kept = [(one, row) for one, row in self.latest.items() if one != name]
        self.latest = dict([*kept[1 - MOST_ROWS :], (name, event)])
        self.finished += 1
