"""ACKs and NACKs for a PDC, and its PROBEs: the feedback about its requests (UES 3.5.12, 3.5.16).

In order: PROBEs and their answers, what an ACK does, what a NACK does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uet.congestion.signals import NO_SAMPLE, out_of_order, rtt_sample
from uet.pds.nacks import NO_ROOM_FOR_A_PDC, REISSUED, TARGET_IS_GONE, Reaction, reaction
from uet.pds.pdc.state import PdcState
from uet.pds.window import MASK, after
from uet.transport import Frame
from uet.wire import headers
from uet.wire.codes import AckFlag, ControlType, NackCode, NackFlag, NextHeader, PacketType

if TYPE_CHECKING:
    from uet.pds.pdc.pdc import Pdc

_ACK, _ACK_CC = headers.ACK, headers.ACK_CC_NSCC
_unpack_ack_cc = _ACK_CC.unpack_from
_ACK_CC_SIZE, _ACK_CCX_SIZE = _ACK_CC.size, headers.ACK_CCX.size
_NEXT_HEADER, _NEXT_SHIFT = _ACK.mask("next_hdr"), _ACK.shift("next_hdr")
_MPR = _ACK_CC.mask("mpr")
_TYPE_SHIFT = _ACK.shift("type")

# Plain numbers: arithmetic on enum members is slow, and this is the data path.
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
#: A target that names so many other first PSNs, one after the other, will not take any.
MOST_RENUMBERINGS = 64


class PdcProbes:
    """Writes the PROBEs of one end of a PDC, and takes the answer to the newest (UES 3.6.13.7)."""

    __slots__ = ("_counts", "_peer", "_probed_at", "_probes", "_source", "_writer")

    def __init__(self, pdc: Pdc) -> None:
        self._counts = pdc.counts
        self._peer = pdc.peer
        self._source = pdc.source
        self._writer = pdc.writer
        self._probes = 0
        self._probed_at = 0

    def probe(self, now: int, *, with_data: bool = False) -> Frame:
        """Request the state of the peer's window, and measure the path.

        The answer shows 64 PSNs: those from the oldest on of which nothing is known.

        ``with_data``: behind what was sent, so that its delay separates waiting from lost packets.
        """
        self._probes += 1
        self._probed_at = now
        return self._writer.control(
            ControlType.PROBE,
            psn=0,
            ar=True,
            payload=self._source.requests.oldest_in_flight(),
            opaque=self._probes & 0xFFFF,
            syn=False,
            with_data=with_data,
        )

    def on_answer(
        self, packet: memoryview, at: int, kind: int, opaque: int, cack: int, now: int
    ) -> None:
        """Take the answer to a PROBE, which is about the window and about no PSN."""
        if not self._probes or opaque != self._probes & 0xFFFF:
            self._counts["rx_drop_unexpected_probe_ack"] += 1
            return
        if self._source.acks.is_invalid(cack):
            self._counts["rx_drop_ack_of_unsent"] += 1
            return
        self._counts["rx_probe_acks"] += 1
        if kind == _PLAIN_ACK or len(packet) < at + _ACK_CC.size:
            return  # it shows that the PDC is there, and no more
        *_, cc, sack_offset, bitmap, service, state, _ = _ACK_CC.unpack_from(packet, at)
        counter: int | None = state & 0xFF_FFFF
        if kind == _ACK_CCX or cc >> 12:
            service, counter = 0, None
        rtt = rtt_sample(now, self._probed_at, 1, 0, service)
        if rtt != NO_SAMPLE and self._peer.congestion.window is not None:
            self._peer.congestion.window.on_probe(rtt)
        source = self._source
        source.recovery.timed(rtt, now)
        base = (cack + sack_offset) & MASK
        source.acks.on_sack(base, bitmap)
        source.acks.reported(counter, now)
        source.recovery.infer_loss(now)
        source.recovery.infer_overdue(base, bitmap, now)


class PdcFeedback:
    """Takes the ACKs and NACKs for one end of a PDC."""

    __slots__ = (
        "_clear",
        "_config",
        "_control",
        "_counts",
        "_initiator",
        "_pdc",
        "_peer",
        "_probes",
        "_renumberings",
        "_source",
        "_writer",
    )

    def __init__(self, pdc: Pdc) -> None:
        self._pdc = pdc
        self._probes = pdc.probes
        self._config = pdc.config
        self._counts = pdc.counts
        self._control = pdc.endpoint.control
        self._initiator = pdc.initiator
        self._peer = pdc.peer
        self._writer = pdc.writer
        self._source = pdc.source
        self._clear = pdc.clear
        self._renumberings = 0

    # -- what an ACK does ---------------------------------------------------------------------

    def on_ack(self, packet: memoryview, at: int, entropy: int, now: int) -> None:  # noqa: C901  the way of a packet, without calls
        """Take an ACK, ACK_CC or ACK_CCX (UES Tables 3-35 to 3-37)."""
        word, ack_offset, cack, spdcid, _ = _ACK.unpack_from(packet, at)
        kind = word >> _TYPE_SHIFT
        source, writer = self._source, self._writer
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
            self._probes.on_answer(packet, at, kind, ack_offset & 0xFFFF, cack, now)
            return
        if acks.is_invalid(cack) or acks.is_invalid(ack_psn):
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
                early = out_of_order(held) or None  # there are some, if SACK reports them
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
            self._pdc.established(spdcid)
        if kind != _PLAIN_ACK:
            mpr = cc & _MPR
            if not mpr:
                mpr = self._config.compatibility.override_mpr_zero_value or 0
            acks.on_range(mpr, cack)
            if mpr:
                self._peer.mpr = mpr
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
        if self._peer.congestion.probes and source.has_unsent:
            self._peer.congestion.probes = False
            self._control.append(self._probes.probe(now))
        if bitmap:
            recovery.infer_loss(now, early)
            recovery.infer_overdue((cack + sack_offset) & MASK, bitmap, now)
        if word & _ACK_REQ:
            if word & _ACK_REQ == _ACK_REQ_CLEAR:
                self._clear_asked(ack_psn)
            elif word & _ACK_REQ == _ACK_REQ_CLOSE and self._initiator:
                self._pdc.quiesce()
        self._clear.consider(now)
        if self._pdc.state is PdcState.CLOSING and (
            source.idle
            or (ack_psn == source.controls.close_psn and not source.window.is_open(ack_psn))
        ):
            if word & _ACK_EPSN and len(packet) >= end + 4 and self._pdc.sdi is not None:
                self._pdc.endpoint.expect_psn(
                    self._pdc, int.from_bytes(packet[end : end + 4], "big")
                )
            self._pdc.closed()

    def _clear_asked(self, psn: int) -> None:
        """Take REQ_CLEAR: the target keeps the response to ``psn`` until a CLEAR covers it."""
        self._clear.ask(psn)
        if not self._config.compatibility.clear_at_once:
            return
        source = self._source
        settled = (source.window.base - 1) & MASK
        source.requests.clear_sent = settled
        self._control.append(source.controls.clear(settled))

    # -- what a NACK does ---------------------------------------------------------------------

    def on_nack(self, packet: memoryview, at: int, entropy: int, now: int) -> None:
        """Take a NACK, and react as its code requires (UES Tables 3-58 to 3-61)."""
        word, psn, spdcid, _, payload = headers.NACK.unpack_from(packet, at)
        resent, marked = word & _NACK_RETX, bool(word & _NACK_M)
        if spdcid and self._writer.peer_id and spdcid != self._writer.peer_id:
            self._counts["rx_drop_nack_of_other_pdc"] += 1
            return
        source = self._source
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
            closing = self._pdc.state is PdcState.CLOSING or not self._initiator
            if closing and code is NackCode.INV_DPDCID:
                # The other end has closed; only its ACK or CLOSE was lost, or data is unwanted.
                source.abandon(code.name, now)
                self._pdc.closed()
            elif code in REISSUED and not closing:
                self._pdc.condemn(code, psn, now)
            else:
                self._pdc.fail(code.name, now, notify=code not in TARGET_IS_GONE)
            return
        if what is Reaction.RENUMBER:
            self._renumber(payload, now)
            return
        if what is Reaction.GO_BACK and self._pdc.ordered:
            source.recovery.out_of_order(psn, payload, resent, now)
            return
        if what is Reaction.RESEND_AFTER_ACK:
            if not after(psn, source.requests.max_cack):
                return
        elif code is NackCode.PKT_NOT_RCVD:
            source.window.withdraw(psn)
        if self._pdc.second and code in NO_ROOM_FOR_A_PDC and self._pdc.state is PdcState.CREATING:
            self._pdc.leave_it_to_the_first()
        at_once = what is Reaction.RESEND_AT_ONCE
        trimmed = code in (NackCode.TRIMMED, NackCode.TRIMMED_LASTHOP)
        source.recovery.refused(psn, int(code), entropy, marked, resent, now)
        source.recovery.on_nack(psn, now, wait=not at_once, counted=not trimmed)
        if source.recovery.gave_up:
            self._pdc.fail(source.recovery.gave_up, now)
        else:
            self._clear.consider(now)

    def _renumber(self, start_psn: int, now: int) -> None:
        """Take NEW_START_PSN: the target of a secured PDC decides where it begins (UES 3.5.8)."""
        if self._pdc.state is not PdcState.CREATING or start_psn == self._source.requests.start_psn:
            self._counts["rx_nacks_of_settled_psn"] += 1
            return
        self._renumberings += 1
        if self._renumberings > MOST_RENUMBERINGS:
            self._pdc.fail(NackCode.NEW_START_PSN.name, now)
            return
        self._counts["pdcs_renumbered"] += 1
        self._pdc.event("renumbered", start_psn=start_psn)
        self._source.renumber(start_psn, now)
        self._clear.renumbered()
        self._writer.start_psn = start_psn
        self._pdc.destination.restart(start_psn)
