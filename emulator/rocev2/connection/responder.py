"""The answering side of a reliable connection (IBA 9.7.4, 9.7.5).

In order: the answers that leave, the packets that came early, the responder.  Requests are carried
out in the order of their PSNs; answers leave in the same order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from emulator.rocev2.connection.inbound import Inbound
from emulator.rocev2.connection.work import FLUSHED
from emulator.rocev2.wire import headers
from emulator.rocev2.wire.codes import (
    ACK_UNLIMITED,
    MAX_MESSAGE,
    PSN_MASK,
    SHAPES,
    BthOperation,
    Service,
    Syndrome,
    unwrap,
)
from uet.transport import Frame

if TYPE_CHECKING:
    from emulator.rocev2.connection.queue_pair import QueuePair

_O: Final = BthOperation
_AETH_OCTETS: Final = headers.AETH.size
_MSN_SHIFT: Final = headers.AETH.shift("syndrome")
_OPCODE_SHIFT: Final = headers.BTH.shift("opcode")
_MIGREQ: Final = headers.BTH.mask("migreq")
#: Answers that may wait behind the data of a READ, all a selectively repeating responder's window
#: can draw; one more is as if it had got lost.
_MOST_WAITING: Final = 4_096


@dataclass(slots=True)
class ResponderAnswer:
    """An ACK, NAK or atomic acknowledge: one packet; ``again`` if it has left before."""

    psn: int
    aeth: int
    original: int | None = None
    again: bool = False


class ReadJob:
    """Responses of a READ, from PSN ``psn`` up to ``end``, that are still to be sent.

    ``again`` if all of them have left before.
    """

    __slots__ = ("again", "data", "end", "first", "msn", "psn")

    def __init__(
        self, psn: int, first: int, end: int, data: memoryview, msn: int, again: bool = False
    ) -> None:
        self.psn = psn
        self.first = first
        self.end = end
        self.data = data
        self.msn = msn
        self.again = again


def _is_atomic(answer: ResponderAnswer | ReadJob) -> bool:
    return isinstance(answer, ResponderAnswer) and answer.original is not None


class Answers:
    """The answers of one queue pair, in the order of the requests.

    So the ACK of a WRITE cannot overtake the data of an earlier READ.  Acknowledgements that wait
    one behind the other are one: the newest.
    """

    def __init__(self, qp: QueuePair) -> None:
        config = qp.host.config
        self._qp = qp
        self._counts = qp.host.counts
        self._mtu = config.mtu
        self._queue: deque[ResponderAnswer | ReadJob] = deque()
        #: READs that are not answered to their end
        self.reads = 0
        #: READs and atomics that have never been answered to their end: what the requester must
        #: have outstanding, whatever it or the network has repeated besides
        self.owed = 0
        self._repeated = 0  # READs to be answered once more
        base = int(Service.RC) << _OPCODE_SHIFT | (_MIGREQ if config.migreq else 0)
        self._ack_word = base | _O.ACKNOWLEDGE << _OPCODE_SHIFT
        self._atomic_word = base | _O.ATOMIC_ACKNOWLEDGE << _OPCODE_SHIFT
        self._read_words = tuple(
            base | operation << _OPCODE_SHIFT
            for operation in (
                _O.READ_RESPONSE_ONLY,
                _O.READ_RESPONSE_FIRST,
                _O.READ_RESPONSE_MIDDLE,
                _O.READ_RESPONSE_LAST,
            )
        )

    def acknowledge(self, psn: int, msn: int) -> None:
        """Acknowledge everything up to ``psn``; one that waits already does that as well."""
        answers = self._queue
        aeth = ACK_UNLIMITED << _MSN_SHIFT | msn & PSN_MASK
        if answers:
            last = answers[-1]
            if isinstance(last, ResponderAnswer) and last.original is None and (
                last.aeth >> _MSN_SHIFT == ACK_UNLIMITED
            ):  # fmt: skip
                last.psn, last.aeth = psn, aeth
                return
        self.add(ResponderAnswer(psn, aeth))

    def add(self, answer: ResponderAnswer) -> None:
        if answer.original is not None:
            self.owed += 1
        elif len(self._queue) >= _MOST_WAITING:
            self._counts["tx_drop_answers"] += 1
            return
        self._queue.append(answer)
        self._qp.host.answers(self._qp)

    def read(self, first: int, end: int, data: memoryview, msn: int) -> None:
        """Send ``data`` with the PSNs from ``first`` up to ``end``."""
        self._queue.append(ReadJob(first, first, end, data, msn))
        self.reads += 1
        self.owed += 1
        self._qp.host.activate(self._qp)

    def repeat(self, again: ResponderAnswer | ReadJob, limit: int) -> bool:
        """Answer once more, before all that belongs behind it.

        False if ``limit`` READs wait to be answered once more already.
        """
        queue = self._queue
        for place, waiting in enumerate(queue):
            if isinstance(again, ReadJob) and isinstance(waiting, ReadJob):
                if waiting.first <= again.first < waiting.end:
                    again.again = waiting.again
                    queue[place] = again
                    return True
            elif _is_atomic(waiting) and _is_atomic(again) and waiting.psn == again.psn:
                return True  # it has not left yet
            if waiting.psn >= again.psn:
                break
        else:
            place = len(queue)
        again.again = True
        if isinstance(again, ReadJob):
            if self._repeated >= limit:
                return False
            self._repeated += 1
            self.reads += 1
        queue.insert(place, again)
        self._qp.host.answers(self._qp)
        self._qp.host.activate(self._qp)
        return True

    def forget_reads(self) -> None:
        """Send no more data; acknowledgements still leave."""
        self._queue = deque(answer for answer in self._queue if isinstance(answer, ResponderAnswer))
        self.reads = self._repeated = 0
        self.owed = sum(_is_atomic(answer) and not answer.again for answer in self._queue)

    def transmit(self, out: list[Frame]) -> None:
        """Everything that is not behind a READ's data."""
        answers, make, traffic_class = self._queue, self._qp.frames.frame, self._qp.ack_class
        while answers and isinstance(answer := answers[0], ResponderAnswer):
            answers.popleft()
            extensions = answer.aeth.to_bytes(_AETH_OCTETS, "big")
            word = self._ack_word
            if answer.original is not None:
                if not answer.again:
                    self.owed -= 1
                word = self._atomic_word
                extensions += headers.ATOMIC_ACK_ETH.pack(answer.original)
            elif answer.aeth >> _MSN_SHIFT == ACK_UNLIMITED:
                self._counts["tx_acks"] += 1
            out.append(make(traffic_class, word, answer.psn & PSN_MASK, extensions))

    def transmit_reads(self, out: list[Frame], now: int, limit: int) -> None:
        """Data of READs, and the answers behind it, until ``out`` has ``limit`` frames."""
        pacer = self._qp.pacer
        mtu, make, traffic_class = self._mtu, self._qp.frames.frame, self._qp.data_class
        self.transmit(out)
        while self._queue:
            job = self._queue[0]
            assert isinstance(job, ReadJob)
            aeth = (ACK_UNLIMITED << _MSN_SHIFT | job.msn & PSN_MASK).to_bytes(4, "big")
            while job.psn < job.end:
                if len(out) >= limit or (pacer is not None and now < pacer.next):
                    return
                psn, last = job.psn, job.end - 1
                at = (psn - job.first) * mtu
                if job.first < psn < last:
                    word, extensions = self._read_words[2], b""
                else:
                    place = 0 if job.first == last else 1 if psn == job.first else 3
                    word, extensions = self._read_words[place], aeth
                frame = make(
                    traffic_class, word, psn & PSN_MASK, extensions, job.data[at : at + mtu]
                )
                out.append(frame)
                self._counts["tx_data_packets"] += 1
                if pacer is not None:
                    pacer.sent(len(frame[0]) + len(frame[1]), now)
                job.psn = psn + 1
            self._queue.popleft()
            self.reads -= 1
            if job.again:
                self._repeated -= 1
            else:
                self.owed -= 1
            self.transmit(out)


#: Operation, whether it requests an ACK, octets from the extension headers on, payload in them;
#: and whether the payload has been placed already, and is not among them.
Kept = tuple[int, bool, bytes, int, bool]


class Early:
    """Selective repeat at the responder: packets that came early, and gaps; PSNs do not wrap here.

    Newer NICs resend single packets, in ways that their makers do not publish.  This model stays
    within the format of RC: NAK 0x60 names one missing PSN, and for both ends it means this one
    only, not all behind it.  A missing packet is named once a packet ``tolerance`` PSNs behind it
    has arrived, since paths may reorder; and again if one that was named later arrives before it,
    and then another ``tolerance`` PSNs.
    """

    __slots__ = ("_kept", "_named", "_next", "_overtaken", "_tolerance", "_window", "highest")

    def __init__(self, window: int, tolerance: int) -> None:
        self._window = window
        self._tolerance = tolerance
        self._kept: dict[int, Kept] = {}
        self._named: dict[int, None] = {}  # missing ones, in the order they were named
        self._overtaken: dict[int, int] = {}  # of these: the newest PSN when that was seen
        self._next = 0  # all below are here or named
        #: the newest PSN that has arrived early
        self.highest = -1

    def fits(self, expected: int, psn: int) -> bool:
        """Return whether a packet lies in the window."""
        return psn < expected + self._window

    def keep(self, psn: int, packet: Kept) -> None:
        """Keep a packet that fits."""
        self._kept[psn] = packet
        if psn > self.highest:
            self.highest = psn

    def lost(self, expected: int) -> list[int]:
        """The PSNs that now count as lost."""
        found = []
        end = self.highest - self._tolerance
        if self._overtaken:
            found = [psn for psn, seen in self._overtaken.items() if seen <= end]
            for psn in found:
                del self._overtaken[psn], self._named[psn]
                self._named[psn] = None
        psn = max(self._next, expected)
        while psn < end:
            if psn not in self._kept:
                found.append(psn)
                self._named[psn] = None
            psn += 1
        self._next = psn
        return found

    def filled(self, psn: int) -> None:
        """A missing packet has arrived: those named before it may have been lost again."""
        if psn not in self._named:
            return
        for named in takewhile(lambda named: named != psn, self._named):
            self._overtaken.setdefault(named, self.highest)
        del self._named[psn]
        self._overtaken.pop(psn, None)

    def skip(self, first: int, end: int) -> None:
        """A READ stood for the PSNs from ``first`` up to ``end`` too: no packet will have them."""
        for psn in range(first, min(end, self.highest + 1)):
            self._kept.pop(psn, None)
            self._named.pop(psn, None)
            self._overtaken.pop(psn, None)

    def pop(self, psn: int) -> Kept | None:
        """The packet with this PSN, if it is here."""
        return self._kept.pop(psn, None)


_ATOMICS: Final = frozenset({_O.COMPARE_SWAP, _O.FETCH_ADD})
_ATOMIC_OCTETS: Final = 8
_UINT64: Final = (1 << 64) - 1
_INVALID: Final = int(Syndrome.NAK_INVALID_REQUEST)
_ACCESS: Final = int(Syndrome.NAK_REMOTE_ACCESS_ERROR)
_NOTHING: Final = memoryview(b"")
_ONLY: Final = frozenset({_O.WRITE_ONLY, _O.WRITE_ONLY_IMM})


@dataclass(slots=True)
class _Executed:
    """The record of a READ or atomic operation for its repetition."""

    first: int
    end: int
    address: int
    original: int | None = None


class Responder:
    """Carries out the requests that arrive on one queue pair, and answers them."""

    def __init__(self, qp: QueuePair, expected_psn: int) -> None:
        config = qp.host.config
        self._qp = qp
        self._host = qp.host
        self._counts = qp.host.counts
        self._mtu = config.mtu
        self._inbound = Inbound(qp)
        self.expected = expected_psn
        self.msn = 0
        self._nak_sent = False
        self._refused = False  # a request, for good
        self._answers = Answers(qp)
        self._executed: deque[_Executed] = deque(maxlen=config.max_dest_rd_atomic)
        self._early: Early | None = None
        if config.recovery == "selective_repeat":
            self._early = Early(config.reorder_window, config.reorder_tolerance)
        self._tolerant = config.reorder_tolerance > 0
        self._direct = config.placement == "direct"

    # -- what arrives --------------------------------------------------------------------------

    def on_request(
        self,
        operation: int,
        psn24: int,
        asks: bool,
        frame: memoryview,
        extensions_at: int,
        at: int,
        end: int,
    ) -> None:
        """A request packet, whatever its PSN."""
        self._counts["rx_data_packets"] += 1
        expected = self.expected
        if psn24 == expected & PSN_MASK:
            self._nak_sent = False
            self._execute(operation, asks, frame, extensions_at, at, end)
            early = self._early
            if early is not None and early.highest >= expected:
                self._continue(early, expected)
                if asks and self._tolerant and self.expected > expected + 1:
                    # a requester that has timed out sends again where acknowledgements stop
                    self._answers.acknowledge(self.expected - 1, self.msn)
            return
        psn = unwrap(psn24, expected)
        if psn < expected:
            self._counts["rx_duplicates"] += 1
            self._repeat(operation, psn, frame, extensions_at)
        else:
            self._counts["rx_out_of_order"] += 1
            self._gap(operation, psn, asks, frame, extensions_at, at, end)

    def _gap(
        self,
        operation: int,
        psn: int,
        asks: bool,
        frame: memoryview,
        extensions_at: int,
        at: int,
        end: int,
    ) -> None:
        """Something before this packet is missing."""
        early = self._early
        if early is None:
            if not self._nak_sent:
                self._nak_sent = True
                self._nak(Syndrome.NAK_SEQUENCE_ERROR, self.expected)
            self._counts["rx_drop_out_of_order"] += 1
            return
        early.filled(psn)
        if not early.fits(self.expected, psn):
            self._counts["rx_drop_beyond_window"] += 1
            return
        placed = self._direct and operation in _ONLY and self._inbound.place(
            frame, extensions_at, at, end
        )  # fmt: skip
        octets = bytes(frame[extensions_at : at if placed else end])
        early.keep(psn, (operation, asks, octets, at - extensions_at, placed))
        for missing in early.lost(self.expected):
            self._nak(Syndrome.NAK_SEQUENCE_ERROR, missing)

    def _continue(self, early: Early, filled: int) -> None:
        """A gap has been filled: carry out what came early behind it."""
        early.filled(filled)
        early.skip(filled + 1, self.expected)
        while self._qp.receives:
            kept = early.pop(self.expected)
            if kept is None:
                break
            operation, asks, octets, at, placed = kept
            before = self.expected
            end = len(octets)
            self._execute(operation, asks, memoryview(octets), 0, at, end, placed=placed)
            if self.expected == before:
                break  # refused for now: it comes again
            early.skip(before + 1, self.expected)
        for missing in early.lost(self.expected):
            self._nak(Syndrome.NAK_SEQUENCE_ERROR, missing)

    def _execute(
        self,
        operation: int,
        asks: bool,
        frame: memoryview,
        extensions_at: int,
        at: int,
        end: int,
        *,
        placed: bool = False,
    ) -> None:
        """The request that is expected; its data may have been ``placed`` when it came early."""
        shape = SHAPES.get(operation)
        if shape is not None:
            inbound = self._inbound
            if placed:
                refused = inbound.take_placed(shape, frame)
            else:
                refused = inbound.take(shape, frame, extensions_at, at, end)
            if refused is not None:
                self._refuse(refused)
                return
            if shape.ends:
                self.msn += 1
            psn = self.expected
            self.expected = psn + 1
            if asks:
                self._answers.acknowledge(psn, self.msn)
        elif self._inbound.open or end != at:
            self._refuse(_INVALID)
        elif operation == _O.READ_REQUEST:
            self._read(frame, extensions_at)
        elif operation in _ATOMICS:
            self._atomic(operation, frame, extensions_at)
        else:
            self._refuse(_INVALID)

    # -- READ and atomics ----------------------------------------------------------------------

    def _read(self, frame: memoryview, extensions_at: int) -> None:
        address, key, length = headers.RETH.unpack_from(frame, extensions_at)
        if (
            "read" not in self._host.config.remote_access
            or length > MAX_MESSAGE
            or self._too_many_fetches
        ):
            self._refuse(_INVALID)
            return
        data = self._reach(key, address, length)
        if data is None:
            self._refuse(_ACCESS)
            return
        first = self.expected
        self.expected = first + max(1, -(-length // self._mtu))
        self.msn += 1
        self._executed.append(_Executed(first, self.expected, address))
        self._answer_read(first, self.expected, data)

    @property
    def _too_many_fetches(self) -> bool:
        """The requester has more READs and atomics outstanding than was agreed upon."""
        return self._answers.owed >= self._host.config.max_dest_rd_atomic

    def _reach(self, key: int, address: int, length: int) -> memoryview | None:
        if not length:
            return _NOTHING
        return self._host.memory.reach(key, address, length, read=True)

    def _answer_read(self, first: int, end: int, data: memoryview) -> None:
        self._answers.read(first, end, data, self.msn)

    def _atomic(self, operation: int, frame: memoryview, extensions_at: int) -> None:
        address, key, operand, compare = headers.ATOMIC_ETH.unpack_from(frame, extensions_at)
        if (
            "atomic" not in self._host.config.remote_access
            or address % _ATOMIC_OCTETS
            or self._too_many_fetches
        ):
            self._refuse(_INVALID)
            return
        target = self._host.memory.reach(key, address, _ATOMIC_OCTETS, write=True, read=True)
        if target is None:
            self._refuse(_ACCESS)
            return
        original = int.from_bytes(target, "little")
        if operation == _O.FETCH_ADD:
            target[:] = (original + operand & _UINT64).to_bytes(_ATOMIC_OCTETS, "little")
        elif original == compare:
            target[:] = operand.to_bytes(_ATOMIC_OCTETS, "little")
        psn = self.expected
        self.expected = psn + 1
        self.msn += 1
        self._executed.append(_Executed(psn, psn + 1, address, original))
        self._answers.add(ResponderAnswer(psn, self._aeth(ACK_UNLIMITED), original))

    # -- repetitions ---------------------------------------------------------------------------

    def _repeat(self, operation: int, psn: int, frame: memoryview, extensions_at: int) -> None:
        """A request that has been carried out already."""
        if operation in SHAPES:
            self._answers.acknowledge(self.expected - 1, self.msn)
            return
        known = next((e for e in self._executed if e.first <= psn < e.end), None)
        if known is None:
            self._counts["rx_drop_forgotten_duplicate"] += 1
        elif operation in _ATOMICS and known.original is not None:
            self._answers.repeat(ResponderAnswer(psn, self._aeth(ACK_UNLIMITED), known.original), 0)
        elif operation == _O.READ_REQUEST and known.original is None:
            address, key, length = headers.RETH.unpack_from(frame, extensions_at)
            end = psn + max(1, -(-length // self._mtu))
            data = self._reach(key, address, length)
            skipped = (psn - known.first) * self._mtu
            limit = self._host.config.max_dest_rd_atomic
            if (
                data is None
                or end > known.end
                or address != known.address + skipped
                or not self._answers.repeat(ReadJob(psn, psn, end, data, self.msn), limit)
            ):
                self._counts["rx_drop_other_duplicate"] += 1
        else:
            self._counts["rx_drop_other_duplicate"] += 1

    # -- answers -------------------------------------------------------------------------------

    def _aeth(self, syndrome: int) -> int:
        return syndrome << _MSN_SHIFT | self.msn & PSN_MASK

    def _nak(self, syndrome: int, psn: int) -> None:
        self._counts["tx_naks"] += 1
        self._answers.add(ResponderAnswer(psn, self._aeth(syndrome)))

    def _refuse(self, syndrome: int) -> None:
        """The expected request cannot be carried out: not yet, or never."""
        if syndrome == Syndrome.RNR_NAK:
            self._counts["tx_naks_rnr"] += 1
            self._nak_sent = True  # what is behind it will come again as well
            self._nak(Syndrome.RNR_NAK | self._host.config.min_rnr_timer, self.expected)
            return
        self._nak(syndrome, self.expected)
        self._counts["qp_errors"] += 1
        self._refused = True
        self._qp.fail()

    def withdraw(self, key: int) -> None:
        """The region has been taken away."""
        self._inbound.withdraw(key)

    def stop(self) -> None:
        """Carry out nothing more; what is to be answered still is.

        READs are if they stand before a request that was refused: that has its NAK behind their
        data, or it would take the blame for them.
        """
        self._inbound.abandon(FLUSHED)
        if not self._refused:
            self._answers.forget_reads()

    # -- what leaves ---------------------------------------------------------------------------

    @property
    def reading(self) -> bool:
        """There are responses to READs to send."""
        return self._answers.reads > 0

    def transmit_answers(self, out: list[Frame]) -> None:
        """Everything that is not behind a READ's data."""
        self._answers.transmit(out)

    def transmit_reads(self, out: list[Frame], now: int, limit: int) -> None:
        """Data of READs, and the answers behind it, until ``out`` has ``limit`` frames."""
        self._answers.transmit_reads(out, now, limit)
