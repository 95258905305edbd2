"""A figure of a report: its data as records, and how Vega-Lite draws them; or why there is none."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Record = Mapping[str, Any]
Spec = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure.

    ``point`` is where its values were observed.  ``records`` are its data, alike in their keys.
    ``spec`` is a Vega-Lite specification without them, ``svg`` a drawing for each row in its place.
    ``reason`` stands where nothing was measured.  ``note`` is what a reader needs with it.
    ``filters`` are Wireshark's display filters that show the same, for each row.
    """

    name: str
    title: str
    point: str
    note: str = ""
    records: Sequence[Record] = ()
    spec: Spec | None = None
    svg: Mapping[int, str] = field(default_factory=dict)
    reason: str | None = None
    filters: Mapping[int, str] = field(default_factory=dict)
    by_row: bool = False

    @classmethod
    def none(cls, name: str, title: str, point: str, reason: str) -> Figure:
        """Return a figure that has nothing to show, and the reason."""
        return cls(name=name, title=title, point=point, reason=reason)

    def as_json(self) -> str:
        """Return the figure's facts and data as JSON."""
        content = {
            "figure": self.name,
            "title": self.title,
            "observed_at": self.point,
            "note": self.note,
            "reason": self.reason,
            "data": list(self.records),
        }
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    def as_csv(self) -> str:
        """Return the data as CSV; a comment line in front names the observation point."""
        stream = io.StringIO()
        stream.write(f"# {self.title}; observed at: {self.point}\n")
        if self.reason is not None:
            stream.write(f"# not measured: {self.reason}\n")
        keys = list(dict.fromkeys(key for record in self.records for key in record))
        if keys:
            writer = csv.DictWriter(stream, keys, lineterminator="\n")
            writer.writeheader()
            writer.writerows(
                {key: _cell(value) for key, value in record.items()} for record in self.records
            )
        return stream.getvalue()


def _cell(value: object) -> object:
    """Put an apostrophe in front of a text that a spreadsheet would take for a formula."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value
