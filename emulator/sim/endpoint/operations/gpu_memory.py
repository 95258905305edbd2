"""GPU memory, laid out as named buffers.

The endpoint of the GPU, those of its server (scale-up copies) and the runner (inputs and
verification) use the same pages.  Where several workers of a machine do, these are a file in
``/dev/shm``, and else memory of the one process, which costs less: the kernel is done with a page
in three quarters of the time.  Capacity that no buffer uses costs nothing.  Every transferred
region is covered by a CRC32C, made a slice at a time.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Generator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt

from emulator.errors import UserError
from emulator.sim.endpoint.operations.schedule import Region

_ALIGNMENT = 4096
#: Work on longer regions is done in slices of this many octets, between which the endpoint looks at
#: its NIC (a slice takes some tens of microseconds).
SLICE_OCTETS: Final = 256 * 1024
#: Lengths whose slices are remembered: a schedule has a few.
_LENGTHS = 64
DIRECTORY = Path("/dev/shm")
#: madvise's MADV_POPULATE_WRITE, which Python does not name.
_POPULATE_WRITE = 23


def memory_path(lab: str, node: str) -> Path:
    """Return where the memory of GPU ``node`` of ``lab`` lives."""
    return DIRECTORY / f"uetemu.{lab}.{node}"


class Layout:
    """The offset of each named buffer in a GPU's memory (octets), identical on every side."""

    def __init__(self, buffers: Mapping[str, int]) -> None:
        self.buffers = dict(buffers)
        self._offsets: dict[str, int] = {}
        end = 0
        for name, octets in self.buffers.items():
            if octets < 0:
                raise ValueError(f"buffer {name!r} has {octets} octets; it cannot be negative")
            self._offsets[name] = end
            end += -(-octets // _ALIGNMENT) * _ALIGNMENT
        self.octets = end

    def locate(self, region: Region) -> int:
        """Offset of ``region`` in the memory.  ``ValueError`` when it does not fit its buffer."""
        size = self.buffers.get(region.buffer)
        if size is None:
            known = ", ".join(self.buffers) or "none"
            raise ValueError(f"there is no buffer {region.buffer!r}; buffers are {known}")
        if region.offset < 0 or region.length < 0 or region.offset + region.length > size:
            raise ValueError(
                f"octets {region.offset}..{region.offset + region.length} lie outside buffer"
                f" {region.buffer!r} of {size} octets"
            )
        return self._offsets[region.buffer] + region.offset


class GpuMemory:
    """A mapping of one GPU's memory.

    Use :meth:`private` where one process needs it, and else :meth:`create` once and :meth:`attach`
    elsewhere.  ``path`` names it; ``shared``: the file is there.
    """

    def __init__(self, path: Path, mapping: mmap.mmap, *, shared: bool = True) -> None:
        self.path = path
        self.layout = Layout({})
        self._shared = shared
        #: octets from the first one on that have had their pages from the machine
        self._populated = 0
        #: octets from the first one on that buffers have had, and had when it was renewed last
        self._laid_out = self._old = 0
        self._mapping = mapping
        self.octets: npt.NDArray[np.uint8] = np.frombuffer(mapping, dtype=np.uint8)

    @classmethod
    def create(cls, path: Path, capacity: int) -> GpuMemory:
        """Make the file (it must not exist) with room for ``capacity`` octets, all zero."""
        _check_capacity(capacity)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise UserError(
                f"{path} is left over from an earlier lab of this name; run `uetemu clean`"
            ) from None
        try:
            os.ftruncate(descriptor, capacity)
            return cls(path, mmap.mmap(descriptor, capacity))
        except OSError as failure:
            path.unlink()
            if failure.errno != errno.ENOMEM:
                raise
            raise _unmappable(path, capacity) from None
        finally:
            os.close(descriptor)

    @classmethod
    def private(cls, path: Path, capacity: int) -> GpuMemory:
        """Make memory of this process alone, all zero."""
        _check_capacity(capacity)
        try:
            mapping = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as failure:
            if failure.errno != errno.ENOMEM:
                raise
            raise _unmappable(path, capacity) from None
        return cls(path, mapping, shared=False)

    @classmethod
    def attach(cls, path: Path) -> GpuMemory:
        """Map the existing file at ``path``."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(path, mmap.mmap(descriptor, os.fstat(descriptor).st_size))
        finally:
            os.close(descriptor)

    @property
    def capacity(self) -> int:
        """Octets that all buffers together may have."""
        return len(self.octets)

    def lay_out(self, layout: Layout, *, reserve: bool = False) -> None:
        """Use ``layout`` from now on; contents stay where they are.

        ``reserve`` takes the pages from the machine at once. So what a full ``/dev/shm`` refuses is
        a :class:`UserError` here, and not a signal in the middle of a run.
        """
        if layout.octets > self.capacity:
            raise UserError(
                f"the buffers of {self.path.name} need {layout.octets} octets and the GPU has"
                f" {self.capacity}; use smaller messages or give the GPUs more memory"
            )
        if reserve and layout.octets:
            if self._shared:
                self._allocate(layout.octets)
            self._populate(layout.octets)
        if layout.octets > self._laid_out:
            self.octets[self._laid_out : min(self._old, layout.octets)] = 0
            self._laid_out = layout.octets
        self.layout = layout

    def _allocate(self, octets: int) -> None:
        """Give the file room for so many ``octets``."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise UserError(
                f"{self.path} is gone; do not remove the memory of a GPU that is in use"
            ) from None
        try:
            os.posix_fallocate(descriptor, 0, octets)
        except OSError as failure:
            if failure.errno != errno.ENOSPC:
                raise
            raise UserError(
                f"{DIRECTORY} has no room for the {octets} octets of"
                f" {self.path.name}; use smaller messages, fewer ranks or more memory"
            ) from None
        finally:
            os.close(descriptor)

    def _populate(self, octets: int) -> None:
        """Have the pages of the first ``octets`` mapped.

        All at once costs two thirds of a page fault for each page, and no copy waits for one.
        """
        begin = self._populated // mmap.PAGESIZE * mmap.PAGESIZE
        if octets > begin:
            with contextlib.suppress(OSError):  # before Linux 5.14
                self._mapping.madvise(_POPULATE_WRITE, begin, octets - begin)
            self._populated = octets

    def renew(self) -> None:
        """Have every octet that is laid out from now on be zero, as in new memory.

        That costs less than half of what new pages cost.
        """
        self._old = max(self._old, self._laid_out)
        self._laid_out = 0

    def region(self, region: Region) -> npt.NDArray[np.uint8]:
        """The octets of ``region``, as a view."""
        at = self.layout.locate(region)
        return self.octets[at : at + region.length]

    def array(self, buffer: str, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """Buffer ``buffer`` as an array of ``dtype`` over the same memory."""
        return self.region(Region(buffer, 0, self.layout.buffers[buffer])).view(dtype)

    def view(self) -> memoryview:
        """All of the memory, as a transport registers it."""
        return memoryview(self._mapping)

    def close(self) -> None:
        """Unmap, unless views are still in use somewhere (then the last of them unmaps)."""
        self.octets = np.empty(0, dtype=np.uint8)
        with contextlib.suppress(BufferError):
            self._mapping.close()

    def unlink(self) -> None:
        """Remove the file, if there is one; mappings live on until they are closed."""
        if self._shared:
            self.path.unlink(missing_ok=True)


def _check_capacity(octets: int) -> None:
    if octets <= 0:
        raise ValueError("a GPU's memory needs at least one octet")


def _unmappable(path: Path, capacity: int) -> UserError:
    return UserError(
        f"this process has no room to map the {capacity} octets of {path.name};"
        " use smaller messages or fewer ranks"
    )


@lru_cache(_LENGTHS)
def slices(length: int, item_octets: int = 1) -> tuple[slice, ...]:
    """``range(length)`` of items cut into slices of :data:`SLICE_OCTETS`."""
    step = max(1, SLICE_OCTETS // item_octets)
    return tuple(slice(start, min(start + step, length)) for start in range(0, length, step))


def crc32c(octets: npt.NDArray[np.uint8], before: int = 0) -> int:
    """CRC32C of ``octets``, continuing from ``before``."""
    return int(google_crc32c.extend(before, octets))


def sliced_crc32c(octets: npt.NDArray[np.uint8]) -> Generator[int, None, int]:
    """Return the CRC32C of ``octets``; yield after each slice how long it was."""
    crc = 0
    for part in slices(len(octets)):
        crc = crc32c(octets[part], crc)
        yield part.stop - part.start
    return crc
