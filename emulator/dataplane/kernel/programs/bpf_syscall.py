"""The ``bpf`` system call, as far as pinned programs and maps need it (kernel ``linux/bpf.h``)."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import sys
from pathlib import Path

from emulator.dataplane.kernel.programs.ebpf import BPF_SYSCALL

MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, MAP_DELETE, OBJ_GET, OBJ_INFO = 0, 1, 2, 3, 7, 15
MAP_NEXT_KEY, PROGRAM_RUN, MAP_LOOKUP_BATCH = 4, 10, 24
MAP_TYPE_ARRAY = 2
LOCKED = 4  # BPF_F_LOCK: take the value's spin lock
ATTRIBUTE_BYTES = 128
#: Errors of kernels that lack the batch operation, altogether (before 5.6) or for a kind of map.
NO_BATCH = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, 524})  # 524: ENOTSUPP
RUN = struct.Struct("=4I2Q")  # program, its result, sizes and places of the frame in and out
MAP_INFO = struct.Struct("=IIIII")  # type, id, key size, value size, entries

_libc = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, attributes: bytes, subject: str) -> int:
    """The system call.  Raises OSError with ``subject`` as its file name."""
    return _call(command, ctypes.create_string_buffer(attributes, ATTRIBUTE_BYTES), subject)


def run(program: int, frame: bytes, subject: str) -> int:
    """Run a loaded classifier (its file descriptor) on ``frame`` and return its result.

    The frame goes nowhere.  Raises OSError with ``subject`` as its file name.
    """
    octets = ctypes.create_string_buffer(frame, len(frame))
    request = RUN.pack(program, 0, len(frame), 0, ctypes.addressof(octets), 0)
    union = ctypes.create_string_buffer(request, ATTRIBUTE_BYTES)
    _call(PROGRAM_RUN, union, subject)
    result: int = RUN.unpack_from(union)[1]
    return result


def _call(command: int, union: ctypes.Array[ctypes.c_char], subject: str) -> int:
    number = BPF_SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(38, f"eBPF is unknown on {platform.machine()}", subject)
    result: int = _libc.syscall(number, command, union, ATTRIBUTE_BYTES)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), subject)
    return result


def available() -> None:
    """Raise OSError if this process may not make a map."""
    os.close(bpf(MAP_CREATE, struct.pack("=IIIII", MAP_TYPE_ARRAY, 4, 4, 1, 0), "bpf"))


def open_pinned(path: Path) -> int:
    """A file descriptor of the program or map that is pinned at ``path``."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    return bpf(OBJ_GET, struct.pack("=QII", ctypes.addressof(name), 0, 0), str(path))


class Map:
    """A pinned map: fixed-size keys to fixed-size values, both octets here."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._batch = True
        self.handle = open_pinned(path)
        info = ctypes.create_string_buffer(ATTRIBUTE_BYTES)
        request = struct.pack("=IIQ", self.handle, len(info), ctypes.addressof(info))
        bpf(OBJ_INFO, request, self.name)
        _, _, self.key_bytes, self.value_bytes, self.entries = MAP_INFO.unpack_from(info)

    def close(self) -> None:
        os.close(self.handle)

    def get(self, key: bytes, *, flags: int = 0) -> bytes:
        """The value at ``key``.  Raises OSError (ENOENT) if there is none."""
        value = ctypes.create_string_buffer(self.value_bytes)
        self._call(MAP_LOOKUP, key, ctypes.addressof(value), flags)
        return value.raw

    def first(self, count: int, *, flags: int = 0) -> bytearray:
        """The values of keys 0 to ``count`` - 1 of an array, one after the other.

        In one system call where the kernel can.
        """
        values = bytearray(count * self.value_bytes)
        self.read_first(count, values, flags=flags)
        return values

    def read_first(self, count: int, values: bytearray, *, flags: int = 0) -> None:
        """Read entries into ``values`` as :meth:`first` does."""
        if len(values) != count * self.value_bytes:
            raise ValueError(f"{len(values)} octets for {count} values of map {self.name}")
        if self._batch:
            try:
                self._read_batch(count, values, flags)
                return
            except OSError as error:
                if error.errno not in NO_BATCH:
                    raise
                self._batch = False
        size = self.value_bytes
        for index in range(count):
            key = index.to_bytes(self.key_bytes, sys.byteorder)
            values[index * size : (index + 1) * size] = self.get(key, flags=flags)

    def _read_batch(self, count: int, values: bytearray, flags: int) -> None:
        target = (ctypes.c_char * len(values)).from_buffer(values)
        keys = ctypes.create_string_buffer(count * self.key_bytes)
        position = ctypes.create_string_buffer(8)
        request = struct.pack(
            "=4Q2I2Q",
            0,
            ctypes.addressof(position),
            ctypes.addressof(keys),
            ctypes.addressof(target),
            count,
            self.handle,
            flags,
            0,
        )
        try:
            bpf(MAP_LOOKUP_BATCH, request, self.name)
        except OSError as error:
            if error.errno != errno.ENOENT:  # that was the last one: all of them are there
                raise

    def put(self, key: bytes, value: bytes, *, flags: int = 0) -> None:
        if len(value) != self.value_bytes:
            raise ValueError(f"{len(value)} octets for map {self.name} of {self.value_bytes}")
        octets = ctypes.create_string_buffer(value, len(value))
        self._call(MAP_UPDATE, key, ctypes.addressof(octets), flags)

    def mapped(self) -> memoryview:
        """Return the memory of an array that the kernel lets processes map."""
        return memoryview(mmap.mmap(self.handle, self.entries * self.value_bytes))

    def delete(self, key: bytes) -> None:
        self._call(MAP_DELETE, key, 0, 0)

    def all_keys(self) -> list[bytes]:
        """All keys of a hash table, but perhaps for those that come meanwhile."""
        found: list[bytes] = []
        following = ctypes.create_string_buffer(self.key_bytes)
        last = ctypes.create_string_buffer(self.key_bytes)
        place = 0
        while len(found) < self.entries:
            request = struct.pack("=IIQQ", self.handle, 0, place, ctypes.addressof(following))
            try:
                bpf(MAP_NEXT_KEY, request, self.name)
            except FileNotFoundError:  # ENOENT: that was the last one
                break
            found.append(following.raw)
            last.raw = following.raw
            place = ctypes.addressof(last)
        return found

    def _call(self, command: int, key: bytes, value: int, flags: int) -> None:
        if len(key) != self.key_bytes:
            raise ValueError(f"{len(key)} octets for a key of map {self.name}")
        octets = ctypes.create_string_buffer(key, len(key))
        request = struct.pack("=IIQQQ", self.handle, 0, ctypes.addressof(octets), value, flags)
        bpf(command, request, self.name)
