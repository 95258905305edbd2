"""Messages being received: put together from packets in any order (UES 3.4.1).

A message is known by the PDC that it came on and its identifier.  It is tracked from the first
packet that arrives, whichever that is, until the last octet is there. It ends earlier if the
initiator gives it up, or if nothing more of it has come for a while.  A message that was refused or
abandoned is remembered as long as its PDC lives, so that its other packets draw the same answer.
Packets of a send that arrive before the one with SOM wait for that: only it takes a receive.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from uet.config import FepConfig
from uet.ses.address import Address
from uet.ses.arrival import RequestArrival
from uet.ses.matching import Match, ReceiveQueue, UnexpectedMessage
from uet.ses.octet_ranges import OctetRanges
from uet.timekeeper import Timekeeper
from uet.wire import headers
from uet.wire.codes import MPR_UNIT, RENDEZVOUS_OPCODES, Opcode, ReturnCode

#: Each gap in a message waits for a packet of the receive window, which has at most so many.
MOST_GAPS: Final = 255 * MPR_UNIT
#: Octets of packets that may wait for the SOM of their sends.
MOST_EARLY_OCTETS: Final = 16 * 2**20
_DROPPED: Final = int(ReturnCode.DROPPED)
#: PDC and message identifier.
MessageKey = tuple[int, int]


class InboundMessage:
    """A message being received.  Octets may come in any order, each of them once.

    ``awaited`` octets come with its packets and go to the start of ``memory``, which has room
    for them.  ``length`` is the whole message's: more than that for a rendezvous.
    """

    __slots__ = (
        "_memory",
        "awaited",
        "group",
        "header_data",
        "key",
        "length",
        "offset",
        "placed",
        "ranges",
        "signature",
        "touched",
    )

    #: whether only the packet with SOM begins it
    begun = False

    def __init__(
        self,
        memory: memoryview,
        *,
        word: int,
        to: int,
        key: int,
        offset: int,
        length: int,
        awaited: int | None = None,
    ) -> None:
        #: what all its packets have in common
        #: (:attr:`uet.ses.arrival.RequestArrival.signature`): first header word without the
        #: flags that differ, addressing, match bits or memory key,
        #: buffer offset (or tokens), length
        self.signature = (word, to, key, offset, length)
        self.key = key
        self.offset = offset
        self.length = length
        self.awaited = length if awaited is None else awaited
        self.placed = 0
        self.touched = 0
        self.header_data: int | None = None
        #: of a synchronised write (:mod:`uet.ses.target.rma_target`)
        self.group: tuple[int, int, int] | None = None
        self._memory = memory
        #: what has been placed
        self.ranges = OctetRanges()

    def place(self, offset: int, octets: memoryview) -> bool:
        """Put a packet's payload in its place.

        False if any of it was there already, or if it leaves more gaps than a window has PSNs.
        """
        end = offset + len(octets)
        if not self.ranges.place(offset, end, MOST_GAPS):
            return False
        self._memory[offset:end] = octets
        self.placed += end - offset
        return True

    def divert(self) -> None:
        """Discard what arrives from now on."""
        self._memory = memoryview(bytearray(len(self._memory)))


class RefusedMessage:
    """A message whose other packets all draw the same answer.

    ``code`` and ``generation`` are the response's, with code 0 for the default response. ``seen``
    of its ``expected`` octets have arrived, the packet with SOM among them if ``begun``.
    ``identity`` is what all its packets have in common, ``None`` if only its end has been seen:
    what came before is unknown then, and it is forgotten some time after ``touched``.
    """

    __slots__ = ("begun", "code", "expected", "generation", "identity", "seen", "touched")

    def __init__(
        self,
        identity: tuple[int, ...] | None,
        code: int,
        generation: int,
        expected: int,
        seen: int,
        *,
        begun: bool,
        now: int = 0,
    ) -> None:
        self.touched = now
        self.identity = identity
        self.code = code
        self.generation = generation
        self.expected = expected
        self.seen = seen
        self.begun = begun


class EarlyPackets:
    """Payloads of a send whose packet with SOM has not arrived."""

    __slots__ = ("expected", "octets", "pieces", "signature", "touched")

    def __init__(self, request: RequestArrival, now: int) -> None:
        self.signature = request.signature
        self.expected = request.awaited
        self.pieces: list[tuple[int, bytes]] = []  # (message offset, payload)
        self.octets = 0
        self.touched = now

    def place_in(self, message: InboundMessage) -> bool:
        """Put all of them into the message that has begun; false if they cannot be of it."""
        return message.signature == self.signature and all(
            start + len(payload) <= message.awaited and message.place(start, memoryview(payload))
            for start, payload in self.pieces
        )


class InboundTable:
    """All messages of one endpoint that are being received, or have been refused.

    ``abandoned`` is called for each that is given up: with the message, and why.
    """

    def __init__(
        self,
        config: FepConfig,
        counters: dict[str, int],
        time: Timekeeper,
        abandoned: Callable[[InboundMessage, str], None],
    ) -> None:
        self.messages: dict[MessageKey, InboundMessage] = {}
        self.refused: OrderedDict[MessageKey, RefusedMessage] = OrderedDict()
        self.early: dict[MessageKey, EarlyPackets] = {}
        self.early_octets = 0
        self._limit = config.max_inbound_messages
        self._idle_time = config.inbound_message_idle_time
        self._counters = counters
        self._time = time
        self._abandoned = abandoned
        self._full_until = 0  # before then no message has been idle for long enough
        self._sweep: int | None = None

    def add(self, key: MessageKey, message: InboundMessage, now: int) -> None:
        """Track a message for which :meth:`make_room` has made room."""
        message.touched = now
        self.messages[key] = message
        if self._sweep is None:
            self._sweep_at(now + self._idle_time)

    def _sweep_at(self, when: int) -> None:
        self._sweep = when
        self._time.started(when)

    def make_room(self, now: int) -> bool:
        """Return whether one more message can be tracked.

        Drops those idle for too long if need be.
        """
        if len(self.messages) < self._limit:
            return True
        if now < self._full_until:
            return False
        self._drop_idle(now)
        touched = [message.touched for message in self.messages.values()]
        self._full_until = min(touched, default=now) + self._idle_time
        return len(self.messages) < self._limit

    # -- sends that have not begun -----------------------------------------------------------

    def keep_early(self, key: MessageKey, request: RequestArrival, now: int) -> bool:
        """Keep a packet of a send until the one with SOM is there; false if there is no room."""
        early = self.early.get(key)
        octets = len(request.payload)
        if self.early_octets + octets > MOST_EARLY_OCTETS:
            return False
        if early is None:
            if len(self.early) >= self._limit:
                return False
            early = self.early[key] = EarlyPackets(request, now)
            if self._sweep is None:
                self._sweep_at(now + self._idle_time)
        early.touched = now
        early.octets += octets
        early.pieces.append((request.start, bytes(request.payload)))
        self.early_octets += octets
        return True

    def take_early(self, key: MessageKey) -> EarlyPackets | None:
        """Return what has arrived of a send before its SOM; it is kept no longer."""
        early = self.early.pop(key, None)
        if early is not None:
            self.early_octets -= early.octets
        return early

    # -- refused ones ------------------------------------------------------------------------

    def refuse(self, key: MessageKey, refused: RefusedMessage) -> None:
        """Answer the packets that are still to come of a message in the same way.

        On a PDC that lives all of them come.  The oldest is forgotten if there are too many: what
        comes of it is then judged afresh.
        """
        if refused.expected <= refused.seen:
            return
        self.refused[key] = refused
        if len(self.refused) > self._limit:
            self.refused.popitem(last=False)
        if refused.identity is None and self._sweep is None:
            self._sweep_at(refused.touched + self._idle_time)

    def count(self, key: MessageKey, request: RequestArrival, octets: int) -> RefusedMessage | None:
        """One more packet of a refused message, if it is one; the last packet ends it."""
        refused = self.refused.get(key)
        if refused is None:
            return None
        known = refused.identity
        if (
            (request.is_first and refused.begun)
            or (known is not None and known != request.signature)
            or (known is None and request.start + octets > refused.expected)
        ):
            del self.refused[key]  # the identifier is in use again
            return None
        refused.begun = refused.begun or request.is_first
        refused.seen += octets
        if refused.seen >= refused.expected:
            del self.refused[key]
        return refused

    def end(self, key: MessageKey, sent: int, now: int) -> None:
        """The initiator gives a message up, ``sent`` octets of which it has sent.

        Those that are still under way find it ended, rather than begin it anew.
        """
        message = self.messages.get(key)
        refused = self.refused.get(key)
        early = self.take_early(key)
        if message is not None:
            self.drop(key, "INITIATOR_ERR")
            self.refuse(
                key,
                RefusedMessage(message.signature, 0, 0, sent, message.placed, begun=message.begun),
            )
        elif refused is None:
            seen = 0 if early is None else early.octets
            self.refuse(key, RefusedMessage(None, 0, 0, sent, seen, begun=False, now=now))
        else:
            refused.expected = min(refused.expected, sent)
            if refused.seen >= refused.expected:
                del self.refused[key]

    def stop(self, key: MessageKey, message: InboundMessage, code: int) -> None:
        """Receive no more of a message, if it is still tracked, and refuse what comes of it."""
        if self.messages.get(key) is message:
            del self.messages[key]
            self._remember(key, message, code)

    def _remember(self, key: MessageKey, message: InboundMessage, code: int) -> None:
        refused = RefusedMessage(
            message.signature, code, 0, message.awaited, message.placed, begun=message.begun
        )
        self.refuse(key, refused)

    # -- the end of messages -----------------------------------------------------------------

    def drop(self, key: MessageKey, why: str) -> None:
        """Receive no more of a message."""
        message = self.messages.pop(key)
        self._counters["rx_messages_abandoned"] += 1
        self._abandoned(message, why)

    def forget(self, pdc_id: int) -> None:
        """The PDC is gone, and with it what was half received on it."""
        for key in [key for key in self.messages if key[0] == pdc_id]:
            self.drop(key, "PDC_CLOSED")
        for key in [key for key in self.refused if key[0] == pdc_id]:
            del self.refused[key]
        for key in [key for key in self.early if key[0] == pdc_id]:
            self.take_early(key)

    def next_deadline(self) -> int | None:
        return self._sweep

    def on_timer(self, now: int) -> None:
        """Give up what has been idle for too long."""
        if self._sweep is None or now < self._sweep:
            return
        self._drop_idle(now)
        touched = [message.touched for message in self.messages.values()]
        touched += [early.touched for early in self.early.values()]
        touched += [r.touched for r in self.refused.values() if r.identity is None]
        self._sweep = None
        self._time.stopped()
        if touched:
            self._sweep_at(min(touched) + self._idle_time)

    def _drop_idle(self, now: int) -> None:
        oldest = now - self._idle_time
        for key in [k for k, message in self.messages.items() if message.touched <= oldest]:
            message = self.messages[key]
            self.drop(key, "ABANDONED")
            self._remember(key, message, _DROPPED)
        for key, early in [(k, e) for k, e in self.early.items() if e.touched <= oldest]:
            self._abandon_early(key, early)
        for key in [
            k for k, r in self.refused.items() if r.identity is None and r.touched <= oldest
        ]:
            del self.refused[key]

    def _abandon_early(self, key: MessageKey, early: EarlyPackets) -> None:
        """A send whose SOM has not come: it is refused when it does."""
        self.take_early(key)
        self._counters["rx_messages_abandoned"] += 1
        self.refuse(
            key,
            RefusedMessage(early.signature, _DROPPED, 0, early.expected, early.octets, begun=False),
        )


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
_PID_SHIFT: Final = headers.SES_RENDEZVOUS.shift("read_pid_on_fep")
_PID: Final = headers.SES_RENDEZVOUS.mask("read_pid_on_fep")
_INDEX: Final = headers.SES_RENDEZVOUS.mask("read_resource_index")


class Rest:
    """The place of the rest of a rendezvous send, from where it is read (UES 3.4)."""

    __slots__ = ("address", "key", "offset")

    def __init__(self, request: RequestArrival) -> None:
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
        "failure",
        "fetching",
        "held",
        "initiator",
        "match",
        "peer",
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
        place: Match | memoryview,
    ) -> None:
        match = place if isinstance(place, Match) else None
        memory = place.memory if isinstance(place, Match) else place
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
        self.buffer = memory if match is None else None
        self.rest = Rest(request) if request.opcode in RENDEZVOUS else None
        #: held as unexpected: by which queue, as what
        self.held: tuple[ReceiveQueue, UnexpectedMessage] | None = None
        self.fetching = False
        #: why it will not be complete; reported once nothing writes to its memory any more
        self.failure: str | None = None
        self.ended = False
        #: how it is tracked
        self.where: MessageKey | None = None
