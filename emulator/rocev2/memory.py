"""Memory regions that peers reach by R_Key and virtual address (IBA 10.6)."""

from __future__ import annotations

from typing import Final

KEY_BITS: Final = 32
ADDRESS_BITS: Final = 64


class HcaMemoryRegionError(ValueError):
    """A region cannot be registered as requested."""


class HcaMemoryRegion:
    """Registered memory, and what peers may do with it.

    ``address`` is the virtual address of its first octet for peers; 0 makes addresses offsets
    (a zero-based region).  Atomic operations need a region that may be written and read.
    """

    __slots__ = ("address", "key", "memory", "readable", "writable")

    def __init__(
        self,
        memory: memoryview,
        key: int,
        writable: bool = True,
        readable: bool = True,
        address: int = 0,
    ) -> None:
        self.memory = memory
        self.key = key
        self.writable = writable
        self.readable = readable
        self.address = address


class RKeyTable:
    """The regions of one endpoint, by R_Key."""

    def __init__(self) -> None:
        self._regions: dict[int, HcaMemoryRegion] = {}

    def register(self, region: HcaMemoryRegion) -> None:
        """Raises :class:`HcaMemoryRegionError` for a bad or taken key or unsuitable memory."""
        if not 0 <= region.key < 1 << KEY_BITS:
            raise HcaMemoryRegionError(f"the R_Key {region.key:#x} does not fit into 32 bits")
        if region.key in self._regions:
            raise HcaMemoryRegionError(f"the R_Key {region.key:#x} is in use; choose another one")
        memory = region.memory
        if memory.ndim != 1 or memory.itemsize != 1 or not memory.contiguous:
            raise HcaMemoryRegionError(
                "a memory region must be a flat view of octets: use .cast('B')"
            )
        if region.writable and memory.readonly:
            raise HcaMemoryRegionError("read-only memory cannot be registered for remote writes")
        if not 0 <= region.address <= (1 << ADDRESS_BITS) - len(memory):
            raise HcaMemoryRegionError(
                f"a region of {len(memory)} octets at {region.address:#x} leaves the 64-bit"
                " address space"
            )
        self._regions[region.key] = region

    def unregister(self, key: int) -> None:
        """Forget a key; ``HcaMemoryRegionError`` if it is not registered."""
        if self._regions.pop(key, None) is None:
            raise HcaMemoryRegionError(f"the R_Key {key:#x} is not registered")

    def reach(
        self, key: int, address: int, length: int, *, write: bool = False, read: bool = False
    ) -> memoryview | None:
        """The octets that a peer names; ``None`` if it may not do that with all of them."""
        region = self._regions.get(key)
        if region is None or (write and not region.writable) or (read and not region.readable):
            return None
        at = address - region.address
        if at < 0 or at + length > len(region.memory):
            return None
        return region.memory[at : at + length]

    def address_of(self, key: int) -> int | None:
        """Return where a region begins for peers."""
        region = self._regions.get(key)
        return None if region is None else region.address

    def __contains__(self, key: int) -> bool:
        return key in self._regions
