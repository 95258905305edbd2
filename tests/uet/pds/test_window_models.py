"""Windows, placement and timers against models so naive that they are plainly right.

The models keep sets of integers that never wrap; only the calls into the code under test are
taken modulo 2^32.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.harness.examples import examples
from uet.pds.rto import RetransmissionQueue, RetransmissionTimer
from uet.pds.window import (
    HALF,
    MASK,
    SACK_BITS,
    PsnArrival,
    ReceiveWindow,
    SendWindow,
    add,
    after,
    distance,
)
from uet.ses.target.inbound import InboundMessage

#: First PSNs: anywhere, and so that a run crosses 2^31 or 2^32.
STARTS = st.one_of(
    st.integers(0, MASK),
    st.integers(-200, 200).map(lambda d: (0xFFFF_FFFF + d) & MASK),
    st.integers(-200, 200).map(lambda d: (HALF + d) & MASK),
)

MODEL_SETTINGS = examples(60, stateful_step_count=60)


@pytest.mark.conformance("C-020")
@given(STARTS, st.integers(-(2**31) + 1, 2**31 - 1))
def test_serial_numbers(a: int, d: int) -> None:
    """RFC 1982: distance and order are those of integers as long as they are less than 2^31."""
    b = add(a, d)
    assert 0 <= b <= MASK
    assert distance(b, a) == d
    assert after(b, a) == (d > 0)
    assert after(a, b) == (d < 0)


class ReceiveWindowModel(RuleBasedStateMachine):
    """PSNs that have arrived, those that wait for a CLEAR, and the CLEAR: three sets."""

    @initialize(start=STARTS, size=st.sampled_from([1, 5, 40, 128]))
    def begin(self, start: int, size: int) -> None:
        self.start, self.size = start, size
        self.window = ReceiveWindow(start, size)
        self.arrived: set[int] = set()
        self.guaranteed: set[int] = set()
        self.cleared = -1

    def wrapped(self, n: int) -> int:
        return (self.start + n) & MASK

    @property
    def cack(self) -> int:
        """The largest n such that all up to it have arrived and, if guaranteed, been cleared."""
        n = -1
        while n + 1 in self.arrived and not (n + 1 in self.guaranteed and n + 1 > self.cleared):
            n += 1
        return n

    @property
    def without_gap(self) -> int:
        n = -1
        while n + 1 in self.arrived:
            n += 1
        return n

    @rule(ahead=st.integers(-300, 300), guaranteed=st.booleans())
    def arrive(self, ahead: int, guaranteed: bool) -> None:
        n = self.cack + ahead
        arrival = self.window.classify(self.wrapped(n))
        d = n - (self.cack + 1)
        if d >= self.size or d < -self.size:
            assert arrival is PsnArrival.OUTSIDE
        elif d < 0 or n in self.arrived:
            assert arrival is PsnArrival.DUPLICATE
        else:
            assert arrival is PsnArrival.NEW
            self.window.accept(self.wrapped(n), guaranteed=guaranteed)
            self.arrived.add(n)
            if guaranteed:
                self.guaranteed.add(n)

    @rule(count=st.integers(1, 20), guaranteed=st.booleans())
    def fill(self, count: int, guaranteed: bool) -> None:
        """Let what is missing arrive, lowest first."""
        for _ in range(count):
            missing = self.without_gap + 1
            self.arrive(missing - self.cack, guaranteed)

    @rule(ahead=st.integers(-50, 200))
    def clear(self, ahead: int) -> None:
        """A CLEAR of something that has not arrived is a lie, and must change nothing."""
        n = self.cack + ahead
        news = self.cleared < n <= self.without_gap
        assert self.window.clear(self.wrapped(n)) == news
        if news:
            self.cleared = n

    @rule()
    def clear_all(self) -> None:
        n = self.without_gap
        self.window.clear(self.wrapped(n))
        self.cleared = max(self.cleared, n)

    @rule(far=st.integers(2**31, 2**32 - 400))
    def far_away(self, far: int) -> None:
        assert self.window.classify(self.wrapped(self.cack + far)) is PsnArrival.OUTSIDE

    @rule(base=st.integers(-100, 300))
    def sack(self, base: int) -> None:
        n = max(self.cack + base, -SACK_BITS)
        expected = 0
        for bit in range(SACK_BITS):
            if n + bit in self.arrived or n + bit <= self.cack:
                expected |= 1 << bit
        assert self.window.sack(self.wrapped(n)) == expected

    @invariant()
    def agrees(self) -> None:
        cack = self.cack
        assert self.window.cack == self.wrapped(cack)
        assert self.window.base == self.wrapped(cack + 1)
        assert self.window.out_of_order == sum(1 for n in self.arrived if n > cack)
        assert self.window.highest == self.wrapped(max(self.arrived, default=-1))
        assert self.window.received.bit_length() <= self.size
        assert self.window.guaranteed & ~self.window.received == 0


class SendWindowModel(RuleBasedStateMachine):
    """PSNs sent, answered, and delivered: three sets."""

    @initialize(start=STARTS)
    def begin(self, start: int) -> None:
        self.start = start
        self.window = SendWindow(start)
        self.sent = 0
        self.done: set[int] = set()
        self.delivered: set[int] = set()

    def wrapped(self, n: int) -> int:
        return (self.start + n) & MASK

    @property
    def base(self) -> int:
        n = 0
        while n in self.done:
            n += 1
        return n

    @rule(count=st.integers(1, 100))
    def send(self, count: int) -> None:
        if self.sent + count - self.base <= 1024:
            self.sent += count
            self.window.next = self.wrapped(self.sent)

    @rule(ahead=st.integers(-20, 1100))
    def answer(self, ahead: int) -> None:
        n = self.base + ahead
        is_open = 0 <= n < self.sent and n not in self.done
        assert self.window.is_open(self.wrapped(n)) == is_open
        if is_open:
            self.window.finish(self.wrapped(n))
            self.done.add(n)

    @precondition(lambda self: self.sent > self.base)
    @rule(data=st.data())
    def answer_through(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(self.base, self.sent - 1))
        self.window.finish_through(self.wrapped(n))
        self.done |= set(range(n + 1))

    @rule(ahead=st.integers(-200, 1100), bitmap=st.integers(0, 2**64 - 1))
    def sack(self, ahead: int, bitmap: int) -> None:
        base = self.base + ahead
        stated = {base + bit for bit in range(SACK_BITS) if bitmap >> bit & 1}
        news = {n for n in stated if self.base <= n < self.sent} - self.done - self.delivered
        bits = self.window.sacked(self.wrapped(base), bitmap)
        assert {self.base + bit for bit in range(1100) if bits >> bit & 1} == news
        self.delivered |= news

    @rule(base=st.integers(0, MASK), bitmap=st.integers(0, 2**64 - 1))
    def hostile_sack(self, base: int, bitmap: int) -> None:
        """Anywhere at all: whatever it says of PSNs not outstanding is not news."""
        ahead = distance(base, self.wrapped(self.base))
        if not -SACK_BITS < ahead < self.sent - self.base:
            assert self.window.sacked(base, bitmap) == 0

    @rule(ahead=st.integers(0, 1100))
    def withdraw(self, ahead: int) -> None:
        n = self.base + ahead
        if self.window.is_open(self.wrapped(n)):
            self.window.withdraw(self.wrapped(n))
            self.delivered.discard(n)

    @rule(ahead=st.integers(-1000, 1100))
    def ask(self, ahead: int) -> None:
        n = self.base + ahead
        known = n < self.base or n in self.done or n in self.delivered
        assert self.window.is_delivered(self.wrapped(n)) == known

    @invariant()
    def agrees(self) -> None:
        assert self.window.base == self.wrapped(self.base)
        assert self.window.outstanding == self.sent - self.base
        assert self.window.done.bit_length() <= 1024
        assert self.window.delivered.bit_length() <= 1024


RTO = 100


class TimerModel(RuleBasedStateMachine):
    """For each PSN the time of its last transmission and how often it has timed out."""

    @initialize(start=STARTS)
    def begin(self, start: int) -> None:
        self.start = start
        self.window = SendWindow(start)
        self.timer = RetransmissionTimer(self.window, 4, RTO)
        self.timer.open()
        self.now = 0
        self.sent = 0
        #: n -> [deadline or None if it waits to be sent again, timeouts]
        self.running: dict[int, list[int | None]] = {}

    def wrapped(self, n: int) -> int:
        return (self.start + n) & MASK

    @rule(count=st.integers(1, 8))
    def send(self, count: int) -> None:
        for _ in range(count):
            if (self.window.next - self.window.base) & MASK >= 64:
                return
            if self.window.outstanding >= len(self.timer.sent_at):
                self.timer.grow()
            self.window.next = self.wrapped(self.sent + 1)
            self.timer.sent(self.wrapped(self.sent), self.now)
            self.running[self.sent] = [self.now + RTO, 0]
            self.sent += 1

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        n = data.draw(st.sampled_from(sorted(self.running)))
        self.timer.sent_again(self.wrapped(n), self.now)
        timeouts = self.running[n][1]
        assert timeouts is not None
        self.running[n] = [self.now + RTO * 2 ** min(timeouts, 14), timeouts]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        n = data.draw(st.sampled_from(sorted(self.running)))
        self.window.finish(self.wrapped(n))
        del self.running[n]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def answer_through(self, data: st.DataObject) -> None:
        n = data.draw(st.sampled_from(sorted(self.running)))
        self.window.finish_through(self.wrapped(n))
        self.running = {k: v for k, v in self.running.items() if k > n}

    @rule(ns=st.integers(0, 4 * RTO))
    def wait(self, ns: int) -> None:
        self.now += ns
        due = {n for n, (d, _) in self.running.items() if d is not None and d <= self.now}
        expired = self.timer.expired(self.now)
        assert sorted(expired) == sorted(self.wrapped(n) for n in due)
        for n in due:
            timeouts = self.running[n][1]
            assert timeouts is not None
            self.running[n] = [None, timeouts + 1]
            slot = self.wrapped(n) & (len(self.timer.timeouts) - 1)
            assert self.timer.timeouts[slot] == timeouts + 1

    @invariant()
    def agrees(self) -> None:
        deadlines = [d for d, _ in self.running.values() if d is not None]
        assert self.timer.next_deadline() == min(deadlines, default=None)


class QueueModel(RuleBasedStateMachine):
    """Hold what waits to be sent again: a dict of due times, the lowest PSN first.

    In order, what is delayed holds up those behind it.
    """

    @initialize(start=STARTS, in_order=st.booleans())
    def begin(self, start: int, in_order: bool) -> None:
        self.start = start
        self.in_order = in_order
        self.window = SendWindow(start)
        self.window.next = (start + 301) & MASK
        self.queue = RetransmissionQueue(self.window, start, in_order=in_order)
        self.now = 0
        self.due: dict[int, int] = {}

    @rule(n=st.integers(0, 300), delay=st.integers(0, 50))
    def add(self, n: int, delay: int) -> None:
        psn = (self.start + n) & MASK
        if self.window.is_open(psn):
            self.queue.add(psn, self.now + delay, self.now)
            self.due.setdefault(n, self.now + delay)

    @rule(n=st.integers(0, 300))
    def answer(self, n: int) -> None:
        """The response of a PSN is known: it is passed over."""
        psn = (self.start + n) & MASK
        if self.window.is_open(psn):
            self.window.finish(psn)

    @rule(ns=st.integers(0, 30))
    def wait(self, ns: int) -> None:
        self.now += ns

    @rule()
    def take(self) -> None:
        self.pass_over()
        candidates = sorted(self.due)[:1] if self.in_order else self.due
        ready = [n for n in candidates if self.due[n] <= self.now]
        head = self.queue.head(self.now)
        if not ready:
            assert head is None
            return
        assert head == (self.start + min(ready)) & MASK
        assert self.queue.pop() == head
        del self.due[min(ready)]

    def pass_over(self) -> None:
        """Forget here what :meth:`head` passes over: the delayed ones later, when they are due."""
        self.queue.head(self.now)
        for n in sorted(self.due):
            if self.window.is_open((self.start + n) & MASK):
                if self.in_order or self.due[n] <= self.now:
                    return
            elif self.in_order or self.due[n] <= self.now:
                del self.due[n]

    @invariant()
    def agrees(self) -> None:
        """Whatever waits for a time has a deadline, unless a head in front of it is ready."""
        self.pass_over()
        assert len(self.queue) == len(self.due)
        deadline = self.queue.next_deadline()
        if self.in_order:
            first = self.due[min(self.due)] if self.due else 0
            assert deadline == (first if first > self.now else None)
            return
        later = [due for due in self.due.values() if due > self.now]
        assert deadline is None or deadline in self.due.values()
        if later:
            assert deadline is not None
            assert deadline <= min(later)


class PlacementModel(RuleBasedStateMachine):
    """The octets that have been placed: a set."""

    LENGTH = 64

    @initialize()
    def begin(self) -> None:
        self.memory = bytearray(self.LENGTH + 20)
        self.expected = bytearray(self.LENGTH + 20)
        part = memoryview(self.memory)[10 : 10 + self.LENGTH]
        self.message = InboundMessage(part, word=0, to=0, key=1, offset=10, length=self.LENGTH)
        self.placed: set[int] = set()
        self.value = 0

    @rule(offset=st.integers(0, LENGTH - 1), length=st.integers(1, 20))
    def place(self, offset: int, length: int) -> None:
        octets = set(range(offset, min(offset + length, self.LENGTH)))
        self.value = self.value % 255 + 1
        data = bytes([self.value]) * len(octets)
        ok = self.message.place(offset, memoryview(data))
        assert ok == (not octets & self.placed)
        if ok:
            self.placed |= octets
            self.expected[10 + offset : 10 + offset + len(octets)] = data

    @rule()
    def fill_first_gap(self) -> None:
        missing = [n for n in range(self.LENGTH) if n not in self.placed]
        if missing:
            self.place(missing[0], 1)

    @invariant()
    def agrees(self) -> None:
        assert self.memory == self.expected
        assert self.message.placed == len(self.placed)
        pieces = [n for n in sorted(self.placed) if n - 1 not in self.placed]
        assert self.message.ranges.starts == pieces
        assert self.message.ranges.ends == [
            next(e for e in range(s, self.LENGTH + 1) if e not in self.placed) for s in pieces
        ]


TestReceiveWindow = ReceiveWindowModel.TestCase
TestSendWindow = SendWindowModel.TestCase
TestTimer = TimerModel.TestCase
TestQueue = QueueModel.TestCase
TestPlacement = PlacementModel.TestCase
for case in (TestReceiveWindow, TestSendWindow, TestTimer, TestQueue, TestPlacement):
    case.settings = MODEL_SETTINGS
del case


def test_timer_heap_does_not_outgrow_its_window() -> None:
    """Stale entries leave as they reach the front: a packet resent for ever costs one entry."""
    window = SendWindow(5)
    timer = RetransmissionTimer(window, 64, RTO)
    timer.open()
    window.next = 6
    timer.sent(5, 0)
    now = 0
    for _ in range(1_000):
        deadline = timer.next_deadline()
        assert deadline is not None
        now = deadline
        assert timer.expired(now) == [5]
        timer.sent_again(5, now)
    assert len(timer._again) == 1  # noqa: SLF001  memory alone
