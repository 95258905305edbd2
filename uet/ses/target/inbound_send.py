"""A send that is arriving, with the fields of its header (UES 3.4.1)."""

from __future__ import annotations

from typing import Final

from uet.ses.address import Address
from uet.ses.arrival import RequestArrival
from uet.ses.matching import Match, UnexpectedMessage
from uet.ses.resources import Resource
from uet.ses.target.inbound import InboundMessage, MessageKey
from uet.wire import headers
from uet.wire.codes import RENDEZVOUS_OPCODES, Opcode

RENDEZVOUS: Final = frozenset(map(int, RENDEZVOUS_OPCODES))
TAGGED_OPCODES: Final = frozenset(
    {
        int(Opcode.TAGGED_SEND),
        int(Opcode.RENDEZVOUS_TSEND),
        int(Opcode.DEFERRABLE_TSEND),
        int(Opcode.TSEND_ATOMIC),
        int(Opcode.TSEND_FETCH_ATOMIC),
    }
)
_PID_SHIFT = headers.SES_RENDEZVOUS.shift("read_pid_on_fep")
_PID = headers.SES_RENDEZVOUS.mask("read_pid_on_fep")
_INDEX = headers.SES_RENDEZVOUS.mask("read_resource_index")


class Rest:
    """The place of the rest of a rendezvous send, from where it is read (UES 3.4)."""

    __slots__ = ("address", "key", "offset")

    def __init__(self, request: RequestArrival) -> None:
        assert request.extension is not None
        _, place, self.offset, self.key = headers.SES_RENDEZVOUS.unpack_from(request.extension)
        self.address = Address(
            job_id=request.job_id,
            pid_on_fep=(place & _PID) >> _PID_SHIFT,
            resource_index=place & _INDEX,
            relative=request.relative,
        )


class InboundSend(InboundMessage):
    """A send being received: into the memory of its match, or into a buffer until it has one."""

    __slots__ = (
        "buffer",
        "ended",
        "entry",
        "failure",
        "fetching",
        "initiator",
        "match",
        "peer",
        "queue_of",
        "rest",
        "tag",
        "where",
    )

    begun = True

    def __init__(
        self,
        request: RequestArrival,
        peer: str,
        awaited: int,
        *,
        match: Match | None = None,
        buffer: memoryview | None = None,
    ) -> None:
        memory = match.memory if match is not None else buffer
        assert memory is not None
        super().__init__(
            memory,
            word=request.identity,
            to=request.to,
            key=request.match_bits,
            offset=request.buffer_offset,
            length=request.length,
            awaited=awaited,
        )
        self.peer = peer
        self.initiator = request.initiator
        self.tag = request.match_bits if request.opcode in TAGGED_OPCODES else None
        self.match = match
        self.buffer = buffer
        self.rest = Rest(request) if request.opcode in RENDEZVOUS else None
        #: held as unexpected, and by which resource
        self.entry: UnexpectedMessage | None = None
        self.queue_of: Resource | None = None
        self.fetching = False
        #: why it will not be complete; reported once nothing writes to its memory any more
        self.failure: str | None = None
        self.ended = False
        #: how it is tracked
        self.where: MessageKey | None = None
