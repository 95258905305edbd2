"""Messages being received: put together from packets in any order (UES 3.4.1).

A message is known by the PDC that it came on and its identifier.  It is tracked from the first
packet that arrives, whichever that is, until the last octet is there, the initiator gives it up,
or nothing more of it has come for a while.  A message that was refused is remembered the same
way, so that its other packets draw the same answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable

from uet.config import FepConfig
from uet.wire.codes import MPR_UNIT

#: Each gap in a message waits for a packet of the receive window, which has at most so many.
MOST_GAPS = 255 * MPR_UNIT

#: PDC and message identifier.
MessageKey = tuple[int, int]


class InboundMessage:
    """A message being received.  Octets may come in any order, each of them once.

    ``awaited`` octets come with its packets and go to the start of ``memory``, which has room
    for them.  ``length`` is the whole message's: more than that for a rendezvous.

    ``_starts`` and ``_ends`` are the sorted, disjoint pieces that have been placed; with packets
    nearly in order that is one piece.
    """

    __slots__ = (
        "_ends",
        "_memory",
        "_starts",
        "awaited",
        "group",
        "header_data",
        "key",
        "length",
        "offset",
        "placed",
        "to",
        "touched",
        "word",
    )

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
        #: what all its packets have in common: first header word without the flags that differ
        #: (:attr:`uet.ses.arrival.Arrival.identity`), addressing, match bits or memory key, buffer
        #: offset (or tokens), length
        self.word = word
        self.to = to
        self.key = key
        self.offset = offset
        self.length = length
        self.awaited = length if awaited is None else awaited
        self.placed = 0
        self.touched = 0
        self.header_data: int | None = None
        #: of a synchronised write (:mod:`uet.ses.sync`)
        self.group: tuple[int, int, int] | None = None
        self._memory = memory
        self._starts: list[int] = []
        self._ends: list[int] = []

    @property
    def signature(self) -> tuple[int, ...]:
        """What all its packets have in common (:attr:`uet.ses.arrival.Arrival.signature`)."""
        return (self.word, self.to, self.key, self.offset, self.length)

    def place(self, offset: int, octets: memoryview) -> bool:
        """Put a packet's payload in its place.

        False if any of it was there already, or if it leaves more gaps than a window has PSNs.
        """
        end = offset + len(octets)
        starts, ends = self._starts, self._ends
        at = bisect_left(starts, offset)
        joins_left = at > 0 and ends[at - 1] == offset
        if (at > 0 and ends[at - 1] > offset) or (at < len(starts) and starts[at] < end):
            return False
        joins_right = at < len(starts) and starts[at] == end
        if joins_left and joins_right:
            ends[at - 1] = ends.pop(at)
            starts.pop(at)
        elif joins_left:
            ends[at - 1] = end
        elif joins_right:
            starts[at] = offset
        elif len(starts) > MOST_GAPS:
            return False
        else:
            starts.insert(at, offset)
            ends.insert(at, end)
        self._memory[offset:end] = octets
        self.placed += end - offset
        return True


class RefusedMessage:
    """A message whose other packets all draw the same answer.

    ``code`` and ``generation`` are the response's, with code 0 for the default response.
    ``seen`` of its ``expected`` octets have arrived.  ``identity`` is what all its packets have in
    common, ``None`` if only its end has been seen.
    """

    __slots__ = ("code", "expected", "generation", "identity", "seen", "touched")

    def __init__(
        self,
        identity: tuple[int, ...] | None,
        code: int,
        generation: int,
        expected: int,
        seen: int,
        now: int,
    ) -> None:
        self.identity = identity
        self.code = code
        self.generation = generation
        self.expected = expected
        self.seen = seen
        self.touched = now


class InboundTable:
    """All messages of one endpoint that are being received, or have been refused.

    ``abandoned`` is called for each that is given up: with the message, and why.
    """

    def __init__(
        self,
        config: FepConfig,
        counters: dict[str, int],
        abandoned: Callable[[InboundMessage, str], None],
    ) -> None:
        self.messages: dict[MessageKey, InboundMessage] = {}
        self.refused: OrderedDict[MessageKey, RefusedMessage] = OrderedDict()
        self._limit = config.max_inbound_messages
        self._idle_time = config.inbound_message_idle_time
        self._counters = counters
        self._abandoned = abandoned
        self._full_until = 0  # before then no message has been idle for long enough
        self._sweep: int | None = None

    def add(self, key: MessageKey, message: InboundMessage, now: int) -> None:
        """Track a message; :meth:`make_room` has said that it may be."""
        message.touched = now
        self.messages[key] = message
        if self._sweep is None:
            self._sweep = now + self._idle_time

    def make_room(self, now: int) -> bool:
        """Whether one more message can be tracked; drops those idle for too long if need be."""
        if len(self.messages) < self._limit:
            return True
        if now < self._full_until:
            return False
        self._drop_idle(now)
        touched = [message.touched for message in self.messages.values()]
        self._full_until = min(touched, default=now) + self._idle_time
        return len(self.messages) < self._limit

    # -- refused ones ------------------------------------------------------------------------

    def refuse(self, key: MessageKey, refused: RefusedMessage) -> None:
        """Answer the packets that are still to come of a message in the same way.

        The oldest is forgotten if there are too many: what comes of it is then judged afresh.
        """
        if refused.expected <= refused.seen:
            return
        self.refused[key] = refused
        if len(self.refused) > self._limit:
            self.refused.popitem(last=False)
        if self._sweep is None:
            self._sweep = refused.touched + self._idle_time

    def count(
        self, key: MessageKey, identity: tuple[int, ...], start: int, octets: int, now: int
    ) -> RefusedMessage | None:
        """One more packet of a refused message, if it is one; the last packet ends it."""
        refused = self.refused.get(key)
        if refused is None:
            return None
        known = refused.identity
        if known != identity if known is not None else start + octets > refused.expected:
            del self.refused[key]  # the identifier is in use again
            return None
        refused.seen += octets
        refused.touched = now
        if refused.seen >= refused.expected:
            del self.refused[key]
        return refused

    def end(self, key: MessageKey, sent: int, now: int) -> None:
        """The initiator gives a message up, ``sent`` octets of which it has sent.

        Those that are still under way find it ended, rather than begin it anew.
        """
        message = self.messages.get(key)
        refused = self.refused.get(key)
        if message is not None:
            self.drop(key, "INITIATOR_ERR")
            self.refuse(key, RefusedMessage(None, 0, 0, sent, message.placed, now))
        elif refused is None:
            self.refuse(key, RefusedMessage(None, 0, 0, sent, 0, now))
        else:
            refused.expected = min(refused.expected, sent)
            if refused.seen >= refused.expected:
                del self.refused[key]

    def stop(self, key: MessageKey, message: InboundMessage, code: int) -> None:
        """Receive no more of a message, if it is still tracked, and refuse what comes of it."""
        if self.messages.get(key) is message:
            del self.messages[key]
            self.refuse(
                key,
                RefusedMessage(
                    message.signature, code, 0, message.awaited, message.placed, message.touched
                ),
            )

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

    def next_deadline(self) -> int | None:
        return self._sweep

    def on_timer(self, now: int) -> None:
        """Give up what has been idle for too long."""
        if self._sweep is None or now < self._sweep:
            return
        self._drop_idle(now)
        touched = [message.touched for message in self.messages.values()]
        touched += [refused.touched for refused in self.refused.values()]
        self._sweep = min(touched) + self._idle_time if touched else None

    def _drop_idle(self, now: int) -> None:
        oldest = now - self._idle_time
        for key in [k for k, message in self.messages.items() if message.touched <= oldest]:
            self.drop(key, "ABANDONED")
        for key in [k for k, refused in self.refused.items() if refused.touched <= oldest]:
            del self.refused[key]
