"""The scale-up network of a GPU (NVLink): copies from GPU memory to GPU memory.

A copy goes straight into the peer's mapping; a notice tells the peer the fabric time at which the
data can have arrived.  Behind a switch each GPU has one port of a given
rate: copies to several peers take turns at the egress, and copies from several peers share the
ingress. Without a switch every peer has a link of its own.  A latency is added to each copy.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Final, NamedTuple

#: Modelled times are kept in picoseconds: many short copies must not be rounded to nothing.
_PS: Final = 1000
_BITS_PS: Final = 8 * 10**9 * _PS
#: The whole of a rate, in parts that keep shares of it exact enough.
_WHOLE: Final = 1 << 32
#: Separate times at which an ingress was busy that it remembers.
_KEPT: Final = 256


class CopyNotice(NamedTuple):
    """A peer's copy has been placed at ``offset``; it counts as arrived at ``deliver_at`` (ns).

    The peer's port carries ``carried`` octets of it: fewer, if the switch sums it with others.
    """

    sender: int
    execution: int
    tag: int
    crc: int
    offset: int
    length: int
    deliver_at: int
    carried: int


@dataclass(slots=True)  # a frozen one that is compiled does not come out of a pickle
class ScaleUpLink:
    """The scale-up ports of a GPU: rate each way, and latency, in fabric units.

    ``shared``: one port leads to a switch and by it to all peers, else each peer has one.
    """

    rate_bps: int
    latency_ns: int
    shared: bool = True

    def octets_ps(self, octets: int) -> int:
        """Return how long ``octets`` take."""
        bits: int = mul(octets, _BITS_PS)
        return -(-bits // self.rate_bps)


#: From each time (fabric ns) on, the share that is left of the rate of a GPU's scale-up links, or
#: of the link between two; others have all.
Paces = Sequence[tuple[int, Mapping[tuple[str, ...], float]]]


class Pace:
    """What a port does while its rate changes, in time at its whole rate (ps).

    ``steps`` are times (ps, in their order) with the share of the rate from then on, of which the
    last is not 0.  A copy on the port goes on with what is left, so that all that is to be known of
    it is when so much is done.
    """

    __slots__ = ("_at", "_done", "_parts")

    def __init__(self, steps: Sequence[tuple[int, float]]) -> None:
        self._at, self._done, self._parts = [0], [0], [_WHOLE]
        for at, share in steps:
            self._done.append(self.done(at))
            self._at.append(at)
            self._parts.append(round(share * _WHOLE))

    def done(self, at: int) -> int:
        """Return what a busy port has done by ``at``."""
        step = bisect_right(self._at, at) - 1
        parts: int = mul(at - self._at[step], self._parts[step])
        return self._done[step] + parts // _WHOLE

    def when(self, done: int) -> int:
        """Return the first time at which a busy port has ``done`` so much."""
        step = max(0, bisect_left(self._done, done) - 1)
        parts: int = mul(self._done[step] - done, _WHOLE)
        return self._at[step] - parts // self._parts[step]


class Ingress:
    """The port by which a scale-up switch reaches one GPU: it carries one octet at a time.

    Copies are admitted in any order of their times.  Each takes what earlier ones have left free
    from its start on, so that the port is never idle while octets wait for it.  Times are ps.
    """

    __slots__ = ("_busy", "_floor")

    def __init__(self) -> None:
        self._busy: list[tuple[int, int]] = []  # apart from each other, in order
        self._floor = 0  # before, all is taken for busy

    def admit(self, start: int, duration: int) -> int:
        """Return when a copy of ``duration`` from ``start`` on ends, behind what is on the port."""
        start = max(start, self._floor)
        if not duration:
            return start
        busy = self._busy
        if busy and busy[-1][1] == start:  # the common case: one behind the other
            busy[-1] = busy[-1][0], start + duration
            return start + duration
        first = len(busy)
        while first and busy[first - 1][1] >= start:
            first -= 1
        at, after = start, first
        begin = min(start, busy[first][0]) if first < len(busy) else start
        while True:
            if after < len(busy) and busy[after][0] <= at:
                at = max(at, busy[after][1])
                after += 1
                continue
            room = busy[after][0] - at if after < len(busy) else duration
            at += min(room, duration)
            duration -= min(room, duration)
            if not duration:
                break
        end = at
        if after < len(busy) and busy[after][0] == end:  # they touch
            at = busy[after][1]
            after += 1
        busy[first:after] = [(begin, at)]
        if len(busy) > _KEPT:
            self._floor = busy.pop(0)[1]
        return end
