"""Files of users as octets and text: packed by gzip or not, UTF-8 or UTF-16, never beyond bounds.

A packed file can unpack to more than the machine holds.  So it is unpacked piece by piece, and
refused at the first of two bounds: the memory that is free, of which a reader takes ``weight``
octets for each octet, and 200 times its packed size, which no text reaches by its content alone.
``unpacked`` is a bound that the user gives in place of both.
"""

from __future__ import annotations

import gzip
import logging
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from emulator.errors import UserError
from emulator.machine_memory import machine_memory

#: Octets of a packed file that may become one, beyond :data:`ALWAYS`.
MOST_RATIO = 200
#: A file may unpack to so many octets whatever its ratio: a short list repeats itself.
ALWAYS = 16 * 2**20
#: Seconds between two lines of progress.
LINE_S = 10.0
_MAGIC = b"\x1f\x8b"
_AT_ONCE = 2**20
_log = logging.getLogger(__name__)


class Pace:
    """A line on standard error every ten seconds in which ``what`` is still under way."""

    def __init__(self, what: str) -> None:
        self._what, self._next = what, time.monotonic() + LINE_S

    def at(self, reached: str) -> None:
        """Say how far it is, if it is time."""
        if time.monotonic() > self._next:
            self._next = time.monotonic() + LINE_S
            _log.warning("uetemu: %s: %s", self._what, reached)


def head(path: Path, octets: int) -> bytes:
    """Return the first ``octets`` of the content; UserError if it cannot be read."""
    with _opened(path) as (file, _):
        return file.read(octets)


def content(path: Path, weight: int = 1, unpacked: int = 0, most: int = 0) -> bytes:
    """Return the whole content; UserError, before it fills the memory, if it is too long.

    ``most`` is the reader's own bound, and ``unpacked`` the user's (octets; 0: none).
    """
    with _opened(path) as (file, packed):
        size = path.stat().st_size
        bound, reason = _bound(size, packed, weight, unpacked, most)
        if not packed and size > bound:
            raise UserError(f"{path} has more than {_about(bound)}{reason}")
        found = bytearray()
        pace = Pace(f"unpacking {path.name}")
        while piece := file.read(_AT_ONCE):
            found += piece
            if len(found) > bound:
                what = "unpacks to" if packed else "has"
                raise UserError(f"{path} {what} more than {_about(bound)}{reason}")
            pace.at(_about(len(found)))
    return bytes(found)


def _bound(size: int, packed: bool, weight: int, unpacked: int, most: int) -> tuple[int, str]:
    """Return the octets of content that are allowed, and the reason with the way out."""
    free = machine_memory().available
    way_out = "cut it to what matters"
    if not most:
        way_out += ", or raise the bound with --param unpacked=SIZE"
    bounds = [(free // weight, f", and {_about(free)} of memory are free: {way_out}")]
    if packed:
        ratio = f", {MOST_RATIO} times what the file has, as no file of its kind does: {way_out}"
        bounds.append((max(ALWAYS, MOST_RATIO * size), ratio))
    if unpacked:
        bounds = [(unpacked, ", which --param unpacked allows")]
    if most:
        bounds.append((most, "; cut it to one test"))
    return min(bounds)


def _about(octets: int) -> str:
    return f"{octets / 2**20:.0f} MiB" if octets >= 2**20 else f"{octets} B"


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO | gzip.GzipFile, bool]]:
    """Yield the content of ``path`` to read from, and whether it is packed."""
    packed = False
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == _MAGIC
            plain.seek(0)
            if not packed:
                yield plain, False
                return
            with gzip.GzipFile(fileobj=plain, mode="rb") as unpacked:
                yield unpacked, True
    except (OSError, EOFError, zlib.error) as error:
        if packed:
            raise UserError(
                f"{path} begins as a gzip file and cannot be unpacked; fetch it again"
            ) from None
        what = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read ({what}); give another path") from None


def text_of(octets: bytes) -> str:
    """Return ``octets`` as text; UnicodeDecodeError if they are none.

    UTF-16, which PowerShell writes, shows by its NULs: every second octet of plain text.
    """
    sample = octets[:4096]
    for first, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        if sample[first::2].count(0) > 0.4 * len(sample) and not sample[1 - first :: 2].count(0):
            return octets.decode(name).removeprefix("\ufeff")
    return octets.decode("utf-8-sig")
