"""The standard streams of ranks: kept whole in files, and shown line by line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from emulator.torch_backend.launching import RankProcess

#: Folder of the files in a run folder, and the names of the streams.
FOLDER = "ranks"
NAMES = {1: "stdout", 2: "stderr"}
_READ_OCTETS = 65536
#: ``show(rank, stream number, line without its end)``
Show = Callable[[int, int, str], None]


class RankOutput:
    """Writes what ranks print into ``folder`` as ``N.stdout`` and ``N.stderr``; ``show`` gets it.

    A file is made with its first octet.
    """

    def __init__(self, folder: Path | None, show: Show) -> None:
        self._folder, self._show = folder, show
        self._files: dict[tuple[int, int], BinaryIO] = {}
        self._rest: dict[tuple[int, int], bytes] = {}
        if folder is not None:
            folder.mkdir(exist_ok=True)

    def take(self, process: RankProcess, number: int) -> bool:
        """Read what stream ``number`` has now; return whether it goes on."""
        octets = os.read(process.streams[number].fileno(), _READ_OCTETS)
        key = process.place.rank, number
        if not octets:
            if rest := self._rest.pop(key, b""):
                self._show(*key, rest.decode("utf-8", "replace"))
            return False
        self._keep(key, octets)
        *lines, self._rest[key] = (self._rest.get(key, b"") + octets).split(b"\n")
        for line in lines:
            self._show(*key, line.decode("utf-8", "replace"))
        return True

    def _keep(self, key: tuple[int, int], octets: bytes) -> None:
        if self._folder is None:
            return
        if key not in self._files:
            path = self._folder / f"{key[0]}.{NAMES[key[1]]}"
            self._files[key] = path.open("ab", buffering=0)
        self._files[key].write(octets)

    def where(self, rank: int) -> str:
        """Return where what ``rank`` printed stands, as the end of a sentence."""
        if self._folder is None:
            return ""
        return f"; what it printed stands in {self._folder.name}/{rank}.{NAMES[2]}"

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
