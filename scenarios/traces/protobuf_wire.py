"""The wire format of protocol buffers: fields of a message, one by one, and their octets.

A message is a row of fields.  Each has a key, which is a varint of the field's number and its wire
type, and a value: a varint, 4 or 8 octets, or a length and so many octets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, EIGHT, OCTETS, FOUR = 0, 1, 2, 5
_LONGEST_VARINT = 10


class WireError(ValueError):
    """Octets that are no message; the text names what is wrong with them."""


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the varint at ``at``, and where it ends."""
    value = 0
    for place in range(_LONGEST_VARINT):
        if at + place >= len(data):
            raise WireError("it ends in the middle of a number")
        octet = data[at + place]
        value |= (octet & 0x7F) << 7 * place
        if octet < 0x80:
            return value & (1 << 64) - 1, at + place + 1
    raise WireError("a number has more than 64 bits")


def fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield the number, wire type and value of every field of a message."""
    at, end = 0, len(data)
    while at < end:
        key = data[at]  # nearly all numbers have one octet, which is read here
        if key < 0x80:
            at += 1
        else:
            key, at = read_varint(data, at)
        number, kind = key >> 3, key & 7
        value: int | memoryview
        if kind == VARINT:
            if at < end and (octet := data[at]) < 0x80:
                value, at = octet, at + 1
            else:
                value, at = read_varint(data, at)
        else:
            if kind == OCTETS:
                if at < end and (octet := data[at]) < 0x80:
                    length, at = octet, at + 1
                else:
                    length, at = read_varint(data, at)
            elif kind in (EIGHT, FOUR):
                length = 8 if kind == EIGHT else 4
            else:
                raise WireError(f"wire type {kind} of field {number} is unknown")
            if length > end - at:
                raise WireError(f"field {number} claims {length} octets and {end - at} are left")
            value, at = data[at : at + length], at + length
        yield number, kind, value


def delimited(data: memoryview) -> Iterator[memoryview]:
    """Yield messages that follow each other, each behind its length."""
    at = 0
    while at < len(data):
        length, at = read_varint(data, at)
        if length > len(data) - at:
            raise WireError(f"a message claims {length} octets and {len(data) - at} are left")
        yield data[at : at + length]
        at += length


def varints(value: int | memoryview) -> Iterator[int]:
    """Yield the numbers of a repeated field: one, or a row of them (packed)."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = read_varint(value, at)
        yield number


def signed(value: int) -> int:
    """Return a varint as the signed number of 64 bits that it stands for."""
    return value - (1 << 64) if value >> 63 else value


def as_double(value: memoryview) -> float:
    """Return eight octets as a floating-point number."""
    number: float = struct.unpack("<d", value)[0]
    return number


def varint(value: int) -> bytes:
    """Return ``value``, which may be negative, as a varint."""
    value &= (1 << 64) - 1
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*octets, value))


def field(number: int, value: int | bytes | str) -> bytes:
    """Return a field with a varint, or with octets."""
    if isinstance(value, int):
        return varint(number << 3 | VARINT) + varint(value)
    octets = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | OCTETS) + varint(len(octets)) + octets
