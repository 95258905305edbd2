"""The destination half of a PDC: requests arrive, acknowledgements leave.

In order: the packet that arrives, what is kept, what a request does, when an ACK is owed, what it
carries, what CLEAR does (UES 3.5.11, 3.5.12, 3.5.20, 3.5.21).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from uet.pds.semantics import ACCEPTED, LATER, NO_ROOM, Answer, Response
from uet.pds.window import HALF, MASK, NO_PSNS, SACK_BITS, PsnArrival, ReceiveWindow
from uet.peer import Peer
from uet.wire import headers
from uet.wire.codes import (
    MPR_UNIT,
    NackCode,
    NextHeader,
    RequestFlag,
    ResponseOpcode,
    ReturnCode,
)

if TYPE_CHECKING:
    from uet.pds.pdc import Pdc

#: (PDC, PSN, next header, UET packet, offset of the SES header) -> what SES answers.
Deliver = Callable[["Pdc", int, int, memoryview, int], Answer]
_RESPONSE: Final = headers.SES_RESPONSE
_pack_response: Final = _RESPONSE.pack
_RESPONSE_NEXT: Final = int(NextHeader.RESPONSE)
_DEFAULT: Final = ResponseOpcode.DEFAULT_RESPONSE << _RESPONSE.shift("opcode")
_DEFAULT_OK: Final = _DEFAULT | ReturnCode.OK
_DEFAULT_NULL: Final = _DEFAULT | ReturnCode.NULL
_MESSAGE_ID_AT: Final = headers.SES_STD_SOM.field("message_id").offset // 8
_GENERATION_AT: Final = headers.SES_STD_SOM.field("ri_generation").offset // 8  # JobID behind it
_LENGTH_AT: Final = headers.SES_STD_SOM.field("request_length").offset // 8
_MODIFIED_AT: Final = headers.SES_RESPONSE_DATA.field("modified_length").offset // 8
_JOB_ID: Final = 0xFF_FFFF  # its 24 bits, without the generation in front
_STANDARD: Final = int(NextHeader.REQUEST_STD)
_DATA: Final = int(NextHeader.RESPONSE_DATA)
#: Headers whose bits 16 to 31 are a message id.
_WITH_ID: Final = frozenset({_STANDARD, _DATA})
#: On an ordered PDC a packet is lost when one that was sent so many later is here.
_OVERTAKEN: Final = 5
# Plain numbers: arithmetic on enum members is slow, and this is the data path.
_SYN: Final = int(RequestFlag.SYN)
_RETX: Final = int(RequestFlag.RETX)
_AR: Final = int(RequestFlag.AR)
#: Flags of requests that are acknowledged at once.
_ANSWERED: Final = _SYN | _RETX | _AR
_TINY: Final = 12  # octets that every SES header has at least
_SES_SIZE: Final = headers.SES_STD_SOM.size


class Reception:
    """The fields of the packet that an endpoint receives now.

    One object serves an endpoint: it is filled anew for each packet, so that nothing is allocated
    and fields cannot be confused as ten positional arguments can.  What is kept of a packet for
    later is copied out of it.
    """

    __slots__ = (
        "at",
        "clear_psn",
        "dpdcid",
        "entropy",
        "kind",
        "marked",
        "next_header",
        "now",
        "packet",
        "peer",
        "psn",
        "sdi",
        "ses_at",
        "spdcid",
        "word",
    )

    #: the packet, decrypted if it was secured
    packet: memoryview
    #: where its PDS header begins, and where its SES header does
    at: int
    ses_at: int
    #: the PDS type (UES Table 3-31)
    kind: int
    peer: Peer
    #: the secure domain, ``None`` in clear
    sdi: int | None
    entropy: int
    #: whether a switch has marked it (ECN CE)
    marked: bool
    #: the time of arrival (ns)
    now: int
    #: the first word of the PDS header, with its flags
    word: int
    psn: int
    clear_psn: int
    spdcid: int
    #: with SYN: PDC info and PSN offset
    dpdcid: int
    next_header: int


def default_response(message_id: int, job_id: int, *, word: int = _DEFAULT_OK) -> bytes:
    """Return the response of PDS where SES gives none: success (UES 3.5.17)."""
    return _pack_response(word, message_id, job_id, 0)


class Arrived:
    """A request that waits for its turn, or for SES to answer it."""

    __slots__ = (
        "at",
        "entropy",
        "marked",
        "next_header",
        "packet",
        "resent",
        "ses_at",
        "syn",
        "wants_ack",
    )

    def __init__(self, reception: Reception) -> None:
        word = reception.word
        self.packet = reception.packet
        self.at = reception.at
        self.ses_at = reception.ses_at
        self.next_header = reception.next_header
        self.wants_ack = word & _AR
        self.resent = word & _RETX
        self.syn = word & _SYN
        self.entropy = reception.entropy
        self.marked = reception.marked

    def keep(self, octets: int | None = None) -> None:
        """Copy the packet, which is another one's memory, or its first ``octets``."""
        self.packet = memoryview(bytes(self.packet[:octets]))


class RequestDestination:
    """Receives the requests of one direction of a PDC, each exactly once.

    On an ordered PDC it takes them in the order of their PSNs: without ``reorder`` one that is
    early is refused (UES 3.5.21), with it kept.
    """

    def __init__(self, pdc: Pdc, deliver: Deliver) -> None:
        config = pdc.config
        self._writer = pdc.writer
        self._overhead = pdc.writer.nominal_overhead
        self._ordered = pdc.ordered
        self._reorder = config.rod_reorder
        self._infers = config.infer_loss
        self._pdc = pdc
        self._deliver = deliver
        self._trigger = config.ack_gen_trigger
        self._min_add = config.ack_gen_min_pkt_add
        self._ack_on_ecn = config.ack_on_ecn
        self._drop_network_duplicates = config.drop_network_duplicates
        self._lengths_in_default = config.compatibility.modified_length_in_default_response
        self._silent_below_cack = config.compatibility.ack_req_below_cack_is_ignored
        null = config.compatibility.null_response_to_duplicate
        self._to_duplicates = _DEFAULT_NULL if null else _DEFAULT_OK
        self._counters = pdc.counts
        self._range = config.mpr * MPR_UNIT
        self.restart(pdc.identity.start_psn)

    def restart(self, start_psn: int) -> None:
        """Begin at ``start_psn``, with nothing received."""
        self.window = ReceiveWindow(start_psn, self._range)
        self.received_octets = 0  # nominal size of new data (UES 3.6.12)
        #: guaranteed-delivery responses not cleared, by PSN
        self.stored: dict[int, Response] = {}
        #: requests that SES has not answered yet, by PSN
        self.busy: dict[int, Arrived] = {}
        self.early: dict[int, Arrived] = {}  # on an ordered PDC: kept until its turn
        self._asked = NO_PSNS  # what was not answered the first time
        self._judged = start_psn  # those before it have arrived, or were requested once more
        self._seen = (0, 0)  # octets received and since when no more
        self._owed = 0
        self._newest_ar = (start_psn - 1) & MASK
        self._sack_base = (start_psn - 1) & MASK

    # -- requests ----------------------------------------------------------------------------

    def on_request(self, reception: Reception) -> None:
        """Take a request and answer it, now or later."""
        psn, word = reception.psn, reception.word
        resent = word & _RETX
        window = self.window
        ahead = (psn - window.base) & MASK
        if ahead >= window.size or window.received >> ahead & 1:
            if window.classify(psn) is PsnArrival.OUTSIDE:
                code = NackCode.INVALID_SYN if word & _SYN else NackCode.PSN_OOR_WINDOW
                self._writer.nack(code, psn, resent, reception.entropy, reception.marked)
                return
            self._again(reception)
            return
        if not resent and ((psn - window.highest) & MASK) >= HALF:
            self._counters["rx_reordered"] += 1
        if reception.clear_psn != window.max_clear:
            self._apply_clear(reception.clear_psn)
        if self._ordered and (self.early or psn != window.first_missing):
            self._in_order(psn, Arrived(reception))
            return
        packet, ses_at, next_header = reception.packet, reception.ses_at, reception.next_header
        answer = self._deliver(self._pdc, psn, next_header, packet, ses_at)
        if answer is NO_ROOM:
            self._writer.nack(
                NackCode.NO_SES_MSG_AVAIL, psn, resent, reception.entropy, reception.marked
            )
            return
        wants_ack = word & _AR
        end = len(packet)
        self.received_octets += end - reception.at + self._overhead
        if ((psn - self._sack_base) & MASK) >= HALF:
            self._sack_base = psn
        if wants_ack and ((psn - self._newest_ar) & MASK) < HALF:
            self._newest_ar = psn
        payload = end - ses_at - _SES_SIZE
        self._owed += payload if payload > self._min_add else self._min_add
        if answer is ACCEPTED:
            window.accept(psn)
            if (
                word & _ANSWERED
                or self._owed >= self._trigger
                or self._newest_ar == window.highest
                or (reception.marked and self._ack_on_ecn)
            ):
                response = self._default(next_header, packet, ses_at, _DEFAULT_OK)
                self._writer.ack(
                    psn, self, response, _RESPONSE_NEXT, resent, reception.entropy, reception.marked
                )
            return
        arrived = Arrived(reception)
        if isinstance(answer, Response) and not answer.guaranteed:
            window.accept(psn)
        else:
            window.accept(psn, guaranteed=True)
        self._answer(psn, answer, arrived)

    def _answer(self, psn: int, answer: Answer, arrived: Arrived) -> None:
        """Send SES's answer to a request that the window has already."""
        if answer is LATER:
            arrived.keep(arrived.ses_at + _SES_SIZE)
            self.busy[psn] = arrived
            return
        if isinstance(answer, Response):
            octets, next_header = answer.octets, answer.next_header
            if answer.guaranteed:
                self.stored[psn] = answer
        else:
            octets = self._default(arrived.next_header, arrived.packet, arrived.ses_at, _DEFAULT_OK)
            next_header = _RESPONSE_NEXT
        self._writer.ack(
            psn, self, octets, next_header, arrived.resent, arrived.entropy, arrived.marked
        )

    def respond(self, psn: int, answer: Answer) -> None:
        """SES answers a request that it had answered LATER."""
        arrived = self.busy.pop(psn, None)
        if arrived is None:
            return
        if not (isinstance(answer, Response) and answer.guaranteed):
            self.window.release(psn)
        self._answer(psn, answer, arrived)

    def _in_order(self, psn: int, arrived: Arrived) -> None:
        """A request of an ordered PDC that is early, or that others wait for."""
        window = self.window
        expected = window.first_missing
        if psn != expected:
            if not self._reorder:
                self._writer.nack(
                    NackCode.ROD_OOO,
                    psn,
                    arrived.resent,
                    arrived.entropy,
                    arrived.marked,
                    expected,
                )
                return
            arrived.keep()
            self.early[psn] = arrived
            window.hold(psn)
            if self._infers:
                self._infer_loss(arrived.entropy)
            return
        self._in_turn(psn, arrived)

    def _in_turn(self, psn: int, turn: Arrived | None) -> None:
        """Take ``psn`` and what has waited for it; answers leave when all of them are booked."""
        window = self.window
        answers = []
        while turn is not None:
            window.drop(psn)  # until SES has taken it
            answer = self._deliver(self._pdc, psn, turn.next_header, turn.packet, turn.ses_at)
            if answer is NO_ROOM:
                self._writer.nack(
                    NackCode.NO_SES_MSG_AVAIL, psn, turn.resent, turn.entropy, turn.marked
                )
                break
            octets = len(turn.packet)
            self._count(psn, octets - turn.at, octets - turn.ses_at, turn.wants_ack)
            plain = answer is ACCEPTED or (isinstance(answer, Response) and not answer.guaranteed)
            window.hold(psn, guaranteed=not plain)
            answers.append((psn, answer, turn))
            psn = (psn + 1) & MASK
            turn = self.early.pop(psn, None)
        window.advance(psn)
        for number, answer, turn in answers:
            if (
                answer is not ACCEPTED
                or turn.wants_ack
                or turn.syn
                or turn.resent
                or self._owed >= self._trigger
                or self._newest_ar == window.highest
                or (turn.marked and self._ack_on_ecn)
            ):
                self._answer(number, answer, turn)

    def _count(self, psn: int, octets: int, ses_octets: int, wants_ack: int) -> None:
        """Book a request that SES has taken, as :meth:`on_request` does for those in turn."""
        self.received_octets += octets + self._overhead
        if ((psn - self._sack_base) & MASK) >= HALF:
            self._sack_base = psn
        if wants_ack and ((psn - self._newest_ar) & MASK) < HALF:
            self._newest_ar = psn
        payload = ses_octets - _SES_SIZE
        self._owed += payload if payload > self._min_add else self._min_add

    def _infer_loss(self, entropy: int) -> None:
        """Request packets that newer ones have overtaken, which cannot happen on one path.

        The source cannot detect the loss, since early packets are acknowledged when their turn
        comes.
        """
        window = self.window
        judged, end = self._judged, (window.highest - _OVERTAKEN) & MASK
        if ((judged - window.base) & MASK) >= HALF:
            judged = window.base
        while ((end - judged) & MASK) < HALF:
            if not window.received >> ((judged - window.base) & MASK) & 1:
                self._counters["losses_inferred"] += 1
                self._writer.nack(NackCode.RCVR_INFER_LOSS, judged, 0, entropy, False)
            judged = (judged + 1) & MASK
        self._judged = judged

    def _again(self, reception: Reception) -> None:
        """Answer a duplicate as the first time (UES 3.5.20.2)."""
        psn, resent = reception.psn, reception.word & _RETX
        entropy, marked = reception.entropy, reception.marked
        self._counters["rx_duplicates"] += 1
        if self._drop_network_duplicates and not resent:
            return
        self._apply_clear(reception.clear_psn)
        if psn in self.early:
            return  # its turn has not come
        if psn in self.busy:
            self._writer.nack(NackCode.RCVD_SES_PROCG, psn, resent, entropy, marked)
            return
        stored = self.stored.get(psn)
        if stored is None:
            octets = self._default(
                reception.next_header, reception.packet, reception.ses_at, self._to_duplicates
            )
            self._writer.ack(psn, self, octets, _RESPONSE_NEXT, resent, entropy, marked)
        else:
            self._writer.ack(psn, self, stored.octets, stored.next_header, resent, entropy, marked)

    def _default(self, next_header: int, packet: memoryview, ses_at: int, word: int) -> bytes:
        """The default response to a request (UES 3.5.17); small and medium ones have no id."""
        message_id = 0
        if next_header in _WITH_ID and len(packet) >= ses_at + _TINY:
            at = ses_at + _MESSAGE_ID_AT
            message_id = packet[at] << 8 | packet[at + 1]
        at = ses_at + _GENERATION_AT
        whose = int.from_bytes(packet[at : at + 4], "big")  # generation of the resource, JobID
        if next_header == _DATA:
            whose &= _JOB_ID
        elif word == _DEFAULT_NULL:
            whose = 0
        length = 0
        if self._lengths_in_default and word == _DEFAULT_OK:
            at = ses_at + (_MODIFIED_AT if next_header == _DATA else _LENGTH_AT)
            length = int.from_bytes(packet[at : at + 4], "big")
        return _pack_response(word, message_id, whose, length)

    def answer_ack_request(
        self, psn: int, message_id: int, job_id: int, resent: int, entropy: int, marked: bool
    ) -> None:
        """ACK_REQ: outside the window silence, unseen a NACK, else the ACK again (UES 3.5.16)."""
        arrival = self.window.classify(psn)
        if arrival is PsnArrival.OUTSIDE:
            self._counters["rx_ack_request_outside_window"] += 1
        elif arrival is PsnArrival.NEW:
            self._writer.nack(NackCode.PKT_NOT_RCVD, psn, resent, entropy, marked)
        elif psn in self.busy or psn in self.early:
            self._writer.nack(NackCode.RCVD_SES_PROCG, psn, resent, entropy, marked)
        elif self._silent_below_cack and self._is_first_ask(psn):
            self._counters["rx_ack_request_outside_window"] += 1
        else:
            stored = self.stored.get(psn)
            if stored is not None:
                self._writer.ack(
                    psn, self, stored.octets, stored.next_header, resent, entropy, marked
                )
            else:
                octets = default_response(message_id, job_id, word=self._to_duplicates)
                self._writer.ack(psn, self, octets, _RESPONSE_NEXT, resent, entropy, marked)

    def _is_first_ask(self, psn: int) -> bool:
        """Return whether ``psn`` lies below CACK and is probed for the first time.

        An ACK that covers it has left already; a second probe of it means that this ACK was lost.
        """
        if ((psn - self.window.base) & MASK) < HALF or psn in self._asked:
            return False
        if self._asked is NO_PSNS or len(self._asked) >= self.window.size:
            self._asked = set()
        self._asked.add(psn)
        return True

    def accept_control(self, psn: int) -> NackCode | None:
        """A control packet that takes a PSN (CLOSE_REQ, NOOP, NEGOTIATION).

        Why it cannot be, where the window or, on an ordered PDC, the order does not allow it.
        """
        window = self.window
        arrival = window.classify(psn)
        if arrival is PsnArrival.OUTSIDE:
            return NackCode.PSN_OOR_WINDOW
        if arrival is PsnArrival.NEW:
            if self._ordered and psn != window.first_missing:
                return NackCode.ROD_OOO
            if self.early:
                window.hold(psn)
                psn = (psn + 1) & MASK
                self._in_turn(psn, self.early.pop(psn, None))
            else:
                window.accept(psn)
        return None

    def accept_close(self, psn: int) -> bool:
        """CLOSE; false for one that cannot be of this PDC.

        It waits for nothing: an initiator that sends it while something is missing here has given
        that up.
        """
        window = self.window
        if psn == window.first_missing:
            window.accept(psn)
        return psn == (window.base + window.size) & MASK or (
            window.classify(psn) is not PsnArrival.OUTSIDE
        )

    def quiet_since(self, now: int) -> int:
        """Return since when nothing new has arrived, as far as probing sources could see (ns)."""
        if self.received_octets != self._seen[0]:
            self._seen = (self.received_octets, now)
        return self._seen[1]

    # -- acknowledgements --------------------------------------------------------------------

    def acknowledged(self) -> None:
        """An ACK leaves: what was owed is paid."""
        self._owed = 0

    def sack(self, requested: int | None = None) -> tuple[int, int]:
        """(SACK base PSN, bitmap) for the ACK about to leave.

        Consecutive ACKs walk the window in blocks of 64 PSNs and start again at CACK; a probe names
        the base of the SACK.
        """
        window = self.window
        if requested is not None:
            return requested, window.sack(requested)
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
        for unanswered in self.busy:  # nobody can have a response that there is not
            if ((psn - unanswered) & MASK) < self.window.size:
                psn = (unanswered - 1) & MASK
        stored = self.stored
        news = (psn - self.window.max_clear) & MASK
        if not self.window.clear(psn) or not stored:
            return
        if news < len(stored):  # a few at a time, of however many
            cleared = [(psn - ahead) & MASK for ahead in range(news)]
        else:
            cleared = [p for p in stored if ((psn - p) & MASK) < HALF]
        for number in cleared:
            response = stored.pop(number, None)
            if response is not None and response.known is not None:
                response.known()

    def on_clear(self, psn: int) -> None:
        """A CLEAR control packet."""
        self._apply_clear(psn)
