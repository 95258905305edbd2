"""A packet delivery context: two endpoints, one delivery mode, ids and a life (UES 3.5.8).

In order: the states, what each side keeps, how requests are built, what an ACK does, what a
request does, what control packets do, how it closes.  The halves that do the work are in
:mod:`uet.pds.source` and :mod:`uet.pds.destination`.
"""

from __future__ import annotations

import enum
from functools import partial
from typing import Protocol

from uet.config import FepConfig
from uet.congestion.spraying import ObliviousSpraying
from uet.pds.clear import ClearDuty
from uet.pds.control import MAX_PSN_OFFSET, control_packet, nack_packet
from uet.pds.destination import RequestDestination
from uet.pds.psn import MASK
from uet.pds.source import RequestSource
from uet.peer import Peer, traffic_class
from uet.ses.messages import OutboundMessage
from uet.transport import Frame
from uet.wire import headers
from uet.wire.codes import (
    BYTE_COUNT_UNIT,
    MPR_UNIT,
    SERVICE_TIME_INVALID,
    AckFlag,
    ControlFlag,
    ControlType,
    ErrorClass,
    NackCode,
    NextHeader,
    PacketType,
    RequestFlag,
    ReturnCode,
)

#: Octets that the congestion sublayer adds to the transport size of a packet (UES 3.6.12).
NOMINAL_OVERHEAD = 40

_REQUEST = headers.RUD_REQ
_ACK = headers.ACK_CC_NSCC
_RUD_WORD = _REQUEST.word(type=PacketType.RUD_REQ, next_hdr=NextHeader.REQUEST_STD)
_ACK_WORD = _ACK.word(type=PacketType.ACK_CC, next_hdr=NextHeader.NONE)
_CARRIES_RESPONSE = _ACK.word(type=0, next_hdr=NextHeader.RESPONSE)

# Plain numbers: arithmetic on enum members is slow, and this is the data path.
_REQ_RETX, _REQ_AR, _REQ_SYN = (
    int(RequestFlag.RETX),
    int(RequestFlag.AR),
    int(RequestFlag.SYN),
)
_ACK_M, _ACK_RETX, _ACK_P = int(AckFlag.M), int(AckFlag.RETX), int(AckFlag.P)
_ACK_REQ, _ACK_REQ_CLEAR = int(AckFlag.REQ_MASK), int(AckFlag.REQ_CLEAR)
_ACK_REQ_CLOSE = int(AckFlag.REQ_CLOSE)
_PLAIN_ACK, _ACK_CCX = int(PacketType.ACK), int(PacketType.ACK_CCX)
_OK = int(ReturnCode.OK)

#: Answers to a NACK that ask for the packet again without waiting (UES 3.5.15, trimming).
_AT_ONCE = frozenset({NackCode.TRIMMED, NackCode.TRIMMED_LASTHOP})
#: Codes that leave the packet to its timer: reserved ones, and "SES is still at work".
_LEFT_TO_TIMER = frozenset({NackCode.TRIMMED_ACK, NackCode.RCVD_SES_PROCG, NackCode.NEW_START_PSN})
#: Fatal codes of a target that has no such PDC: there is none to close.
_TARGET_IS_GONE = frozenset({NackCode.INV_DPDCID, NackCode.PDC_HDR_MISMATCH, NackCode.CLOSING})


class State(enum.Enum):
    """UES 3.5.8; an initiator passes them in order, a target begins in ESTABLISHED.

    In QUIESCE no new message is taken and the last requests are waited for (UES: QUIESCE and
    ACK_WAIT).
    """

    CREATING = enum.auto()
    ESTABLISHED = enum.auto()
    QUIESCE = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


class Surroundings(Protocol):
    """What a PDC needs of its endpoint."""

    config: FepConfig
    counts: dict[str, int]
    #: ACKs, NACKs and control packets waiting to leave
    control: list[Frame]

    def deliver(self, pdc_id: int, peer: str, packet: memoryview, at: int) -> int: ...

    def message_end(self, message: OutboundMessage) -> None: ...

    def pdc_closed(self, pdc: Pdc) -> None: ...


class Pdc:
    """One end of a PDC.  The initiator sends the forward requests, the target receives them."""

    def __init__(
        self,
        around: Surroundings,
        peer: Peer,
        *,
        local_id: int,
        peer_id: int,
        start_psn: int,
        initiator: bool,
        spraying: ObliviousSpraying,
    ) -> None:
        config = around.config
        self.peer = peer
        self.id = local_id
        self.peer_id = peer_id  # 0 until it is known
        self.start_psn = start_psn
        self.initiator = initiator
        self.state = State.CREATING if initiator else State.ESTABLISHED
        self.closed_by: int | None = None  # target: the PSN of the CLOSE
        self._around = around
        self._counts = around.counts
        self._wrap = peer.envelope.wrap
        self._spraying = spraying
        self._data_class = traffic_class(config.dscp_data, ecn_capable=True)
        self._control_class = traffic_class(config.dscp_control, ecn_capable=False)
        self._mpr = config.mpr
        self._job_id = config.job_id
        self.nominal_overhead = (
            headers.UDP_HEADER.size
            + _REQUEST.size
            + headers.SES_STD_SOM.size
            + peer.envelope.trailer
            + NOMINAL_OVERHEAD
        )
        self._close_req_time = config.close_req_time
        self._close_due: int | None = None  # target: when its CLOSE_REQ counts as refused
        self._octets_when_asked = 0
        # Both directions begin at the same PSN.
        self.source = RequestSource(
            wire=self,
            start_psn=start_psn,
            congestion=peer.congestion,
            spraying=spraying,
            default_range=config.mpr * MPR_UNIT,
            rto_init_time=config.rto_init_time,
            max_rto_retx_cnt=config.max_rto_retx_cnt,
            nack_retx_time=config.nack_retx_time,
            max_nack_retx_cnt=config.max_nack_retx_cnt,
            ack_gen_trigger=config.ack_gen_trigger,
            on_message_end=around.message_end,
            counters=around.counts,
        )
        self._clear = ClearDuty(
            wire=self,
            source=self.source,
            clear_time=config.pds_clear_time,
            max_stalls=config.max_rto_retx_cnt,
        )
        self.destination = RequestDestination(
            start_psn=start_psn,
            psn_range=config.mpr * MPR_UNIT,
            overhead=self.nominal_overhead - headers.SES_STD_SOM.size,
            ack_gen_trigger=config.ack_gen_trigger,
            ack_gen_min_pkt_add=config.ack_gen_min_pkt_add,
            ack_on_ecn=config.ack_on_ecn,
            drop_network_duplicates=config.drop_network_duplicates,
            deliver=partial(around.deliver, local_id, peer.address),
            counters=around.counts,
        )

    # -- how packets are built ----------------------------------------------------------------

    def request(
        self, psn: int, message: OutboundMessage, index: int, *, again: bool, ar: bool, ev: int
    ) -> Frame:
        """Packet ``index`` of a message; CLEAR_PSN rides in every request (UES 3.5.11)."""
        word = _RUD_WORD
        if ar:
            word |= _REQ_AR
        if again:
            word |= _REQ_RETX
        peer_id = self.peer_id
        if not peer_id:
            word |= _REQ_SYN
            peer_id = (psn - self.start_psn) & MAX_PSN_OFFSET
        clear_offset = -(((psn - self.source.window.base) & MASK) + 1)
        ses, payload = message.packet(index)
        return self._wrap(
            self._data_class,
            ev,
            _REQUEST.pack(word, clear_offset, psn, self.id, peer_id) + ses,
            payload,
        )

    def _control_packet(self, kind: ControlType, *, psn: int, **fields: int) -> Frame:
        self._counts["tx_control_packets"] += 1
        packet = control_packet(
            kind,
            psn=psn,
            spdcid=self.id,
            peer_id=self.peer_id,
            start_psn=self.start_psn,
            **fields,  # type: ignore[arg-type]
        )
        return self._wrap(self._control_class, self._spraying.pick(), packet)

    def close(self, psn: int, *, again: bool) -> Frame:
        kind = ControlType.CLOSE_CMD if self.initiator else ControlType.CLOSE_REQ
        return self._control_packet(kind, psn=psn, ar=True, retx=again)

    def ask_again(self, psn: int, message_id: int = 0) -> Frame:
        self._counts["tx_ack_requests"] += 1
        return self._control_packet(ControlType.ACK_REQ, psn=psn, ar=True, payload=message_id)

    def clear(self, psn: int) -> Frame:
        return self._control_packet(ControlType.CLEAR_CMD, psn=0, payload=psn)

    # -- what may be sent ---------------------------------------------------------------------

    def transmit(self, out: list[Frame], now: int, limit: int) -> None:
        """Append what may leave now, timers first."""
        source = self.source
        deadline = source.next_deadline()
        if deadline is not None and deadline <= now:
            source.on_timer(now)
            if source.gave_up:
                self.fail(source.gave_up, now)
            else:
                self._clear.consider(now)
        if self._close_due is not None and self._close_due <= now:
            self._close_is_missing(now)
        if self.state is State.CLOSED:
            return
        source.transmit(out, now, limit)
        while self._clear.due is not None and self._clear.due <= now and len(out) < limit:
            if not self._clear.transmit(out, now):
                self.fail("RTO_RETRIES_EXHAUSTED", now)
        if self.state is State.QUIESCE and source.idle and len(out) < limit:
            self.state = State.CLOSING
            out.append(source.send_close(now))

    def next_deadline(self) -> int | None:
        deadline = self.source.next_deadline()
        for due in (self._clear.due, self._close_due):
            if due is not None and (deadline is None or due < deadline):
                deadline = due
        return deadline

    @property
    def has_work(self) -> bool:
        """Whether :meth:`transmit` may ever have something to do without new input."""
        return self.state is not State.CLOSED and (
            not self.source.idle
            or self._clear.due is not None
            or self._close_due is not None
            or self.state is State.QUIESCE
        )

    # -- what an ACK does ---------------------------------------------------------------------

    def on_ack(self, packet: memoryview, at: int, now: int) -> None:
        """ACK, ACK_CC or ACK_CCX (UES Tables 3-35 to 3-37)."""
        word, ack_offset, cack, spdcid, _ = headers.ACK.unpack_from(packet, at)
        kind = word >> 11
        source = self.source
        ack_psn = (cack + ack_offset) & MASK
        if not self.peer_id:
            # An ACK left over from an older PDC of this id must not decide who the peer is.
            if not spdcid or not source.window.is_open(ack_psn):
                self._counts["rx_drop_ack_before_establishment"] += 1
                return
        elif spdcid != self.peer_id:
            self._counts["rx_drop_ack_of_other_pdc"] += 1
            return
        if word & _ACK_P:
            self._counts["rx_drop_unexpected_probe_ack"] += 1
            return
        if source.acknowledges_the_future(cack) or source.acknowledges_the_future(ack_psn):
            self._counts["rx_drop_ack_of_unsent"] += 1
            return
        end = at + headers.ACK.size
        bitmap = 0
        if kind != _PLAIN_ACK:
            end = at + (headers.ACK_CCX if kind == _ACK_CCX else _ACK).size
            if len(packet) < end:
                self._counts["rx_drop_truncated"] += 1
                return
            *_, cc, sack_offset, bitmap, _, _, _ = _ACK.unpack_from(packet, at)
        code = _OK
        if word & _NEXT_HEADER:
            if len(packet) < end + headers.SES_RESPONSE.size:
                self._counts["rx_drop_truncated"] += 1
                return
            code = packet[end + 1] & _RETURN_CODE
        if not self.peer_id:
            self.peer_id = spdcid
            if self.state is State.CREATING:
                self.state = State.ESTABLISHED
        if kind != _PLAIN_ACK:
            source.on_range(cc & _MPR, cack, MPR_UNIT)
        source.on_ack(ack_psn=ack_psn, cack=cack, code=code, now=now)
        if bitmap:
            source.on_sack((cack + sack_offset) & MASK, bitmap, now)
        if self.initiator:
            if word & _ACK_REQ:
                if word & _ACK_REQ == _ACK_REQ_CLOSE:
                    self.quiesce()
                elif word & _ACK_REQ == _ACK_REQ_CLEAR:
                    self._clear.ask(ack_psn)
            self._clear.consider(now)
        if self.state is State.CLOSING and source.idle:
            self._closed()

    # -- what a NACK does ---------------------------------------------------------------------

    def on_nack(self, packet: memoryview, at: int, now: int) -> None:
        """Each code with its required reaction (UES Tables 3-58 to 3-61)."""
        word, psn, spdcid, _, _ = headers.NACK.unpack_from(packet, at)
        if spdcid and self.peer_id and spdcid != self.peer_id:
            self._counts["rx_drop_nack_of_other_pdc"] += 1
            return
        if not self.source.window.is_open(psn):
            self._counts["rx_nacks_of_settled_psn"] += 1
            return
        try:
            code = NackCode(word >> 8 & 0xFF)
        except ValueError:
            self._counts["rx_nacks_of_unknown_code"] += 1
            return
        if code in _LEFT_TO_TIMER:
            return
        if code.error_class is ErrorClass.PDC_FATAL:
            closing = self.state is State.CLOSING or not self.initiator
            if closing and code is NackCode.INV_DPDCID:
                self._closed()  # the other end has closed; only its ACK or CLOSE was lost
            else:
                self.fail(code.name, now, tell=code not in _TARGET_IS_GONE)
            return
        if code is NackCode.PKT_NOT_RCVD:
            self.source.window.withdraw(psn)
        self.source.on_nack(psn, now, wait=code not in _AT_ONCE)
        if self.source.gave_up:
            self.fail(self.source.gave_up, now)
        else:
            self._clear.consider(now)

    # -- what a request does ------------------------------------------------------------------

    def on_request(
        self,
        flags: int,
        clear_offset: int,
        psn: int,
        packet: memoryview,
        ses_at: int,
        entropy: int,
        marked: bool,
    ) -> None:
        """A request for this PDC, ids already checked (UES 3.5.12)."""
        resent = flags & _REQ_RETX
        answer, nack = self.destination.on_request(
            psn,
            (psn + clear_offset) & MASK,
            flags & _REQ_AR,
            resent,
            flags & _REQ_SYN,
            marked,
            packet,
            ses_at,
        )
        if answer is not None:
            self._ack(psn, answer, resent, entropy, marked)
        elif nack:
            self.nack(nack, psn, resent, entropy, marked)

    def _ack(self, psn: int, answer: bytes, resent: int, entropy: int, marked: bool) -> None:
        destination = self.destination
        window = destination.window
        cack = (window.base - 1) & MASK
        word = _ACK_WORD
        if answer:
            word |= _CARRIES_RESPONSE
        if marked:
            word |= _ACK_M
        if resent:
            word |= _ACK_RETX
        if destination.stored and psn in destination.stored:
            word |= _ACK_REQ_CLEAR
        sack_base, bitmap = destination.sack()
        ack = _ACK.pack(
            word,
            ((psn - cack + 0x8000) & MASK) - 0x8000,
            cack,
            self.id,
            self.peer_id,
            self._mpr,  # cc_type NSCC and no flags above it
            ((sack_base - cack + 0x8000) & MASK) - 0x8000,
            bitmap,
            SERVICE_TIME_INVALID,  # answered in the same instant, nothing to take off
            -(-destination.received_octets // BYTE_COUNT_UNIT) & 0xFF_FFFF,
            min(window.out_of_order, 0xFFFE),
        )
        self._counts["tx_acks"] += 1
        self._around.control.append(self._wrap(self._control_class, entropy, ack + answer))

    def nack(self, code: int, psn: int, resent: int, entropy: int, marked: bool) -> None:
        """Refuse a packet; a NACK echoes RETX, CE and the entropy of what it refuses."""
        self._counts["tx_nacks"] += 1
        self._around.control.append(
            self._wrap(
                self._control_class,
                entropy,
                nack_packet(code, psn, self.id, self.peer_id, resent=bool(resent), marked=marked),
            )
        )

    # -- what control packets do --------------------------------------------------------------

    def on_control(
        self, kind: int, flags: int, psn: int, payload: int, entropy: int, marked: bool, now: int
    ) -> None:
        """A control packet for this PDC, ids already checked (UES 3.5.16)."""
        destination = self.destination
        resent = flags & ControlFlag.RETX
        if kind == ControlType.CLEAR_CMD:
            destination.on_clear(payload)
        elif kind == ControlType.CLEAR_REQ and self.initiator:
            self._clear.force(now)
        elif kind == ControlType.ACK_REQ:
            answer, nack = destination.answer_to_ack_request(psn, payload & 0xFFFF, self._job_id)
            if nack:
                self.nack(nack, psn, resent, entropy, marked)
            elif answer is not None:
                self._ack(psn, answer, resent, entropy, marked)
        elif kind == ControlType.CLOSE_CMD and not self.initiator:
            # Everything the source has sent is answered by now, hence cleared (UES 3.5.16.4).
            destination.on_clear((psn - 1) & MASK)
            if not destination.accept_control(psn):
                self.nack(NackCode.PSN_OOR_WINDOW, psn, resent, entropy, marked)
                return
            self._ack(psn, b"", resent, entropy, marked)
            self.closed_by = psn
            self._closed()
        elif kind == ControlType.NOOP or (kind == ControlType.CLOSE_REQ and self.initiator):
            if not destination.accept_control(psn):
                self.nack(NackCode.PSN_OOR_WINDOW, psn, resent, entropy, marked)
                return
            if flags & (ControlFlag.AR | ControlFlag.SYN | ControlFlag.RETX):
                self._ack(psn, b"", resent, entropy, marked)
            if kind == ControlType.CLOSE_REQ:
                self.quiesce()
        else:
            self.nack(NackCode.UNEXP_EVENT, psn, resent, entropy, marked)

    # -- how it closes ------------------------------------------------------------------------

    @property
    def takes_messages(self) -> bool:
        """No new message is put on a PDC whose close has begun (UES 3.5.8.3)."""
        return self.state in (State.CREATING, State.ESTABLISHED)

    def quiesce(self) -> None:
        """Close once everything posted is answered."""
        if self.takes_messages:
            if self.state is State.CREATING and self.source.idle:
                self._closed()  # the target has never heard of it
            else:
                self.state = State.QUIESCE

    @property
    def asked_to_close(self) -> bool:
        return self._close_due is not None

    def ask_to_close(self, now: int) -> Frame:
        """A target wants the initiator to close: CLOSE_REQ, and time to obey (UES 3.5.16)."""
        self._close_due = now + self._close_req_time
        self._octets_when_asked = self.destination.received_octets
        return self.source.send_close(now)

    def _close_is_missing(self, now: int) -> None:
        """Close_REQ_Time is over; an initiator that still sends what it had queued gets more."""
        octets = self.destination.received_octets
        if octets == self._octets_when_asked:
            self.fail("CLOSE_REQ_TIMEOUT", now)
        else:
            self._close_due = now + self._close_req_time
            self._octets_when_asked = octets

    def fail(self, error: str, now: int, *, tell: bool = True) -> None:
        """Beyond repair: every unfinished message fails with ``error``.

        An initiator still sends a CLOSE if the target can be expected to have the PDC, so that
        it need not keep it (UES 3.5.8, closing in error).
        """
        if self.state is State.CLOSING:
            self._counts["pdcs_closed_unanswered"] += 1
            tell = False
        else:
            self._counts["pdc_errors"] += 1
        self.source.abandon(error, now)
        self._clear.due = None
        if tell and self.initiator and self.peer_id:
            self.state = State.QUIESCE  # nothing is left to wait for
        else:
            self._closed()

    def _closed(self) -> None:
        if self.state is not State.CLOSED:
            self.state = State.CLOSED
            self._around.pdc_closed(self)


_NEXT_HEADER = _ACK.mask("next_hdr")
_MPR = _ACK.mask("mpr")
_RETURN_CODE = headers.SES_RESPONSE.mask("return_code")
