"""Several ports under one address: which of them an entropy value takes, and spraying over them.

A NIC sends a frame through the port that its entropy value (EV) hashes to (:func:`choices`). So a
path that is learned stays the path that it was, its port included.  But at the NIC's own ports
nothing marks packets.  A policy that uses again what was answered (REPS) then drifts: the port that
carried more gets more answers, and so more packets, with nothing to push back.

:class:`PerPort` therefore gives each port a policy of its own, with EVs of that port, and takes
them in turn.  A port whose packets are lost without a word is left alone, but for a try now and
then, until it answers again.  UES leaves the choice among the ports of an endpoint open.

A port of the endpoint's own without carrier needs no finding out (:class:`Ports`).  The NIC would
send its frames by another port, but the EV also selects the plane of the peer's answer.  So no EV
of such a port is used.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from uet.congestion.spraying.paths import EV_FIRST, EV_LAST, LOST, TIMEOUT, PathSelection, draw_evs

#: A port that does not answer is tried after so many of its turns, then each time after twice as
#: many as before, up to the second number: what a try loses holds up the end of its message.
TRY_AFTER: Final = 32
TRY_AFTER_MOST: Final = 4096


def choices(ports: Sequence[int]) -> bytes:
    """The port of each hash of an EV (:func:`hash_of`), where those numbered ``ports`` work.

    Of two ports it is the one that a Linux bond takes by layers 3 and 4. For all EVs to a peer it
    may be the other one, as a bond has the addresses in its hash: EVs that share a port here share
    one there.
    """
    return bytes(ports[(value >> 1) % len(ports)] for value in range(256))


def remaining(count: int, working: Sequence[int]) -> bytes:
    """The port of each hash of an EV where of ``count`` ports only the ``working`` ones are.

    EVs of a working port keep it, and those of the others divide among the working ones.
    """
    ports, instead = choices(range(count)), choices(working)
    return bytes(p if p in working else i for p, i in zip(ports, instead, strict=True))


def hash_of(ev: int) -> int:
    """Return the hash of an EV, 0..255: its two octets, exclusive or."""
    return ev >> 8 ^ ev & 0xFF


@cache
def evs_of(port: int, ports: int) -> tuple[int, ...]:
    """All EVs that take ``port`` where there are so many ``ports``."""
    choice = choices(range(ports))
    return tuple(ev for ev in range(EV_FIRST, EV_LAST + 1) if choice[hash_of(ev)] == port)


class Ports:
    """The ``count`` ports of one endpoint, and which of them are ``working``, in order.

    All path selections of the endpoint share it.
    """

    __slots__ = ("_masks", "count", "working")

    def __init__(self, count: int) -> None:
        self.count = count
        self.working: tuple[int, ...] = tuple(range(count))
        self._masks = bytes(256)

    def use(self, working: Sequence[int]) -> None:
        """Use only the ports numbered ``working``, at least one, from now on."""
        self.working = tuple(sorted(working))
        ports, instead = choices(range(self.count)), choices(self.working)
        # From the hash of an EV that has to move to the nearest one whose port is to be taken.
        self._masks = bytes(
            min(value ^ other for other in range(256) if ports[other] == instead[value])
            if ports[value] not in self.working
            else 0
            for value in range(256)
        )

    def redirect(self, ev: int) -> int:
        """``ev`` itself, or, where its port has no carrier, an EV of one that has."""
        return ev ^ self._masks[hash_of(ev)]

    def steer(self, policy: PathSelection) -> PathSelection:
        """``policy``, kept from ports without carrier."""
        return policy if self.count == 1 else Steered(policy, self)


class Steered:
    """The choice of ``policy``, redirected where its port has no carrier."""

    __slots__ = ("_pick", "_redirect", "on_feedback", "timed_out")

    def __init__(self, policy: PathSelection, ports: Ports) -> None:
        self._pick = policy.pick
        self._redirect = ports.redirect
        self.on_feedback = policy.on_feedback
        self.timed_out = policy.timed_out

    def pick(self) -> int:
        """The EV of the next packet."""
        return self._redirect(self._pick())


class PerPort:
    """One policy for each of ``ports``; ``policy`` makes it, given the EVs that it may choose.

    ``size`` EVs are drawn for each.
    """

    __slots__ = ("_choice", "_policies", "_ports", "_silent", "_try_after", "_turn", "_turns")

    def __init__(
        self,
        rng: random.Random,
        ports: Ports,
        policy: Callable[[array[int]], PathSelection],
        *,
        size: int,
    ) -> None:
        count = ports.count
        self._ports = ports
        self._choice = choices(range(count))
        self._policies = [policy(draw_evs(rng, size, evs_of(port, count))) for port in range(count)]
        self._silent = [False] * count
        self._turns = [0] * count  # of each port since it was tried, or fell silent
        self._try_after = [TRY_AFTER] * count
        self._turn = rng.randrange(count)

    def pick(self) -> int:
        """The EV of the next packet: of the next port that answers."""
        working = self._ports.working
        for _ in working:
            port = self._next(working)
            if not self._silent[port] or self._is_tried(port):
                return self._policies[port].pick()
        # None answers: the one after that which was taken last, so that each has its turn.
        return self._policies[self._next(working)].pick()

    def _next(self, working: Sequence[int]) -> int:
        turn = self._turn + 1
        self._turn = turn = turn if turn < len(working) else 0
        return working[turn]

    def _is_tried(self, port: int) -> bool:
        """Return whether ``port``, which does not answer, is to have a packet for once."""
        self._turns[port] += 1
        if self._turns[port] < self._try_after[port]:
            return False
        self._turns[port] = 0
        self._try_after[port] = min(2 * self._try_after[port], TRY_AFTER_MOST)
        return True

    def on_feedback(self, ev: int, how: int, now: int, packets: int = 1) -> None:
        """Pass feedback to the policy of the port that ``ev`` took."""
        port = self._choice[hash_of(ev)]
        self._policies[port].on_feedback(ev, how, now, packets)
        if how not in (TIMEOUT, LOST):
            self._silent[port] = False
        elif not self._silent[port]:
            self._silent[port] = True
            self._turns[port] = 0
            self._try_after[port] = TRY_AFTER

    def timed_out(self) -> None:
        """Take note of lost packets whose port is unknown."""
        for policy in self._policies:
            policy.timed_out()
