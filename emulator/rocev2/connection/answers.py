"""The packets that a responder owes: acknowledgements and data of READs (IBA 9.7.5).

Answers leave in the order of the requests: the ACK of a WRITE cannot overtake the data of an
earlier READ.  Acknowledgements that wait one behind the other are one: the newest.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from emulator.rocev2.connection.connection_end import ConnectionEnd
from emulator.rocev2.wire import rocev2_headers as headers
from emulator.rocev2.wire.rocev2_codes import ACK_UNLIMITED, PSN_MASK, BthOperation, Service
from uet.transport import Frame

_O = BthOperation
_MSN_SHIFT = headers.AETH.shift("syndrome")
_OPCODE_SHIFT = headers.BTH.shift("opcode")
_MIGREQ = headers.BTH.mask("migreq")
#: Answers that may wait behind the data of a READ, all a selectively repeating responder's window
#: can draw; one more is as if it had got lost.
_MOST_WAITING = 4_096


@dataclass(slots=True)
class ResponderAnswer:
    """An ACK, NAK or atomic acknowledge: one packet; ``again`` if it has left before."""

    psn: int
    aeth: int
    original: int | None = None
    again: bool = False


@dataclass(slots=True)
class ReadJob:
    """Responses of a READ, from PSN ``psn`` up to ``end``, that are still to be sent.

    ``again`` if all of them have left before.
    """

    psn: int
    first: int
    end: int
    data: memoryview
    msn: int
    again: bool = False


def _is_atomic(answer: ResponderAnswer | ReadJob) -> bool:
    return isinstance(answer, ResponderAnswer) and answer.original is not None


class Answers:
    """The answers of one queue pair, in order."""

    def __init__(self, qp: ConnectionEnd) -> None:
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
            extensions = answer.aeth.to_bytes(headers.AETH.size, "big")
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
