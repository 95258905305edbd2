"""The messages of a source: those that wait, the one whose packets leave, those not yet answered.

Packets of two messages are never interleaved on a PDC (UES 3.5.6): first come, first.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from uet.pds.semantics import Outbound


class MessageEnds(Protocol):
    """The receiver of a message's end; the PDC implements it."""

    def message_end(self, message: Outbound, now: int) -> None:
        """End a message: every packet is answered, or ``message.error`` gives the reason."""
        ...

    def message_unsent(self, message: Outbound) -> None:
        """Take back a message: nothing of it was executed, and nothing of it leaves here."""
        ...

    def event(self, name: str, **data: object) -> None:
        """Report something rare that a trace may show."""
        ...


class OutboundMessages:
    """Keeps the messages of one source in order; one of over ``most_short`` packets is long."""

    __slots__ = ("_ends", "_long", "_most_short", "_queued", "current", "open", "queue")

    def __init__(self, ends: MessageEnds, most_short: int) -> None:
        #: those of which nothing was sent
        self.queue: deque[Outbound] = deque()
        #: those of which some packet was sent and some is not answered, by ``id()``
        self.open: dict[int, Outbound] = {}
        #: the one whose packets leave
        self.current: Outbound | None = None
        self._ends = ends
        self._most_short = most_short
        self._queued = 0  # packets of what is in the queue
        self._long = 0  # long messages in the queue

    def post(self, message: Outbound) -> None:
        """Queue a message."""
        self.queue.append(message)
        self._queued += message.packets
        self._long += message.packets > self._most_short

    def begin(self) -> Outbound:
        """Take the first message of the queue, of which a packet leaves now."""
        message = self.queue.popleft()
        self._queued -= message.packets
        self._long -= message.packets > self._most_short
        self.open[id(message)] = message
        return message

    def take_back(self) -> list[Outbound]:
        """Return the messages of which nothing was sent; they are not sent here any more."""
        unsent = list(self.queue)
        self.queue.clear()
        self._queued = self._long = 0
        return unsent

    @property
    def long_unsent(self) -> bool:
        """Return whether a message that is not short has still to leave, in part or as a whole."""
        current = self.current
        return self._long > 0 or (current is not None and current.packets > self._most_short)

    @property
    def unsent_packets(self) -> int:
        """The number of packets that have not been sent for the first time."""
        current = self.current
        return self._queued + (0 if current is None else current.packets - current.sent)

    def finish(self, message: Outbound, now: int) -> None:
        """End a message all of whose packets are answered."""
        del self.open[id(message)]
        if message is self.current:
            self.current = None  # cancelled before its last packet was due
        self._ends.message_end(message, now)

    def abandon(self, error: str, now: int, untouched: frozenset[int]) -> None:
        """End every message with ``error``, but those that may go elsewhere.

        These are messages of which nothing was sent, or nothing carried out (``untouched``, by
        ``id()``).
        """
        unfinished, unsent = list(self.open.values()), self.take_back()
        self.open.clear()
        self.current = None
        for message in unsent:
            self._ends.message_unsent(message)
        for message in unfinished:
            message.error = message.error or error
            if id(message) in untouched:
                self._ends.message_unsent(message)
            else:
                self._ends.message_end(message, now)
