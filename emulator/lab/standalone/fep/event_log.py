"""The event log of an endpoint as a qlog trace (:mod:`uet.eventlog.schema`).

Only an endpoint with a trace brings any of this along.
"""

from __future__ import annotations

from pathlib import Path

from emulator.lab.standalone.output_file import OutputFile
from emulator.lab.standalone.watched import WatchedEndpoint
from uet.eventlog.logging_endpoint import TracedEndpoint
from uet.eventlog.sequence import Event, JsonSequence

_BUFFER = 1 << 16


class EventLog:
    """A new trace file.  Each event reaches it at once: a kill loses one at most.

    ``reference`` is the wall-clock time of time 0.
    """

    def __init__(self, path: Path, *, name: str, title: str, reference: str | None = None) -> None:
        self._file = OutputFile(path, buffer=_BUFFER, new=True)
        self._sequence = JsonSequence(self._write, name=name, title=title, reference=reference)

    def __call__(self, event: Event) -> None:
        """Write one event.  Raises :class:`UserError`."""
        self._sequence(event)

    def _write(self, record: str) -> None:
        self._file.write(record.encode())
        self._file.flush()

    def close(self) -> None:
        """The trace is complete."""
        self._file.close()


class WatchedTrace(WatchedEndpoint, TracedEndpoint):
    """A watched endpoint that is traced too."""
