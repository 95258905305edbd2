"""Room in a part of a GPU's memory, taken from the machine as it is first used."""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from pathlib import Path

_ALIGNMENT = 256
#: The machine's memory is asked for in steps of so many octets.
_STEP = 1 << 22


class ArenaFullError(Exception):
    """There is no room; the text says where."""


class Arena:
    """The octets from ``begin`` to before ``end`` of the memory at ``path``; first fit."""

    def __init__(self, path: Path, begin: int, end: int) -> None:
        self._path, self._reserved, self._octets = path, begin, end - begin
        self._free: list[tuple[int, int]] = [(begin, end)]  # by place: begin, end
        self._taken: dict[int, int] = {}

    def allocate(self, octets: int) -> int:
        """Return where ``octets`` have room; ArenaFullError if nowhere."""
        size = max(1, -(-octets // _ALIGNMENT)) * _ALIGNMENT
        for at, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                self._reserve(begin + size)
                if end - begin == size:
                    del self._free[at]
                else:
                    self._free[at] = begin + size, end
                self._taken[begin] = size
                return begin
        held = sum(self._taken.values())
        raise ArenaFullError(
            f"the memory of {self._path.name} has no room for {octets} octets beside {held} that "
            f"calls hold, of {self._octets} in all; "
            + ("wait for some of them" if held else "use smaller tensors, or several calls")
        )

    def free(self, begin: int) -> None:
        """Give back what :meth:`allocate` returned."""
        end = begin + self._taken.pop(begin)
        at = bisect_left(self._free, (begin, end))
        if at < len(self._free) and self._free[at][0] == end:
            end = self._free.pop(at)[1]
        if at and self._free[at - 1][1] == begin:
            at -= 1
            begin = self._free.pop(at)[0]
        self._free.insert(at, (begin, end))

    def _reserve(self, end: int) -> None:
        """Take pages up to ``end`` from the machine: a full one is an error here, no signal."""
        if end <= self._reserved:
            return
        end = -(-end // _STEP) * _STEP
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, self._reserved, end - self._reserved)
        except OSError as failure:
            if failure.errno != errno.ENOSPC:
                raise
            raise ArenaFullError(
                f"{self._path.parent} has no room for {end - self._reserved} octets more of "
                f"{self._path.name}; use smaller tensors or fewer ranks"
            ) from None
        finally:
            os.close(descriptor)
        self._reserved = end
