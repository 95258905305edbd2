"""Control packets of a PDC: what its end answers, and when it sends CLEAR (UES 3.5.16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uet.config import FepConfig
from uet.pds.destination import Reception
from uet.pds.packets import FEATURES_OCTETS, agreed_features
from uet.pds.recovery.rto import UNLIMITED_RTO
from uet.pds.source import RequestSource
from uet.pds.window import HALF, MASK, PsnArrival
from uet.transport import Frame
from uet.wire.codes import ControlFlag, ControlType, NackCode

if TYPE_CHECKING:
    from uet.pds.pdc.pdc import Pdc

_CONTROL_FLAGS = 0x7F


class PdcControls:
    """Takes the control packets for one end of a PDC."""

    __slots__ = (
        "_config",
        "_counts",
        "_destination",
        "_initiator",
        "_pdc",
        "_source",
        "_writer",
        "negotiated",
    )

    def __init__(self, pdc: Pdc) -> None:
        #: features that both ends have, once known
        self.negotiated: int | None = None
        self._pdc = pdc
        self._config = pdc.config
        self._counts = pdc.counts
        self._initiator = pdc.initiator
        self._writer = pdc.writer
        self._source = pdc.source
        self._destination = pdc.destination

    def on_control(self, reception: Reception, kind: int, payload: int, opaque: int) -> None:
        """Take a control packet for this PDC, ids already checked (UES 3.5.16)."""
        flags, psn, now = reception.word & _CONTROL_FLAGS, reception.psn, reception.now
        entropy, marked = reception.entropy, reception.marked
        more = reception.packet[reception.ses_at :]
        destination = self._destination
        resent = flags & ControlFlag.RETX
        if kind == ControlType.CLEAR_CMD:
            destination.on_clear(payload)
        elif kind == ControlType.CLEAR_REQ:
            self._pdc.clear.force(now)
        elif kind == ControlType.ACK_REQ:
            destination.answer_ack_request(
                psn, payload & 0xFFFF, self._config.job_id, resent, entropy, marked
            )
        elif kind == ControlType.CLOSE_CMD and not self._initiator:
            self._on_close(psn, resent, entropy, marked, now)
        elif kind == ControlType.PROBE:
            self._counts["rx_probes"] += 1
            self._writer.probe_ack(opaque, payload, destination, marked=marked, ev=entropy)
        elif kind == ControlType.CREDIT:
            self._pdc.peer.congestion.on_credit(payload >> 24, payload & 0xFF_FFFF)
            self._counts["rx_credits"] += 1
        elif kind == ControlType.CREDIT_REQ:
            self._pdc.endpoint.credit_requested(self._pdc, payload, entropy, now)
            self._counts["rx_credit_requests"] += 1
        elif kind in (ControlType.NOOP, ControlType.NEGOTIATION) or (
            kind == ControlType.CLOSE_REQ and self._initiator
        ):
            again = destination.window.classify(psn) is PsnArrival.DUPLICATE
            code = destination.accept_control(psn)
            if code is not None:
                expected = destination.window.first_missing if code is NackCode.ROD_OOO else 0
                self._writer.nack(code, psn, resent, entropy, marked, expected)
                return
            if flags & (ControlFlag.AR | ControlFlag.SYN | ControlFlag.RETX):
                self._writer.ack(psn, destination, b"", 0, resent, entropy, marked)
            if kind == ControlType.CLOSE_REQ:
                self._pdc.quiesce()
            elif kind == ControlType.NEGOTIATION and not again:
                self._on_negotiation(payload.to_bytes(4, "big") + bytes(more), now)
        else:
            self._writer.nack(NackCode.UNEXP_EVENT, psn, resent, entropy, marked)

    def _on_close(self, psn: int, resent: int, entropy: int, marked: bool, now: int) -> None:
        """Take the initiator's CLOSE, and refuse it while data is still due (UES 3.5.16.4)."""
        destination, source = self._destination, self._source
        waiting = len(source.open) + len(source.queue)  # data that is still to be returned
        if waiting or self._pdc.locks:
            self._writer.nack(
                NackCode.CLOSING_IN_ERR,
                psn,
                resent,
                entropy,
                marked,
                max(waiting, self._pdc.locks),
            )
            self._pdc.closed_by = psn
            self._pdc.fail(NackCode.CLOSING_IN_ERR.name, now)
            return
        # Everything the source has sent is answered by now, hence cleared.
        destination.on_clear((psn - 1) & MASK)
        if not destination.accept_close(psn):
            self._writer.nack(NackCode.PSN_OOR_WINDOW, psn, resent, entropy, marked)
            return
        self._writer.closing_ack(
            psn,
            destination,
            expected_psn=self._pdc.endpoint.expected_psn(self._pdc),
            resent=resent,
            entropy=entropy,
            marked=marked,
        )
        self._pdc.closed_by = psn
        self._pdc.closed()

    def _on_negotiation(self, octets: bytes, now: int) -> None:
        """Take the peer's capabilities; a target answers with its own (UES 1.0.3, 3.5.16.7)."""
        features = agreed_features(octets[:FEATURES_OCTETS], self._config.compatibility)
        if features is None:
            self._counts["rx_negotiations_not_understood"] += 1
            return
        self.negotiated = features
        if not self._initiator and not self._source.is_full:
            self._pdc.endpoint.control.append(
                self._source.send_control(ControlType.NEGOTIATION, now)
            )


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
        self._send(out, settled)
        return True

    def _break_stall(self, out: list[Frame], settled: int, now: int) -> bool:
        """Send a CLEAR, which moves the target's CACK, then an ACK_REQ, as CLEAR draws no ACK."""
        if not self._half_way:
            self._send(out, settled)
            self._half_way = True
            self.due = now
            return True
        self._half_way = False
        if self._stalls > self._max_stalls != UNLIMITED_RTO:
            return False
        out.append(self._source.controls.ask_again(settled))
        self.due = now + self._source.timer.interval(self._stalls)
        self._stalls += 1
        return True

    def _send(self, out: list[Frame], settled: int) -> None:
        self._forced = False
        self._source.requests.clear_sent = settled
        out.append(self._source.controls.clear(settled))
