"""One bottleneck in virtual time: many senders, one port with ECN and trimming, one receiver.

    sender 0 --+
    sender 1 --+--> [ queue | mark | trim ] --link--> receiver
       ...   --+                                       | ACK, NACK
         ^------------------------------------------- -+

Packets have one size, senders always have more to send and a link as fast as the bottleneck's.
Whatever is random comes from the given seed.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from uet.congestion.congestion_parameters import NsccParameters
from uet.congestion.controls.nscc import Nscc
from uet.wire.codes import NackCode

_ARRIVE, _DEPART, _ANSWER, _READY, _LOST, _TICK, _CREDIT = range(7)


class Sender(Protocol):
    """Hold what stands between a sender and the network: an NSCC window, or more than that."""

    @property
    def cwnd(self) -> float: ...
    def room(self) -> int: ...
    def wants_ack(self, trigger: int) -> bool: ...
    def on_send(self, size: int) -> None: ...
    def on_ack(self, octets: int, marked: bool, rtt: int, now: int) -> None: ...
    def on_nack(self, size: int, code: int, now: int, rtt: int) -> None: ...
    def on_loss(self, size: int) -> None: ...


@dataclass
class Port:
    """The bottleneck's queue: thresholds in octets."""

    mark_from: int
    mark_all: int
    limit: int
    trimming: bool = True
    code: int = int(NackCode.TRIMMED)


@dataclass
class Measured:
    """Hold what was seen after the warm-up."""

    delivered: list[int]
    utilisation: float
    delay: float  # mean queueing delay of delivered packets, ns
    trimmed: int
    dropped: int
    marked: int
    windows: list[list[int]] = field(default_factory=list)

    @property
    def jain(self) -> float:
        """Jain's index of fairness: 1 is equal shares."""
        total = sum(self.delivered)
        return total * total / (len(self.delivered) * sum(x * x for x in self.delivered))


class Bottleneck:
    """``senders`` contexts of ``parameters`` through ``port``; ``coalesce`` packets for an ACK."""

    def __init__(
        self,
        senders: int,
        parameters: NsccParameters,
        port: Port,
        *,
        seed: int,
        coalesce: int = 1,
        make: Callable[[int], Sender] | None = None,
        starts: Callable[[int], int] | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.parameters = parameters
        self.port = port
        self.coalesce = coalesce
        self.size = parameters.mtu
        self.serial = round(self.size / parameters.octets_per_ns)
        self.before = parameters.base_rtt // 12  # sender to queue
        self.after = parameters.base_rtt - self.before - self.serial
        first = starts or (lambda _: self.rng.randrange(parameters.base_rtt))
        self.start = [first(s) for s in range(senders)]
        self.contexts: list[Sender] = [
            make(self.start[s]) if make else Nscc(parameters, self.start[s]) for s in range(senders)
        ]
        self.free = [0] * senders  # when a sender's link is
        self.queue: list[tuple[int, int, bool, int]] = []  # sender, sent at, marked, arrived
        self.head = 0
        self.held = 0
        self.busy = False
        self.owed: list[int] = [0] * senders
        self.events: list[tuple[int, int, int, int, tuple[int, bool]]] = []
        self.number = 0

    def run(self, duration: int, warm_up: int) -> Measured:
        """Until ``duration``; what happens before ``warm_up`` does not count (ns)."""
        measured = Measured([0] * len(self.contexts), 0, 0, 0, 0, 0)
        delays = 0
        for sender, at in enumerate(self.start):
            self._at(at, _READY, sender)
        next_look = warm_up
        while self.events:
            now, _, kind, sender, (sent_at, marked) = heapq.heappop(self.events)
            if now > duration:
                break
            while now >= next_look:
                measured.windows.append([int(c.cwnd) for c in self.contexts])
                next_look += self.parameters.base_rtt
            context = self.contexts[sender]
            if kind == _ARRIVE:
                if self.held + self.size > self.port.limit:
                    if now >= warm_up:
                        measured.trimmed += self.port.trimming
                        measured.dropped += not self.port.trimming
                    if self.port.trimming:
                        self.received(sender, now, trimmed=True)
                        self._at(now + self.after, _LOST, sender, sent_at)
                    else:
                        self._at(now + 3 * self.parameters.base_rtt, _LOST, sender, -1)
                else:
                    marked = self._mark()
                    measured.marked += marked and now >= warm_up
                    self.held += self.size
                    self.queue.append((sender, sent_at, marked, now))
                    if not self.busy:
                        self.busy = True
                        self._at(now + self.serial, _DEPART, sender)
            elif kind == _DEPART:
                whose, sent_at, marked, arrived = self.queue[self.head]
                self.head += 1
                self.held -= self.size
                if now >= warm_up:
                    measured.delivered[whose] += self.size
                    delays += now - self.serial - arrived
                self.received(whose, now, trimmed=False)
                self._at(now + self.after, _ANSWER, whose, sent_at, marked)
                if self.head < len(self.queue):
                    self._at(now + self.serial, _DEPART, whose)
                else:
                    self.busy = False
            elif kind == _ANSWER:
                self.owed[sender] += self.size
                if marked or self.owed[sender] >= self.coalesce * self.size or self._hungry(sender):
                    context.on_ack(self.owed[sender], marked, now - sent_at, now)
                    self.owed[sender] = 0
            elif kind == _LOST:
                if sent_at < 0:
                    context.on_loss(self.size)
                else:
                    context.on_nack(self.size, self.port.code, now, now - sent_at)
            elif kind == _TICK:
                self.tick(now)
            elif kind == _CREDIT:
                self.credit(sender, sent_at)
            self._send(sender, now)
        packets = sum(measured.delivered) // self.size
        measured.delay = delays / max(packets, 1)
        measured.utilisation = sum(measured.delivered) / (
            (duration - warm_up) * self.parameters.octets_per_ns
        )
        return measured

    def received(self, sender: int, now: int, *, trimmed: bool) -> None:
        """A packet, or its headers, is at the receiver."""

    def tick(self, now: int) -> None:
        """A time that the receiver asked for."""

    def credit(self, sender: int, granted: int) -> None:
        """A CREDIT has come to the sender."""

    def tick_at(self, time: int) -> None:
        """Call :meth:`tick` at ``time``."""
        self._at(time, _TICK, 0)

    def send_credit(self, sender: int, granted: int, now: int) -> None:
        """From the receiver, over an idle path back."""
        self._at(now + self.after, _CREDIT, sender, granted)

    def _hungry(self, sender: int) -> bool:
        """Whether the packet had asked for an ACK."""
        return self.contexts[sender].wants_ack(self.coalesce * self.size)

    def _mark(self) -> bool:
        low, high = self.port.mark_from, self.port.mark_all
        if self.held <= low:
            return False
        return self.held >= high or self.rng.random() < (self.held - low) / (high - low)

    def _send(self, sender: int, now: int) -> None:
        """One packet, and another when the link is free again."""
        context = self.contexts[sender]
        if now < self.free[sender] or context.room() <= 0:
            return
        context.on_send(self.size)
        self.free[sender] = now + self.serial
        jitter = self.rng.randrange(self.serial)
        self._at(now + self.before + jitter, _ARRIVE, sender, now)
        self._at(self.free[sender], _READY, sender)

    def _at(
        self, time: int, kind: int, sender: int, sent_at: int = 0, marked: bool = False
    ) -> None:
        self.number += 1
        heapq.heappush(self.events, (time, self.number, kind, sender, (sent_at, marked)))
