"""The life of a packet delivery context: how it is made, what it sends, how it ends (UES 3.5.8).

In order: the states, what each end keeps, what may be sent, how it closes.  What arrives is
:mod:`uet.pds.pdc.pdc`; the halves that do the work are in :mod:`uet.pds.pdc.source` and
:mod:`uet.pds.destination`; :mod:`uet.pds.pds_packets` writes the packets.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Protocol

from uet.config import FepConfig
from uet.congestion.spraying.paths import PathSelection
from uet.congestion.spraying.port_entropy import Ports
from uet.pds.destination import RequestDestination
from uet.pds.nacks import TARGET_IS_GONE
from uet.pds.pdc.clear import ClearDuty
from uet.pds.pdc.condemned import Condemned
from uet.pds.pdc.pdc_state import PdcState
from uet.pds.pdc.source import FINISHED, HELD, RequestSource
from uet.pds.pdc.source_settings import SourceSettings
from uet.pds.pds_packets import PacketWriter
from uet.pds.psn import MASK
from uet.pds.semantics import Answer, Outbound, Semantics
from uet.peer import Peer
from uet.transport import Frame
from uet.wire.codes import MPR_UNIT, ControlType, NackCode


class PdcSurroundings(Protocol):
    """The parts of an endpoint that a PDC uses."""

    config: FepConfig
    counts: Counter[str]
    #: ACKs, NACKs and control packets waiting to leave
    control: list[Frame]
    semantics: Semantics
    #: nominal size of a full request (UES 3.6.12)
    full_size: int
    ports: Ports

    def activate(self, pdc: PdcLife) -> None:
        """Note that ``pdc`` has, or may have, something to send."""
        ...

    def pdc_changed(self, pdc: PdcLife) -> None:
        """Note that the state of ``pdc`` has changed; CLOSED is the last."""
        ...

    def pdc_event(self, pdc: PdcLife, name: str, **data: object) -> None:
        """Something rare that a trace may show."""
        ...

    def pressure(self) -> int:
        """Return how much the peers should hold back, as memory fills (rcv_cwnd_pend, 0 to 127)."""
        ...

    def credit_requested(self, pdc: PdcLife, state: int, entropy: int, now: int) -> None:
        """CREDIT_REQ: a context of the peer (8 bits) asks for so much credit (24 bits)."""
        ...

    def next_start(self, peer: Peer, sdi: int | None) -> int | None:
        """Return the first PSN that the target requires of our next secured PDC; else ``None``."""
        ...

    def expected_psn(self, pdc: PdcLife) -> int | None:
        """Target of a secured PDC that ends: where the next one must begin, at least."""
        ...

    def expect_psn(self, pdc: PdcLife, psn: int) -> None:
        """Store where the next secured PDC must begin, from its target."""
        ...


class PdcLife:
    """One end of a PDC.  The initiator sends the forward requests, the target receives them."""

    def __init__(
        self,
        around: PdcSurroundings,
        peer: Peer,
        *,
        local_id: int,
        peer_id: int,
        start_psn: int,
        initiator: bool,
        ordered: bool,
        sdi: int | None,
        reserved: bool,
        entropy: PathSelection,
    ) -> None:
        config = around.config
        self.id = local_id
        self.peer = peer
        self.initiator = initiator
        self.ordered = ordered
        self.sdi = sdi
        self.reserved = reserved
        #: a second one for short messages, and whether its target had no room for it
        self.second = False
        self.refused = False
        # Kept by uet.pds.turns: octets that it may send in this turn, whether it stands in line,
        # its deadline, and the time of its timer, which may be earlier.
        self.deficit = 0
        self.in_line = False
        self.due: int | None = None
        self.wakes_at: int | None = None
        self._locks = 0
        self.closed_by: int | None = None  # target: the PSN of the CLOSE
        self.failure: str | None = None
        self.condemned: Condemned | None = None  # initiator: refused for good, and soon to end
        self.negotiated: int | None = None  # features that both ends have, once known
        self._around = around
        self._counts = around.counts
        self._job_id = config.job_id
        self._config = config
        #: changed by this class alone
        self.state = PdcState.CREATING if initiator else PdcState.ESTABLISHED
        self._close_due: int | None = None  # target: when its CLOSE_REQ counts as refused
        self._octets_when_asked = 0
        self._probes = 0
        self._probed_at = 0
        self._renumberings = 0
        # Both directions begin at the same PSN.
        wrap, overhead = peer.way(sdi)
        self.writer = PacketWriter(
            config,
            ordered=ordered,
            local_id=local_id,
            peer_id=peer_id,
            start_psn=start_psn,
            reserved=reserved,
            wrap=wrap,
            nominal_overhead=overhead,
            entropy=entropy,
            # only unexpected messages are kept in memory of ours
            pressure=around.pressure if config.unexpected == "keep" else None,
            outbox=around.control,
            counts=around.counts,
        )
        self.source = RequestSource(
            # What a peer has said on another PDC holds for this one until it says so here.
            SourceSettings.of(config, ordered=ordered, full_size=around.full_size, mpr=peer.mpr),
            writer=self.writer,
            ends=self,
            start_psn=start_psn,
            flow=peer.congestion.flow(entropy),
            counters=around.counts,
        )
        self._clear = ClearDuty(
            source=self.source,
            clear_time=config.pds_clear_time,
            max_stalls=config.max_rto_retx_cnt,
        )
        self.destination = self._make_destination(start_psn)
        self.event("created")

    def _make_destination(self, start_psn: int) -> RequestDestination:
        config, semantics = self._config, self._around.semantics
        return RequestDestination(
            start_psn=start_psn,
            psn_range=config.mpr * MPR_UNIT,
            overhead=self.writer.nominal_overhead,
            ordered=self.ordered,
            reorder=config.rod_reorder,
            infer_loss=config.infer_loss,
            ack_gen_trigger=config.ack_gen_trigger,
            ack_gen_min_pkt_add=config.ack_gen_min_pkt_add,
            ack_on_ecn=config.ack_on_ecn,
            drop_network_duplicates=config.drop_network_duplicates,
            lengths_in_default=config.compatibility.modified_length_in_default_response,
            null_to_duplicates=config.compatibility.null_response_to_duplicate,
            silent_below_cack=config.compatibility.ack_req_below_cack_is_ignored,
            deliver=partial(semantics.deliver_data if self.initiator else semantics.deliver, self),
            acknowledger=self,
            counters=self._around.counts,
        )

    @property
    def peer_id(self) -> int:
        return self.writer.peer_id

    @property
    def start_psn(self) -> int:
        return self.source.requests.start_psn

    @property
    def backlog(self) -> int:
        return len(self.source.queue)

    @property
    def address(self) -> str:
        return self.peer.address

    def _enter(self, state: PdcState) -> None:
        if state is not self.state:
            self.state = state
            self._around.pdc_changed(self)

    # -- what may be sent ---------------------------------------------------------------------

    def post(self, message: Outbound) -> None:
        """Queue a message: requests of an initiator, return data of a target."""
        if self.state is PdcState.CLOSED:
            self.message_unsent(message)
            return
        self.source.post(message)
        self._around.activate(self)

    def respond(self, psn: int, response: Answer) -> None:
        """SES answers a request that it had answered LATER."""
        if self.state is not PdcState.CLOSED:
            self.destination.respond(psn, response)
            if self.state is PdcState.QUIESCE:
                self._around.activate(self)

    def message_end(self, message: Outbound, now: int) -> None:
        self._around.semantics.message_end(self, message, now)

    def message_unsent(self, message: Outbound) -> None:
        self._around.semantics.message_unsent(message)

    def event(self, name: str, **data: object) -> None:
        self._around.pdc_event(self, name, **data)

    def attend(self, out: list[Frame], now: int, limit: int) -> None:
        """Do what needs no turn: timers first, then control packets that are due."""
        source = self.source
        if self.condemned is not None:
            if now < self.condemned.due and not self.condemned.is_decided:
                return
            self.conclude(now)
        if self.due is not None and self.due <= now:
            source.recovery.on_timer(now)
            if source.recovery.gave_up:
                self.fail(source.recovery.gave_up, now)
            else:
                self._clear.consider(now)
            if self._close_due is not None and self._close_due <= now:
                self._close_is_missing(now)
        if self.state is PdcState.CLOSED:
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
            behind = not self._config.network_trims
            out.append(source.ask_about_tail(now) or self.probe(now, with_data=behind))
        else:
            self._ask_for_room(out, now, limit)
        while self._clear.due is not None and self._clear.due <= now and len(out) < limit:
            if not self._clear.transmit(out, now):
                self.fail("RTO_RETRIES_EXHAUSTED", now)
        if (
            self.state is PdcState.QUIESCE
            and source.idle
            and self._locks <= 0  # those of a PDC that failed are taken off twice
            and not self.destination.busy
            and len(out) < limit
        ):
            self._enter(PdcState.CLOSING)
            out.append(source.send_control(ControlType.CLOSE_CMD, now))

    def send(self, out: list[Frame], now: int, limit: int, octets: int) -> int:
        """Append about as many ``octets`` of requests, as far as they may leave now.

        Returned is why no more leave, as of :meth:`uet.pds.pdc.source.RequestSource.transmit`.
        """
        if self.condemned is not None:
            return FINISHED
        source = self.source
        stop = source.transmit(out, now, limit, octets)
        if stop == HELD:
            self._ask_for_room(out, now, limit)
        elif stop == FINISHED and source.window.base == source.window.next and source.has_unsent:
            self._clear.consider(now)  # with nothing in flight, no ACK will move the peer's range
        if self.initiator and source.worn_out and self.takes_messages:
            self._wear_out()
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
        """Ask for what opens a window, or for credit, where nothing else would bring it."""
        source = self.source
        if not self.writer.peer_id or len(out) >= limit:
            return
        if source.adaptive and source.tail.window_is_stuck() and source.has_unsent:
            source.tail.asked()
            out.append(self.probe(now))
        if source.credited and len(out) < limit:
            requested = self.peer.congestion.credit_request(now)
            if requested is not None:
                self._counts["tx_credit_requests"] += 1
                out.append(
                    self.writer.control(ControlType.CREDIT_REQ, psn=0, payload=requested, syn=False)
                )

    def next_deadline(self) -> int | None:
        if self.condemned is not None:
            return self.condemned.due
        source = self.source
        deadline = source.recovery.next_deadline()
        due = source.tail.deadline() if self.writer.peer_id else None
        if due is not None and (deadline is None or due < deadline):
            deadline = due
        due = self._clear.due
        if due is not None and (deadline is None or due < deadline):
            deadline = due
        due = self._close_due
        if due is not None and (deadline is None or due < deadline):
            deadline = due
        if source.credited:
            if not self.writer.peer_id:
                due = source.asks_at()
            else:
                due = self.peer.congestion.next_deadline() if self.in_line else None
            if due is not None and (deadline is None or due < deadline):
                deadline = due
        return deadline

    @property
    def has_work(self) -> bool:
        """Return whether there may ever be something to do without new input."""
        return self.state is not PdcState.CLOSED and (
            not self.source.idle
            or self._clear.due is not None
            or self._close_due is not None
            or self.state is PdcState.QUIESCE
        )

    @property
    def locks(self) -> int:
        """Requests whose data is still to come by the return direction."""
        return self._locks

    @locks.setter
    def locks(self, number: int) -> None:
        self._locks = number
        if self.state is PdcState.QUIESCE:
            self._around.activate(self)

    # -- answers --------------------------------------------------------------------------

    def ack(
        self, psn: int, answer: bytes, next_header: int, resent: int, entropy: int, marked: bool
    ) -> None:
        """Acknowledge ``psn`` with the SES response ``answer``."""
        self.writer.ack(
            psn,
            self.destination,
            answer,
            next_header,
            resent=resent,
            entropy=entropy,
            marked=marked,
        )

    def nack(
        self, code: int, psn: int, resent: int, entropy: int, marked: bool, payload: int = 0
    ) -> None:
        """Refuse ``psn``."""
        self.writer.nack(code, psn, resent=resent, entropy=entropy, marked=marked, payload=payload)

    # -- control packets of our own -----------------------------------------------------------

    def probe(self, now: int, *, with_data: bool = False) -> Frame:
        """Ask for the state of the peer's window, and measure the path (UES 3.6.13.7).

        ``with_data``: behind what was sent, so that its delay tells what waits from what is lost.
        """
        self._probes += 1
        self._probed_at = now
        return self.writer.control(
            ControlType.PROBE,
            psn=0,
            ar=True,
            payload=(self.source.requests.max_cack + 1) & MASK,
            opaque=self._probes & 0xFFFF,
            syn=False,
            with_data=with_data,
        )

    def credit(self, granted: int, entropy: int) -> Frame:
        """CREDIT: the peer's context (8 bits) has been granted so much (24 bits, UES 3.6.14)."""
        self._counts["tx_credits"] += 1
        return self.writer.control(
            ControlType.CREDIT, psn=0, payload=granted, syn=False, ev=entropy
        )

    def send_tracked(self, kind: ControlType, now: int) -> Frame:
        """NOOP or NEGOTIATION: may make the PDC, takes a PSN, is acknowledged."""
        return self.source.send_control(kind, now)

    # -- how it closes ------------------------------------------------------------------------

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
                self._closed()  # the target has never heard of it
            else:
                self._enter(PdcState.QUIESCE)

    def _wear_out(self) -> None:
        """Close the PDC before it has used 2^31 PSNs, with Limit_PSN_Range (UES Table 3-28).

        On a secured one that is a rule: replay protection rests on it.
        """
        if self._config.limit_psn_range or self.sdi is not None:
            self._counts["pdcs_worn_out"] += 1
            self.quiesce()
            for message in self.source.messages.take_back():
                self.message_unsent(message)

    @property
    def asked_to_close(self) -> bool:
        return self._close_due is not None

    def ask_to_close(self, now: int) -> Frame:
        """Return a CLOSE_REQ, which asks the initiator to close in time (UES 3.5.16)."""
        self._close_due = now + self._config.close_req_time
        self._octets_when_asked = self.destination.received_octets
        self.writer.asks_to_close = True
        return self.source.send_control(ControlType.CLOSE_REQ, now)

    def _close_is_missing(self, now: int) -> None:
        """Close_REQ_Time is over; an initiator that still sends what it had queued gets more."""
        octets = self.destination.received_octets
        if octets == self._octets_when_asked:
            self.fail("CLOSE_REQ_TIMEOUT", now)
        else:
            self._close_due = now + self._config.close_req_time
            self._octets_when_asked = octets

    def condemn(self, code: NackCode, psn: int, now: int) -> None:
        """The target has refused ``psn``, and takes nothing any more: what may go elsewhere does.

        What was on its way is waited for, but no longer than an RTO.
        """
        if self.condemned is None:
            self.condemned = Condemned(
                code, self.source, now + self._config.rto_init_time, ordered=self.ordered
            )
            if self.state in (PdcState.CREATING, PdcState.ESTABLISHED):
                self._enter(PdcState.QUIESCE)
            self.source.requests.discard_all()
            for message in self.source.messages.take_back():
                self.message_unsent(message)
        self.condemned.refuse(psn, code)
        if self.condemned.is_decided:
            self.conclude(now)

    def conclude(self, now: int) -> None:
        """All that could be learnt of a condemned PDC is known: it ends."""
        condemned = self.condemned
        assert condemned is not None
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
        """Beyond repair: every unfinished message but the ``untouched`` ones fails with ``error``.

        An initiator still sends a CLOSE if the target can be expected to have the PDC, so that
        it need not keep it (UES 3.5.8, closing in error).
        """
        self.condemned = None
        self.failure = error
        self._around.pdc_event(self, "failed", error=error)
        self.peer.congestion.restart_credit()
        if self.state is PdcState.CLOSING:
            self._counts["pdcs_closed_unanswered"] += 1
            notify = False
        else:
            self._counts["pdc_errors"] += 1
        notify = notify and self.initiator and bool(self.peer_id)
        if notify:
            self._enter(PdcState.QUIESCE)  # takes no more messages, least of all those that fail
        elif self.state is not PdcState.CLOSED:
            self.state = PdcState.QUIESCE
        self.source.abandon(error, now, untouched)
        self._clear.due = None
        self._locks = 0
        if not notify:
            self._closed()

    def _closed(self) -> None:
        self.source.closed()
        self._enter(PdcState.CLOSED)
