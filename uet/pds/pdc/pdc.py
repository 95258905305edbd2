"""A packet delivery context: two endpoints, one delivery mode, ids and a life (UES 3.5.8).

What arrives for it, in order: ACKs, NACKs, requests, control packets.  Its life is in
:mod:`uet.pds.pdc.life`.
"""

from __future__ import annotations

from uet.congestion.signals import NO_SAMPLE, out_of_order, rtt_sample
from uet.pds.control_packets import MAX_PSN_OFFSET
from uet.pds.nacks import NO_ROOM_FOR_A_PDC, REISSUED, TARGET_IS_GONE, Reaction, reaction
from uet.pds.negotiation import FEATURES_OCTETS, agreed_features
from uet.pds.pdc.life import PdcLife
from uet.pds.pdc.pdc_state import PdcState
from uet.pds.psn import HALF, MASK
from uet.pds.reception import Reception
from uet.pds.window import PsnArrival
from uet.wire import headers
from uet.wire.codes import (
    AckFlag,
    ControlFlag,
    ControlType,
    NackCode,
    NackFlag,
    NextHeader,
    PacketType,
    RequestFlag,
)

_ACK, _ACK_CC = headers.ACK, headers.ACK_CC_NSCC
_unpack_ack_cc = _ACK_CC.unpack_from
_ACK_CC_SIZE, _ACK_CCX_SIZE = _ACK_CC.size, headers.ACK_CCX.size
_NEXT_HEADER, _NEXT_SHIFT = _ACK.mask("next_hdr"), _ACK.shift("next_hdr")
_MPR = _ACK_CC.mask("mpr")
_TYPE_SHIFT = _ACK.shift("type")

# Plain numbers: arithmetic on enum members is slow, and this is the data path.
_REQ_RETX = int(RequestFlag.RETX)
_CONTROL_FLAGS = 0x7F
_ACK_P, _ACK_EPSN = int(AckFlag.P), 0x40
_ACK_M, _ACK_RETX = int(AckFlag.M), int(AckFlag.RETX)
_NACK_M, _NACK_RETX = NackFlag.M << 16, NackFlag.RETX << 16  # above code and vendor code
_ACK_REQ, _ACK_REQ_CLEAR = int(AckFlag.REQ_MASK), int(AckFlag.REQ_CLEAR)
_ACK_REQ_CLOSE = int(AckFlag.REQ_CLOSE)
_PLAIN_ACK, _ACK_CCX = int(PacketType.ACK), int(PacketType.ACK_CCX)
_RESPONSE = int(NextHeader.RESPONSE)
#: Octets of the SES responses, by next header.
_RESPONSE_SIZES = {
    int(NextHeader.RESPONSE): headers.SES_RESPONSE.size,
    int(NextHeader.RESPONSE_DATA): headers.SES_RESPONSE_DATA.size,
    int(NextHeader.RESPONSE_DATA_SMALL): headers.SES_RESPONSE_DATA_SMALL.size,
}
#: First word of a default response of success: list expected, opcode 0, code NULL or OK.
_PLAIN = frozenset({0, 1})
_RETURN_DATA = frozenset({int(NextHeader.RESPONSE_DATA), int(NextHeader.RESPONSE_DATA_SMALL)})
#: A target that wants so many other first PSNs, one after the other, will not take any.
MOST_RENUMBERINGS = 64


class Pdc(PdcLife):
    """One end of a PDC.  The initiator sends the forward requests, the target receives them."""

    # -- what an ACK does ---------------------------------------------------------------------

    def on_ack(self, packet: memoryview, at: int, entropy: int, now: int) -> None:
        """ACK, ACK_CC or ACK_CCX (UES Tables 3-35 to 3-37)."""
        word, ack_offset, cack, spdcid, _ = _ACK.unpack_from(packet, at)
        kind = word >> _TYPE_SHIFT
        source, writer = self.source, self.writer
        acks, recovery = source.acks, source.recovery
        ack_psn = (cack + ack_offset) & MASK
        if not writer.peer_id:
            # An ACK left over from an older PDC of this id must not decide who the peer is.
            if not spdcid or not source.window.is_open(ack_psn):
                self._counts["rx_drop_ack_before_establishment"] += 1
                return
        elif spdcid != writer.peer_id:
            self._counts["rx_drop_ack_of_other_pdc"] += 1
            return
        if word & _ACK_P:
            self._on_probe_ack(packet, at, kind, ack_offset & 0xFFFF, cack, now)
            return
        if acks.acknowledges_the_future(cack) or acks.acknowledges_the_future(ack_psn):
            self._counts["rx_drop_ack_of_unsent"] += 1
            return
        end = at + _ACK.size
        bitmap = service = state = 0
        counter: int | None = None
        early: int | None = None
        if kind != _PLAIN_ACK:
            end = at + (_ACK_CCX_SIZE if kind == _ACK_CCX else _ACK_CC_SIZE)
            if len(packet) < end:
                self._counts["rx_drop_truncated"] += 1
                return
            _, _, _, _, _, cc, sack_offset, bitmap, service, state, held = _unpack_ack_cc(
                packet, at
            )
            if kind == _ACK_CCX or cc >> 12:
                service = state = 0
            else:
                counter = state & 0xFF_FFFF
                early = out_of_order(held) or None  # there are some, if SACK says so
        next_header = (word & _NEXT_HEADER) >> _NEXT_SHIFT
        response: memoryview | None = None
        if next_header:
            size = _RESPONSE_SIZES.get(next_header)
            if size is None or len(packet) < end + size:
                self._counts["rx_drop_truncated"] += 1
                return
            if next_header != _RESPONSE or (packet[end] << 8 | packet[end + 1]) not in _PLAIN:
                response = packet[end:]
        if not writer.peer_id:
            writer.peer_id = spdcid
            if self.state is PdcState.CREATING:
                self._enter(PdcState.ESTABLISHED)
        if kind != _PLAIN_ACK:
            mpr = cc & _MPR
            if not mpr:
                mpr = self._config.compatibility.override_mpr_zero_value or 0
            acks.on_range(mpr, cack)
            if mpr:
                self.peer.mpr = mpr
        rtt = acks.sample(ack_psn, cack, word & _ACK_RETX, service, now)
        acks.on_ack(ack_psn, cack, next_header, response, now)
        if bitmap:
            acks.on_sack((cack + sack_offset) & MASK, bitmap)
        acks.acknowledged(
            counter,
            entropy,
            bool(word & _ACK_M),
            rtt,
            now,
            state >> 24 & 0x7F,
            bool(state >> 31),
        )
        if self.peer.congestion.probes and source.has_unsent:
            self.peer.congestion.probes = False
            self._around.control.append(self.probe(now))
        if bitmap:
            recovery.infer_loss(now, early)
            recovery.infer_overdue((cack + sack_offset) & MASK, bitmap, now)
        if word & _ACK_REQ:
            if word & _ACK_REQ == _ACK_REQ_CLEAR:
                self._clear_asked(ack_psn)
            elif word & _ACK_REQ == _ACK_REQ_CLOSE and self.initiator:
                self.quiesce()
        self._clear.consider(now)
        if self.state is PdcState.CLOSING and (
            source.idle
            or (ack_psn == source.controls.close_psn and not source.window.is_open(ack_psn))
        ):
            if word & _ACK_EPSN and len(packet) >= end + 4 and self.sdi is not None:
                self._around.expect_psn(self, int.from_bytes(packet[end : end + 4], "big"))
            self._closed()

    def _clear_asked(self, psn: int) -> None:
        """The target keeps the response to ``psn`` until it hears that it is known."""
        self._clear.ask(psn)
        if not self._config.compatibility.clear_at_once:
            return
        source = self.source
        settled = (source.window.base - 1) & MASK
        source.requests.clear_sent = settled
        self._around.control.append(source.controls.clear(settled))

    def _on_probe_ack(
        self, packet: memoryview, at: int, kind: int, opaque: int, cack: int, now: int
    ) -> None:
        """The answer to a PROBE is about the window, and about no PSN (UES 3.6.13.7)."""
        if not self._probes or opaque != self._probes & 0xFFFF:
            self._counts["rx_drop_unexpected_probe_ack"] += 1
            return
        if self.source.acks.acknowledges_the_future(cack):
            self._counts["rx_drop_ack_of_unsent"] += 1
            return
        self._counts["rx_probe_acks"] += 1
        if kind == _PLAIN_ACK or len(packet) < at + _ACK_CC.size:
            return  # it tells that the PDC is there, and no more
        *_, cc, sack_offset, bitmap, service, state, _ = _ACK_CC.unpack_from(packet, at)
        counter: int | None = state & 0xFF_FFFF
        if kind == _ACK_CCX or cc >> 12:
            service, counter = 0, None
        rtt = rtt_sample(now, self._probed_at, 1, 0, service)
        if rtt != NO_SAMPLE and self.peer.congestion.window is not None:
            self.peer.congestion.window.on_probe(rtt)
        source = self.source
        source.recovery.timed(rtt, now)
        base = (cack + sack_offset) & MASK
        source.acks.on_sack(base, bitmap)
        source.acks.reported(counter, now)
        source.recovery.infer_loss(now)
        source.recovery.infer_overdue(base, bitmap, now)

    # -- what a NACK does ---------------------------------------------------------------------

    def on_nack(self, packet: memoryview, at: int, entropy: int, now: int) -> None:
        """Each code with its required reaction (UES Tables 3-58 to 3-61)."""
        word, psn, spdcid, _, payload = headers.NACK.unpack_from(packet, at)
        resent, marked = word & _NACK_RETX, bool(word & _NACK_M)
        if spdcid and self.peer_id and spdcid != self.peer_id:
            self._counts["rx_drop_nack_of_other_pdc"] += 1
            return
        source = self.source
        if not source.window.is_open(psn):
            self._counts["rx_nacks_of_settled_psn"] += 1
            return
        try:
            code = NackCode(word >> 8 & 0xFF)
        except ValueError:
            self._counts["rx_nacks_of_unknown_code"] += 1
            return
        what = reaction(code, trimmed_ack=self._config.compatibility.trimmed_ack_nack)
        if what is Reaction.IGNORE:
            return
        if what is Reaction.END:
            closing = self.state is PdcState.CLOSING or not self.initiator
            if closing and code is NackCode.INV_DPDCID:
                # The other end has closed; only its ACK or CLOSE was lost, or data is unwanted.
                source.abandon(code.name, now)
                self._closed()
            elif code in REISSUED and not closing:
                self.condemn(code, psn, now)
            else:
                self.fail(code.name, now, notify=code not in TARGET_IS_GONE)
            return
        if what is Reaction.RENUMBER:
            self._renumber(payload, now)
            return
        if what is Reaction.GO_BACK and self.ordered:
            source.recovery.out_of_order(psn, payload, resent, now)
            return
        if what is Reaction.RESEND_AFTER_ACK:
            if not 0 < ((psn - source.requests.max_cack) & MASK) < HALF:
                return
        elif code is NackCode.PKT_NOT_RCVD:
            source.window.withdraw(psn)
        if self.second and code in NO_ROOM_FOR_A_PDC and self.state is PdcState.CREATING:
            self._leave_it_to_the_first()
        at_once = what is Reaction.RESEND_AT_ONCE
        trimmed = code in (NackCode.TRIMMED, NackCode.TRIMMED_LASTHOP)
        source.recovery.refused(psn, int(code), entropy, marked, resent, now)
        source.recovery.on_nack(psn, now, wait=not at_once, counted=not trimmed)
        if source.recovery.gave_up:
            self.fail(source.recovery.gave_up, now)
        else:
            self._clear.consider(now)

    def _leave_it_to_the_first(self) -> None:
        """The target has no room for a second PDC: what was not sent yet goes on the first."""
        self.refused = True
        for message in self.source.messages.take_back():
            self.message_unsent(message)

    def _renumber(self, start_psn: int, now: int) -> None:
        """NEW_START_PSN: the target decides where the PDC begins (UES 3.5.8, secured PDCs)."""
        if self.state is not PdcState.CREATING or start_psn == self.start_psn:
            self._counts["rx_nacks_of_settled_psn"] += 1
            return
        self._renumberings += 1
        if self._renumberings > MOST_RENUMBERINGS:
            self.fail(NackCode.NEW_START_PSN.name, now)
            return
        self._counts["pdcs_renumbered"] += 1
        self._around.pdc_event(self, "renumbered", start_psn=start_psn)
        self.source.renumber(start_psn, now)
        self._clear.renumbered()
        self.writer.start_psn = start_psn
        self.destination = self._make_destination(start_psn)

    # -- what a request does ------------------------------------------------------------------

    def contradicts(self, reception: Reception) -> bool:
        """Return whether a SYN packet names another beginning than that of this target's PDC.

        Its PSN names another packet here.  On a secured PDC it is left over from the time before
        NEW_START_PSN, and nobody's fault; else it is refused.
        """
        psn = reception.psn
        if (psn - (reception.dpdcid & MAX_PSN_OFFSET)) & MASK == self.start_psn:
            return False
        if self.sdi is not None and self.destination.window.classify(psn) is not PsnArrival.OUTSIDE:
            self._counts["rx_drop_syn_of_other_start"] += 1
        else:
            self._refuse(NackCode.INVALID_SYN, reception)
        return True

    def learns_peer(self, spdcid: int, psn: int, next_header: int) -> bool:
        """Initiator: data that was asked for has overtaken the first ACK; it names the target.

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
        self.writer.peer_id = spdcid
        self._enter(PdcState.ESTABLISHED)
        return True

    def takes_return_data(self, reception: Reception) -> bool:
        """Return whether a request is return data of this initiator, while it is due.

        The return direction carries nothing else (UES 3.5.6); what it may not is refused.
        """
        if reception.next_header not in _RETURN_DATA:
            self._refuse(NackCode.PDC_HDR_MISMATCH, reception)
        elif self.state is PdcState.CLOSING:
            self._refuse(NackCode.CLOSING, reception)
        else:
            return True
        return False

    def _refuse(self, code: NackCode, reception: Reception) -> None:
        self.nack(
            code,
            reception.psn,
            reception.word & _REQ_RETX,
            reception.entropy,
            reception.marked,
        )

    # -- what control packets do --------------------------------------------------------------

    def on_control(self, reception: Reception, kind: int, payload: int, opaque: int) -> None:
        """Take a control packet for this PDC, ids already checked (UES 3.5.16)."""
        flags, psn, now = reception.word & _CONTROL_FLAGS, reception.psn, reception.now
        entropy, marked = reception.entropy, reception.marked
        more = reception.packet[reception.ses_at :]
        destination = self.destination
        resent = flags & ControlFlag.RETX
        if kind == ControlType.CLEAR_CMD:
            destination.on_clear(payload)
        elif kind == ControlType.CLEAR_REQ:
            self._clear.force(now)
        elif kind == ControlType.ACK_REQ:
            destination.answer_ack_request(
                psn, payload & 0xFFFF, self._job_id, resent, entropy, marked
            )
        elif kind == ControlType.CLOSE_CMD and not self.initiator:
            self._on_close(psn, resent, entropy, marked, now)
        elif kind == ControlType.PROBE:
            self._counts["rx_probes"] += 1
            self.writer.probe_ack(opaque, payload, destination, marked=marked, ev=entropy)
        elif kind == ControlType.CREDIT:
            self.peer.congestion.on_credit(payload >> 24, payload & 0xFF_FFFF)
            self._counts["rx_credits"] += 1
        elif kind == ControlType.CREDIT_REQ:
            self._around.credit_requested(self, payload, entropy, now)
            self._counts["rx_credit_requests"] += 1
        elif kind in (ControlType.NOOP, ControlType.NEGOTIATION) or (
            kind == ControlType.CLOSE_REQ and self.initiator
        ):
            again = destination.window.classify(psn) is PsnArrival.DUPLICATE
            code = destination.accept_control(psn)
            if code is not None:
                expected = destination.window.first_missing if code is NackCode.ROD_OOO else 0
                self.nack(code, psn, resent, entropy, marked, expected)
                return
            if flags & (ControlFlag.AR | ControlFlag.SYN | ControlFlag.RETX):
                self.ack(psn, b"", 0, resent, entropy, marked)
            if kind == ControlType.CLOSE_REQ:
                self.quiesce()
            elif kind == ControlType.NEGOTIATION and not again:
                self._on_negotiation(payload.to_bytes(4, "big") + bytes(more), now)
        else:
            self.nack(NackCode.UNEXP_EVENT, psn, resent, entropy, marked)

    def _on_close(self, psn: int, resent: int, entropy: int, marked: bool, now: int) -> None:
        """CLOSE of the initiator (UES 3.5.16.4)."""
        destination, source = self.destination, self.source
        waiting = len(source.open) + len(source.queue)  # data that is still to be returned
        if waiting or self.locks:
            self.nack(
                NackCode.CLOSING_IN_ERR, psn, resent, entropy, marked, max(waiting, self.locks)
            )
            self.closed_by = psn
            self.fail(NackCode.CLOSING_IN_ERR.name, now)
            return
        # Everything the source has sent is answered by now, hence cleared.
        destination.on_clear((psn - 1) & MASK)
        if not destination.accept_close(psn):
            self.nack(NackCode.PSN_OOR_WINDOW, psn, resent, entropy, marked)
            return
        self.writer.closing_ack(
            psn,
            destination,
            expected_psn=self._around.expected_psn(self),
            resent=resent,
            entropy=entropy,
            marked=marked,
        )
        self.closed_by = psn
        self._closed()

    def _on_negotiation(self, octets: bytes, now: int) -> None:
        """Take the peer's capabilities; a target answers with its own (UES 1.0.3, 3.5.16.7)."""
        features = agreed_features(octets[:FEATURES_OCTETS], self._config.compatibility)
        if features is None:
            self._counts["rx_negotiations_not_understood"] += 1
            return
        self.negotiated = features
        if not self.initiator and not self.source.is_full:
            self._around.control.append(self.source.send_control(ControlType.NEGOTIATION, now))
