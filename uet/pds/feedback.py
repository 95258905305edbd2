"""ACKs and NACKs for a PDC, and its PROBEs: the feedback about its requests (UES 3.5.12, 3.5.16).

In order: what an ACK does, what the answer to a PROBE does, what a NACK does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from uet.congestion.signals import NO_SAMPLE, out_of_order, rtt_sample
from uet.pds.nacks import NO_ROOM_FOR_A_PDC, REISSUED, TARGET_IS_GONE, Reaction, reaction
from uet.pds.pdc import PdcState
from uet.pds.window import MASK, after
from uet.wire import headers
from uet.wire.codes import AckFlag, NackCode, NackFlag, NextHeader, PacketType

if TYPE_CHECKING:
    from uet.pds.pdc import Pdc

_ACK: Final = headers.ACK
_ACK_CC: Final = headers.ACK_CC_NSCC
_unpack_ack: Final = _ACK.unpack_from
_ACK_SIZE: Final = _ACK.size
_unpack_ack_cc: Final = _ACK_CC.unpack_from
_ACK_CC_SIZE: Final = _ACK_CC.size
_ACK_CCX_SIZE: Final = headers.ACK_CCX.size
_NEXT_HEADER: Final = _ACK.mask("next_hdr")
_NEXT_SHIFT: Final = _ACK.shift("next_hdr")
_MPR: Final = _ACK_CC.mask("mpr")
_TYPE_SHIFT: Final = _ACK.shift("type")

# Plain numbers: arithmetic on enum members is slow, and this is the data path.
_ACK_P: Final = int(AckFlag.P)
_ACK_EPSN: Final = 0x40
_ACK_M: Final = int(AckFlag.M)
_ACK_RETX: Final = int(AckFlag.RETX)
_NACK_M: Final = NackFlag.M << 16  # above code and vendor code
_NACK_RETX: Final = NackFlag.RETX << 16
_ACK_REQ: Final = int(AckFlag.REQ_MASK)
_ACK_REQ_CLEAR: Final = int(AckFlag.REQ_CLEAR)
_ACK_REQ_CLOSE: Final = int(AckFlag.REQ_CLOSE)
_PLAIN_ACK: Final = int(PacketType.ACK)
_ACK_CCX: Final = int(PacketType.ACK_CCX)
_CLOSING: Final = PdcState.CLOSING
_RESPONSE: Final = int(NextHeader.RESPONSE)
#: Octets of the SES responses, by next header.
_RESPONSE_SIZES: Final = {
    int(NextHeader.RESPONSE): headers.SES_RESPONSE.size,
    int(NextHeader.RESPONSE_DATA): headers.SES_RESPONSE_DATA.size,
    int(NextHeader.RESPONSE_DATA_SMALL): headers.SES_RESPONSE_DATA_SMALL.size,
}
#: First word of a default response of success: list expected, opcode 0, code NULL or OK.
_PLAIN: Final = frozenset({0, 1})
#: A target that names so many other first PSNs, one after the other, will not take any.
MOST_RENUMBERINGS: Final = 64


# -- what an ACK does ---------------------------------------------------------------------


def on_ack(pdc: Pdc, packet: memoryview, at: int, entropy: int, now: int) -> None:  # noqa: C901  the way of a packet, without calls
    """Take an ACK, ACK_CC or ACK_CCX (UES Tables 3-35 to 3-37)."""
    word: int
    ack_offset: int
    cack: int
    spdcid: int
    cc: int
    sack_offset: int
    bitmap: int
    service: int
    state: int
    held: int
    word, ack_offset, cack, spdcid, _ = _unpack_ack(packet, at)
    kind = word >> _TYPE_SHIFT
    source, writer = pdc.source, pdc.writer
    ack_psn = (cack + ack_offset) & MASK
    if not writer.peer_id:
        # An ACK left over from an older PDC of this id must not decide who the peer is.
        if not spdcid or not source.window.is_open(ack_psn):
            pdc.counts["rx_drop_ack_before_establishment"] += 1
            return
    elif spdcid != writer.peer_id:
        pdc.counts["rx_drop_ack_of_other_pdc"] += 1
        return
    if word & _ACK_P:
        _on_probe_answer(pdc, packet, at, kind, ack_offset & 0xFFFF, cack, now)
        return
    if source.is_invalid(cack) or source.is_invalid(ack_psn):
        pdc.counts["rx_drop_ack_of_unsent"] += 1
        return
    end = at + _ACK_SIZE
    bitmap = service = state = 0
    counter: int | None = None
    early: int | None = None
    if kind != _PLAIN_ACK:
        end = at + (_ACK_CCX_SIZE if kind == _ACK_CCX else _ACK_CC_SIZE)
        if len(packet) < end:
            pdc.counts["rx_drop_truncated"] += 1
            return
        _, _, _, _, _, cc, sack_offset, bitmap, service, state, held = _unpack_ack_cc(packet, at)
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
            pdc.counts["rx_drop_truncated"] += 1
            return
        if next_header != _RESPONSE or (packet[end] << 8 | packet[end + 1]) not in _PLAIN:
            response = packet[end:]
    if not writer.peer_id:
        pdc.established(spdcid)
    if kind != _PLAIN_ACK:
        mpr = cc & _MPR
        if not mpr:
            mpr = pdc.config.compatibility.override_mpr_zero_value or 0
        source.on_range(mpr, cack)
        if mpr:
            pdc.peer.mpr = mpr
    rtt = source.sample(ack_psn, cack, word & _ACK_RETX, service, now)
    source.on_ack(ack_psn, cack, next_header, response, now)
    if bitmap:
        source.on_sack((cack + sack_offset) & MASK, bitmap)
    source.acknowledged(
        counter,
        entropy,
        bool(word & _ACK_M),
        rtt,
        now,
        state >> 24 & 0x7F,
        bool(state >> 31),
    )
    if pdc.peer.congestion.probes and source.has_unsent:
        pdc.peer.congestion.probes = False
        pdc.endpoint.control.append(pdc.probe(now))
    if bitmap:
        source.recovery.infer_loss(now, early)
        source.recovery.infer_overdue((cack + sack_offset) & MASK, bitmap, now)
    if word & _ACK_REQ:
        if word & _ACK_REQ == _ACK_REQ_CLEAR:
            _clear_asked(pdc, ack_psn)
        elif word & _ACK_REQ == _ACK_REQ_CLOSE and pdc.initiator:
            pdc.quiesce()
    pdc.clear.consider(now)
    if pdc.state is _CLOSING and (
        source.idle or (ack_psn == source.close_psn and not source.window.is_open(ack_psn))
    ):
        if word & _ACK_EPSN and len(packet) >= end + 4 and pdc.sdi is not None:
            expected = int.from_bytes(packet[end : end + 4], "big")
            pdc.endpoint.secure.reported(pdc.peer.key, pdc.sdi, expected)
        pdc.closed()


def _clear_asked(pdc: Pdc, psn: int) -> None:
    """Take REQ_CLEAR: the target keeps the response to ``psn`` until a CLEAR covers it."""
    pdc.clear.ask(psn)
    if pdc.config.compatibility.clear_at_once:
        pdc.endpoint.control.append(pdc.source.clear())


def _on_probe_answer(
    pdc: Pdc, packet: memoryview, at: int, kind: int, opaque: int, cack: int, now: int
) -> None:
    """Take the answer to a PROBE, which is about the window and about no PSN."""
    if not pdc.probes or opaque != pdc.probes & 0xFFFF:
        pdc.counts["rx_drop_unexpected_probe_ack"] += 1
        return
    if pdc.source.is_invalid(cack):
        pdc.counts["rx_drop_ack_of_unsent"] += 1
        return
    pdc.counts["rx_probe_acks"] += 1
    if kind == _PLAIN_ACK or len(packet) < at + _ACK_CC.size:
        return  # it shows that the PDC is there, and no more
    *_, cc, sack_offset, bitmap, service, state, _ = _ACK_CC.unpack_from(packet, at)
    counter: int | None = state & 0xFF_FFFF
    if kind == _ACK_CCX or cc >> 12:
        service, counter = 0, None
    rtt = rtt_sample(now, pdc.probed_at, 1, 0, service)
    if rtt != NO_SAMPLE and pdc.peer.congestion.window is not None:
        pdc.peer.congestion.window.on_probe(rtt)
    source = pdc.source
    source.recovery.timed(rtt, now)
    base = (cack + sack_offset) & MASK
    source.on_sack(base, bitmap)
    source.reported(counter, now)
    source.recovery.infer_loss(now)
    source.recovery.infer_overdue(base, bitmap, now)


# -- what a NACK does ---------------------------------------------------------------------


def on_nack(pdc: Pdc, packet: memoryview, at: int, entropy: int, now: int) -> None:
    """Take a NACK, and react as its code requires (UES Tables 3-58 to 3-61)."""
    word, psn, spdcid, _, payload = headers.NACK.unpack_from(packet, at)
    resent, marked = word & _NACK_RETX, bool(word & _NACK_M)
    if spdcid and pdc.writer.peer_id and spdcid != pdc.writer.peer_id:
        pdc.counts["rx_drop_nack_of_other_pdc"] += 1
        return
    source = pdc.source
    if not source.window.is_open(psn):
        pdc.counts["rx_nacks_of_settled_psn"] += 1
        return
    try:
        code = NackCode(word >> 8 & 0xFF)
    except ValueError:
        pdc.counts["rx_nacks_of_unknown_code"] += 1
        return
    what = reaction(code, trimmed_ack=pdc.config.compatibility.trimmed_ack_nack)
    if what is Reaction.IGNORE:
        return
    if what is Reaction.END:
        closing = pdc.state is PdcState.CLOSING or not pdc.initiator
        if closing and code is NackCode.INV_DPDCID:
            # The other end has closed; only its ACK or CLOSE was lost, or data is unwanted.
            source.abandon(code.name, now)
            pdc.closed()
        elif code in REISSUED and not closing:
            pdc.condemn(code, psn, now)
        else:
            pdc.fail(code.name, now, notify=code not in TARGET_IS_GONE)
        return
    if what is Reaction.RENUMBER:
        _renumber(pdc, payload, now)
        return
    if what is Reaction.GO_BACK and pdc.ordered:
        source.recovery.out_of_order(psn, payload, resent, now)
        return
    if what is Reaction.RESEND_AFTER_ACK:
        if not after(psn, source.requests.max_cack):
            return
    elif code is NackCode.PKT_NOT_RCVD:
        source.window.withdraw(psn)
    if pdc.second and code in NO_ROOM_FOR_A_PDC and pdc.state is PdcState.CREATING:
        pdc.leave_it_to_the_first()
    at_once = what is Reaction.RESEND_AT_ONCE
    trimmed = code in (NackCode.TRIMMED, NackCode.TRIMMED_LASTHOP)
    source.recovery.refused(psn, int(code), entropy, marked, resent, now)
    source.recovery.on_nack(psn, now, wait=not at_once, counted=not trimmed)
    if source.recovery.gave_up:
        pdc.fail(source.recovery.gave_up, now)
    else:
        pdc.clear.consider(now)


def _renumber(pdc: Pdc, start_psn: int, now: int) -> None:
    """Take NEW_START_PSN: the target of a secured PDC decides where it begins (UES 3.5.8)."""
    if pdc.state is not PdcState.CREATING or start_psn == pdc.source.requests.start_psn:
        pdc.counts["rx_nacks_of_settled_psn"] += 1
        return
    pdc.renumberings += 1
    if pdc.renumberings > MOST_RENUMBERINGS:
        pdc.fail(NackCode.NEW_START_PSN.name, now)
        return
    pdc.counts["pdcs_renumbered"] += 1
    pdc.event("renumbered", start_psn=start_psn)
    pdc.source.renumber(start_psn, now)
    pdc.clear.renumbered()
    pdc.writer.start_psn = start_psn
    pdc.destination.restart(start_psn)
