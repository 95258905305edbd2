"""Fast codec, compiled from a line that names the fields of a header.

A compiled :class:`Header` packs and unpacks at two levels:

*fields*
    ``encode(...)`` and ``decode(buffer, offset)`` cover every field, reserved ones included;
    ``encode`` takes them by position or by name, with scapy's defaults, and checks their range.
    Both are generated when one of them is first asked for: what a run sends needs words alone.
*words*
    ``pack`` and ``unpack_from`` are those of one :class:`struct.Struct`.  A word is one field, or
    several narrow neighbours in one integer (``words`` lists them).  Only the width is checked.

A variant of an overlay (SYN or not, start of message or not) is a header of its own.  Those of
UET and of what carries it are in :mod:`uet.wire.headers`.
:func:`compile_stack` joins headers, so that a whole frame is one call::

    PROLOGUE = RUD_REQ.word(next_hdr=NextHeader.REQUEST_STD, ar=1)      # 0x1188
    octets = RUD_REQ.pack(PROLOGUE, -3, psn, spdcid, dpdcid)
    prologue, clear_psn_offset, psn, spdcid, dpdcid = RUD_REQ.unpack_from(frame, 42)
    if prologue & RUD_REQ.mask("ar"): ...

    octets = RUD_REQ.encode(next_hdr=NextHeader.REQUEST_STD, ar=1, psn=7)
    values = RUD_REQ.decode(frame, 42)              # a tuple, in the order of RUD_REQ.names

    WRITE = compile_stack(ETHERNET, IPV4, UDP_HEADER, RUD_REQ, SES_STD_SOM)
    octets = WRITE.pack(*words_of_all_headers)
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scapy.packet import Packet

_UNSIGNED = {8: "B", 16: "H", 32: "I", 64: "Q"}
_SIGNED = {8: "b", 16: "h", 32: "i", 64: "q"}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a compiled header; ``offset`` and ``width`` in bits from its first octet."""

    name: str
    offset: int
    width: int
    default: int | bytes
    signed: bool = False
    #: kept as octets (addresses), rather than as a number
    octets: bool = False

    @property
    def reserved(self) -> bool:
        return self.name.startswith("rsvd")


@dataclass(frozen=True, slots=True)
class Word:
    """The fields of one struct code, in wire order."""

    code: str
    width: int
    fields: tuple[Field, ...]

    @property
    def name(self) -> str:
        return "+".join(field.name for field in self.fields)

    def shift(self, field: Field) -> int:
        last = self.fields[-1]
        return last.offset + last.width - field.offset - field.width


class Header:
    """A compiled header, or several in a row.

    ``pack``, ``pack_into`` and ``unpack_from`` work on words and raise :class:`struct.error`;
    ``encode`` and ``decode`` work on fields and raise :class:`ValueError`.
    """

    pack: Callable[..., bytes]
    pack_into: Callable[..., None]
    unpack_from: Callable[..., tuple[Any, ...]]

    def __init__(self, name: str, layer: str | None, words: tuple[Word, ...]) -> None:
        self.name = name
        self._layer = layer
        self.words = words
        self.fields = tuple(field for word in words for field in word.fields)
        self.names = tuple(field.name for field in self.fields)
        self.struct = struct.Struct(">" + "".join(word.code for word in words))
        self.size = self.struct.size
        self.pack = self.struct.pack
        self.pack_into = self.struct.pack_into
        self.unpack_from = self.struct.unpack_from
        self._word_of = {field.name: word for word in words for field in word.fields}
        self._field = {field.name: field for field in self.fields}

    def __repr__(self) -> str:
        return f"<Header {self.name}: {self.size} octets, {len(self.fields)} fields>"

    @property
    def layer(self) -> type[Packet] | None:
        """The scapy layer of this header, which is imported when it is first asked for."""
        if self._layer is None:
            return None
        module, _, name = self._layer.rpartition(".")
        layer: type[Packet] = getattr(import_module(module), name)
        return layer

    def field(self, name: str) -> Field:
        """The field ``name``; its ``offset`` is in bits."""
        return self._field[name]

    def shift(self, name: str) -> int:
        """Bits to the right of field ``name`` in its word."""
        return self._word_of[name].shift(self._field[name])

    def mask(self, name: str) -> int:
        """Bits of field ``name`` in its word, in place."""
        return ((1 << self._field[name].width) - 1) << self.shift(name)

    def word(self, **values: int) -> int:
        """The word made of these fields (they must share one) and the defaults of its others."""
        words = {id(self._word_of[name]): self._word_of[name] for name in values}
        if len(words) != 1:
            raise ValueError(f"{', '.join(values)}: not fields of one word of {self.name}")
        (word,) = words.values()
        value = 0
        for field in word.fields:
            given = values.get(field.name, field.default)
            if not isinstance(given, int) or given >> field.width:
                raise ValueError(f"{self.name}.{field.name}: {given!r} is out of range")
            value |= given << word.shift(field)
        return value

    def values(self, buffer: bytes | memoryview, offset: int = 0) -> dict[str, Any]:
        """``decode`` with the field names."""
        return dict(zip(self.names, self.decode(buffer, offset), strict=True))

    @cached_property
    def encode(self) -> Callable[..., bytes]:
        """The octets of these values of fields."""
        encode: Callable[..., bytes] = self._compiled["encode"]
        return encode

    @cached_property
    def decode(self) -> Callable[..., tuple[Any, ...]]:
        """The values of all fields, in the order of ``names``."""
        decode: Callable[..., tuple[Any, ...]] = self._compiled["decode"]
        return decode

    @cached_property
    def _compiled(self) -> dict[str, Any]:
        """``encode`` and ``decode`` as straight-line functions."""
        parameters = ", ".join(f"{field.name}={field.default!r}" for field in self.fields)
        checks, packed, names, unpacked = [], [], [], []
        for number, word in enumerate(self.words):
            name = f"_w{number}"
            names.append(name)
            if len(word.fields) == 1:
                (field,) = word.fields
                if field.octets:  # struct would pad or cut them
                    checks.append(f"_len({field.name}) != {field.width // 8}")
                wide = word.width > 64 and not field.octets
                packed.append(f"{field.name}.to_bytes(16, 'big')" if wide else field.name)
                unpacked.append(f"_from_bytes({name}, 'big')" if wide else name)
                continue
            terms = []
            for field in word.fields:
                shift = word.shift(field)
                checks.append(f"{field.name} >> {field.width}")
                terms.append(f"{field.name} << {shift}" if shift else field.name)
                value = f"{name} >> {shift}" if shift else name
                if shift + field.width < word.width:
                    value += f" & {(1 << field.width) - 1}"
                unpacked.append(value)
            packed.append(" | ".join(terms))
        guard = f"        if {' or '.join(checks)}: _complain(locals())\n" if checks else ""
        source = (
            f"def encode({parameters}):\n"
            f"    try:\n{guard}"
            f"        return _pack({', '.join(packed)})\n"
            f"    except (_struct_error, OverflowError):\n"
            f"        _complain(locals())\n"
            f"def decode(buffer, offset=0):\n"
            f"    try:\n"
            f"        {', '.join(names)}, = _unpack_from(buffer, offset)\n"
            f"    except _struct_error:\n"
            f"        _too_short(buffer, offset)\n"
            f"    return {', '.join(unpacked)},\n"
        )
        scope: dict[str, Any] = {
            "_len": len,
            "_pack": self.pack,
            "_unpack_from": self.unpack_from,
            "_from_bytes": int.from_bytes,
            "_struct_error": struct.error,
            "_complain": self._complain,
            "_too_short": self._too_short,
        }
        exec(compile(source, f"<codec of {self.name}>", "exec"), scope)
        return scope

    def _complain(self, values: dict[str, Any]) -> None:
        for field in self.fields:
            value = values[field.name]
            if field.octets:
                if not isinstance(value, bytes) or len(value) * 8 != field.width:
                    raise ValueError(
                        f"{self.name}.{field.name}: {value!r} is not {field.width // 8} octets"
                    )
                continue
            low = -(1 << field.width - 1) if field.signed else 0
            if not isinstance(value, int) or not low <= value < low + (1 << field.width):
                raise ValueError(
                    f"{self.name}.{field.name}: {value!r} does not fit into"
                    f" {'signed ' if field.signed else ''}{field.width} bits"
                )

    def _too_short(self, buffer: bytes | memoryview, offset: int) -> None:
        left = max(0, len(buffer) - offset)
        raise ValueError(f"{self.name} needs {self.size} octets, {left} are left") from None


def header(name: str, layer: str, fields: str) -> Header:
    """Compile a header from its ``fields``, as ``"syn:1=1 psn:32 clear_psn_offset:i16 dst:s6"``.

    That is name and width in bits, of a signed one behind ``i``, or in octets behind ``s``, and the
    default if it is not 0.  ``layer`` is where scapy's description of it can be imported.
    """
    described: list[Field] = []
    offset = 0
    for entry in fields.split():
        name_of, width_of = entry.split(":")
        width_of, _, default = width_of.partition("=")
        octets, signed = width_of.startswith("s"), width_of.startswith("i")
        width = int(width_of.lstrip("si")) * (8 if octets else 1)
        value = bytes(width // 8) if octets else int(default or "0", 0)
        described.append(Field(name_of, offset, width, value, signed, octets))
        offset += width
    return Header(name, layer, _partition(described))


def compile_stack(*headers: Header | tuple[str, Header]) -> Header:
    """Join headers into one, whose words are theirs in order.

    Field names get the header's name in front (``ip_ttl``), or the one given with it.
    """
    words = []
    base = 0
    for entry in headers:
        prefix, header = entry if isinstance(entry, tuple) else (entry.name, entry)
        prefix = prefix.replace(".", "_")
        for word in header.words:
            fields = tuple(
                Field(
                    name=f"{prefix}_{field.name}",
                    offset=base + field.offset,
                    width=field.width,
                    default=field.default,
                    signed=field.signed,
                    octets=field.octets,
                )
                for field in word.fields
            )
            words.append(Word(word.code, word.width, fields))
        base += header.size * 8
    name = "|".join(e[0] if isinstance(e, tuple) else e.name for e in headers)
    return Header(name, None, tuple(words))


def _partition(fields: list[Field]) -> tuple[Word, ...]:
    """Group fields into the fewest words, keeping whole-word fields alone where possible."""
    best: list[tuple[int, tuple[Word, ...]] | None] = [(0, ())]
    for end in range(1, len(fields) + 1):
        candidates = []
        for start in range(end):
            before, word = best[start], _word(tuple(fields[start:end]))
            if before is not None and word is not None:
                swallowed = len(word.fields) > 1 and any(
                    f.width >= 16 and f.width in _UNSIGNED for f in word.fields
                )
                candidates.append((before[0] + 1 + 10 * swallowed, (*before[1], word)))
        best.append(min(candidates, key=lambda candidate: candidate[0], default=None))
    if best[-1] is None:
        raise TypeError(f"the fields {', '.join(f.name for f in fields)} do not fill whole words")
    return best[-1][1]


def _word(fields: tuple[Field, ...]) -> Word | None:
    width = sum(field.width for field in fields)
    if len(fields) == 1 and (fields[0].octets or width == 128):
        return Word(f"{width // 8}s", width, fields)
    if width not in _UNSIGNED or any(field.octets for field in fields):
        return None
    if any(field.signed for field in fields):
        return Word(_SIGNED[width], width, fields) if len(fields) == 1 else None
    return Word(_UNSIGNED[width], width, fields)
