"""A sender at full rate over many paths, in virtual time: which of them it uses.

    sender ==> path 0 (good)  ==> receiver
           ==> path 1 (marks) ==>
           ==> path 2 (dead)

A switch's hash maps every EV to a path for good.  ACKs come one RTT after their packet; a packet
that nobody answers is taken to be lost after three.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from uet.congestion.spraying.paths import CLEAN, ECN, NACK, TIMEOUT, PathSelection

RTT = 12_000
SERIAL = 328  # of a packet of 4 KiB at 100 Gb/s
GOOD, MARKS, TRIMS, DEAD = range(4)


@dataclass
class Sprayed:
    """Every packet: (sent at, EV, path)."""

    packets: list[tuple[int, int, int]] = field(default_factory=list)

    def share(self, path: int, begin: int, end: int) -> float:
        """The part of the packets sent in ``begin..end`` (ns) that took ``path``."""
        paths = [p for at, _, p in self.packets if begin <= at < end]
        return paths.count(path) / len(paths)

    def uses(self, ev: int) -> list[int]:
        """Return when ``ev`` was used."""
        return [at for at, other, _ in self.packets if other == ev]


class Paths:
    """``states`` of the paths; they may be changed while the sender runs."""

    def __init__(self, policy: PathSelection, states: list[int], seed: int) -> None:
        self.policy = policy
        self.states = states
        self.salt = random.Random(seed).getrandbits(32)
        self.now = 0
        self.seen = Sprayed()
        self.feedback: list[tuple[int, int, int]] = []  # at, EV, how
        self._answers: deque[tuple[int, int, int]] = deque()
        self._timeouts: deque[tuple[int, int]] = deque()

    def path(self, ev: int) -> int:
        """Return where the switch's hash sends ``ev``."""
        return random.Random(ev << 32 | self.salt).randrange(len(self.states))

    def run(self, until: int) -> None:
        """Send at full rate."""
        policy = self.policy
        while self.now < until:
            while self._answers and self._answers[0][0] <= self.now:
                self._notify(*self._answers.popleft())
            while self._timeouts and self._timeouts[0][0] <= self.now:
                at, ev = self._timeouts.popleft()
                self._notify(at, ev, TIMEOUT)
            ev = policy.pick()
            path = self.path(ev)
            self.seen.packets.append((self.now, ev, path))
            state = self.states[path]
            if state == DEAD:
                self._timeouts.append((self.now + 3 * RTT, ev))
            else:
                how = {GOOD: CLEAN, MARKS: ECN, TRIMS: NACK}[state]
                self._answers.append((self.now + RTT, ev, how))
            self.now += SERIAL

    def _notify(self, at: int, ev: int, how: int) -> None:
        self.feedback.append((at, ev, how))
        self.policy.on_feedback(ev, how, at)
