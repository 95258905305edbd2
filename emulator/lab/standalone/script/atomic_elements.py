"""Elements of atomic operations as text and as octets of little-endian memory (UES 3.4)."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from emulator.errors import UserError
from uet.ses.memory.atomic_operations import size_of
from uet.wire.codes import Datatype

_FLOATS = {Datatype.FLOAT: "f", Datatype.DOUBLE: "d", Datatype.FP16: "e"}
_COMPLEX = {Datatype.FLOAT_COMPLEX: "f", Datatype.DOUBLE_COMPLEX: "d"}


def type_of(name: str) -> Datatype | None:
    """The datatype of a name such as ``uint64``, ``None`` if there is none."""
    return Datatype.__members__.get(name.upper())


def encode(datatype: Datatype, values: Sequence[object], what: str) -> bytes:
    """The octets of ``values`` in little-endian memory.  Raises :class:`UserError`."""
    return b"".join(_encode(datatype, value, what) for value in values)


def _encode(datatype: Datatype, value: object, what: str) -> bytes:
    size = size_of(datatype)
    if size is None:
        raise UserError(f"{what}: this machine has no {datatype.name.lower()}; take another type")
    text = str(value).strip()
    try:
        if datatype in _FLOATS:
            return struct.pack(f"<{_FLOATS[datatype]}", float(text))
        if datatype in _COMPLEX:
            both = complex(text)
            return struct.pack(f"<2{_COMPLEX[datatype]}", both.real, both.imag)
        if datatype == Datatype.BF16:
            return struct.pack("<f", float(text))[2:]
        if datatype in (Datatype.LONG_DOUBLE, Datatype.LONG_DOUBLE_COMPLEX):
            import numpy as np

            if datatype == Datatype.LONG_DOUBLE:
                return np.longdouble(text).tobytes()
            return np.clongdouble(complex(text)).tobytes()
        signed = datatype.name.startswith("INT")
        return int(text, 0).to_bytes(size, "little", signed=signed)
    except (ValueError, OverflowError, struct.error):
        raise UserError(
            f"{what} is {text!r}, which is no {datatype.name.lower()}; give one that fits"
        ) from None


def decode(datatype: Datatype, octets: bytes | memoryview) -> list[int | float | str]:
    """The elements of little-endian memory; what JSON has no number for is text."""
    size = size_of(datatype) or 1
    whole = len(octets) // size * size
    return [_decode(datatype, bytes(octets[at : at + size])) for at in range(0, whole, size)]


def _decode(datatype: Datatype, octets: bytes) -> int | float | str:
    if datatype in _FLOATS:
        return _plain(struct.unpack(f"<{_FLOATS[datatype]}", octets)[0])
    if datatype in _COMPLEX:
        return str(complex(*struct.unpack(f"<2{_COMPLEX[datatype]}", octets)))
    if datatype == Datatype.BF16:
        return _plain(struct.unpack("<f", b"\0\0" + octets)[0])
    if datatype in (Datatype.LONG_DOUBLE, Datatype.LONG_DOUBLE_COMPLEX):
        import numpy as np

        long = np.longdouble if datatype == Datatype.LONG_DOUBLE else np.clongdouble
        return str(np.frombuffer(octets, long)[0])
    return int.from_bytes(octets, "little", signed=datatype.name.startswith("INT"))


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
