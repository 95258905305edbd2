"""The face every transport shows: requests in, completions out, frames both ways, no clock.

Both the Ultra Ethernet endpoint and the RoCEv2 one that is compared with it are driven like this.
An event loop over real sockets does it, or a test that holds two of them in one process::

    transport.receive(frames, now)
    for header, payload in transport.transmit(now, limit): ...
    wake me at transport.next_deadline()
    for completion in transport.completions(): ...

Time is an integer number of nanoseconds in the fabric's own time, always handed in; randomness
comes from the seeded generator given at construction.

Memory that a request or a posted receive names stays in the transport's use, and must not
change, until its completion arrives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

#: Header octets from the Ethernet header on, and the payload that follows them without a copy.
Frame = tuple[bytes, "memoryview | bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of any kind to a peer.

    ``kind`` is its name in completions and event logs.  ``peer`` is the address of the endpoint it
    goes to.  ``delivery`` chooses a delivery mode by name (``"rud"``, ``"rod"``, ``"rudi"``,
    ``"uud"``) where the transport has several; ``None`` is its default.  ``destination`` names a
    resource at the peer other than the configured one (for Ultra Ethernet a
    :class:`uet.ses.address.Address`).  ``context`` comes back with the completion.
    """

    kind: ClassVar[str]
    peer: str
    context: object = None
    delivery: str | None = None
    destination: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest(Request):
    """Put ``payload`` into a peer's registered memory (RMA write).

    ``synchronise`` makes it a member of a group of operations, (group, number of members or 0), of
    which the peer reports the end of all. Peers may lack this extension.

    ``offset`` counts octets from the start of the peer's region named by ``key``.  With
    ``header_data`` (64 bits) the peer sees a completion once every octet has been placed.  With
    ``delivery_complete`` the peer answers only when the data is visible to its application.
    """

    kind: ClassVar[str] = "write"
    key: int
    offset: int
    payload: memoryview
    header_data: int | None = None
    delivery_complete: bool = False
    synchronise: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest(Request):
    """Fetch ``memory.nbytes`` octets of a peer's registered memory into ``memory``."""

    kind: ClassVar[str] = "read"
    key: int
    offset: int
    memory: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest(Request):
    """A message for whatever receive the peer has posted: in order, or the one that ``tag`` fits.

    ``protocol`` is ``"eager"``, ``"rendezvous"`` or ``"deferrable"``; ``None`` lets the
    transport choose by length.
    """

    kind: ClassVar[str] = "send"
    payload: memoryview
    tag: int | None = None
    header_data: int | None = None
    protocol: str | None = None
    delivery_complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomicRequest(Request):
    """An operation on a peer's registered memory that nothing interrupts.

    ``operation`` and ``datatype`` are numbers (for Ultra Ethernet
    :class:`uet.wire.codes.AtomicOpcode` and :class:`~uet.wire.codes.Datatype`), ``operand`` and
    ``compare`` octets in the byte order of the target's memory.  With ``result`` the original
    value is fetched into it.  With ``tag`` the memory is that of the receive it fits, in place of
    the region ``key``.  For ``synchronise`` see :class:`WriteRequest`.
    """

    kind: ClassVar[str] = "atomic"
    key: int = 0
    offset: int
    operation: int
    datatype: int
    operand: bytes
    compare: bytes | None = None
    result: memoryview | None = None
    tag: int | None = None
    synchronise: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOperationRequest(Request):
    """A message that does nothing but be answered."""

    kind: ClassVar[str] = "no_op"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveRequest:
    """Memory for a message that a peer will send.

    With ``tag`` it takes only messages whose tag equals it, bits in ``ignore`` aside; with
    ``initiator`` and ``peer`` only those of one sender.  With ``least_space`` it takes message
    after message until fewer octets than that are left (multi-receive).
    """

    memory: memoryview
    tag: int | None = None
    ignore: int = 0
    initiator: int | None = None
    peer: str | None = None
    least_space: int | None = None
    context: object = None


class Completion(NamedTuple):
    """A completion reports how an operation ended.

    It is a tuple, since each message brings one or two and a frozen class takes 2 us to make.

    ``kind`` is ``"write"``, ``"read"``, ``"send"``, ``"atomic"``, ``"datagram"`` or ``"no_op"`` for
    a request posted here. It is ``"receive"`` for a posted receive, whose own ``context`` it has.
    ``"remote_write"`` is for header data that a peer's write brought (``length`` octets at
    ``offset`` of the region ``key``).  ``length`` counts octets moved; for a receive it is what was
    placed, or the whole message where that was too long for it; ``offset`` is where in its memory,
    and ``used``, after an error, how much of that the message has taken all the same. ``error`` is
    ``None`` on success, else the error's name.
    """

    kind: str
    peer: str
    length: int
    context: object = None
    header_data: int | None = None
    key: int | None = None
    offset: int | None = None
    used: int | None = None
    tag: int | None = None
    initiator: int | None = None
    error: str | None = None


class Transport(Protocol):
    """The interface of a transport for an event loop."""

    def register(
        self, memory: memoryview, *, key: int, writable: bool = True, readable: bool = True
    ) -> None:
        """Let peers reach ``memory`` under ``key``."""

    def post(self, request: Request) -> None:
        """Queue a request; its completion comes from :meth:`completions`."""

    def post_receive(self, receive: ReceiveRequest) -> None:
        """Offer memory to peers' sends; its completion comes from :meth:`completions`."""

    def receive(self, frames: Sequence[memoryview], now: int) -> None:
        """Take whole Ethernet frames.  Hostile ones are counted, never raised."""

    def transmit(self, now: int, limit: int) -> list[Frame]:
        """Return frames that may leave: all answers to arrivals, and at most ``limit`` more.

        Answers are small and must not wait behind requests for room in the NIC's data queue.
        Runs the timers that are due.
        """

    def use_ports(self, working: Sequence[int]) -> None:
        """Use the NIC's ports numbered ``working``, at least one, from now on."""

    def next_deadline(self) -> int | None:
        """Return when :meth:`transmit` is due even without arrivals (ns), or ``None``."""

    def completions(self) -> list[Completion]:
        """Return the completions since the last call.

        Both :meth:`receive` and :meth:`transmit` bring some: retries that are over end a request
        without any frame.
        """

    def counters(self) -> Mapping[str, int]:
        """Counters by name, for the run's record."""

    def close(self) -> None:
        """Begin an orderly close; done when :attr:`closed`."""

    @property
    def closed(self) -> bool:
        """Return whether the transport has closed and sends nothing more."""
        ...
