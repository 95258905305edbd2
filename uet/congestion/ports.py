"""Several ports under one address: which of them an entropy value takes, and spraying over them.

A NIC sends a frame through the port that its entropy value (EV) hashes to (:func:`choices`), so
that a path that is learned stays the path that it was, its port included.  But at the NIC's own
ports nothing marks packets.  A policy that uses again what was answered (REPS) then drifts: the
port that carried more gets more answers, and so more packets, with nothing to push back.

:class:`PerPort` therefore gives each port a policy of its own, with EVs of that port, and takes
them in turn.  A port whose packets are lost without a word is left alone, but for a try now and
then, until it answers again.  UES leaves the choice among the ports of an endpoint open.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

from uet.congestion.paths import TIMEOUT, PathSelection
from uet.congestion.spraying import EV_FIRST, EV_LAST

#: Odd, so that each of the 256 hashes stands for one value; the rest is chance (golden ratio).
_SPREAD = 157
#: A port that does not answer is tried in one of so many of its turns.
TRY_EVERY = 32


def choices(ports: Sequence[int]) -> bytes:
    """The port of each hash of an EV (:func:`hash_of`), where those numbered ``ports`` work."""
    return bytes(ports[(value * _SPREAD & 0xFF) * len(ports) >> 8] for value in range(256))


def hash_of(ev: int) -> int:
    """Of an EV, 0..255: its two octets, exclusive or."""
    return ev >> 8 ^ ev & 0xFF


@cache
def evs_of(port: int, ports: int) -> tuple[int, ...]:
    """All EVs that take ``port`` where there are so many ``ports``."""
    choice = choices(range(ports))
    return tuple(ev for ev in range(EV_FIRST, EV_LAST + 1) if choice[hash_of(ev)] == port)


class PerPort:
    """One policy for each of ``ports``; ``policy`` makes it, given the EVs that it may choose.

    ``size`` EVs are drawn for each.
    """

    __slots__ = ("_choice", "_policies", "_silent", "_turn", "_turns")

    def __init__(
        self,
        rng: random.Random,
        ports: int,
        policy: Callable[[list[int]], PathSelection],
        *,
        size: int,
    ) -> None:
        self._choice = choices(range(ports))
        self._policies = [policy(rng.sample(evs_of(port, ports), size)) for port in range(ports)]
        self._silent = [False] * ports
        self._turns = [0] * ports  # of each port since it fell silent
        self._turn = rng.randrange(ports)

    def pick(self) -> int:
        """The EV of the next packet: of the next port that answers."""
        policies = self._policies
        for _ in policies:
            port = self._turn
            self._turn = port + 1 if port + 1 < len(policies) else 0
            if not self._silent[port]:
                return policies[port].pick()
            self._turns[port] += 1
            if self._turns[port] % TRY_EVERY == 0:
                return policies[port].pick()
        self._turn = port  # none answers: the last one is first the next time
        return policies[port].pick()

    def on_feedback(self, ev: int, how: int, now: int, packets: int = 1) -> None:
        """To the policy of the port that ``ev`` took."""
        port = self._choice[hash_of(ev)]
        self._policies[port].on_feedback(ev, how, now, packets)
        if how != TIMEOUT:
            self._silent[port] = False
        elif not self._silent[port]:
            self._silent[port] = True
            self._turns[port] = 0

    def timed_out(self) -> None:
        """Packets were lost, nobody knows by which port."""
        for policy in self._policies:
            policy.timed_out()
