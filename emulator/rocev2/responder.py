"""The answering side of a reliable connection (IBA 9.7.4, 9.7.5).

Requests are carried out in the order of their PSNs.  Answers leave in the same order: an ACK of a
WRITE cannot overtake the data of an earlier READ.  Acknowledgements that wait are one: the newest.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emulator.rocev2 import headers
from emulator.rocev2.codes import (
    ACK_UNLIMITED,
    MAX_MESSAGE,
    PSN_MASK,
    SHAPES,
    Operation,
    Service,
    Syndrome,
)
from emulator.rocev2.inbound import Inbound
from emulator.rocev2.psn import unwrap
from emulator.rocev2.selective_repeat import Early
from uet.transport import Frame

if TYPE_CHECKING:
    from emulator.rocev2.queue_pair import QueuePair

_O = Operation
_MSN_SHIFT = headers.AETH.shift("syndrome")
_ATOMICS = frozenset({_O.COMPARE_SWAP, _O.FETCH_ADD})
_OPCODE_SHIFT = headers.BTH.shift("opcode")
_MIGREQ = headers.BTH.mask("migreq")
_ATOMIC_OCTETS = 8
_UINT64 = (1 << 64) - 1
_INVALID = int(Syndrome.NAK_INVALID_REQUEST)
_ACCESS = int(Syndrome.NAK_REMOTE_ACCESS_ERROR)
_NOTHING = memoryview(b"")


@dataclass(slots=True)
class _Answer:
    """An ACK, NAK or atomic acknowledge: one packet."""

    psn: int
    aeth: int
    original: int | None = None


@dataclass(slots=True)
class _ReadJob:
    """Responses of a READ, from PSN ``psn`` up to ``end``, that are still to be sent."""

    psn: int
    first: int
    end: int
    data: memoryview
    msn: int


@dataclass(slots=True)
class _Executed:
    """What is kept of a READ or atomic for its repetition."""

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
        self._answers: deque[_Answer | _ReadJob] = deque()
        self._reads_waiting = 0
        self._executed: deque[_Executed] = deque(maxlen=config.max_dest_rd_atomic)
        self._early: Early | None = None
        if config.recovery == "selective_repeat":
            self._early = Early(config.reorder_window, config.reorder_tolerance)
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
        for missing in early.filled(psn):
            self._nak(Syndrome.NAK_SEQUENCE_ERROR, missing)
        packet = operation, asks, bytes(frame[extensions_at:end]), at - extensions_at
        if not early.keep(self.expected, psn, packet):
            self._counts["rx_drop_beyond_window"] += 1
            return
        for missing in early.lost(self.expected):
            self._nak(Syndrome.NAK_SEQUENCE_ERROR, missing)

    def _continue(self, early: Early, filled: int) -> None:
        """A gap has been filled: carry out what came early behind it."""
        for missing in early.filled(filled):
            self._nak(Syndrome.NAK_SEQUENCE_ERROR, missing)
        while self._qp.receives:
            kept = early.pop(self.expected)
            if kept is None:
                break
            operation, asks, octets, at = kept
            before = self.expected
            self._execute(operation, asks, memoryview(octets), 0, at, len(octets))
            if self.expected == before:
                break  # refused for now: it comes again
        for missing in early.lost(self.expected):
            self._nak(Syndrome.NAK_SEQUENCE_ERROR, missing)

    def _execute(
        self, operation: int, asks: bool, frame: memoryview, extensions_at: int, at: int, end: int
    ) -> None:
        """The request that is expected."""
        shape = SHAPES.get(operation)
        if shape is not None:
            refused = self._inbound.take(shape, frame, extensions_at, at, end)
            if refused is not None:
                self._refuse(refused)
                return
            if shape.ends:
                self.msn += 1
            psn = self.expected
            self.expected = psn + 1
            if asks:
                self._ack(psn)
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
            or self._reads_waiting >= self._host.config.max_dest_rd_atomic
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

    def _reach(self, key: int, address: int, length: int) -> memoryview | None:
        if not length:
            return _NOTHING
        return self._host.memory.reach(key, address, length, read=True)

    def _answer_read(self, first: int, end: int, data: memoryview) -> None:
        self._answers.append(_ReadJob(first, first, end, data, self.msn))
        self._reads_waiting += 1
        self._host.activate(self._qp)

    def _atomic(self, operation: int, frame: memoryview, extensions_at: int) -> None:
        address, key, operand, compare = headers.ATOMIC_ETH.unpack_from(frame, extensions_at)
        if "atomic" not in self._host.config.remote_access or address % _ATOMIC_OCTETS:
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
        self._answer(_Answer(psn, self._aeth(ACK_UNLIMITED), original))

    # -- repetitions ---------------------------------------------------------------------------

    def _repeat(self, operation: int, psn: int, frame: memoryview, extensions_at: int) -> None:
        """A request that has been carried out already."""
        if operation in SHAPES:
            self._ack(self.expected - 1)
            return
        known = next((e for e in self._executed if e.first <= psn < e.end), None)
        if known is None:
            self._counts["rx_drop_forgotten_duplicate"] += 1
        elif operation in _ATOMICS and known.original is not None:
            self._forget_answers(psn)
            self._answer(_Answer(psn, self._aeth(ACK_UNLIMITED), known.original))
        elif operation == _O.READ_REQUEST and known.original is None:
            address, key, length = headers.RETH.unpack_from(frame, extensions_at)
            end = psn + max(1, -(-length // self._mtu))
            data = self._reach(key, address, length)
            skipped = (psn - known.first) * self._mtu
            if data is None or end > known.end or address != known.address + skipped:
                self._counts["rx_drop_other_duplicate"] += 1
                return
            self._forget_answers(psn)
            self._answer_read(psn, end, data)
        else:
            self._counts["rx_drop_other_duplicate"] += 1

    def _forget_answers(self, psn: int) -> None:
        """The requester has gone back to ``psn`` and will ask for all behind it again."""
        kept: deque[_Answer | _ReadJob] = deque()
        for answer in self._answers:
            if isinstance(answer, _ReadJob):
                answer.end = min(answer.end, psn)
                if answer.psn >= answer.end:
                    self._reads_waiting -= 1
                    continue
            elif answer.psn >= psn:
                continue
            kept.append(answer)
        self._answers = kept

    # -- answers -------------------------------------------------------------------------------

    def _aeth(self, syndrome: int) -> int:
        return syndrome << _MSN_SHIFT | self.msn & PSN_MASK

    def _ack(self, psn: int) -> None:
        """Acknowledge everything up to ``psn``; one that waits already does that as well."""
        answers = self._answers
        aeth = ACK_UNLIMITED << _MSN_SHIFT | self.msn & PSN_MASK
        if answers:
            last = answers[-1]
            if isinstance(last, _Answer) and last.original is None and (
                last.aeth >> _MSN_SHIFT == ACK_UNLIMITED
            ):  # fmt: skip
                last.psn, last.aeth = psn, aeth
                return
        answers.append(_Answer(psn, aeth))
        self._host.answers(self._qp)

    def _answer(self, answer: _Answer) -> None:
        self._answers.append(answer)
        self._host.answers(self._qp)

    def _nak(self, syndrome: int, psn: int) -> None:
        self._counts["tx_naks"] += 1
        self._answer(_Answer(psn, self._aeth(syndrome)))

    def _refuse(self, syndrome: int) -> None:
        """The expected request cannot be carried out: not yet, or never."""
        if syndrome == Syndrome.RNR_NAK:
            self._counts["tx_naks_rnr"] += 1
            self._nak_sent = True  # what is behind it will come again as well
            self._nak(Syndrome.RNR_NAK | self._host.config.min_rnr_timer, self.expected)
            return
        self._nak(syndrome, self.expected)
        self._counts["qp_errors"] += 1
        self._qp.fail()

    @property
    def reading(self) -> bool:
        """There are responses to READs to send."""
        return self._reads_waiting > 0

    def transmit_answers(self, out: list[Frame]) -> None:
        """Everything that is not behind a READ's data."""
        answers, make, traffic_class = self._answers, self._qp.frames.frame, self._qp.ack_class
        while answers and isinstance(answer := answers[0], _Answer):
            answers.popleft()
            extensions = answer.aeth.to_bytes(headers.AETH.size, "big")
            word = self._ack_word
            if answer.original is not None:
                word = self._atomic_word
                extensions += headers.ATOMIC_ACK_ETH.pack(answer.original)
            elif answer.aeth >> _MSN_SHIFT == ACK_UNLIMITED:
                self._counts["tx_acks"] += 1
            out.append(make(traffic_class, word, answer.psn & PSN_MASK, extensions))

    def transmit_reads(self, out: list[Frame], now: int, limit: int) -> None:
        """Data of READs, and the answers behind it, until ``out`` has ``limit`` frames."""
        pacer = self._qp.pacer
        mtu, make, traffic_class = self._mtu, self._qp.frames.frame, self._qp.data_class
        self.transmit_answers(out)
        while self._answers:
            job = self._answers[0]
            assert isinstance(job, _ReadJob)
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
            self._answers.popleft()
            self._reads_waiting -= 1
            self.transmit_answers(out)

    def stop(self) -> None:
        """Carry out nothing more; what is to be answered still is, READs aside."""
        self._inbound.abandon("WR_FLUSH_ERR")
        self._answers = deque(a for a in self._answers if isinstance(a, _Answer))
        self._reads_waiting = 0
