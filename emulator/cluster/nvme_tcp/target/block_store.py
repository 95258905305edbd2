"""A store holds a namespace's octets in a file, or in sparse memory."""

from __future__ import annotations

import ctypes
import errno
import os
import weakref
from pathlib import Path

from emulator.errors import UserError

# fallocate(2): linux/falloc.h
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_PIECE = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)


class BlockStore:
    """``size`` octets behind a file descriptor, closed by :meth:`close` or with the store."""

    def __init__(self, descriptor: int, size: int, *, read_only: bool = False) -> None:
        self._descriptor = descriptor
        self._release = weakref.finalize(self, os.close, descriptor)
        self.size = size
        self.read_only = read_only

    @classmethod
    def memory(cls, size: int) -> BlockStore:
        """Make sparse memory that reads as zeroes where nothing was written."""
        descriptor = os.memfd_create("uetemu-nvme", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size)
        return cls(descriptor, size)

    @classmethod
    def file(cls, path: Path, size: int | None, *, read_only: bool = False) -> BlockStore:
        """Open a file as it is, or make it sparse with ``size``; raises :class:`UserError`."""
        flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)
        created = False
        try:
            if size is not None and not path.exists() and not read_only:
                flags |= os.O_CREAT | os.O_EXCL
                created = True
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:
            raise UserError(f"there is no {path}; say --size SIZE and it is made, sparse") from None
        except OSError as error:
            raise UserError(f"cannot open {path}: {error.strerror}; give a readable file") from None
        if created and size is not None:
            try:
                os.ftruncate(descriptor, size)
            except OSError as error:
                os.close(descriptor)
                path.unlink()
                raise UserError(
                    f"cannot make {path} of {size} octets: {error.strerror}; give a smaller --size"
                ) from None
        there = os.lseek(descriptor, 0, os.SEEK_END)
        if size is not None and size != there:
            os.close(descriptor)
            raise UserError(f"{path} has {there} octets, not {size}; leave --size out")
        return cls(descriptor, there, read_only=read_only)

    def read(self, offset: int, length: int) -> bytes:
        """Read exactly ``length`` octets; raises ``OSError``."""
        octets = os.pread(self._descriptor, length, offset)
        while len(octets) < length:  # a signal, or a file that someone made shorter
            more = os.pread(self._descriptor, length - len(octets), offset + len(octets))
            if not more:
                raise OSError("the file has become shorter")
            octets += more
        return octets

    def write(self, offset: int, octets: bytes) -> None:
        """Write all ``octets``; raises ``OSError``."""
        done = os.pwrite(self._descriptor, octets, offset)
        while done < len(octets):
            done += os.pwrite(self._descriptor, octets[done:], offset + done)

    def deallocate(self, offset: int, length: int) -> bool:
        """Make octets a hole that reads as zeroes; False where the file system has none."""
        place, many = ctypes.c_long(offset), ctypes.c_long(length)
        return not _libc.fallocate(self._descriptor, _KEEP_SIZE | _PUNCH_HOLE, place, many)

    def zero(self, offset: int, length: int) -> None:
        """Make octets read as zeroes: by a hole where the file system has them."""
        if self.deallocate(offset, length):
            return
        end = offset + length
        while offset < end:
            piece = min(_PIECE, end - offset)
            self.write(offset, bytes(piece))
            offset += piece

    def flush(self) -> None:
        """Bring what was written to the medium."""
        if self._descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the descriptor; further calls raise ``OSError``."""
        self._release()
        self._descriptor = -1
