"""Tables of a switch program in this process's memory, in place of the kernel's maps."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Callable


class ArrayTable:
    """``entries`` values of ``value_bytes`` octets each; keys are their numbers.

    ``written`` is called with a number after :meth:`put` has written its value.
    """

    def __init__(
        self, entries: int, value_bytes: int, written: Callable[[int], None] | None = None
    ) -> None:
        self.entries, self.value_bytes = entries, value_bytes
        # Workers that are forked later share it.  Pages take no room until they are written, unlike
        # a bytearray's: of the ports of other MPI ranks most never are.
        self._octets = mmap.mmap(-1, max(1, entries * value_bytes))
        self._written = written

    def get(self, key: bytes, *, flags: int = 0) -> bytes:
        """The value at ``key``.  Raises OSError (ENOENT) if there is none."""
        at = self._number(key) * self.value_bytes
        return bytes(self._octets[at : at + self.value_bytes])

    def put(self, key: bytes, value: bytes, *, flags: int = 0) -> None:
        """Write ``value`` at ``key``.  Raises OSError (E2BIG) if there is no such place."""
        number = self._number(key, errno.E2BIG)
        if len(value) != self.value_bytes:
            raise ValueError(f"{len(value)} octets for a table of {self.value_bytes}")
        at = number * self.value_bytes
        memoryview(self._octets)[at : at + self.value_bytes] = value
        if self._written is not None:
            self._written(number)

    def delete(self, key: bytes) -> None:
        """Raise OSError: an array keeps all its values."""
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def first(self, count: int, *, flags: int = 0) -> bytearray:
        """The values of keys 0 to ``count`` - 1, one after the other."""
        return bytearray(self._octets[: count * self.value_bytes])

    def read_first(self, count: int, values: bytearray, *, flags: int = 0) -> None:
        """Read entries into ``values`` as :meth:`first` does."""
        if len(values) != count * self.value_bytes:
            raise ValueError(f"{len(values)} octets for {count} values")
        values[:] = memoryview(self._octets)[: len(values)]

    def all_keys(self) -> list[bytes]:
        """The numbers of all values."""
        return [number.to_bytes(4, sys.byteorder) for number in range(self.entries)]

    def mapped(self) -> memoryview:
        """Return the memory itself: who writes there writes the table."""
        return memoryview(self._octets)[: self.entries * self.value_bytes]

    def _number(self, key: bytes, absent: int = errno.ENOENT) -> int:
        number = int.from_bytes(key, sys.byteorder)
        if number >= self.entries:
            raise OSError(absent, os.strerror(absent))
        return number


class HashTable:
    """Values by any key, at most ``entries`` of them.

    ``changed`` is called after each change, with the key and the value (None: it is removed).
    """

    def __init__(
        self, entries: int, changed: Callable[[bytes, bytes | None], None] | None = None
    ) -> None:
        self.entries = entries
        self.values: dict[bytes, bytes] = {}
        self._changed = changed

    def get(self, key: bytes, *, flags: int = 0) -> bytes:
        """The value at ``key``.  Raises OSError (ENOENT) if there is none."""
        if key not in self.values:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self.values[key]

    def put(self, key: bytes, value: bytes, *, flags: int = 0) -> None:
        """Write ``value`` at ``key``.  Raises OSError (ENOSPC) if the table is full."""
        if key not in self.values and len(self.values) >= self.entries:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.values[key] = value
        if self._changed is not None:
            self._changed(key, value)

    def delete(self, key: bytes) -> None:
        """Remove the value at ``key``.  Raises OSError (ENOENT) if there is none."""
        self.get(key)
        del self.values[key]
        if self._changed is not None:
            self._changed(key, None)

    def first(self, count: int, *, flags: int = 0) -> bytearray:
        """Raise OSError: these keys have no order."""
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def read_first(self, count: int, values: bytearray, *, flags: int = 0) -> None:
        """Raise OSError: these keys have no order."""
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def all_keys(self) -> list[bytes]:
        """All keys, in the order in which they came."""
        return list(self.values)

    def mapped(self) -> memoryview:
        """Raise OSError: a hash table is no array."""
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
