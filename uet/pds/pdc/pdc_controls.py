"""Control packets for a PDC, and what its end answers (UES 3.5.16)."""

from __future__ import annotations

from uet.pds.negotiation import FEATURES_OCTETS, agreed_features
from uet.pds.pdc.life import PdcLife
from uet.pds.pdc.pdc_parts import PdcParts
from uet.pds.psn import MASK
from uet.pds.reception import Reception
from uet.pds.window import PsnArrival
from uet.wire.codes import ControlFlag, ControlType, NackCode

_CONTROL_FLAGS = 0x7F


class PdcControls:
    """Takes the control packets for one end of a PDC."""

    __slots__ = (
        "_clear",
        "_config",
        "_control",
        "_counts",
        "_destination",
        "_initiator",
        "_life",
        "_owner",
        "_peer",
        "_source",
        "_writer",
        "negotiated",
    )

    def __init__(self, parts: PdcParts, life: PdcLife) -> None:
        #: features that both ends have, once known
        self.negotiated: int | None = None
        self._life = life
        self._owner = parts.owner
        self._config = parts.config
        self._counts = parts.counts
        self._control = parts.control
        self._initiator = parts.identity.initiator
        self._peer = parts.peer
        self._writer = parts.writer
        self._source = parts.source
        self._destination = parts.destination
        self._clear = parts.clear

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
            self._clear.force(now)
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
            self._peer.congestion.on_credit(payload >> 24, payload & 0xFF_FFFF)
            self._counts["rx_credits"] += 1
        elif kind == ControlType.CREDIT_REQ:
            self._owner.credit_requested(payload, entropy, now)
            self._counts["rx_credit_requests"] += 1
        elif kind in (ControlType.NOOP, ControlType.NEGOTIATION) or (
            kind == ControlType.CLOSE_REQ and self._initiator
        ):
            again = destination.window.classify(psn) is PsnArrival.DUPLICATE
            code = destination.accept_control(psn)
            if code is not None:
                expected = destination.window.first_missing if code is NackCode.ROD_OOO else 0
                self._nack(code, psn, resent, entropy, marked, expected)
                return
            if flags & (ControlFlag.AR | ControlFlag.SYN | ControlFlag.RETX):
                self._writer.ack(
                    psn, destination, b"", 0, resent=resent, entropy=entropy, marked=marked
                )
            if kind == ControlType.CLOSE_REQ:
                self._life.quiesce()
            elif kind == ControlType.NEGOTIATION and not again:
                self._on_negotiation(payload.to_bytes(4, "big") + bytes(more), now)
        else:
            self._nack(NackCode.UNEXP_EVENT, psn, resent, entropy, marked)

    def _on_close(self, psn: int, resent: int, entropy: int, marked: bool, now: int) -> None:
        """Take the initiator's CLOSE, and refuse it while data is still due (UES 3.5.16.4)."""
        destination, source = self._destination, self._source
        waiting = len(source.open) + len(source.queue)  # data that is still to be returned
        if waiting or self._life.locks:
            self._nack(
                NackCode.CLOSING_IN_ERR,
                psn,
                resent,
                entropy,
                marked,
                max(waiting, self._life.locks),
            )
            self._life.closed_by = psn
            self._life.fail(NackCode.CLOSING_IN_ERR.name, now)
            return
        # Everything the source has sent is answered by now, hence cleared.
        destination.on_clear((psn - 1) & MASK)
        if not destination.accept_close(psn):
            self._nack(NackCode.PSN_OOR_WINDOW, psn, resent, entropy, marked)
            return
        self._writer.closing_ack(
            psn,
            destination,
            expected_psn=self._owner.expected_psn(),
            resent=resent,
            entropy=entropy,
            marked=marked,
        )
        self._life.closed_by = psn
        self._life.closed()

    def _on_negotiation(self, octets: bytes, now: int) -> None:
        """Take the peer's capabilities; a target answers with its own (UES 1.0.3, 3.5.16.7)."""
        features = agreed_features(octets[:FEATURES_OCTETS], self._config.compatibility)
        if features is None:
            self._counts["rx_negotiations_not_understood"] += 1
            return
        self.negotiated = features
        if not self._initiator and not self._source.is_full:
            self._control.append(self._source.send_control(ControlType.NEGOTIATION, now))

    def _nack(
        self, code: int, psn: int, resent: int, entropy: int, marked: bool, payload: int = 0
    ) -> None:
        self._writer.nack(code, psn, resent=resent, entropy=entropy, marked=marked, payload=payload)
