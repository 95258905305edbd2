"""A congestion control context (CCC): what all PDCs to one peer in one traffic class share.

UES 3.6.  A :class:`CongestionContext` holds the window (NSCC), the credit (RCCC) or both, and the
choice of paths; a PDC sends through a :class:`PdcFlow` of its own, which counts that PDC's octets
in flight.  Sizes are nominal packet sizes in octets (UES 3.6.12), times ns.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from uet.congestion.congestion_parameters import REFERENCE_BASE_RTT
from uet.congestion.receiver_credit import CreditSource
from uet.congestion.signals import NO_SAMPLE, ReceivedOctets
from uet.congestion.spraying.paths import CLEAN, ECN, NACK, TIMEOUT, PathSelection
from uet.timekeeper import NEVER
from uet.wire.codes import BYTE_COUNT_UNIT, NackCode

_TRIMMED: Final = int(NackCode.TRIMMED)
#: By so much rounded counters may be ahead of what was sent.
_ROUNDING: Final = BYTE_COUNT_UNIT - 1


class Window(Protocol):
    """The limit of octets in flight to one peer in one traffic class: what a control implements.

    A window is opened when the first message to a peer begins, and all PDCs to that peer share it.
    Octets are those of nominal packet size, headers included (UES 3.6.12), times are whole ns of
    fabric time.  Calls come from one thread, in the order of events; none may wait, look at a clock
    or draw from a generator that is not seeded, or a run would not repeat.

    The order for a packet: :meth:`room` and, if it is positive, :meth:`wants_ack`; it leaves, and
    its octets are added to :attr:`inflight`.  Then exactly one of :meth:`on_ack` and
    :meth:`on_report` (alone or with other packets), :meth:`on_nack` or :meth:`on_loss` takes them
    off again.  After a NACK or a loss the packet leaves anew, which counts as another one.
    """

    #: Octets that have left and are not known to have arrived or to be lost.  The caller adds what
    #: leaves; the methods below take off what they are told.  Signed: peers count what they have
    #: received in units of 256 octets.
    inflight: int

    @property
    def window_octets(self) -> int:
        """Return how many octets may be in flight.

        Read when credit is requested, for event logs and for what is left to send; never negative.
        """
        ...

    def room(self) -> int:
        """Return how many octets may leave now; positive while a full packet may.

        Called whenever a PDC may send, once for a burst of new packets, whose octets the caller
        takes off the number by itself, and once for each retransmission.  It must change nothing.
        """
        ...

    def wants_ack(self, trigger: int) -> bool:
        """Return whether the packets that leave next should request ACKs.

        Called once for each burst, right after :meth:`room`.  Without a request a destination
        coalesces ``trigger`` octets into one ACK, so that a window that is not much larger would
        stay closed until a timer expires.
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
        """Take ``octets`` off those in flight, as they have arrived, and learn from the ACK.

        Called once for each ACK of data, as it arrives.  ``octets`` is what is newly known to have
        arrived: of one packet or of several that the ACK coalesces, 0 where another one has said it
        before.  ``marked``: the packet that caused the ACK was marked CE.  ``rtt`` is the round
        trip of that packet without the destination's service time, or ``NO_SAMPLE`` (negative)
        where it cannot be known.  ``penalty`` (0 to 127) and ``restore`` are the destination's
        rcv_cwnd_pend and restore_cwnd, by which it slows a source down and lets it go (UES
        3.6.13.6).
        """
        ...

    def on_report(self, octets: int) -> None:
        """Take ``octets`` off those in flight, as they have arrived.

        Called once for each answer to a PROBE, after :meth:`on_probe`: no path of data has been
        measured, so there is nothing else to learn.
        """
        ...

    def on_nack(self, size: int, code: int, now: int, rtt: int = NO_SAMPLE) -> None:
        """Take ``size`` off those in flight: a packet was refused.

        Called once for each NACK; ``size`` is 0 for a packet that was taken to be lost before.
        ``code`` is the number of a :class:`~uet.wire.codes.NackCode`: with TRIMMED and
        TRIMMED_LASTHOP a full queue has cut the packet, with others it says nothing about the
        network.  ``rtt`` is as for :meth:`on_ack`.
        """
        ...

    def on_probe(self, rtt: int) -> None:
        """Learn how long a PROBE took (ns); it waits in no queue of data.

        Called once for each answer that has a sample: when an ``adaptive`` control begins, and
        after a silence (Tail_Loss_Time).
        """
        ...

    def on_loss(self, size: int) -> None:
        """Take ``size`` off those in flight: a packet is taken to be lost.

        Called once for each such packet, when its timer expires, or as newer ones have arrived.
        """
        ...


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
        "window",
    )

    def __init__(  # noqa: PLR0913  each is a field of what it makes
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
        self.line: list[Any] = []
        self.offered = False
        self.deficit = 0

    def flow(self, paths: PathSelection | None = None) -> PdcFlow:
        """Return a flow for one direction of one PDC; an ordered one brings its path."""
        return PdcFlow(self, paths if paths is not None else self.paths)

    def room(self) -> int:
        """Return what the window and credit leave; positive while a packet may leave.

        What leaves is to be taken off it.
        """
        window, credit = self.window, self.credit
        if credit is None:
            return self.window_room()
        if window is None:
            return credit.credit
        return min(window.room(), credit.credit)

    def wants_ack(self, trigger: int) -> bool:
        """Return whether the next packet should request an ACK, where ``trigger`` octets share one.

        Without the request none might come that opens the window (UES 3.6.13).
        """
        return self.window is not None and self.window.wants_ack(trigger)

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
        credit, due = self.credit, self.next_deadline()
        if credit is None or due is None or now < due:
            return None
        credit.requested(now, alone=True)
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
