"""A congestion control context (CCC): what all PDCs to one peer in one traffic class share.

UES 3.6.  A :class:`CongestionContext` holds the window (NSCC), the credit (RCCC) or both, and the
choice of paths; a PDC sends through a :class:`Flow` of its own, which knows how much of what is in
flight is that PDC's.  Sizes are nominal packet sizes in octets (UES 3.6.12), times ns.
"""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from uet.congestion.bitmap import PenaltySpraying
from uet.congestion.nscc import Nscc
from uet.congestion.parameters import NsccParameters, ParameterError, PathParameters, RcccParameters
from uet.congestion.paths import CLEAN, ECN, NACK, TIMEOUT, PathSelection, RoundRobin, ev_set_size
from uet.congestion.rccc import CreditPacer, CreditSource
from uet.congestion.reps import Reps
from uet.congestion.signals import NO_SAMPLE, ReceivedOctets
from uet.wire.codes import BYTE_COUNT_UNIT, NackCode

_TRIMMED = int(NackCode.TRIMMED)
#: By so much rounded counters may be ahead of what was sent.
_ROUNDING = BYTE_COUNT_UNIT - 1

#: Ways of spraying that this module makes.
SPRAYING = ("round_robin", "reps", "bitmap")


class Window(Protocol):
    """What limits the octets in flight: NSCC, or a window that never changes."""

    #: signed, as what is received is counted in units of 256 octets
    inflight: int

    @property
    def window_octets(self) -> int:
        """How many octets may be in flight."""
        ...

    def room(self) -> int:
        """Positive while a full packet may leave."""
        ...

    def wants_ack(self, trigger: int) -> bool:
        """Whether the next packet should ask for an ACK, where others coalesce ``trigger``."""
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
        """So many octets have arrived (:meth:`uet.congestion.nscc.Nscc.on_ack`)."""
        ...

    def on_nack(self, size: int, code: int, now: int, rtt: int = NO_SAMPLE) -> None:
        """A packet was refused."""
        ...

    def on_loss(self, size: int) -> None:
        """A packet is taken to be lost."""
        ...


class CongestionContext:
    """Whether packets to a peer may leave, and on which paths.

    With NSCC and RCCC a packet needs both: a window for the network, credit for the last hop.
    """

    __slots__ = ("ccc_id", "credit", "key", "pacer", "paths", "window")

    def __init__(
        self,
        *,
        window: Window | None,
        credit: CreditSource | None,
        paths: PathSelection,
        ccc_id: int = 0,
        pacer: CreditPacer | None = None,
        key: Hashable = None,
    ) -> None:
        if window is None and credit is None:
            raise ParameterError("a congestion control context needs NSCC, RCCC or both")
        self.window = window
        self.credit = credit
        self.paths = paths
        #: names the context on the wire; one peer may have several, by traffic class
        self.ccc_id = ccc_id
        #: where the peer's requests for credit go, and its name there (its ccc_id beside it)
        self.pacer = pacer
        self.key = key

    def flow(self, paths: PathSelection | None = None) -> Flow:
        """For one direction of one PDC; an ordered one brings the one path it takes."""
        return Flow(self, paths if paths is not None else self.paths)

    def room(self) -> int:
        """A packet may leave while this is positive; what leaves is to be taken off it."""
        window, credit = self.window, self.credit
        if window is None:
            return credit.credit if credit is not None else 0
        if credit is None:
            return window.room()
        return min(window.room(), credit.credit)

    @property
    def inflight(self) -> int:
        """How many octets of all flows are in flight; below 0 by what counters round up."""
        return 0 if self.window is None else self.window.inflight

    @property
    def window_octets(self) -> int:
        """How many octets may be in flight."""
        if self.window is not None:
            return self.window.window_octets
        return self.credit.max_wnd if self.credit is not None else 0

    def wants_ack(self, trigger: int) -> bool:
        """Whether the next packet should ask for an ACK (UES 3.6.13): without, none may come."""
        return self.window is not None and self.window.wants_ack(trigger)

    # -- credit ----------------------------------------------------------------------------------

    def credit_word(self, backlog: int, destinations: int = 1) -> int:
        """``ccc_id`` and ``credit_target`` for RUD_CC_REQ, ROD_CC_REQ or CREDIT_REQ.

        ``backlog``: octets that wait to be sent, again or for the first time.
        """
        credit, window = self.credit, self.window
        if credit is None:
            return self.ccc_id << 24
        limit = None if window is None else window.window_octets
        return self.ccc_id << 24 | credit.target(backlog, limit, destinations)

    def credit_request(self, backlog: int, now: int, destinations: int = 1) -> int | None:
        """The payload of a CREDIT_REQ that is due now, if one is: data waits and has no credit."""
        credit = self.credit
        if credit is None or backlog <= 0:
            return None
        at = credit.request_at()
        if at is None or now < at:
            return None
        credit.requested(now)
        return self.credit_word(backlog, destinations)

    def on_credit(self, ccc_id: int, granted: int, now: int) -> None:
        """CREDIT: the destination has granted so much to one of our contexts; cumulative."""
        if self.credit is not None and ccc_id == self.ccc_id:
            self.credit.on_credit(granted)

    def on_credit_request(self, ccc_id: int, target: int, now: int) -> None:
        """CREDIT_REQ: one of the peer's contexts has no credit."""
        if self.pacer is not None:
            self.pacer.on_request((self.key, ccc_id), target, now)

    def next_deadline(self, backlog: int) -> int | None:
        """When a CREDIT_REQ is due that no packet from the peer would cause."""
        if self.credit is None or backlog <= 0:
            return None
        return self.credit.request_at()


class Flow:
    """The packets of one direction of one PDC in their context."""

    __slots__ = ("_received", "context", "inflight", "paths", "unsettled")

    def __init__(self, context: CongestionContext, paths: PathSelection) -> None:
        self.context = context
        self.paths = paths
        #: octets of this PDC in the network; below 0 by what counters round up
        self.inflight = 0
        #: octets sent of which no CACK, SACK, NACK or loss has told; never less than in flight
        self.unsettled = 0
        self._received = ReceivedOctets()

    def on_send(self, octets: int) -> None:
        """Packets of so many octets, new or retransmitted, go out; several may be told at once."""
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
        self.paths.on_feedback(ev, ECN if marked else CLEAN, now)
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
        context = self.context
        if context.window is not None:
            context.window.on_ack(octets, marked, rtt, now, penalty, restore)
        if context.credit is not None and context.credit.speculative:
            context.credit.on_answer()

    def on_nack(
        self, size: int, code: int, ev: int, marked: bool, now: int, rtt: int = NO_SAMPLE
    ) -> None:
        """A packet of ``size`` octets was refused; 0 for one that counts as lost already."""
        self.inflight -= size
        self.unsettled -= size
        # What was trimmed at the last hop came by a good path.
        how = NACK if code == _TRIMMED else ECN if marked else CLEAN
        self.paths.on_feedback(ev, how, now)
        context = self.context
        if context.window is not None:
            context.window.on_nack(size, code, now, rtt)
        if context.credit is not None and context.credit.speculative:
            context.credit.on_answer()

    def on_loss(self, size: int, ev: int, now: int) -> None:
        """A packet is taken to be lost, inferred or by its timer; ``ev`` was its path."""
        self.inflight -= size
        self.unsettled -= size
        self.paths.on_feedback(ev, TIMEOUT, now)
        if self.context.window is not None:
            self.context.window.on_loss(size)

    def on_discard(self, size: int) -> None:
        """A packet is not in flight any more, and the network has nothing to do with it.

        So it is when an ordered destination refuses what comes early, or a PDC is renumbered.
        """
        self.inflight -= size
        self.unsettled -= size
        if self.context.window is not None:
            self.context.window.inflight -= size

    def drained(self) -> None:
        """No packet of the PDC is outstanding, or it is gone: nothing of it is in flight.

        What counting in units of 256 octets has left over, or a peer that counts otherwise, goes.
        """
        self.unsettled = 0
        if self.inflight:
            if self.context.window is not None:
                self.context.window.inflight -= self.inflight
            self.inflight = 0


@dataclass(frozen=True, kw_only=True)
class CongestionProfile:
    """Of what contexts are made: one for all peers of an endpoint.

    ``spraying`` is one of ``SPRAYING``; ``freeze_time`` (ns) is for REPS.
    """

    nscc: NsccParameters | None = field(default_factory=NsccParameters)
    rccc: RcccParameters | None = None
    spraying: str = "reps"
    freeze_time: int = 10_000_000

    def __post_init__(self) -> None:
        if self.nscc is None and self.rccc is None:
            raise ParameterError("congestion control needs NSCC, RCCC or both: give nscc or rccc")
        if self.spraying not in SPRAYING:
            raise ParameterError(f"spraying is {self.spraying!r}; choose one of {SPRAYING}")

    @property
    def path(self) -> PathParameters:
        """What the paths are like."""
        path = self.nscc or self.rccc
        assert path is not None
        return path

    def open(
        self,
        rng: random.Random,
        now: int,
        *,
        ccc_id: int = 0,
        pacer: CreditPacer | None = None,
        key: Hashable = None,
    ) -> CongestionContext:
        """A new context, at its start; ``pacer`` is the port's, ``key`` the peer's name there."""
        return CongestionContext(
            window=None
            if self.nscc is None
            else Nscc(self.nscc, now, credited=self.rccc is not None),
            credit=None if self.rccc is None else CreditSource(self.rccc),
            paths=self._spray(rng),
            ccc_id=ccc_id,
            pacer=pacer,
            key=key,
        )

    def _spray(self, rng: random.Random) -> PathSelection:
        path = self.path
        if self.spraying == "reps":
            packets = max(path.bdp // path.mtu, 1)
            return Reps(rng, window_packets=packets, freeze_time=self.freeze_time)
        size = ev_set_size(path.bdp, path.mtu)
        if self.spraying == "bitmap":
            return PenaltySpraying(rng, size=size, rest=path.base_rtt)
        return RoundRobin(rng, size)
