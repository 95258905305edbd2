"""Files of traces: their contents, read with a limit, and errors that name a line of them."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from emulator import packed_file
from emulator.errors import UserError
from scenarios.traces.trace_model import TraceRefusal

#: First octets, by which a format recognises its files.
HEAD = 4096


@dataclass(frozen=True)
class TraceFile:
    """The file at ``path``, which may be packed by gzip.

    A reader takes about ``weight`` octets of memory for each octet of it.  ``unpacked`` is the
    user's own bound of its content (octets; 0: none).
    """

    path: Path
    weight: int = 40
    unpacked: int = 0

    @property
    def name(self) -> str:
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
        """The first octets; text that begins as UTF-16 is UTF-8 here."""
        with _refusing():
            octets = packed_file.head(self.path, HEAD)
        if octets.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return octets.decode("utf-16", "ignore").encode()
        return octets

    @cached_property
    def content(self) -> bytes:
        """All octets; TraceRefusal if they are too many, before they are in memory."""
        with _refusing():
            return packed_file.content(self.path, self.weight, self.unpacked)

    @cached_property
    def text(self) -> str:
        """The content as text; TraceRefusal if it is none."""
        try:
            return packed_file.text_of(self.content)
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
        return TraceRefusal(f"{self.name}, line {line}: {stated}")


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise TraceRefusal(str(error)) from None


def read_groups(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each group that ``path`` names; TraceRefusal if it is no such file."""
    file = TraceFile(path)
    try:
        content = json.loads(file.text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise file.wrong(line, 'not JSON; write for example {"1": [0, 1]}') from None
    if not isinstance(content, dict):
        raise file.wrong(1, 'not a mapping; write for example {"1": [0, 1]}')
    groups = {}
    for name, ranks in content.items():
        if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
            raise TraceRefusal(
                f"{file.name}: group {name[:40]!r} is no list of ranks; write for example [0, 1]"
            )
        groups[name] = tuple(ranks)
    return groups
