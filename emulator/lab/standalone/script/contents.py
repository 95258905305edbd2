"""Contents of memory: patterns that both ends can compute, and elements of atomic operations.

Elements lie in little-endian memory (UES 3.4).
"""

from __future__ import annotations

import hashlib
import math
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from emulator.errors import UserError
from emulator.lab.standalone.script.phrases import number
from uet.ses.memory.atomic_operations import size_of
from uet.wire.codes import Datatype
from uet.wire.crc import crc32c

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


#: Octets up to which data is shown itself, beside its checksums.
_SHOWN = 32
#: Octets after which the reference pattern begins anew: 256 times 256.
_PERIOD = 1 << 16
NAMED = {
    "reference": "octet j of message i is (7*i + 13*j + j//256) mod 256",
    "counter": "octet j is j mod 256",
    "zero": "all zero",
    "random": "from the seed and i",
}


@dataclass(frozen=True, slots=True)
class OctetPattern:
    """A rule for octets: one of :data:`NAMED`, or with an argument (``name:argument``).

    ``byte:0xNN`` is one octet over and over, ``hex:...`` and ``text:...`` are those octets over and
    over. ``file:PATH`` is the file, with zeros behind its end. ``TYPE:VALUE``, such as
    ``uint64:1000``, is one element in little-endian order, with zeros behind it.
    """

    name: str
    argument: bytes = b""

    def octets(self, length: int, index: int = 0, seed: int = 0) -> bytes:
        match self.name:
            case "reference":
                period = range(min(length, _PERIOD))
                return _repeated(
                    bytes(7 * index + 13 * j + j // 256 & 0xFF for j in period), length
                )
            case "counter":
                return _repeated(bytes(range(256)), length)
            case "random":
                return random.Random(f"{seed}/{index}").randbytes(length)
            case "repeat":
                return _repeated(self.argument, length)
            case "zero":
                return bytes(length)
        return self.argument[:length].ljust(length, b"\0")


def _repeated(octets: bytes, length: int) -> bytes:
    if len(octets) == length:
        return octets
    return (octets * -(-length // len(octets)))[:length]


def pattern(text: str, what: str) -> OctetPattern:
    """A pattern by its name.  Raises :class:`UserError`."""
    name, colon, argument = text.partition(":")
    if not colon and name in NAMED:
        return OctetPattern(name)
    if colon and name == "byte":
        return OctetPattern("repeat", bytes([number(argument, what, high=255)]))
    if colon and name in ("hex", "text") and argument:
        try:
            octets = bytes.fromhex(argument) if name == "hex" else argument.encode()
        except ValueError:
            raise UserError(f"{what}: {argument!r} is not hexadecimal; check it") from None
        return OctetPattern("repeat", octets)
    if colon and name == "file":
        try:
            return OctetPattern("octets", Path(argument).read_bytes())
        except OSError as error:
            raise UserError(f"{what}: {argument} cannot be read: {error.strerror}") from None
    if colon and (datatype := type_of(name)) is not None:
        return OctetPattern("octets", encode(datatype, [argument], what))
    raise UserError(
        f"{what} is {text!r}; choose {', '.join(NAMED)}, byte:0xNN, hex:..., text:..., file:PATH"
        " or an element such as uint64:1000"
    )


def must_fit(octets: int, what: str) -> None:
    """Raise :class:`UserError` where so many octets would drive the machine out of memory."""
    free = psutil.virtual_memory().available
    if octets > free:
        raise UserError(
            f"{what} needs {octets} octets of memory, and {free} are free; ask for less"
        )


def summary(octets: bytes | memoryview) -> dict[str, object]:
    """Return the report's entries on data: checksums, and the data itself if it is short."""
    stated: dict[str, object] = {
        "sha256": hashlib.sha256(octets).hexdigest(),
        "crc32c": f"{crc32c(bytes(octets)):08x}",
    }
    if 0 < len(octets) <= _SHOWN:
        stated["data"] = bytes(octets).hex()
    return stated
