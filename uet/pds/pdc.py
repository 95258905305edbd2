"""One end of a packet delivery context (PDC; UES 3.5.8).

In order: its states; what it uses of its endpoint; which requests another PDC may take over; the
PDC itself: its reports, messages, arriving requests, what leaves and when, how it closes, how it
fails.

A :class:`Pdc` is what the endpoint and SES hold.  Its ``writer`` writes packets
(:mod:`uet.pds.packets`), ``source`` and ``destination`` are the halves that send and receive
requests (:mod:`uet.pds.source`, :mod:`uet.pds.destination`).  ACKs and NACKs for it are taken by
:mod:`uet.pds.feedback`, control packets by :mod:`uet.pds.controls`.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from uet.config import FepConfig
from uet.congestion.spraying.paths import PathSelection
from uet.congestion.spraying.port_entropy import Ports
from uet.counts import Counts
from uet.pds.controls import ClearDuty
from uet.pds.destination import Reception, RequestDestination
from uet.pds.nacks import PROVES_NOTHING, TARGET_IS_GONE
from uet.pds.packets import MAX_PSN_OFFSET, PacketWriter
from uet.pds.semantics import Answer, Outbound, Semantics
from uet.pds.source import FINISHED, HELD, RequestSource
from uet.pds.window import MASK, PsnArrival
from uet.peer import Peer
from uet.transport import Frame
from uet.wire.codes import ControlType, NackCode, NextHeader, RequestFlag

if TYPE_CHECKING:
    from uet.pds.credit_granter import CreditGranter
    from uet.pds.secure_starts import SecureStarts

# A plain number: arithmetic on enum members is slow, and this is the data path.
_REQ_RETX: Final = int(RequestFlag.RETX)
_RETURN_DATA: Final = frozenset(
    {int(NextHeader.RESPONSE_DATA), int(NextHeader.RESPONSE_DATA_SMALL)}
)


class PdcState(enum.Enum):
    """The state of one end of a PDC (UES 3.5.8).

    An initiator passes the states in order, a target begins in ESTABLISHED.

    In QUIESCE no new message is taken and the last requests are waited for (UES: QUIESCE and
    ACK_WAIT).
    """

    CREATING = enum.auto()
    ESTABLISHED = enum.auto()
    QUIESCE = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


# Bound once, for the data path.
_CLOSED: Final = PdcState.CLOSED
_QUIESCE: Final = PdcState.QUIESCE


@dataclass(frozen=True, slots=True)
class PdcIdentity:
    """Name one end of a PDC, and what never changes about it."""

    local_id: int
    #: the peer's identifier; 0 where this end opens the PDC, until the peer answers
    peer_id: int
    #: the first PSN of both directions
    start_psn: int
    initiator: bool
    #: ROD, not RUD
    ordered: bool
    #: secure domain, or ``None``
    sdi: int | None
    #: it may take one of the PDCs that a target keeps back for requests that need one
    reserved: bool


class Endpoint(Protocol):
    """The parts of an endpoint that a PDC uses; :class:`uet.fep.FabricEndpoint` has them."""

    config: FepConfig
    counts: Counts
    #: ACKs, NACKs and control packets waiting to leave
    control: list[Frame]
    semantics: Semantics
    #: nominal size of a full request (UES 3.6.12)
    full_size: int
    ports: Ports
    credits: CreditGranter
    secure: SecureStarts

    def activate(self, pdc: Pdc) -> None:
        """Note that ``pdc`` has, or may have, something to send."""
        ...

    def pdc_changed(self, pdc: Pdc) -> None:
        """Note that the state of ``pdc`` has changed; CLOSED is the last."""
        ...

    def pdc_event(self, pdc: Pdc, name: str, **data: object) -> None:
        """Report something rare that a trace may show."""
        ...

    def pressure(self) -> int:
        """Return how much the peers should hold back, as memory fills (rcv_cwnd_pend, 0 to 127)."""
        ...


class Condemned:
    """The end of a PDC whose target has refused it for good: which requests may go to another PDC.

    A fatal NACK reports that a request was not carried out, and that the target will take none that
    follows. The reaction is to close, and to issue again on a new PDC (UES Tables 3-58 to 3-61).
    What may have been carried out before must not be issued a second time.  So the PDC sends
    nothing more, and waits until ``due`` (ns) at the latest for what becomes of its other requests.
    """

    __slots__ = ("_answered", "_never", "_ordered", "_source", "code", "due")

    def __init__(self, code: NackCode, source: RequestSource, due: int, *, ordered: bool) -> None:
        self.code = code
        self.due = due
        self._source = source
        self._ordered = ordered
        self._answered: set[int] = set()  # PSNs that have drawn a fatal NACK
        self._never: set[int] = set()  # those of them that were not carried out

    def refuse(self, psn: int, code: NackCode) -> None:
        """Record a fatal NACK of ``psn``, which was not carried out if there was no other copy."""
        self._answered.add(psn)
        if code not in PROVES_NOTHING and self._source.requests.was_sent_once(psn):
            self._never.add(psn)

    @property
    def is_decided(self) -> bool:
        """Return whether nothing is left to wait for."""
        window = self._source.window
        if self._ordered and window.base in self._never:
            return True
        refused = sum(window.is_open(psn) for psn in self._answered)
        return refused >= window.outstanding - window.done.bit_count()

    def untouched(self) -> frozenset[int]:
        """Return the messages, by ``id()``, of which the target has surely executed nothing."""
        source, window = self._source, self._source.window
        sent: Counter[int] = Counter()
        behind = False  # on an ordered PDC, what follows one that was not carried out
        psn = window.base
        while psn != window.next:
            behind = behind or (self._ordered and psn in self._never)
            if window.is_open(psn) and (behind or psn in self._never):
                sent[id(source.requests.message_of(psn))] += 1
            psn = (psn + 1) & MASK
        return frozenset(
            name
            for name, message in source.open.items()
            if not message.acknowledged and sent[name] == message.sent
        )


class Pdc:
    """One end of a PDC: the initiator sends the forward requests, the target receives them."""

    __slots__ = (
        "_locks",
        "_octets_when_asked",
        "clear",
        "close_due",
        "closed_by",
        "condemned",
        "config",
        "counts",
        "deficit",
        "destination",
        "due",
        "endpoint",
        "failure",
        "id",
        "identity",
        "initiator",
        "negotiated",
        "ordered",
        "peer",
        "probed_at",
        "probes",
        "queued",
        "refused",
        "renumberings",
        "sdi",
        "second",
        "source",
        "state",
        "wakes_at",
        "writer",
    )

    def __init__(
        self, endpoint: Endpoint, peer: Peer, identity: PdcIdentity, entropy: PathSelection
    ) -> None:
        semantics = endpoint.semantics
        self.id = identity.local_id
        self.initiator = identity.initiator
        self.ordered = identity.ordered
        self.sdi = identity.sdi
        self.identity = identity
        self.peer = peer
        self.config = endpoint.config
        self.counts = endpoint.counts
        self.endpoint = endpoint
        #: changed by :meth:`enter` and :meth:`fail` alone
        self.state = PdcState.CREATING if identity.initiator else PdcState.ESTABLISHED
        #: a second one for short messages, and whether its target had no room for it
        self.second = False
        self.refused = False
        #: target: the PSN of the CLOSE
        self.closed_by: int | None = None
        #: target: when its CLOSE_REQ counts as refused (ns), once it has requested a close
        self.close_due: int | None = None
        #: name of the error that it ended with, if any
        self.failure: str | None = None
        #: initiator: refused for good, and soon to end
        self.condemned: Condemned | None = None
        #: features that both ends have, once known
        self.negotiated: int | None = None
        #: PROBEs sent, and when the newest was (ns)
        self.probes = self.probed_at = 0
        #: initiator: other first PSNs that its target has named
        self.renumberings = 0
        self._locks = 0
        self._octets_when_asked = 0
        # What the scheduler (uet.pds.scheduler) keeps of it:
        #: octets that it may send before another PDC follows
        self.deficit = 0
        #: it is in its context's queue of PDCs that have something to send
        self.queued = False
        #: its deadline (ns), and the time of its timer, which may be earlier
        self.due: int | None = None
        self.wakes_at: int | None = None
        # In this order: each part binds those before it.
        self.writer = PacketWriter(endpoint, identity, peer, entropy)
        self.source = RequestSource(self, peer.congestion.flow(entropy))
        self.destination = RequestDestination(
            self, semantics.deliver_data if self.initiator else semantics.deliver
        )
        self.clear = ClearDuty(self.source, self.config)
        self.event("created")

    @property
    def peer_id(self) -> int:
        """The peer's identifier of the PDC; 0 until it is known."""
        return self.writer.peer_id

    @property
    def start_psn(self) -> int:
        """The first PSN of both directions."""
        return self.source.requests.start_psn

    @property
    def backlog(self) -> int:
        """The number of messages posted here of which nothing has left yet."""
        return len(self.source.queue)

    @property
    def address(self) -> str:
        """The peer's fabric address."""
        return self.peer.address

    @property
    def locks(self) -> int:
        """The number of requests whose data is still to come by the return direction."""
        return self._locks

    @locks.setter
    def locks(self, number: int) -> None:
        self._locks = number
        if self.state is _QUIESCE:
            self.endpoint.activate(self)

    # -- reports to the endpoint and to SES ----------------------------------------------------

    def event(self, name: str, **data: object) -> None:
        """Report something rare that a trace may show."""
        self.endpoint.pdc_event(self, name, **data)

    def message_end(self, message: Outbound, now: int) -> None:
        """End a message: every packet is answered, or ``message.error`` gives the reason."""
        self.endpoint.semantics.message_end(self, message, now)

    def message_unsent(self, message: Outbound) -> None:
        """Take back a message: nothing of it was executed, and nothing of it leaves here."""
        self.endpoint.semantics.message_unsent(message)

    # -- messages and control packets ----------------------------------------------------------

    def post(self, message: Outbound) -> None:
        """Queue a message: requests of an initiator, return data of a target."""
        if self.state is _CLOSED:
            self.message_unsent(message)
            return
        self.source.post(message)
        self.endpoint.activate(self)

    def respond(self, psn: int, response: Answer) -> None:
        """Take SES's answer to a request that it had answered LATER."""
        if self.state is not _CLOSED:
            self.destination.respond(psn, response)
            if self.state is _QUIESCE:
                self.endpoint.activate(self)

    def credit(self, granted: int, entropy: int) -> Frame:
        """Return a CREDIT: the peer's context (8 bits) is granted so much (24 bits, UES 3.6.14)."""
        self.counts["tx_credits"] += 1
        return self.writer.control(
            ControlType.CREDIT, psn=0, payload=granted, syn=False, ev=entropy
        )

    # -- arriving requests ---------------------------------------------------------------------

    def contradicts(self, reception: Reception) -> bool:
        """Return whether a SYN packet names another beginning than that of this target's PDC.

        Its PSN names another packet here.  On a secured PDC it is left over from the time before
        NEW_START_PSN, and nobody's fault; else it is refused.
        """
        psn = reception.psn
        if (psn - (reception.dpdcid & MAX_PSN_OFFSET)) & MASK == self.start_psn:
            return False
        if self.sdi is not None and self.destination.window.classify(psn) is not PsnArrival.OUTSIDE:
            self.counts["rx_drop_syn_of_other_start"] += 1
        else:
            self.refuse(NackCode.INVALID_SYN, reception)
        return True

    def learns_peer(self, spdcid: int, psn: int, next_header: int) -> bool:
        """Return whether return data names the target, as it has overtaken the first ACK.

        The window is that of this PDC's own first PSN, so what is left over from an older PDC of
        this id lies outside.
        """
        if (
            self.state is not PdcState.CREATING
            or self.writer.peer_id
            or next_header not in _RETURN_DATA
            or not spdcid
            or self.destination.window.classify(psn) is not PsnArrival.NEW
        ):
            return False
        self.established(spdcid)
        return True

    def takes_return_data(self, reception: Reception) -> bool:
        """Return whether a request is return data of this initiator, while it is due.

        The return direction carries nothing else (UES 3.5.6); what it may not is refused.
        """
        if reception.next_header not in _RETURN_DATA:
            self.refuse(NackCode.PDC_HDR_MISMATCH, reception)
        elif self.state is PdcState.CLOSING:
            self.refuse(NackCode.CLOSING, reception)
        else:
            return True
        return False

    def refuse(self, code: NackCode, reception: Reception) -> None:
        """Answer a request by a NACK."""
        self.writer.nack(
            code,
            reception.psn,
            reception.word & _REQ_RETX,
            reception.entropy,
            reception.marked,
        )

    # -- what leaves --------------------------------------------------------------------------

    def attend(self, out: list[Frame], now: int, limit: int) -> None:
        """Do what need not be scheduled: timers first, then control packets that are due."""
        source, clear = self.source, self.clear
        condemned = self.condemned
        if condemned is not None:
            if now < condemned.due and not condemned.is_decided:
                return
            self.conclude(condemned, now)
        if self.due is not None and self.due <= now:
            source.recovery.on_timer(now)
            if source.recovery.gave_up:
                self.fail(source.recovery.gave_up, now)
            else:
                clear.consider(now)
            if self.close_due is not None and self.close_due <= now:
                self.close_is_missing(now)
        if self.state is _CLOSED:
            return
        congestion, peer_id = self.peer.congestion, self.writer.peer_id
        if source.retransmit.members:
            source.resend(out, now, limit, 0)
        if source.credited:
            source.report_backlog()
            if peer_id:
                congestion.expire_credit(now)
            elif source.asks_at() == 0:
                source.transmit(out, now, min(limit, len(out) + 1))
        tail = source.tail.deadline()
        if tail is not None and tail <= now and peer_id and len(out) < limit:
            # Where switches trim, a queue of data is short, and a packet of it may be cut.
            behind = not self.config.network_trims
            out.append(source.ask_about_tail(now) or self.probe(now, with_data=behind))
        else:
            self._ask_for_room(out, now, limit)
        while clear.due is not None and clear.due <= now and len(out) < limit:
            if not clear.transmit(out, now):
                self.fail("RTO_RETRIES_EXHAUSTED", now)
        if (
            self.state is _QUIESCE
            and source.idle
            and self.locks <= 0  # those of a PDC that failed are taken off twice
            and not self.destination.busy
            and len(out) < limit
        ):
            self.enter(PdcState.CLOSING)
            out.append(source.send_control(ControlType.CLOSE_CMD, now))

    def send(self, out: list[Frame], now: int, limit: int, octets: int) -> int:
        """Append about as many ``octets`` of requests, as far as they may leave now.

        The return value is the reason why no more leave, as that of
        :meth:`uet.pds.source.RequestSource.transmit` does.
        """
        if self.condemned is not None:
            return FINISHED
        source = self.source
        stop = source.transmit(out, now, limit, octets)
        if stop == HELD:
            self._ask_for_room(out, now, limit)
        elif stop == FINISHED and source.window.base == source.window.next and source.has_unsent:
            self.clear.consider(now)  # with nothing in flight, no ACK will move the peer's range
        if self.initiator and source.worn_out and self.takes_messages:
            self.wear_out()
        return stop

    def keeps_deadline(self, now: int) -> bool:
        """Return whether new requests behind others in flight bring no earlier deadline."""
        source, due = self.source, self.due
        return (
            due is not None
            and due <= now + source.timer.rto
            and not source.retransmit.members
            and not source.credited
        )

    def _ask_for_room(self, out: list[Frame], now: int, limit: int) -> None:
        """Request what opens a window, or credit, where nothing else would bring it."""
        source = self.source
        if not self.writer.peer_id or len(out) >= limit:
            return
        if source.adaptive and source.tail.window_is_stuck() and source.has_unsent:
            source.tail.asked()
            out.append(self.probe(now))
        if source.credited and len(out) < limit:
            requested = self.peer.congestion.credit_request(now)
            if requested is not None:
                self.counts["tx_credit_requests"] += 1
                out.append(
                    self.writer.control(ControlType.CREDIT_REQ, psn=0, payload=requested, syn=False)
                )

    def next_deadline(self) -> int | None:
        """Return when this end must be looked at again (ns), if nothing arrives before."""
        source = self.source
        if self.condemned is not None:
            return self.condemned.due
        deadline = source.recovery.next_deadline()
        due = source.tail.deadline() if self.writer.peer_id else None
        if due is not None and (deadline is None or due < deadline):
            deadline = due
        due = self.clear.due
        if due is not None and (deadline is None or due < deadline):
            deadline = due
        due = self.close_due
        if due is not None and (deadline is None or due < deadline):
            deadline = due
        if source.credited:
            if not self.writer.peer_id:
                due = source.asks_at()
            else:
                due = self.peer.congestion.next_deadline() if self.queued else None
            if due is not None and (deadline is None or due < deadline):
                deadline = due
        return deadline

    def has_work(self) -> bool:
        """Return whether there may ever be something to do without new input."""
        return self.state is not _CLOSED and (
            not self.source.idle
            or self.clear.due is not None
            or self.close_due is not None
            or self.state is _QUIESCE
        )

    def probe(self, now: int, *, with_data: bool = False) -> Frame:
        """Request the state of the peer's window, and measure the path (UES 3.6.13.7).

        The answer shows 64 PSNs: those from the oldest on of which nothing is known.

        ``with_data``: behind what was sent, so that its delay separates waiting from lost packets.
        """
        self.probes += 1
        self.probed_at = now
        return self.writer.control(
            ControlType.PROBE,
            psn=0,
            ar=True,
            payload=self.source.requests.oldest_in_flight(),
            opaque=self.probes & 0xFFFF,
            syn=False,
            with_data=with_data,
        )

    # -- states, closing -----------------------------------------------------------------------

    def enter(self, state: PdcState) -> None:
        """Take another state, and report it."""
        if state is not self.state:
            self.state = state
            self.endpoint.pdc_changed(self)

    def established(self, peer_id: int) -> None:
        """Take the target's identifier, which its first packet names."""
        self.writer.peer_id = peer_id
        if self.state is PdcState.CREATING:
            self.enter(PdcState.ESTABLISHED)

    @property
    def takes_messages(self) -> bool:
        """Return whether messages are accepted: not once a close has begun (UES 3.5.8.3)."""
        return self.state in (PdcState.CREATING, PdcState.ESTABLISHED)

    @property
    def in_use(self) -> bool:
        """Return whether something is queued, unanswered or still to come."""
        return not self.source.idle or self._locks > 0 or bool(self.destination.busy)

    def quiesce(self) -> None:
        """Close once everything posted is answered."""
        if self.takes_messages:
            if self.state is PdcState.CREATING and self.source.idle:
                self.closed()  # the target has no record of it
            else:
                self.enter(_QUIESCE)

    def wear_out(self) -> None:
        """Close the PDC before it has used 2^31 PSNs, with Limit_PSN_Range (UES Table 3-28).

        On a secured one that is a rule: replay protection rests on it.
        """
        if self.config.limit_psn_range or self.sdi is not None:
            self.counts["pdcs_worn_out"] += 1
            self.quiesce()
            self._give_back()

    def ask_to_close(self, now: int) -> Frame:
        """Return a CLOSE_REQ, which requests the initiator to close in time (UES 3.5.16)."""
        self.close_due = now + self.config.close_req_time
        self._octets_when_asked = self.destination.received_octets
        self.writer.asks_to_close = True
        return self.source.send_control(ControlType.CLOSE_REQ, now)

    def close_is_missing(self, now: int) -> None:
        """Fail the PDC, as Close_REQ_Time is over; an initiator that still sends gets more time."""
        octets = self.destination.received_octets
        if octets == self._octets_when_asked:
            self.fail("CLOSE_REQ_TIMEOUT", now)
        else:
            self.close_due = now + self.config.close_req_time
            self._octets_when_asked = octets

    def closed(self) -> None:
        """End the PDC: nothing of it is in flight, and nothing more comes."""
        self.source.flow.ended()
        self.enter(_CLOSED)

    # -- failing -------------------------------------------------------------------------------

    def _give_back(self) -> None:
        """Let other PDCs have the messages of which nothing was sent."""
        for message in self.source.messages.take_back():
            self.message_unsent(message)

    def leave_it_to_the_first(self) -> None:
        """Give what was not sent to the first PDC: the target has no room for a second one."""
        self.refused = True
        self._give_back()

    def condemn(self, code: NackCode, psn: int, now: int) -> None:
        """Give away what may go elsewhere: the target has refused ``psn``, and takes nothing more.

        What was on its way is waited for, but no longer than an RTO.
        """
        condemned = self.condemned
        if condemned is None:
            due = now + self.config.rto_init_time
            condemned = Condemned(code, self.source, due, ordered=self.ordered)
            self.condemned = condemned
            if self.takes_messages:
                self.enter(_QUIESCE)
            self.source.requests.discard_all()
            self._give_back()
        condemned.refuse(psn, code)
        if condemned.is_decided:
            self.conclude(condemned, now)

    def conclude(self, condemned: Condemned, now: int) -> None:
        """End a condemned PDC, of which all that could be learnt is known."""
        self.fail(
            condemned.code.name,
            now,
            notify=condemned.code not in TARGET_IS_GONE,
            untouched=condemned.untouched(),
        )

    def fail(
        self,
        error: str,
        now: int,
        *,
        notify: bool = True,
        untouched: frozenset[int] = frozenset(),
    ) -> None:
        """Fail the PDC, and every unfinished message but the ``untouched`` ones, with ``error``.

        An initiator still sends a CLOSE if the target can be expected to have the PDC. So the
        target need not keep it (UES 3.5.8, closing in error).
        """
        self.condemned = None
        self.failure = error
        self.event("failed", error=error)
        self.peer.congestion.restart_credit()
        if self.state is PdcState.CLOSING:
            self.counts["pdcs_closed_unanswered"] += 1
            notify = False
        else:
            self.counts["pdc_errors"] += 1
        notify = notify and self.initiator and bool(self.writer.peer_id)
        if notify:
            self.enter(_QUIESCE)  # takes no more messages, least of all those that fail
        elif self.state is not _CLOSED:
            self.state = _QUIESCE
        self.source.abandon(error, now, untouched)
        self.clear.due = None
        self._locks = 0
        if not notify:
            self.closed()
