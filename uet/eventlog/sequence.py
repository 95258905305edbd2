"""A trace as text: qlog's streaming form, one JSON object after the other.

The form is that of draft-ietf-quic-qlog-main-schema (QlogFileSeq): JSON text sequences (RFC 7464),
with a record separator in front of each record and a line feed behind it. So a reader can detect a
truncated last record.  Files are named ``*.sqlog``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

#: A record of a trace: ``time`` (ms), ``name`` and ``data``.
Event = dict[str, Any]

FILE_SCHEMA: Final = "urn:ietf:params:qlog:file:sequential"
SERIALIZATION: Final = "application/qlog+json-seq"
#: The private event schema of :mod:`uet.eventlog.schema`.
EVENT_SCHEMA: Final = "urn:x-uetemu:qlog:events:uet"
_SEPARATOR: Final = "\x1e"
_END: Final = "\n"
_NS_PER_MS: Final = 1_000_000


class TraceError(ValueError):
    """A text is not a trace; the sentence names the place where it ceases to be one."""


def milliseconds(ns: int) -> float:
    """Qlog's unit of time; exact enough to come back for 2^51 ns, the first 26 days of a fabric."""
    return ns / _NS_PER_MS


def nanoseconds(ms: float) -> int:
    """The time that :func:`milliseconds` was given."""
    return round(ms * _NS_PER_MS)


def preamble(
    name: str, *, title: str = "", group_id: str = "", reference: str | None = None
) -> Event:
    """The first record.  ``name`` is the endpoint's, ``group_id`` the run's, if it has one.

    Every endpoint begins PDCs and accepts them, so its vantage point is neither client nor
    server.  Time is the fabric's own, which has no place in the calendar by itself;
    ``reference`` is the wall-clock time at which it was zero (RFC 3339, such as
    2026-01-31T12:00:00.5Z), approximate and left alone by later steps of that clock.
    Raises :class:`ValueError` for a ``reference`` that is no such time.
    """
    common: dict[str, Any] = {
        "time_format": "relative_to_epoch",
        "reference_time": {"clock_type": "monotonic", "epoch": "unknown"},
    }
    if reference is not None:
        if datetime.fromisoformat(reference).tzinfo is None:
            raise ValueError(f"reference time {reference!r} has no time zone; append Z for UTC")
        common["reference_time"]["wall_clock_time"] = reference
    if group_id:
        common["group_id"] = group_id
    first: Event = {"file_schema": FILE_SCHEMA, "serialization_format": SERIALIZATION}
    if title:
        first["title"] = title
    first["trace"] = {
        "common_fields": common,
        "vantage_point": {"name": name, "type": "unknown"},
        "event_schemas": [EVENT_SCHEMA],
    }
    return first


class JsonSequence:
    """Writes events to ``write``, each with one call that holds the whole record.

    Where every call reaches the file, a process that is killed loses at most the record that is
    being written. That is so for a file opened with ``buffering=1``, or a descriptor.
    """

    __slots__ = ("_encode", "_write")

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        name: str,
        title: str = "",
        group_id: str = "",
        reference: str | None = None,
    ) -> None:
        self._write = write
        self._encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
        self(preamble(name, title=title, group_id=group_id, reference=reference))

    def __call__(self, record: Event) -> None:
        self._write(f"{_SEPARATOR}{self._encode(record)}{_END}")


def read(text: str) -> tuple[Event, list[Event]]:
    """First record and events of a trace; a last record that is not whole is left out.

    Raises :class:`TraceError` for anything else that is no trace.
    """
    front, *parts = text.split(_SEPARATOR)
    if front or not parts:
        raise TraceError("a trace begins with a record separator (0x1E); this text does not")
    if not parts[-1].endswith(_END):
        parts.pop()
    records = []
    for number, part in enumerate(parts, 1):
        try:
            records.append(json.loads(part))
        except ValueError as error:
            raise TraceError(f"record {number} is not JSON: {error}") from None
    if not records or records[0].get("file_schema") != FILE_SCHEMA:
        raise TraceError(f"the first record does not name the file schema {FILE_SCHEMA}")
    return records[0], records[1:]
