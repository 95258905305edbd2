"""Memory that peers may reach by key: ``fi_mr``."""

from __future__ import annotations

from typing import Final, Protocol

from uet.api.flags import ApiError, Flag
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE, OPTIMIZED
from uet.transport import Completion

#: Bits of the key proper, and of that of an optimized one (UES Table 2-13).
RKEY_BITS: Final = 48
OPTIMIZED_BITS: Final = 12
#: Bits 55..48, which are 0 in keys that a user requested: here 1 in those that are given out, so
#: that the two never collide.
_GIVEN_OUT: Final = 1 << RKEY_BITS


class MemoryKeys:
    """Gives out memory keys (UES Table 2-13), and forms those that users request."""

    def __init__(self) -> None:
        self._taken: set[int] = set()  # without bit 63
        self._next = {False: 1, True: 1}

    def take(self, requested: int | None, *, idempotent: bool, optimized: bool) -> int:
        """A 64-bit key; :class:`ApiError` if the one requested cannot be had."""
        bits = OPTIMIZED_BITS if optimized else RKEY_BITS
        if requested is None:
            key = self._find(bits, optimized)
        else:
            if not 0 <= requested < 1 << bits:
                raise ApiError(
                    f"requested_key is {requested:#x}; it must fit into {bits} bits, as the rest"
                    " of a memory key is flags"
                )
            key = requested | (OPTIMIZED if optimized else 0)
            if key in self._taken:
                raise ApiError(f"the memory key {requested:#x} is in use; request another one")
        self._taken.add(key)
        return key | (IDEMPOTENT_SAFE if idempotent else 0)

    def _find(self, bits: int, optimized: bool) -> int:
        for _ in range(1 << min(bits, OPTIMIZED_BITS)):
            number = self._next[optimized]
            self._next[optimized] = (number + 1) % (1 << bits)
            key = number | (OPTIMIZED if optimized else _GIVEN_OUT)
            if key not in self._taken:
                return key
        raise ApiError(
            f"all {1 << bits} optimized memory keys are in use; close a region, or register"
            " without optimized"
        )

    def give_back(self, key: int) -> None:
        """Give back a key that nobody uses any more."""
        self._taken.discard(key & ~IDEMPOTENT_SAFE)


class RegionOwner(Protocol):
    """The domain that a memory region is registered with."""

    def mr_close(self, region: MemoryRegion) -> None:
        """Let no peer reach ``region`` any more."""
        ...


class WriteReporter(Protocol):
    """An endpoint that reports remote writes."""

    def remotely_written(self, region: MemoryRegion, completion: Completion) -> None:
        """Report a remote write to ``region``."""
        ...


class MemoryRegion:
    """Registered memory; made by :meth:`uet.api.Domain.mr_reg`.

    Peers count offsets from its start (no ``FI_MR_VIRT_ADDR``).  Completions with the data of
    remote writes go to the queue of ``endpoint``.
    """

    def __init__(
        self,
        domain: RegionOwner,
        memory: memoryview,
        key: int,
        access: Flag,
        endpoint: WriteReporter | None,
    ) -> None:
        self._domain = domain
        self.memory = memory
        #: what peers name it by: ``fi_mr_key``
        self.key = key
        self.access = access
        self.endpoint = endpoint

    @property
    def idempotent(self) -> bool:
        """Return whether it may be reached by RUDI."""
        return self.key & IDEMPOTENT_SAFE != 0

    @property
    def optimized(self) -> bool:
        """Return whether its key fits into a small request header."""
        return self.key & OPTIMIZED != 0

    def bind(self, endpoint: WriteReporter) -> None:
        """Report remote writes to ``endpoint``: ``fi_mr_bind``."""
        self.endpoint = endpoint

    def close(self) -> None:
        """Let nobody reach it any more, and its key be used again: ``fi_close``."""
        self._domain.mr_close(self)
