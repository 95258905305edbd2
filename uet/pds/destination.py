"""The destination half of a PDC: requests arrive, acknowledgements leave.

In order: what is kept, what a request does, when an ACK is owed, what it says, what CLEAR does
(UES 3.5.11, 3.5.12, 3.5.20).
"""

from __future__ import annotations

from collections.abc import Callable

from uet.pds.psn import HALF, MASK
from uet.pds.window import SACK_BITS, Arrival, ReceiveWindow
from uet.wire import headers
from uet.wire.codes import NackCode, ResponseOpcode, ReturnCode

#: What :data:`Deliver` answers when SES has no room for a message now.
NO_ROOM = -1

#: (UET packet, offset of the SES header) -> return code, or :data:`NO_ROOM`.
Deliver = Callable[[memoryview, int], int]


def ses_response(opcode: int, code: int, packet: memoryview, ses_at: int) -> bytes:
    """The response to the request at ``ses_at`` (UES Table 3-11), modified length 0."""
    return _RESPONSE.pack(
        opcode << _OPCODE_SHIFT | code,
        packet[ses_at + _MESSAGE_ID_AT] << 8 | packet[ses_at + _MESSAGE_ID_AT + 1],
        int.from_bytes(packet[ses_at + _JOB_ID_AT : ses_at + _JOB_ID_AT + 3], "big"),
        0,
    )


def default_response(message_id: int, job_id: int) -> bytes:
    """What PDS answers when SES has nothing to say: success (UES 3.5.17)."""
    word = ResponseOpcode.DEFAULT_RESPONSE << _OPCODE_SHIFT | ReturnCode.OK
    return _RESPONSE.pack(word, message_id, job_id, 0)


_DEFAULT, _OK = int(ResponseOpcode.DEFAULT_RESPONSE), int(ReturnCode.OK)
_SES_SIZE = headers.SES_STD_SOM.size
_RESPONSE = headers.SES_RESPONSE
_OPCODE_SHIFT = _RESPONSE.shift("opcode")
_MESSAGE_ID_AT = headers.SES_STD_SOM.field("message_id").offset // 8
_JOB_ID_AT = headers.SES_STD_SOM.field("job_id").offset // 8


class RequestDestination:
    """Receives the requests of one direction of a PDC, each exactly once."""

    def __init__(
        self,
        *,
        start_psn: int,
        psn_range: int,
        overhead: int,
        ack_gen_trigger: int,
        ack_gen_min_pkt_add: int,
        ack_on_ecn: bool,
        drop_network_duplicates: bool,
        deliver: Deliver,
        counters: dict[str, int],
    ) -> None:
        self.window = ReceiveWindow(start_psn, psn_range)
        self._overhead = overhead
        self._deliver = deliver
        self.received_octets = 0  # nominal size of new data (UES 3.6.12)
        self.stored: dict[int, bytes] = {}  # guaranteed-delivery responses not cleared, by PSN
        self._trigger = ack_gen_trigger
        self._min_add = ack_gen_min_pkt_add
        self._ack_on_ecn = ack_on_ecn
        self._drop_network_duplicates = drop_network_duplicates
        self._counters = counters
        self._seen = (0, 0)  # octets received and since when no more
        self._owed = 0
        self._newest_ar = (start_psn - 1) & MASK
        self._sack_base = (start_psn - 1) & MASK

    # -- requests ----------------------------------------------------------------------------

    def on_request(
        self,
        psn: int,
        clear_psn: int,
        wants_ack: int,
        resent: int,
        syn: int,
        marked: bool,
        packet: memoryview,
        ses_at: int,
    ) -> tuple[bytes | None, int]:
        """Take a request; (SES response to acknowledge with or ``None``, NACK code or 0)."""
        window = self.window
        arrival = window.classify(psn)
        if arrival is not Arrival.NEW:
            if arrival is Arrival.OUTSIDE:
                return None, NackCode.INVALID_SYN if syn else NackCode.PSN_OOR_WINDOW
            self._counters["rx_duplicates"] += 1
            if self._drop_network_duplicates and not resent:
                return None, 0
            self._apply_clear(clear_psn)
            return self._again(psn, packet, ses_at), 0
        if clear_psn != window.max_clear:
            self._apply_clear(clear_psn)
        code = self._deliver(packet, ses_at)
        if code == NO_ROOM:
            return None, NackCode.NO_SES_MSG_AVAIL
        octets = len(packet) - ses_at
        self.received_octets += octets + self._overhead
        guaranteed = code != _OK
        if ((psn - self._sack_base) & MASK) >= HALF:
            self._sack_base = psn
        window.accept(psn, guaranteed=guaranteed)
        if wants_ack and ((psn - self._newest_ar) & MASK) < HALF:
            self._newest_ar = psn
        octets -= _SES_SIZE
        self._owed += octets if octets > self._min_add else self._min_add
        if guaranteed:
            answer = ses_response(ResponseOpcode.RESPONSE, code, packet, ses_at)
            self.stored[psn] = answer
            return answer, 0
        if (
            wants_ack
            or syn
            or resent
            or self._owed >= self._trigger
            or self._newest_ar == window.highest
            or (marked and self._ack_on_ecn)
        ):
            return ses_response(_DEFAULT, _OK, packet, ses_at), 0
        return None, 0

    def _again(self, psn: int, packet: memoryview, ses_at: int) -> bytes:
        """What a duplicate is answered with: the same as the first time (UES 3.5.20.2)."""
        stored = self.stored.get(psn)
        if stored is not None:
            return stored
        return ses_response(_DEFAULT, _OK, packet, ses_at)

    def answer_to_ack_request(
        self, psn: int, message_id: int, job_id: int
    ) -> tuple[bytes | None, int]:
        """ACK_REQ: outside the window silence, unseen a NACK, else the ACK again (UES 3.5.16)."""
        arrival = self.window.classify(psn)
        if arrival is Arrival.OUTSIDE:
            self._counters["rx_ack_request_outside_window"] += 1
            return None, 0
        if arrival is Arrival.NEW:
            return None, NackCode.PKT_NOT_RCVD
        return self.stored.get(psn) or default_response(message_id, job_id), 0

    def accept_control(self, psn: int) -> bool:
        """A control packet that takes a PSN (CLOSE, CLOSE_REQ, NOOP); false outside the window."""
        arrival = self.window.classify(psn)
        if arrival is Arrival.NEW:
            self.window.accept(psn)
        return arrival is not Arrival.OUTSIDE

    def quiet_since(self, now: int) -> int:
        """Since when nothing new has arrived, as far as those who asked could see (ns)."""
        if self.received_octets != self._seen[0]:
            self._seen = (self.received_octets, now)
        return self._seen[1]

    # -- acknowledgements --------------------------------------------------------------------

    def sack(self) -> tuple[int, int]:
        """(SACK base PSN, bitmap) for the ACK about to leave.

        Consecutive ACKs walk the window in blocks of 64 PSNs and start again at CACK.
        """
        window = self.window
        base = self._sack_base
        cack = window.cack
        if ((base - cack) & MASK) >= HALF:
            base = cack
        beyond = (window.highest - base - (SACK_BITS - 1)) & MASK
        self._sack_base = (base + SACK_BITS) & MASK if 0 < beyond < HALF else cack
        self._owed = 0
        return base, window.sack(base)

    # -- clear -------------------------------------------------------------------------------

    def _apply_clear(self, psn: int) -> None:
        if self.window.clear(psn) and self.stored:
            for kept in [p for p in self.stored if ((psn - p) & MASK) < HALF]:
                del self.stored[kept]

    def on_clear(self, psn: int) -> None:
        """A CLEAR control packet."""
        self._apply_clear(psn)
