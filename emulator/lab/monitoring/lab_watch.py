"""A running lab, watched interval by interval, with the run in it, until it goes.

:class:`LabWatch` looks; who serves what it found keeps the last :class:`Watched`.

The rows of a run are read from its folder while it is written: ``events.jsonl`` grows by whole
lines.  What is new is read with each look, at most :data:`MOST_OCTETS` of it; a line longer than
that is left out.  Only sums and the latest rows are kept, so that memory does not grow with it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from emulator.dataplane import lab_record
from emulator.dataplane.lab import Lab
from emulator.dataplane.lab_record import LabRecord
from emulator.dataplane.switch.cable_counters import PauseCounters
from emulator.errors import UserError
from emulator.lab.live.sampler import LabGone, LabSample, LabSampler, Sample
from emulator.run_files import ENDPOINTS, EVENTS, MESSAGES, PORTS, ROW, Event, events_of
from topologies.model import Topology

MOST_OCTETS = 1 << 24
#: Rows that are kept, each the latest of its transport, switch, pattern and size.
MOST_ROWS = 64
#: Transports whose counters are kept apart: a run has a handful.
MOST_TRANSPORTS = 16
#: Flows of the latest row that are kept.
MOST_FLOWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RowName:
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


#: A lab that cannot be read may be going; its record says so within this time (s).
PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A lab at ``at_s`` (seconds since 1970 of the machine), and what it did before.

    ``ended`` is why nothing newer will come, and ``ended_s`` when that was seen; None while the lab
    runs.  ``picture`` is None until the first interval is over; ``run`` is None in a lab without a
    run.
    """

    record: LabRecord
    topology: Topology
    at_s: float
    sample: Sample
    pauses: Mapping[str, PauseCounters]
    picture: LabSample | None = None
    run: RunProgress | None = None
    ended: str | None = None
    ended_s: float | None = None


class LabWatch:
    """Looks at ``lab`` with each call of :meth:`look`; a context that lets go of it."""

    def __init__(self, name: str) -> None:
        self._stack = ExitStack()
        self._lab = self._stack.enter_context(Lab.attach(name))
        self._sampler = LabSampler(self._lab)
        self._folder = lab_record.run_folder(name)
        self._run: RunProgress | None = None
        self._before: Sample | None = None
        self._failing_s: float | None = None
        self.latest: Watched | None = None

    def __enter__(self) -> LabWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the lab; what is known of it stays."""
        self._stack.close()

    def look(self) -> Watched:
        """Return the lab as it is now; when it has gone, as it was, with the reason.

        Raises LabGone only if the lab has gone before the first look, and UserError if it cannot be
        read, at the first look or for :data:`PATIENCE_S`.
        """
        try:
            sample, pauses = self._sampler.sample(), self._sampler.pauses()
        except LabGone as gone:
            if self.latest is None:
                raise
            ended_s = self.latest.ended_s or time.time()
            self.latest = replace(
                self.latest, run=self._progress(), ended=str(gone), ended_s=ended_s
            )
            return self.latest
        except UserError:  # a lab goes node by node before its record says so
            now = time.monotonic()
            self._failing_s = now if self._failing_s is None else self._failing_s
            if self.latest is None or now - self._failing_s > PATIENCE_S:
                raise
            return self.latest
        self._failing_s = None
        picture = None if self.latest is None else self.latest.picture
        if self._before is not None and sample.at_ns == self._before.at_ns:
            # A virtual clock stood still: the same interval goes on.  Nothing has moved, but a lab
            # that goes loses its ports one by one.
            sample = replace(self._before, record=sample.record)
        elif self._before is not None:
            picture = self._sampler.between(self._before, sample)
        self._before = sample
        self.latest = Watched(
            record=sample.record,
            topology=self._lab.topology,
            at_s=time.time(),
            sample=sample,
            pauses=pauses,
            picture=picture,
            run=self._progress(),
        )
        return self.latest

    def _progress(self) -> RunProgress | None:
        self._folder = self._folder or lab_record.run_folder(self._lab.name)
        if self._folder is None:
            return None
        if self._run is None:
            self._run = RunProgress(Path(self._folder))
        self._run.read()
        return self._run
