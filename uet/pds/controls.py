"""Control packets of a PDC: what its end answers, and when it sends CLEAR (UES 3.5.16)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from uet.config import FepConfig
from uet.pds.destination import Reception
from uet.pds.packets import FEATURES_OCTETS, agreed_features
from uet.pds.rto import UNLIMITED_RTO
from uet.pds.source import RequestSource
from uet.pds.window import HALF, MASK, PsnArrival
from uet.transport import Frame
from uet.wire.codes import ControlFlag, ControlType, NackCode

if TYPE_CHECKING:
    from uet.pds.pdc import Pdc

_CONTROL_FLAGS: Final = 0x7F


def on_control(pdc: Pdc, reception: Reception, kind: int, payload: int, opaque: int) -> None:
    """Take a control packet for this PDC, ids already checked (UES 3.5.16)."""
    flags, psn, now = reception.word & _CONTROL_FLAGS, reception.psn, reception.now
    entropy, marked = reception.entropy, reception.marked
    more = reception.packet[reception.ses_at :]
    destination = pdc.destination
    resent = flags & ControlFlag.RETX
    if kind == ControlType.CLEAR_CMD:
        destination.on_clear(payload)
    elif kind == ControlType.CLEAR_REQ:
        pdc.clear.force(now)
    elif kind == ControlType.ACK_REQ:
        destination.answer_ack_request(
            psn, payload & 0xFFFF, pdc.config.job_id, resent, entropy, marked
        )
    elif kind == ControlType.CLOSE_CMD and not pdc.initiator:
        _on_close(pdc, psn, resent, entropy, marked, now)
    elif kind == ControlType.PROBE:
        pdc.counts["rx_probes"] += 1
        pdc.writer.probe_ack(opaque, payload, destination, marked=marked, ev=entropy)
    elif kind == ControlType.CREDIT:
        pdc.peer.congestion.on_credit(payload >> 24, payload & 0xFF_FFFF)
        pdc.counts["rx_credits"] += 1
    elif kind == ControlType.CREDIT_REQ:
        pdc.endpoint.credits.on_request(pdc, payload, entropy, now)
        pdc.counts["rx_credit_requests"] += 1
    elif kind in (ControlType.NOOP, ControlType.NEGOTIATION) or (
        kind == ControlType.CLOSE_REQ and pdc.initiator
    ):
        again = destination.window.classify(psn) is PsnArrival.DUPLICATE
        code = destination.accept_control(psn)
        if code is not None:
            expected = destination.window.first_missing if code is NackCode.ROD_OOO else 0
            pdc.writer.nack(code, psn, resent, entropy, marked, expected)
            return
        if flags & (ControlFlag.AR | ControlFlag.SYN | ControlFlag.RETX):
            pdc.writer.ack(psn, destination, b"", 0, resent, entropy, marked)
        if kind == ControlType.CLOSE_REQ:
            pdc.quiesce()
        elif kind == ControlType.NEGOTIATION and not again:
            _on_negotiation(pdc, payload.to_bytes(4, "big") + bytes(more), now)
    else:
        pdc.writer.nack(NackCode.UNEXP_EVENT, psn, resent, entropy, marked)


def _on_close(pdc: Pdc, psn: int, resent: int, entropy: int, marked: bool, now: int) -> None:
    """Take the initiator's CLOSE, and refuse it while data is still due (UES 3.5.16.4)."""
    destination, source = pdc.destination, pdc.source
    waiting = len(source.open) + len(source.queue)  # data that is still to be returned
    if waiting or pdc.locks:
        pdc.writer.nack(
            NackCode.CLOSING_IN_ERR,
            psn,
            resent,
            entropy,
            marked,
            max(waiting, pdc.locks),
        )
        pdc.closed_by = psn
        pdc.fail(NackCode.CLOSING_IN_ERR.name, now)
        return
    # Everything the source has sent is answered by now, hence cleared.
    destination.on_clear((psn - 1) & MASK)
    if not destination.accept_close(psn):
        pdc.writer.nack(NackCode.PSN_OOR_WINDOW, psn, resent, entropy, marked)
        return
    pdc.writer.closing_ack(
        psn,
        destination,
        expected_psn=pdc.endpoint.secure.ended(pdc.sdi, pdc.start_psn),
        resent=resent,
        entropy=entropy,
        marked=marked,
    )
    pdc.closed_by = psn
    pdc.closed()


def _on_negotiation(pdc: Pdc, octets: bytes, now: int) -> None:
    """Take the peer's capabilities; a target answers with its own (UES 1.0.3, 3.5.16.7)."""
    features = agreed_features(octets[:FEATURES_OCTETS], pdc.config.compatibility)
    if features is None:
        pdc.counts["rx_negotiations_not_understood"] += 1
        return
    pdc.negotiated = features
    if not pdc.initiator and not pdc.source.is_full:
        pdc.endpoint.control.append(pdc.source.send_control(ControlType.NEGOTIATION, now))


class ClearDuty:
    """Decides when a source sends a CLEAR, which reports the responses that it has (UES 3.5.16.3).

    CLEAR_PSN rides in every request (UES 3.5.11). A control packet carries it in one case only: the
    target keeps a guaranteed-delivery response and has requested a CLEAR, and no request leaves in
    time.
    """

    __slots__ = (
        "_asked",
        "_forced",
        "_half_way",
        "_max_stalls",
        "_source",
        "_stalls",
        "_time",
        "due",
    )

    def __init__(self, source: RequestSource, config: FepConfig) -> None:
        #: when :meth:`transmit` has something to do (ns), or ``None``
        self.due: int | None = None
        self._source = source
        self._time = config.pds_clear_time
        self._asked = source.requests.clear_sent  # the newest PSN in the target's requests
        self._forced = False
        self._half_way = False  # in a stall, between CLEAR and ACK_REQ
        self._stalls = 0  # attempts to end a stall, since there was progress
        self._max_stalls = config.max_rto_retx_cnt

    def ask(self, psn: int) -> None:
        """Take an ACK with REQ_CLEAR: the target keeps the response to ``psn``."""
        if 0 < ((psn - self._asked) & MASK) < HALF:
            self._asked = psn

    def renumbered(self) -> None:
        """Take the new first PSN of the PDC, which no CLEAR_REQ has named."""
        self._asked = self._source.requests.clear_sent

    def force(self, now: int) -> None:
        """Send a CLEAR now, as the target's CLEAR_REQ requests, and again if need be."""
        self._forced = True
        self.due = now

    @property
    def _is_asked(self) -> bool:
        """Return whether the target requests a later CLEAR than the last one sent."""
        return 0 < ((self._asked - self._source.requests.clear_sent) & MASK) < HALF

    def consider(self, now: int) -> None:
        """Start the timer once everything up to the PSN of the target's request is settled."""
        source = self._source
        settled = (source.window.base - 1) & MASK
        if settled == source.requests.max_cack:
            self._stalls = 0
            return  # the target has freed all of it
        if self.due is None and (
            (self._is_asked and ((settled - self._asked) & MASK) < HALF) or source.stalled(now)
        ):
            self.due = now + self._time

    def transmit(self, out: list[Frame], now: int) -> bool:
        """Append at most one packet; return whether the target still answers."""
        source = self._source
        self.due = None
        settled = (source.window.base - 1) & MASK
        if source.stalled(now):
            return self._break_stall(out, settled, now)
        self._half_way = False
        if not (self._is_asked or self._forced):
            return True  # a request has carried it
        if source.has_unsent:
            # A request will carry it; look again, but not at this moment.
            self.due = now + (self._time or source.timer.interval(0))
            return True
        self._send(out)
        return True

    def _break_stall(self, out: list[Frame], settled: int, now: int) -> bool:
        """Send a CLEAR, which moves the target's CACK, then an ACK_REQ, as CLEAR draws no ACK."""
        if not self._half_way:
            self._send(out)
            self._half_way = True
            self.due = now
            return True
        self._half_way = False
        if self._stalls > self._max_stalls != UNLIMITED_RTO:
            return False
        out.append(self._source.ask_again(settled))
        self.due = now + self._source.timer.interval(self._stalls)
        self._stalls += 1
        return True

    def _send(self, out: list[Frame]) -> None:
        self._forced = False
        out.append(self._source.clear())
