"""The packets of one direction of a PDC that are sent and not answered (UES 3.5.12, 3.5.15).

Sending, acknowledgement and loss recovery share these records.  Window, timer, queue, rings and
``controls`` stay the same objects for the life of the PDC, so that each may bind them once.
"""

from __future__ import annotations

from typing import Final

from uet.congestion.context import PdcFlow
from uet.congestion.spraying.paths import TIMEOUT
from uet.pds.rto import RetransmissionQueue, RetransmissionTimer
from uet.pds.semantics import Outbound
from uet.pds.window import HALF, MASK, SendWindow
from uet.wire.codes import ControlType

#: Requests in flight that this implementation can remember.
RING: Final = 1_024
#: Slots of the rings at first.  They double when more requests are in flight, up to ``RING``: in
#: an AlltoAll of many GPUs most PDCs send a packet or two.
FIRST_SLOTS: Final = 16


class OpenRequests:
    """Records every open PSN of a send window, and the latest of the peer's ACKs.

    ``peer_range`` is how many PSNs beyond its CACK the peer tracks, at most ``RING`` (UES 3.5.11);
    ``timer`` and ``retransmit`` belong to the same window as ``window``.
    """

    __slots__ = (
        "asked",
        "clear_sent",
        "controls",
        "copies",
        "ev",
        "flow",
        "index",
        "largest",
        "max_cack",
        "message",
        "nacks",
        "ordered",
        "peer_range",
        "retransmit",
        "size",
        "slot_mask",
        "start_psn",
        "timer",
        "window",
    )

    def __init__(
        self,
        start_psn: int,
        flow: PdcFlow,
        *,
        ordered: bool,
        peer_range: int,
        rto: int,
        constant_rto: bool,
    ) -> None:
        self.start_psn = start_psn
        self.window = SendWindow(start_psn)
        self.flow = flow
        #: the destination takes requests in the order of their PSNs only
        self.ordered = ordered
        self.max_cack = (start_psn - 1) & MASK
        self.peer_range = peer_range
        #: the newest CLEAR_PSN that has left
        self.clear_sent = (start_psn - 1) & MASK
        #: PSN of the newest packet that requested an ACK
        self.asked: int | None = None
        #: nominal size of the largest request so far
        self.largest = 1
        #: a PSN's slot in the rings is these lowest bits of it
        self.slot_mask = FIRST_SLOTS - 1
        self.timer = RetransmissionTimer(self.window, FIRST_SLOTS, rto, constant=constant_rto)
        self.retransmit = RetransmissionQueue(self.window, start_psn, in_order=ordered)
        #: control packets that took a PSN
        self.controls: dict[int, ControlType] = {}
        # By slot.  The rings are made when the first packet leaves: most targets never send any.
        #: which packet of which message
        self.message: list[Outbound | None] = []
        self.index: list[int] = []
        #: nominal size in flight; 0 once the network no longer holds it
        self.size: list[int] = []
        #: EV of the last transmission
        self.ev: list[int] = []
        #: transmissions
        self.copies: list[int] = []
        #: refusals that count
        self.nacks: list[int] = []

    def make_rings(self) -> None:
        """Make the rings, before the first packet leaves."""
        if not self.message:
            self.message.extend([None] * FIRST_SLOTS)
            for ring in self._numbers():
                ring.extend([0] * FIRST_SLOTS)
            self.timer.open()

    def grow(self) -> int:
        """Double the rings, before one more request leaves than they have slots; return the mask.

        Each half of a doubled ring has what the ring had, so every open PSN finds its record.  Of
        ``size`` nothing is there twice.
        """
        window, size = self.window, self.size.copy()
        self.message.extend(self.message)
        for ring in self._numbers():
            ring.extend(ring)
        self.timer.grow()
        former, self.slot_mask = self.slot_mask, len(self.message) - 1
        self.size[:] = [0] * len(self.message)
        for psn in range(window.base, window.base + window.outstanding):
            self.size[psn & self.slot_mask] = size[psn & former]
        return self.slot_mask

    def _numbers(self) -> tuple[list[int], ...]:
        return self.index, self.size, self.nacks, self.ev, self.copies

    @property
    def awaits_answer(self) -> bool:
        """Return whether CACK does not yet cover a packet that requested an ACK."""
        return self.asked is not None and 0 < ((self.asked - self.max_cack) & MASK) < HALF

    def is_beyond_range(self, psn: int) -> bool:
        """Return whether the peer does not track ``psn`` yet."""
        return ((psn - self.max_cack) & MASK) > self.peer_range

    def discard(self, psn: int) -> None:
        """Take ``psn`` out of flight; that is no sign of trouble on its path."""
        slot = psn & self.slot_mask
        if self.size[slot]:
            self.flow.on_discard(self.size[slot])
            self.size[slot] = 0

    def lose(self, psn: int, now: int, how: int = TIMEOUT) -> None:
        """Take ``psn`` out of flight as lost, and report that to congestion control."""
        slot = psn & self.slot_mask
        if self.size[slot]:
            self.flow.on_loss(self.size[slot], self.ev[slot], now, how)
            self.size[slot] = 0

    def discard_all(self) -> None:
        """Take every open PSN out of flight, so that it takes no room from other PDCs."""
        psn = self.window.base
        while psn != self.window.next:
            self.discard(psn)
            psn = (psn + 1) & MASK

    def oldest_in_flight(self) -> int:
        """Return the oldest PSN that the network may still hold, else the first without a CACK."""
        psn, last = self.window.base, self.window.next
        while psn != last:
            if self.size[psn & self.slot_mask]:
                return psn
            psn = (psn + 1) & MASK
        return (self.max_cack + 1) & MASK

    def message_of(self, psn: int) -> Outbound | None:
        """Return the message of an open request; ``None`` for a control packet."""
        return self.message[psn & self.slot_mask]

    def was_sent_once(self, psn: int) -> bool:
        """Return whether an open request has left once, and no report of its arrival has come."""
        return self.copies[psn & self.slot_mask] == 1 and not self.window.is_delivered(psn)

    def renumber(self, start_psn: int) -> None:
        """Move all records to PSNs from ``start_psn`` on; nothing waits to be sent again."""
        shift = (start_psn - self.start_psn) & MASK
        window = self.window
        turn = shift & self.slot_mask
        if turn:
            self.message[:] = self.message[-turn:] + self.message[:-turn]
            for ring in self._numbers():
                ring[:] = ring[-turn:] + ring[:-turn]
        self.start_psn = start_psn
        window.base = (window.base + shift) & MASK
        window.next = (window.next + shift) & MASK
        self.max_cack = (self.max_cack + shift) & MASK
        self.clear_sent = (self.clear_sent + shift) & MASK
        controls = {(psn + shift) & MASK: kind for psn, kind in self.controls.items()}
        self.controls.clear()
        self.controls.update(controls)
        self.timer.restart()
        self.retransmit.restart(start_psn)

    def forget(self) -> None:
        """Forget every open packet: the window is empty, and no size counts as in flight."""
        if self.message:
            slots = self.slot_mask + 1
            self.message[:] = [None] * slots
            self.size[:] = [0] * slots
        self.controls.clear()
        self.window.base = self.window.next
        self.window.done = self.window.delivered = 0
