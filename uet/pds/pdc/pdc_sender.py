"""The sending of a PDC: what needs no turn, what leaves in a turn, and when to look again.

:mod:`uet.pds.turns` calls it.
"""

from __future__ import annotations

from uet.pds.pdc.life import PdcLife
from uet.pds.pdc.pdc_parts import PdcParts
from uet.pds.pdc.pdc_probes import PdcProbes
from uet.pds.pdc.pdc_state import PdcState
from uet.pds.source.source import FINISHED, HELD
from uet.transport import Frame
from uet.wire.codes import ControlType


class PdcTurn:
    """Holds what :mod:`uet.pds.turns` keeps of one PDC."""

    __slots__ = ("deficit", "due", "in_line", "wakes_at")

    def __init__(self) -> None:
        #: octets that it may send in this turn
        self.deficit = 0
        #: it stands in line for a turn
        self.in_line = False
        #: its deadline (ns)
        self.due: int | None = None
        #: the time of its timer, which may be earlier (ns)
        self.wakes_at: int | None = None


class PdcSender:
    """Sends what one end of a PDC has to send, and computes its next deadline."""

    __slots__ = (
        "_clear",
        "_counts",
        "_destination",
        "_initiator",
        "_life",
        "_network_trims",
        "_peer",
        "_probe",
        "_source",
        "_turn",
        "_writer",
    )

    def __init__(self, parts: PdcParts, life: PdcLife, probes: PdcProbes, turn: PdcTurn) -> None:
        self._life = life
        self._turn = turn
        self._probe = probes.probe
        self._initiator = parts.identity.initiator
        self._network_trims = parts.config.network_trims
        self._counts = parts.counts
        self._peer = parts.peer
        self._writer = parts.writer
        self._source = parts.source
        self._destination = parts.destination
        self._clear = parts.clear

    def attend(self, out: list[Frame], now: int, limit: int) -> None:
        """Do what needs no turn: timers first, then control packets that are due."""
        source, life, turn, clear = self._source, self._life, self._turn, self._clear
        if life.condemned is not None:
            if now < life.condemned.due and not life.condemned.is_decided:
                return
            life.conclude(now)
        if turn.due is not None and turn.due <= now:
            source.recovery.on_timer(now)
            if source.recovery.gave_up:
                life.fail(source.recovery.gave_up, now)
            else:
                clear.consider(now)
            if life.close_due is not None and life.close_due <= now:
                life.close_is_missing(now)
        if life.state is PdcState.CLOSED:
            return
        congestion, peer_id = self._peer.congestion, self._writer.peer_id
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
            behind = not self._network_trims
            out.append(source.ask_about_tail(now) or self._probe(now, with_data=behind))
        else:
            self._ask_for_room(out, now, limit)
        while clear.due is not None and clear.due <= now and len(out) < limit:
            if not clear.transmit(out, now):
                life.fail("RTO_RETRIES_EXHAUSTED", now)
        if (
            life.state is PdcState.QUIESCE
            and source.idle
            and life.locks <= 0  # those of a PDC that failed are taken off twice
            and not self._destination.busy
            and len(out) < limit
        ):
            life.enter(PdcState.CLOSING)
            out.append(source.send_control(ControlType.CLOSE_CMD, now))

    def send(self, out: list[Frame], now: int, limit: int, octets: int) -> int:
        """Append about as many ``octets`` of requests, as far as they may leave now.

        The return value is the reason why no more leave, as that of
        :meth:`uet.pds.source.source.RequestSource.transmit` does.
        """
        life = self._life
        if life.condemned is not None:
            return FINISHED
        source = self._source
        stop = source.transmit(out, now, limit, octets)
        if stop == HELD:
            self._ask_for_room(out, now, limit)
        elif stop == FINISHED and source.window.base == source.window.next and source.has_unsent:
            self._clear.consider(now)  # with nothing in flight, no ACK will move the peer's range
        if self._initiator and source.worn_out and life.takes_messages:
            life.wear_out()
        return stop

    def keeps_deadline(self, now: int) -> bool:
        """Return whether new requests behind others in flight bring no earlier deadline."""
        source, due = self._source, self._turn.due
        return (
            due is not None
            and due <= now + source.timer.rto
            and not source.retransmit.members
            and not source.credited
        )

    def _ask_for_room(self, out: list[Frame], now: int, limit: int) -> None:
        """Request what opens a window, or credit, where nothing else would bring it."""
        source = self._source
        if not self._writer.peer_id or len(out) >= limit:
            return
        if source.adaptive and source.tail.window_is_stuck() and source.has_unsent:
            source.tail.asked()
            out.append(self._probe(now))
        if source.credited and len(out) < limit:
            requested = self._peer.congestion.credit_request(now)
            if requested is not None:
                self._counts["tx_credit_requests"] += 1
                out.append(
                    self._writer.control(
                        ControlType.CREDIT_REQ, psn=0, payload=requested, syn=False
                    )
                )

    def next_deadline(self) -> int | None:
        """Return when this end must be looked at again (ns), if nothing arrives before."""
        life, source = self._life, self._source
        if life.condemned is not None:
            return life.condemned.due
        deadline = source.recovery.next_deadline()
        due = source.tail.deadline() if self._writer.peer_id else None
        if due is not None and (deadline is None or due < deadline):
            deadline = due
        due = self._clear.due
        if due is not None and (deadline is None or due < deadline):
            deadline = due
        due = life.close_due
        if due is not None and (deadline is None or due < deadline):
            deadline = due
        if source.credited:
            if not self._writer.peer_id:
                due = source.asks_at()
            else:
                due = self._peer.congestion.next_deadline() if self._turn.in_line else None
            if due is not None and (deadline is None or due < deadline):
                deadline = due
        return deadline

    def has_work(self) -> bool:
        """Return whether there may ever be something to do without new input."""
        life = self._life
        return life.state is not PdcState.CLOSED and (
            not self._source.idle
            or self._clear.due is not None
            or life.close_due is not None
            or life.state is PdcState.QUIESCE
        )
