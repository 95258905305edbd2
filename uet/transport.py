"""The face every transport shows: requests in, completions out, frames both ways, no clock.

Both the Ultra Ethernet endpoint and the RoCEv2 one that is compared with it are driven like
this, by an event loop over real sockets or by a test that holds two of them in one process::

    transport.receive(frames, now)
    for header, payload in transport.transmit(now, limit): ...
    wake me at transport.next_deadline()
    for completion in transport.completions(): ...

Time is an integer number of nanoseconds in the fabric's own time, always handed in; randomness
comes from the seeded generator given at construction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

#: Header octets from the Ethernet header on, and the payload that follows them without a copy.
Frame = tuple[bytes, "memoryview | bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Put ``payload`` into a peer's registered memory (RMA write).

    ``payload`` stays owned by the transport, and must not change, until the completion arrives.
    ``offset`` counts octets from the start of the peer's region named by ``key``.  With
    ``header_data`` (64 bits) the peer sees a completion once every octet has been placed.
    """

    peer: str
    key: int
    offset: int
    payload: memoryview
    header_data: int | None = None
    context: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The end of an operation.

    ``kind`` is ``"write"`` for a request posted here (``context`` is its own) and
    ``"remote_write"`` for header data that a peer's write brought (``length`` octets at
    ``offset`` of the region ``key``).  ``error`` is ``None`` on success, else the error's name.
    """

    kind: str
    peer: str
    length: int
    context: object = None
    header_data: int | None = None
    key: int | None = None
    offset: int | None = None
    error: str | None = None


class Transport(Protocol):
    """What an event loop needs to know of a transport."""

    def register(self, memory: memoryview, *, key: int, writable: bool = True) -> None:
        """Let peers reach ``memory`` under ``key``."""

    def post(self, request: Write) -> None:
        """Queue a request; its completion comes from :meth:`completions`."""

    def receive(self, frames: Sequence[memoryview], now: int) -> None:
        """Take whole Ethernet frames.  Hostile ones are counted, never raised."""

    def transmit(self, now: int, limit: int) -> list[Frame]:
        """What may leave now: all answers to what arrived, and at most ``limit`` frames more.

        Answers are small and must not wait behind requests for room in the NIC's data queue.
        Runs the timers that are due.
        """

    def next_deadline(self) -> int | None:
        """When :meth:`transmit` must be called again even if nothing arrives (ns), or ``None``."""

    def completions(self) -> list[Completion]:
        """Completions since the last call."""

    def counters(self) -> Mapping[str, int]:
        """Counters by name, for the run's record."""

    def close(self) -> None:
        """Begin an orderly close; done when :attr:`closed`."""

    @property
    def closed(self) -> bool: ...
