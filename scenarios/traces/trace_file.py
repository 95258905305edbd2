"""Files of traces: their contents, read with a limit, and errors that name a line of them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from scenarios.traces.trace_model import TraceRefusal

#: Octets of a file, unpacked: what is larger is refused before it fills the memory.
LARGEST_FILE = 256 * 2**20
#: First octets, by which a format recognises its files.
HEAD = 4096
_GZIP = b"\x1f\x8b"
#: Octets that are unpacked at a time to count them.
_AT_ONCE = 2**20


@dataclass(frozen=True)
class TraceFile:
    """The file at ``path``, which may be packed by gzip."""

    path: Path

    @property
    def name(self) -> str:
        """Return the name that errors give to it."""
        return self.path.name

    @property
    def stem(self) -> str:
        """Return the name without ``.gz``."""
        return self.path.name.removesuffix(".gz")

    def has_suffix(self, suffixes: tuple[str, ...]) -> bool:
        """Return whether the name ends like that, before ``.gz`` if it is packed."""
        return self.stem.lower().endswith(suffixes)

    @cached_property
    def head(self) -> bytes:
        """The first octets."""
        return self._read(HEAD)

    @cached_property
    def content(self) -> bytes:
        """All octets; TraceRefusal if they are too many, before they are in memory."""
        octets = self._octets()
        if octets > LARGEST_FILE:
            raise TraceRefusal(
                f"{self.name} has more than {LARGEST_FILE >> 20} MiB"
                f"{' when it is unpacked' if self._packed else ''}; cut out the iterations that "
                "matter"
            )
        return self._read(octets)

    @cached_property
    def text(self) -> str:
        """The content as text; TraceRefusal if it is none."""
        try:
            return self.content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = 1 + self.content.count(b"\n", 0, error.start)
            raise self.wrong(
                line, "not UTF-8 text; is it a binary file of another format?"
            ) from None

    def release(self) -> None:
        """Forget the contents, which have been read."""
        for name in ("content", "text"):
            self.__dict__.pop(name, None)

    def wrong(self, line: int, stated: str) -> TraceRefusal:
        """Return the error that ``line`` of the file is ``stated`` to have."""
        return TraceRefusal(f"{self.name}, line {line}: {stated}")

    @cached_property
    def _packed(self) -> bool:
        with self._opened() as file:
            return file.read(2) == _GZIP

    def _octets(self) -> int:
        """Return the number of octets, or one beyond the limit."""
        if not self._packed:
            return self.path.stat().st_size
        octets = 0
        with self._unpacked() as file:
            while octets <= LARGEST_FILE and (found := len(file.read(_AT_ONCE))):
                octets += found
        return octets

    def _read(self, octets: int) -> bytes:
        if self._packed:
            with self._unpacked() as unpacked:
                return unpacked.read(octets)
        with self._opened() as file:
            return file.read(octets)

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            with self.path.open("rb") as file:
                yield file
        except OSError as error:
            raise TraceRefusal(
                f"{self.path} cannot be read ({error.strerror}); give the path of a trace"
            ) from None

    @contextmanager
    def _unpacked(self) -> Iterator[gzip.GzipFile]:
        try:
            with gzip.open(self.path, "rb") as file:
                yield file
        except (OSError, EOFError, zlib.error):
            raise TraceRefusal(
                f"{self.path} begins as a gzip file and cannot be unpacked; fetch it again"
            ) from None
