"""A congestion control context (CCC): what all PDCs to one peer in one traffic class share.

UES 3.6.  A :class:`CongestionContext` holds the window (NSCC), the credit (RCCC) or both, and the
choice of paths; a PDC sends through a :class:`PdcFlow` of its own, which counts that PDC's octets
in flight.  Sizes are nominal packet sizes in octets (UES 3.6.12), times ns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from uet.congestion.congestion_parameters import REFERENCE_BASE_RTT
from uet.congestion.receiver_credit import CreditSource
from uet.congestion.signals import NO_SAMPLE, ReceivedOctets
from uet.congestion.spraying.paths import CLEAN, ECN, NACK, TIMEOUT, PathSelection
from uet.timekeeper import NEVER
from uet.wire.codes import BYTE_COUNT_UNIT, NackCode

_TRIMMED = int(NackCode.TRIMMED)
#: By so much rounded counters may be ahead of what was sent.
_ROUNDING = BYTE_COUNT_UNIT - 1


class Window(Protocol):
    """The limit of octets in flight: NSCC, or a window that never changes."""

    #: signed, as what is received is counted in units of 256 octets
    inflight: int

    @property
    def window_octets(self) -> int:
        """Return how many octets may be in flight."""
        ...

    def room(self) -> int:
        """Positive while a full packet may leave."""
        ...

    def wants_ack(self, trigger: int) -> bool:
        """Return whether the next packet should request an ACK, by ``trigger`` or sooner.

        Other packets coalesce ``trigger``.
        """
        ...

    def on_ack(
        self,
        octets: int,
        marked: bool,
        rtt: int,
        now: int,
        penalty: int = 0,
        restore: bool = False,
    ) -> None:
        """Take octets off those in flight, as they have arrived.

        :meth:`uet.congestion.controls.nscc.Nscc.on_ack` explains the arguments.
        """
        ...

    def on_report(self, octets: int) -> None:
        """Take the octets that have arrived, from the answer to a PROBE."""
        ...

    def on_nack(self, size: int, code: int, now: int, rtt: int = NO_SAMPLE) -> None:
        """A packet was refused."""
        ...

    def on_probe(self, rtt: int) -> None:
        """A PROBE, which waits in no queue of data, took so long (ns)."""
        ...

    def on_loss(self, size: int) -> None:
        """A packet is taken to be lost."""
        ...


def _never(trigger: int) -> bool:
    """Without a window no ACK is needed to open one."""
    return False


class CongestionContext:
    """The state of congestion control for one peer: when packets may leave, and on which paths.

    With NSCC and RCCC a packet needs both: a window for the network, credit for the last hop.
    """

    __slots__ = (
        "adaptive",
        "backlog",
        "base_rtt",
        "ccc_id",
        "credit",
        "credit_timeout",
        "deficit",
        "full_size",
        "line",
        "max_wnd",
        "offered",
        "paths",
        "probes",
        "room",
        "wants_ack",
        "window",
    )

    def __init__(
        self,
        *,
        window: Window | None,
        credit: CreditSource | None,
        paths: PathSelection,
        ccc_id: int = 0,
        adaptive: bool = False,
        credit_timeout: int = NEVER,
        full_size: int = 4_096,
        base_rtt: int = REFERENCE_BASE_RTT,
        max_wnd: int = 0,
    ) -> None:
        if window is None and credit is None:
            raise ValueError("a congestion control context needs a window, credit or both")
        self.window = window
        self.credit = credit
        #: a packet may leave while this gives a positive number; what leaves is to be taken off it
        self.room: Callable[[], int] = self._least_room
        #: whether the next packet should request an ACK, where others coalesce so many octets
        #: (UES 3.6.13): without, none may come
        self.wants_ack: Callable[[int], bool] = _never
        if window is not None:
            self.wants_ack = window.wants_ack
            if credit is None:
                self.room = window.room
        self.paths = paths
        #: names the context on the wire; one peer may have several, by traffic class
        self.ccc_id = ccc_id
        #: of a packet
        self.full_size = full_size
        #: the round trip of the idle path, as configured (ns)
        self.base_rtt = base_rtt
        #: the window that a context begins with (octets)
        self.max_wnd = max_wnd
        #: how long credit is requested in vain (ns)
        self.credit_timeout = credit_timeout
        #: the window follows the network
        self.adaptive = adaptive
        #: a PROBE is still to be sent, to learn the base RTT before queues hide it
        self.probes = adaptive
        #: octets that wait in all flows, as they reported last
        self.backlog = 0
        #: PDCs that have something to send, the one whose turn it is first (uet.pds.scheduler),
        #: whether one of them may be able to, and octets that the context may send in its own turn
        self.line: deque[Any] = deque()
        self.offered = False
        self.deficit = 0

    def flow(self, paths: PathSelection | None = None) -> PdcFlow:
        """Return a flow for one direction of one PDC; an ordered one brings its path."""
        return PdcFlow(self, paths if paths is not None else self.paths)

    def _least_room(self) -> int:
        """Return what credit leaves, and the window beside it if there is one."""
        window, credit = self.window, self.credit
        assert credit is not None
        if window is None:
            return credit.credit
        return min(window.room(), credit.credit)

    def window_room(self) -> int:
        """Positive while the window, if there is one, lets a packet leave."""
        return 1 if self.window is None else self.window.room()

    def credit_room(self) -> int:
        """Positive while the receiver's credit, if one is needed, lets a packet leave."""
        return 1 if self.credit is None else self.credit.credit

    @property
    def inflight(self) -> int:
        """Return how many octets of all flows are in flight; below 0 by what counters round up."""
        return 0 if self.window is None else self.window.inflight

    @property
    def window_octets(self) -> int:
        """Return how many octets may be in flight."""
        if self.window is not None:
            return self.window.window_octets
        return self.credit.max_wnd if self.credit is not None else 0

    # -- credit ----------------------------------------------------------------------------------

    def credit_word(self) -> int:
        """``ccc_id`` and ``credit_target`` for RUD_CC_REQ, ROD_CC_REQ or CREDIT_REQ."""
        credit, window = self.credit, self.window
        if credit is None:
            return self.ccc_id << 24
        limit = None if window is None else window.window_octets
        return self.ccc_id << 24 | credit.target(self.backlog, limit)

    def restart_credit(self) -> None:
        """Begin anew, on trust, and under another name, for counters of old mean nothing now.

        The destination may have forgotten what it had granted: it is another one, or its PDCs are.
        """
        if self.credit is not None:
            self.credit = CreditSource(self.credit.parameters)
            self.ccc_id = (self.ccc_id + 1) & 0xFF

    def expire_credit(self, now: int) -> None:
        """Reset the credit state if requests for credit brought none for too long."""
        credit = self.credit
        if credit is None or credit.waits_since is None or credit.credit > 0:
            return
        if now - credit.waits_since >= self.credit_timeout:
            self.restart_credit()

    @property
    def lacks_credit(self) -> bool:
        """Return whether nothing but credit keeps packets from leaving."""
        credit, window = self.credit, self.window
        return credit is not None and credit.credit <= 0 and (window is None or window.room() > 0)

    def credit_asked(self, now: int) -> None:
        """Packets with the :meth:`credit_word` leave: no CREDIT_REQ need repeat that soon."""
        if self.credit is not None:
            self.credit.requested(now)

    def credit_request(self, now: int) -> int | None:
        """The payload of a CREDIT_REQ that is due now, if one is: data waits and has no credit."""
        due = self.next_deadline()
        if due is None or now < due:
            return None
        assert self.credit is not None
        self.credit.requested(now, alone=True)
        return self.credit_word()

    def on_credit(self, ccc_id: int, granted: int) -> None:
        """CREDIT: the destination has granted so much to one of our contexts; cumulative."""
        if self.credit is not None and ccc_id == self.ccc_id:
            self.credit.on_credit(granted)

    def next_deadline(self) -> int | None:
        """Return when a CREDIT_REQ is due that no packet from the peer would cause."""
        if self.credit is None or self.backlog <= 0:
            return None
        return self.credit.request_at()


class PdcFlow:
    """The packets of one direction of one PDC in their context."""

    __slots__ = ("_received", "_waiting", "context", "inflight", "paths", "unsettled")

    def __init__(self, context: CongestionContext, paths: PathSelection) -> None:
        self.context = context
        self.paths = paths
        #: octets of this PDC in the network; below 0 by what counters round up
        self.inflight = 0
        #: octets sent of which no CACK, SACK, NACK or loss has reported; never less than in flight
        self.unsettled = 0
        self._waiting = 0
        self._received = ReceivedOctets()

    def waits(self, octets: int) -> None:
        """Note how many octets of this PDC wait to be sent, again or for the first time."""
        self.context.backlog += octets - self._waiting
        self._waiting = octets

    def on_send(self, octets: int) -> None:
        """Count packets of ``octets``, new or retransmitted, that go out, one or several."""
        self.inflight += octets
        self.unsettled += octets
        context = self.context
        if context.window is not None:
            context.window.inflight += octets
        if context.credit is not None:
            context.credit.credit -= octets

    def on_ack(
        self,
        counter: int | None,
        settled: int,
        ev: int,
        marked: bool,
        rtt: int,
        now: int,
        penalty: int = 0,
        restore: bool = False,
    ) -> None:
        """An ACK that is about packets, not about a PROBE.

        ``counter``: its rcvd_bytes, or ``None`` if it has none (a plain ACK).  ``settled``: the
        octets that it has settled by CACK and SACK.  ``ev`` came back in it, ``rtt`` is the sample
        of the packet that caused it (:func:`uet.congestion.signals.rtt_sample`).
        """
        packets = settled // self.context.full_size
        self.paths.on_feedback(ev, ECN if marked else CLEAN, now, packets if packets > 1 else 1)
        octets = self._arrived(counter, settled)
        context = self.context
        if context.window is not None:
            context.window.on_ack(octets, marked, rtt, now, penalty, restore)
        if context.credit is not None and context.credit.speculative:
            context.credit.on_answer()

    def on_report(self, counter: int | None, settled: int) -> None:
        """Take the answer to a PROBE: as an ACK, without anything about a path of data."""
        octets = self._arrived(counter, settled)
        if self.context.window is not None:
            self.context.window.on_report(octets)

    def _arrived(self, counter: int | None, settled: int) -> int:
        """Return how many octets are known now to have arrived, which were in flight before."""
        inflight = self.inflight
        self.unsettled -= settled
        octets = 0 if counter is None else self._received.advance(counter)
        # A peer may count too little, or not at all: what is settled has arrived.  Nor can more
        # have arrived than is in flight, whatever was taken to be lost and was not.
        least, most = inflight - self.unsettled, inflight + _ROUNDING
        if octets < least:
            octets = least
        if octets > most:
            octets = most if most > 0 else 0
        self.inflight = inflight - octets
        return octets

    def on_nack(
        self, size: int, code: int, ev: int, marked: bool, now: int, rtt: int = NO_SAMPLE
    ) -> None:
        """A packet of ``size`` octets was refused; 0 for one that counts as lost already."""
        excess = self._gone(size)
        # What was trimmed at the last hop came by a good path.
        how = NACK if code == _TRIMMED else ECN if marked else CLEAN
        self.paths.on_feedback(ev, how, now)
        context = self.context
        if context.window is not None:
            context.window.on_nack(size, code, now, rtt)
            context.window.inflight += excess
        if context.credit is not None and context.credit.speculative:
            context.credit.on_answer()

    def on_loss(self, size: int, ev: int, now: int, how: int = TIMEOUT) -> None:
        """A packet is taken to be lost, by its timer or ``LOST``, as inferred; it took ``ev``."""
        excess = self._gone(size)
        self.paths.on_feedback(ev, how, now)
        if self.context.window is not None:
            self.context.window.on_loss(size)
            self.context.window.inflight += excess

    def on_discard(self, size: int) -> None:
        """A packet is not in flight any more, and the network has nothing to do with it.

        So it is when an ordered destination refuses what comes early, or a PDC is renumbered.
        """
        excess = self._gone(size)
        if self.context.window is not None:
            self.context.window.inflight -= size - excess

    def _gone(self, size: int) -> int:
        """A packet is in flight no more, and has not arrived; how much of it was not, before.

        That is so if the peer has counted more than it can have received.
        """
        self.unsettled -= size
        most = self.inflight + _ROUNDING
        taken = size if size <= most else max(most, 0)
        self.inflight -= taken
        return size - taken

    def ended(self) -> None:
        """The PDC is gone, or its messages are: nothing of it is in flight, and nothing waits."""
        self.waits(0)
        self.drained()

    def drained(self) -> None:
        """Note that no packet of the PDC is outstanding: nothing of it is in flight.

        What counting in units of 256 octets has left over, or a peer that counts otherwise, goes.
        """
        self.unsettled = 0
        if self.inflight:
            if self.context.window is not None:
                self.context.window.inflight -= self.inflight
            self.inflight = 0
