"""Memory regions that peers may reach by key (UES 3.4, memory keys).

A 64-bit key: bit 63 idempotent-safe, bit 62 optimized, 61..56 reserved, 55..48 vendor,
47..0 the key proper (UES Table 2-13).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KEY_BITS: Final = 64
FLAGS_AT: Final = 56
IDEMPOTENT_SAFE: Final = 1 << 63
OPTIMIZED: Final = 1 << 62


class MemoryRegionError(ValueError):
    """A region cannot be registered as requested."""


@dataclass(frozen=True, slots=True)
class RegisteredRegion:
    """Registered memory, and what peers may do with it.

    ``job_id`` restricts it to one job, ``None`` leaves it open to all.
    """

    memory: memoryview
    key: int
    writable: bool
    job_id: int | None = None
    readable: bool = True


class MemoryTable:
    """The regions of one endpoint, by key.

    Of the 56 bits of a key below its flags the lowest ``region_bits`` name a region.  The others
    are the application's own, and any value of theirs will do.
    """

    def __init__(self, *, region_bits: int = FLAGS_AT) -> None:
        self.regions: dict[int, RegisteredRegion] = {}
        self._naming = (1 << KEY_BITS) - (1 << FLAGS_AT) + (1 << region_bits) - 1

    def register(self, region: RegisteredRegion) -> None:
        """Raises :class:`MemoryRegionError` for a bad or taken key or unsuitable memory."""
        if not 0 <= region.key < 1 << KEY_BITS:
            raise MemoryRegionError(f"memory key {region.key:#x} does not fit into 64 bits")
        if region.key in self.regions:
            raise MemoryRegionError(f"memory key {region.key:#x} is in use; choose another one")
        memory = region.memory
        if memory.ndim != 1 or memory.itemsize != 1 or not memory.contiguous:
            raise MemoryRegionError("a memory region must be a flat view of octets: use .cast('B')")
        if region.writable and memory.readonly:
            raise MemoryRegionError("read-only memory cannot be registered for remote writes")
        self.regions[region.key] = region

    def unregister(self, key: int) -> None:
        """Forget a key; ``MemoryRegionError`` if it is not registered."""
        if self.regions.pop(key, None) is None:
            raise MemoryRegionError(f"memory key {key:#x} is not registered")

    def find(self, key: int) -> RegisteredRegion | None:
        """The region that this key names."""
        return self.regions.get(key & self._naming)

    def named(self, key: int) -> int:
        """The key under which the region that ``key`` names is registered."""
        return key & self._naming
