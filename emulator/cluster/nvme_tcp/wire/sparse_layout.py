"""Layouts of data structures that are mostly reserved octets: fields at stated offsets."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any


class SparseLayout:
    """A structure of ``size`` octets, little-endian, with fields of ``struct`` formats at offsets.

    ``fields`` maps a name to ``(offset, format)``; octets outside of fields are zero.
    """

    def __init__(self, size: int, fields: Mapping[str, tuple[int, str]]) -> None:
        self.size = size
        self._fields = {
            name: (offset, struct.Struct("<" + form)) for name, (offset, form) in fields.items()
        }
        for name, (offset, form) in self._fields.items():
            if offset + form.size > size:
                raise ValueError(f"field {name} ends outside of the structure")

    def offset(self, name: str) -> int:
        """Return the offset of a field in octets."""
        return self._fields[name][0]

    def pack(self, **values: Any) -> bytes:
        """Make the structure's octets; fields that are not named are zero."""
        octets = bytearray(self.size)
        for name, value in values.items():
            offset, form = self._fields[name]
            form.pack_into(octets, offset, value)
        return bytes(octets)

    def unpack(self, octets: bytes) -> dict[str, Any]:
        """Return the value of each field; raises ``struct.error`` where ``octets`` are too few."""
        return {name: form.unpack_from(octets, at)[0] for name, (at, form) in self._fields.items()}


def padded_text(octets: bytes) -> str:
    """Return the text of a field that is padded with spaces or ends at a NUL."""
    return octets.split(b"\0", 1)[0].decode("utf-8", "replace").rstrip(" ")
