"""The sending of a PDC: what needs no turn, what leaves in a turn, and when to look again.

:mod:`uet.pds.scheduler` calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uet.pds.pdc.state import PdcState
from uet.pds.source import FINISHED, HELD
from uet.transport import Frame
from uet.wire.codes import ControlType

if TYPE_CHECKING:
    from uet.pds.pdc.pdc import Pdc


class PdcSender:
    """Sends what one end of a PDC has to send, and computes its next deadline."""

    __slots__ = (
        "_clear",
        "_counts",
        "_destination",
        "_initiator",
        "_network_trims",
        "_pdc",
        "_peer",
        "_probe",
        "_source",
        "_writer",
    )

    def __init__(self, pdc: Pdc) -> None:
        self._pdc = pdc
        self._probe = pdc.probes.probe
        self._initiator = pdc.initiator
        self._network_trims = pdc.config.network_trims
        self._counts = pdc.counts
        self._peer = pdc.peer
        self._writer = pdc.writer
        self._source = pdc.source
        self._destination = pdc.destination
        self._clear = pdc.clear

    def attend(self, out: list[Frame], now: int, limit: int) -> None:
        """Do what need not be scheduled: timers first, then control packets that are due."""
        source, pdc, clear = self._source, self._pdc, self._clear
        condemned = pdc.condemned
        if condemned is not None:
            if now < condemned.due and not condemned.is_decided:
                return
            pdc.conclude(condemned, now)
        if pdc.due is not None and pdc.due <= now:
            source.recovery.on_timer(now)
            if source.recovery.gave_up:
                pdc.fail(source.recovery.gave_up, now)
            else:
                clear.consider(now)
            if pdc.close_due is not None and pdc.close_due <= now:
                pdc.close_is_missing(now)
        if pdc.state is PdcState.CLOSED:
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
                pdc.fail("RTO_RETRIES_EXHAUSTED", now)
        if (
            pdc.state is PdcState.QUIESCE
            and source.idle
            and pdc.locks <= 0  # those of a PDC that failed are taken off twice
            and not self._destination.busy
            and len(out) < limit
        ):
            pdc.enter(PdcState.CLOSING)
            out.append(source.send_control(ControlType.CLOSE_CMD, now))

    def send(self, out: list[Frame], now: int, limit: int, octets: int) -> int:
        """Append about as many ``octets`` of requests, as far as they may leave now.

        The return value is the reason why no more leave, as that of
        :meth:`uet.pds.source.RequestSource.transmit` does.
        """
        pdc = self._pdc
        if pdc.condemned is not None:
            return FINISHED
        source = self._source
        stop = source.transmit(out, now, limit, octets)
        if stop == HELD:
            self._ask_for_room(out, now, limit)
        elif stop == FINISHED and source.window.base == source.window.next and source.has_unsent:
            self._clear.consider(now)  # with nothing in flight, no ACK will move the peer's range
        if self._initiator and source.worn_out and pdc.takes_messages:
            pdc.wear_out()
        return stop

    def keeps_deadline(self, now: int) -> bool:
        """Return whether new requests behind others in flight bring no earlier deadline."""
        source, due = self._source, self._pdc.due
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
        pdc, source = self._pdc, self._source
        if pdc.condemned is not None:
            return pdc.condemned.due
        deadline = source.recovery.next_deadline()
        due = source.tail.deadline() if self._writer.peer_id else None
        if due is not None and (deadline is None or due < deadline):
            deadline = due
        due = self._clear.due
        if due is not None and (deadline is None or due < deadline):
            deadline = due
        due = pdc.close_due
        if due is not None and (deadline is None or due < deadline):
            deadline = due
        if source.credited:
            if not self._writer.peer_id:
                due = source.asks_at()
            else:
                due = self._peer.congestion.next_deadline() if pdc.queued else None
            if due is not None and (deadline is None or due < deadline):
                deadline = due
        return deadline

    def has_work(self) -> bool:
        """Return whether there may ever be something to do without new input."""
        pdc = self._pdc
        return pdc.state is not PdcState.CLOSED and (
            not self._source.idle
            or self._clear.due is not None
            or pdc.close_due is not None
            or pdc.state is PdcState.QUIESCE
        )
