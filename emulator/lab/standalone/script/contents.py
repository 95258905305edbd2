"""Contents of memory: patterns that both ends can compute."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

import psutil

from emulator.errors import UserError
from emulator.lab.standalone.script.atomic_elements import encode, type_of
from emulator.lab.standalone.script.phrases import number
from uet.wire.crc import crc32c

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
        """``length`` octets of message ``index``."""
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
