"""One bottleneck in virtual time: many DCQCN senders, one port that marks, one receiver.

    sender 0 --+
    sender 1 --+--> [ queue | RED by its depth ] --link--> receiver
       ...   --+                                                | CNP
         ^----------------------------------------------------- +

Packets have one size, senders always have more to send, and their links are as fast as the
bottleneck's.  Whatever is random comes from the given seed.
"""

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

from emulator.rocev2.congestion.dcqcn_parameters import DcqcnParameters
from emulator.rocev2.congestion.rate_controls.dcqcn import NotificationPoint, ReactionPoint

_ARRIVE, _DEPART, _DELIVER, _CNP, _READY, _TIMER, _LOOK = range(7)


@dataclass(frozen=True, kw_only=True)
class Marking:
    """The port: thresholds in octets, and the probability at the upper one."""

    k_min: int
    k_max: int
    p_max: float


@dataclass
class Measured:
    """Hold what was seen after the warm-up."""

    delivered: list[int]
    utilisation: float = 0.0
    longest: int = 0  # octets
    cnps: int = 0
    #: queue in octets and the senders' rates, each time the bottleneck looked
    trace: list[tuple[int, list[float]]] = field(default_factory=list)

    @property
    def jain(self) -> float:
        """Jain's index of fairness: 1 is equal shares."""
        total = sum(self.delivered)
        return total * total / (len(self.delivered) * sum(x * x for x in self.delivered))


class RateBottleneck:
    """``starts``: when each sender begins (ns); ``one_way`` is the delay of a path without queue.

    Departures fall on multiples of ``grain`` ns.  Packets are marked as they leave the queue, as by
    the ns-3 models of DCQCN, or with ``on_arrival`` as they enter it, as by Zhu et al. and here.
    """

    def __init__(
        self,
        parameters: DcqcnParameters,
        marking: Marking,
        *,
        starts: list[int],
        line_rate: int,
        one_way: int,
        mtu: int = 4_096,
        seed: int = 1,
        grain: int = 1,
        on_arrival: bool = False,
    ) -> None:
        self.grain = grain
        self.on_arrival = on_arrival
        self.rng = random.Random(seed)
        self.marking = marking
        self.line_rate = line_rate
        self.one_way = one_way
        self.mtu = mtu
        self.serial = round(mtu * 8e9 / line_rate / grain) * grain
        self.starts = starts
        self.senders = [ReactionPoint(parameters, line_rate, at) for at in starts]
        self.receivers = [NotificationPoint(parameters.cnp_interval) for _ in starts]
        #: whose packets wait, and which were marked as they came
        self.queue: deque[tuple[int, bool]] = deque()
        self.events: list[tuple[int, int, int, int, bool]] = []
        self.armed: list[int | None] = [None] * len(starts)
        #: when each sender's last packet left, and when its next one will
        self.left = list(starts)
        self.ready: list[int | None] = list(starts)
        self.number = 0

    def run(self, duration: int, warm_up: int, look: int) -> Measured:
        """Until ``duration``; nothing before ``warm_up`` counts; a look each ``look``."""
        measured = Measured([0] * len(self.senders))
        for sender, at in enumerate(self.starts):
            self._at(at, _READY, sender)
        self._at(warm_up, _LOOK, 0)
        while True:
            now, _, kind, sender, marked = heapq.heappop(self.events)
            if now > duration:
                break
            point = self.senders[sender]
            if kind == _READY:
                if now != self.ready[sender]:
                    continue  # the rate has changed, and with it the time of the next packet
                point.advance(now)
                point.on_sent(self.mtu, now)
                self._at(now + self.one_way, _ARRIVE, sender)
                self.left[sender], self.ready[sender] = now, None
                self._space(sender, now)
                self._arm(sender)
            elif kind == _ARRIVE:
                self.queue.append((sender, self.on_arrival and self._mark()))
                if now >= warm_up:
                    measured.longest = max(measured.longest, len(self.queue) * self.mtu)
                if len(self.queue) == 1:
                    self._at(now + self.serial, _DEPART, sender)
            elif kind == _DEPART:
                whose, marked = self.queue.popleft()
                marked = marked if self.on_arrival else self._mark()
                if now >= warm_up:
                    measured.delivered[whose] += self.mtu
                self._at(now + self.one_way, _DELIVER, whose, marked)
                if self.queue:
                    self._at(now + self.serial, _DEPART, self.queue[0][0])
            elif kind == _DELIVER:
                if marked and self.receivers[sender].on_marked(now):
                    self._at(now + 2 * self.one_way, _CNP, sender)
                    measured.cnps += now >= warm_up
            elif kind == _CNP:
                point.on_cnp(now)
                self._space(sender, now)
                self._arm(sender)
            elif kind == _TIMER:
                self.armed[sender] = None
                point.advance(now)
                self._space(sender, now)
                self._arm(sender)
            elif kind == _LOOK:
                rates = [each.rate_bps / self.line_rate for each in self.senders]
                measured.trace.append((len(self.queue) * self.mtu, rates))
                self._at(now + look, _LOOK, 0)
        octets = (duration - warm_up) * self.line_rate / 8e9
        measured.utilisation = sum(measured.delivered) / octets
        return measured

    def _space(self, sender: int, now: int) -> None:
        """The next packet leaves as far behind the last one as the rate of now has it."""
        gap = self.mtu * 8e9 / self.senders[sender].rate_bps
        due = max(now, self.left[sender] + round(gap / self.grain) * self.grain)
        if due != self.ready[sender]:
            self.ready[sender] = due
            self._at(due, _READY, sender)

    def _mark(self) -> bool:
        """By the queue without the packet itself."""
        held, m = len(self.queue) * self.mtu, self.marking
        if held <= m.k_min:
            return False
        if held > m.k_max:
            return True
        return self.rng.random() < m.p_max * (held - m.k_min) / (m.k_max - m.k_min)

    def _arm(self, sender: int) -> None:
        due, armed = self.senders[sender].next_deadline(), self.armed[sender]
        if due is not None and (armed is None or due < armed):
            self.armed[sender] = due
            self._at(due, _TIMER, sender)

    def _at(self, time: int, kind: int, sender: int, marked: bool = False) -> None:
        self.number += 1
        heapq.heappush(self.events, (time, self.number, kind, sender, marked))
