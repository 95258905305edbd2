"""Work requests of a queue pair, cut into packets, and receives (IBA 9.7.2, 10.2.9, 10.8).

Header data of a write becomes a WRITE with Immediate, which has 32 bits.  Under direct placement
each packet of a WRITE is a WRITE Only by itself, and the last of them brings the immediate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from struct import error as struct_error
from typing import Final

from emulator.rocev2.connection.send_invalidate import SendInvalidate
from emulator.rocev2.memory import ADDRESS_BITS
from emulator.rocev2.wire import headers
from emulator.rocev2.wire.codes import MAX_MESSAGE, BthOperation, Service
from uet.transport import (
    AtomicRequest,
    Completion,
    ReadRequest,
    ReceiveRequest,
    Request,
    SendRequest,
    WriteRequest,
)
from uet.wire.codec import Header

_O: Final = BthOperation
_OPCODE_SHIFT: Final = headers.BTH.shift("opcode")
_SOLICITED: Final = headers.BTH.mask("solicited")
_MIGREQ: Final = headers.BTH.mask("migreq")
_RETH: Final = headers.RETH.pack
_UINT64: Final = 8
_IMMEDIATE_BITS: Final = 32
#: The completion error, as verbs name it, of work that ends without being carried out.
FLUSHED: Final = "WR_FLUSH_ERR"
#: Operations of the only, first, middle and last packet; with immediate, with invalidate.
_WRITE: Final = (_O.WRITE_ONLY, _O.WRITE_FIRST, _O.WRITE_MIDDLE, _O.WRITE_LAST)
_WRITE_IMM: Final = (_O.WRITE_ONLY_IMM, _O.WRITE_FIRST, _O.WRITE_MIDDLE, _O.WRITE_LAST_IMM)
_SEND: Final = (_O.SEND_ONLY, _O.SEND_FIRST, _O.SEND_MIDDLE, _O.SEND_LAST)
_SEND_IMM: Final = (_O.SEND_ONLY_IMM, _O.SEND_FIRST, _O.SEND_MIDDLE, _O.SEND_LAST_IMM)
_SEND_INV: Final = (_O.SEND_ONLY_INVALIDATE, _O.SEND_FIRST, _O.SEND_MIDDLE, _O.SEND_LAST_INVALIDATE)
#: Atomics by the number that a request names them with.
ATOMICS: Final[Mapping[int, BthOperation]] = {
    int(_O.COMPARE_SWAP): _O.COMPARE_SWAP,
    int(_O.FETCH_ADD): _O.FETCH_ADD,
}


class WorkError(ValueError):
    """A request could never be executed; the sentence gives the reason."""


class WorkRequest:
    """One work request in a send queue; its PSNs are ``first`` up to, not including, ``end``.

    A ``fetch`` (READ, atomic) is one request packet at ``next``, which moves on as responses come;
    ``payload`` is then where they go.  Others are ``end - first`` packets of ``payload``.
    """

    __slots__ = (
        "direct", "end", "extensions", "fetch", "first", "kind", "length", "next", "payload",
        "request", "words",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        request: Request,
        length: int,
        payload: memoryview | bytes,
        words: tuple[int, int, int, int],
        extensions: tuple[bytes, bytes, bytes, bytes],
        *,
        fetch: bool = False,
        direct: bool = False,
    ) -> None:
        self.kind = kind
        self.request = request
        self.length = length
        self.payload = payload
        #: of the BTH, for the only, first, middle and last packet
        self.words = words
        self.extensions = extensions
        self.fetch = fetch
        #: each packet has a RETH of its own, before its extension
        self.direct = direct
        self.first = self.next = self.end = 0

    def packets(self, mtu: int) -> int:
        """Return the number of PSNs that the work takes."""
        return max(1, -(-self.length // mtu))

    def completion(self, error: str | None) -> Completion:
        """Return the completion of the work, which moves no octet if there is an ``error``."""
        request = self.request
        return Completion(
            kind=self.kind,
            peer=request.peer,
            length=self.length if error is None else 0,
            context=request.context,
            error=error,
        )


_Operations = tuple[BthOperation, BthOperation, BthOperation, BthOperation]


@cache
def _words(base: int, operations: _Operations, flag: int) -> tuple[int, int, int, int]:
    """The first words of the BTH; ``flag`` is for the packet that ends the message."""
    only, first, middle, last = (base | o << _OPCODE_SHIFT for o in operations)
    return only | flag, first, middle, last | flag


class Workshop:
    """Makes the work of one queue pair from requests."""

    def __init__(
        self, service: Service, *, migreq: bool, solicited: bool, direct: bool = False
    ) -> None:
        self._base = int(service) << _OPCODE_SHIFT | (_MIGREQ if migreq else 0)
        self._reliable = service is Service.RC
        self._solicited = _SOLICITED if solicited else 0
        self._direct = direct and self._reliable

    def make(self, request: Request) -> WorkRequest:
        """The work of a request.  ``WorkError`` if it cannot be done."""
        match request:
            case WriteRequest():
                return self._write(request)
            case SendRequest():
                return self._send(request)
            case ReadRequest() if self._reliable:
                return self._read(request)
            case AtomicRequest() if self._reliable:
                return self._atomic(request)
        raise WorkError(f"this service of RoCEv2 has request of kind {request.kind!r}")

    def _words(self, operations: _Operations, *, notifies: bool) -> tuple[int, int, int, int]:
        return _words(self._base, operations, self._solicited if notifies else 0)

    def _write(self, request: WriteRequest) -> WorkRequest:
        if request.synchronise is not None:
            raise WorkError("RoCEv2 knows no groups of operations (synchronise)")
        length = message_length(request.payload)
        reth = _reth(request.offset, request.key, length)
        notifies = request.header_data is not None
        value = b"" if request.header_data is None else _immediate(request.header_data)
        extensions = (reth + value, reth, b"", value)
        operations = _WRITE_IMM if notifies else _WRITE
        if self._direct:
            only, one = operations[0], _O.WRITE_ONLY
            operations, extensions = (only, one, one, only), (value, b"", b"", value)
        words = self._words(operations, notifies=notifies)
        return WorkRequest(
            "write", request, length, request.payload, words, extensions, direct=self._direct
        )

    def _send(self, request: SendRequest) -> WorkRequest:
        if request.tag is not None or request.protocol is not None:
            raise WorkError("RoCEv2 matches sends by order alone: leave out tag and protocol")
        length = message_length(request.payload)
        operations, extension = _SEND, b""
        if request.header_data is not None:
            operations, extension = _SEND_IMM, _immediate(request.header_data)
        elif isinstance(request, SendInvalidate):
            if not self._reliable:
                raise WorkError("this service of RoCEv2 has no send with invalidate")
            operations, extension = _SEND_INV, encoded(headers.IETH, rkey=request.invalidate)
        words = self._words(operations, notifies=True)
        extensions = (extension, b"", b"", extension)
        return WorkRequest("send", request, length, request.payload, words, extensions)

    def _read(self, request: ReadRequest) -> WorkRequest:
        length = message_length(request.memory)
        if request.memory.readonly:
            raise WorkError("a read needs memory that can be written")
        _reth(request.offset, request.key, length)
        if request.offset + length > 1 << ADDRESS_BITS:  # what is missing is requested again
            raise WorkError(
                f"a read of {length} octets at {request.offset:#x} leaves the 64-bit address space"
            )
        words = self._words((_O.READ_REQUEST,) * 4, notifies=False)
        return WorkRequest("read", request, length, request.memory, words, (b"",) * 4, fetch=True)

    def _atomic(self, request: AtomicRequest) -> WorkRequest:
        operation = ATOMICS.get(request.operation)
        if operation is None:
            raise WorkError(
                f"RoCEv2 has no atomic operation {request.operation:#x}; it has COMPARE_SWAP "
                f"({_O.COMPARE_SWAP:#x}) and FETCH_ADD ({_O.FETCH_ADD:#x})"
            )
        if len(request.operand) != _UINT64 or request.tag is not None:
            raise WorkError("atomics of RoCEv2 are on 8 octets of a region")
        if operation is _O.COMPARE_SWAP and len(request.compare or b"") != _UINT64:
            raise WorkError("COMPARE_SWAP needs 8 octets to compare with")
        operand = int.from_bytes(request.operand, "little")
        compare = int.from_bytes(request.compare or b"", "little")
        extension = encoded(
            headers.ATOMIC_ETH,
            va=request.offset,
            rkey=request.key,
            swap_or_add=operand,
            compare=compare,
        )
        result = b"" if request.result is None else request.result
        words = self._words((operation,) * 4, notifies=False)
        work = WorkRequest("atomic", request, 0, result, words, (extension,) * 4, fetch=True)
        if request.result is not None and (
            message_length(request.result) != _UINT64 or request.result.readonly
        ):
            raise WorkError("the result of an atomic needs 8 octets that can be written")
        return work


def read_extension(work: WorkRequest, mtu: int) -> bytes:
    """The RETH of a READ request for what has not come yet."""
    request = work.request
    assert isinstance(request, ReadRequest)
    come = (work.next - work.first) * mtu
    return _reth(request.offset + come, request.key, work.length - come)


def _immediate(header_data: int) -> bytes:
    if not 0 <= header_data < 1 << _IMMEDIATE_BITS:
        raise WorkError(
            f"header_data {header_data:#x} does not fit into the 32 bits of an immediate"
        )
    return headers.IMM_DT.pack(header_data)


def packet_extension(work: WorkRequest, at: int, length: int, extension: bytes) -> bytes:
    """The extension headers of a packet with ``length`` octets from ``at`` on, placed directly."""
    request = work.request
    assert isinstance(request, WriteRequest)
    return _RETH(request.offset + at, request.key, length) + extension


def _reth(address: int, key: int, length: int) -> bytes:
    try:
        return _RETH(address, key, length)
    except (struct_error, OverflowError):
        return encoded(headers.RETH, va=address, rkey=key, dmalen=length)  # names what is wrong


def encoded(header: Header, **fields: int) -> bytes:
    """The header; ``WorkError`` for what does not fit into it."""
    try:
        return header.encode(**fields)
    except ValueError as error:
        raise WorkError(str(error)) from None


def message_length(memory: memoryview | bytes) -> int:
    """The length of a message in ``memory``; ``WorkError`` if it cannot be one."""
    view = memoryview(memory)
    if view.ndim != 1 or view.itemsize != 1 or not view.contiguous:
        raise WorkError("a message must be a flat view of octets: use .cast('B')")
    if len(view) > MAX_MESSAGE:
        raise WorkError(f"a message of {len(view)} octets is longer than {MAX_MESSAGE}")
    return len(view)


class QpReceiveQueue:
    """Receives in the order they were posted.

    ``endless``: a write with immediate needs none of them, as under a library that keeps the queue
    filled with receives of no memory.
    """

    def __init__(self, complete: Callable[[Completion], None], *, endless: bool) -> None:
        self._complete = complete
        self._endless = endless
        self._queue: deque[ReceiveRequest] = deque()

    def post(self, receive: ReceiveRequest) -> None:
        """Offer memory; ``WorkError`` for what RoCEv2 does not have."""
        matching = receive.tag, receive.initiator, receive.peer, receive.least_space
        if any(part is not None for part in matching):
            raise WorkError(
                "receives of RoCEv2 are taken in the order they were posted: leave out tag,"
                " initiator, peer and least_space"
            )
        memory = receive.memory
        if memory.ndim != 1 or memory.itemsize != 1 or not memory.contiguous or memory.readonly:
            raise WorkError(
                "a receive needs a flat view of octets that can be written: use .cast('B')"
            )
        self._queue.append(receive)

    def take(self) -> ReceiveRequest | None:
        """The oldest one."""
        return self._queue.popleft() if self._queue else None

    def put_back(self, receive: ReceiveRequest) -> None:
        """Put back a receive that was not used as the oldest."""
        self._queue.appendleft(receive)

    def take_immediate(self) -> bool:
        """Return whether there is one for a write with immediate; its memory is not touched."""
        if self._endless:
            return True
        if not self._queue:
            return False
        receive = self._queue.popleft()
        self._complete(
            Completion(kind="receive", peer="", length=0, context=receive.context, offset=0)
        )
        return True
