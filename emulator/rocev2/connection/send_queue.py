"""The requests of one reliable connection, in PSN order: to be sent, or sent (IBA 9.7.2, 9.7.3).

Work has its PSNs from the moment it is posted.  ``una`` is the oldest PSN that is not
acknowledged, ``next`` the one to send now, ``high`` one behind the newest ever sent; going back
means no more than lowering ``next``.  Work that has been sent completely waits in one queue for
its acknowledgement, all other in a second one.

PSNs here are integers that do not wrap; 24 bits of them are on the wire.
"""

from __future__ import annotations

from collections import deque

from emulator.rocev2.connection.connection_end import ConnectionEnd
from emulator.rocev2.connection.work import WorkRequest, packet_extension, read_extension
from emulator.rocev2.wire.rocev2_codes import MAX_OUTSTANDING, PSN_MASK, timeout_ns
from emulator.rocev2.wire.rocev2_frames import ACK_REQUEST
from uet.transport import Frame


class SendQueue:
    """Sends work as far as window, rate and outstanding READs allow."""

    def __init__(self, qp: ConnectionEnd, first_psn: int) -> None:
        config = qp.host.config
        self._qp = qp
        self._frames = qp.frames
        self._counts = qp.host.counts
        self._mtu = config.mtu
        self._class = qp.data_class
        self._window = config.window
        self._ack_interval = config.ack_interval
        self._timeout = timeout_ns(config.timeout)
        self._max_fetches = config.max_rd_atomic
        self.una = self.next = self.high = self._end = first_psn
        self._todo: deque[WorkRequest] = deque()
        self._sent: deque[WorkRequest] = deque()
        self._fetches: deque[WorkRequest] = deque()  # requests whose responses are awaited
        self._ask_at = first_psn + config.ack_interval  # from this PSN on AckReq is due
        self._asked = first_psn - 1  # the newest PSN whose answer was asked for
        self._lost: dict[int, None] = {}  # to send again by themselves, in this order
        self._repeated: dict[int, None] = {}  # PSNs that were
        self._held = False  # nothing may leave for the time being
        self._deadline: int | None = None  # of the retry timer

    def post(self, work: WorkRequest) -> None:
        """Queue work behind all other."""
        work.first = work.next = self._end
        self._end = work.end = work.first + work.packets(self._mtu)
        self._todo.append(work)

    @property
    def idle(self) -> bool:
        """Everything posted has been carried out."""
        return not self._todo and not self._sent

    def transmit(self, out: list[Frame], now: int, limit: int) -> None:
        """Send what may leave now, until ``out`` has ``limit`` frames."""
        if self._held:
            return
        if self._lost:
            self._repeat(out, now, limit)
        todo, pacer = self._todo, self._qp.pacer
        horizon = self.una + self._window
        while todo and len(out) < limit and self.next < horizon:
            if pacer is not None and now < pacer.next:
                return
            work = todo[0]
            start, already = self.next, len(out)
            if not work.fetch:
                stop = min(work.end, horizon, start + limit - len(out))
                end = self._send_data(work, start, stop, horizon, out, now)
            elif len(self._fetches) < self._max_fetches and (
                work.end - self.una <= MAX_OUTSTANDING or start == self.una
            ):
                self._send_fetch(work, out, now)
                self._fetches.append(work)
                end = work.end
            else:
                return
            self.next = end
            sent = end - start if not work.fetch else 1
            if end > self.high:
                again = max(0, self.high - start)
                self.high = end
            else:
                again = sent
            if again:
                self._count_again(out[already : already + again])
            self._counts["tx_data_packets"] += sent - again
            if end == work.end:
                self._sent.append(todo.popleft())

    def _send_data(
        self, work: WorkRequest, psn: int, stop: int, horizon: int, out: list[Frame], now: int
    ) -> int:
        """Packets of a SEND or WRITE from ``psn`` up to ``stop``; returns where it stopped."""
        mtu, pacer, make = self._mtu, self._qp.pacer, self._frames.frame
        traffic_class = self._class
        last = work.end - 1
        at = (psn - work.first) * mtu
        payload = work.payload
        _, _, middle, _ = work.words
        direct = work.direct
        while psn < stop:
            asks = psn == last or psn >= self._ask_at or psn == horizon - 1
            if asks:
                self._ask(psn, now)
            number = psn & PSN_MASK | (ACK_REQUEST if asks else 0)
            if work.first < psn < last:
                data = payload[at : at + mtu]
                extension = packet_extension(work, at, len(data), b"") if direct else b""
                frame = make(traffic_class, middle, number, extension, data)
            else:
                place = 0 if work.first == last else 1 if psn == work.first else 3
                data, extension = payload[at : at + mtu], work.extensions[place]
                if direct:
                    extension = packet_extension(work, at, len(data), extension)
                frame = make(traffic_class, work.words[place], number, extension, data)
            out.append(frame)
            psn += 1
            at += mtu
            if pacer is not None:
                pacer.sent(len(frame[0]) + len(frame[1]), now)
                if now < pacer.next:
                    break
        return psn

    def _send_fetch(self, work: WorkRequest, out: list[Frame], now: int) -> None:
        """The request of a READ, for what has not come yet, or of an atomic."""
        extension = read_extension(work, self._mtu) if work.kind == "read" else work.extensions[0]
        frame = self._frames.frame(self._class, work.words[0], work.next & PSN_MASK, extension)
        out.append(frame)
        self._ask(work.end - 1, now)
        if self._qp.pacer is not None:
            self._qp.pacer.sent(len(frame[0]) + len(frame[1]), now)

    def _ask(self, psn: int, now: int) -> None:
        """A packet leaves that the peer must answer."""
        self._ask_at = psn + self._ack_interval
        if psn > self._asked:
            self._asked = psn
        if self._deadline is None and self._timeout:
            self._deadline = now + self._timeout

    def _restart_timer(self, now: int) -> None:
        """The retry timer runs for what has left and must be answered.

        What shall be sent again and has not left yet, because the rate does not allow it, waits
        for nobody.
        """
        waits = self.una <= self._asked and self.una < self.high and not self._lost
        self._deadline = now + self._timeout if waits and self._timeout else None

    def _repeat(self, out: list[Frame], now: int, limit: int) -> None:
        """Send single packets again."""
        pacer = self._qp.pacer
        while self._lost and len(out) < limit and (pacer is None or now >= pacer.next):
            psn = next(iter(self._lost))
            del self._lost[psn]
            work = self._find(psn)
            if work is None or psn < self.una:
                continue
            self._repeated[psn] = None
            already = len(out)
            if work.fetch:
                self._send_fetch(work, out, now)
            else:
                self._ask_at = psn
                self._send_data(work, psn, psn + 1, psn + 1, out, now)
                self._ask_at = self.next
            self._count_again(out[already:])
        self._restart_timer(now)

    def _count_again(self, frames: list[Frame]) -> None:
        self._counts["tx_retransmitted_packets"] += len(frames)
        self._counts["tx_retransmitted_octets"] += sum(len(a) + len(b) for a, b in frames)

    def _find(self, psn: int) -> WorkRequest | None:
        """The work that a PSN belongs to, if it has been sent."""
        for work in self._sent:
            if psn < work.end:
                return work
        return self._todo[0] if self._todo and psn < self.next else None

    def _go_back(self, psn: int) -> None:
        """Continue with ``psn``, which is not acknowledged."""
        if psn >= self.next:
            return
        while self._sent and self._sent[-1].end > psn:
            self._todo.appendleft(self._sent.pop())
        while self._fetches and self._fetches[-1].end > psn:
            self._fetches.pop()
        self.next = self._ask_at = psn
        self._lost.clear()
        if self._todo and self._todo[0].fetch:
            self.next = self._todo[0].next
        self._asked = min(self._asked, self.next - 1)
