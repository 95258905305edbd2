"""Working planes, by the carrier of the NIC's own ports and by the answers of peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

#: The pause between questions to a silent plane grows up to so many times the first.
_LONGEST_TIME_LIMIT = 64
COUNTERS = ("planes_down", "planes_up", "planes_silent", "planes_found")


class PlaneProbe:
    """A question to the endpoint of one peer in one silent plane, until that answers.

    ``pause`` (ns) is how long to wait before it is put again.
    """

    __slots__ = ("pause", "peer", "plane")

    def __init__(self, peer: str, plane: int, pause: int) -> None:
        self.peer, self.plane, self.pause = peer, plane, pause


class Liveness:
    """The planes of one interface, ``count`` of them.

    ``ask_at`` is called with a time (ns) and the probe that is due then, ``time_limit`` is the
    first pause of a probe.
    """

    def __init__(
        self,
        count: int,
        counts: Counter[str],
        ask_at: Callable[[int, PlaneProbe], None],
        *,
        time_limit: int,
    ) -> None:
        self._counts = counts
        self._ask_at = ask_at
        self._time_limit = time_limit
        #: Those with carrier, in order; and those that are to be so from the next turn on.
        self.working: Sequence[int] = tuple(range(count))
        self.announced = self.working
        self._silent: dict[tuple[str, int], PlaneProbe] = {}

    @property
    def has_news(self) -> bool:
        """Return whether carriers have changed since :meth:`settle`."""
        return self.announced != self.working

    def settle(self, now: int) -> list[int]:
        """Take the news; the planes that have lost their carrier."""
        before, self.working = self.working, self.announced
        gone = [plane for plane in before if plane not in self.working]
        back = [plane for plane in self.working if plane not in before]
        self._counts["planes_down"] += len(gone)
        self._counts["planes_up"] += len(back)
        for probe in self._silent.values():
            if probe.plane in back:
                self._ask_at(now, probe)
        return gone

    def usable(self, peer: str) -> Sequence[int]:
        """The planes not known to be dead towards ``peer``; if all are, those with carrier."""
        if not self._silent:
            return self.working
        found = [plane for plane in self.working if (peer, plane) not in self._silent]
        return found or self.working

    def lost(self, peer: str, plane: int, now: int) -> bool:
        """``peer`` does not answer in ``plane``; whether that is news."""
        if (peer, plane) in self._silent:
            return False
        self._counts["planes_silent"] += 1
        probe = self._silent[peer, plane] = PlaneProbe(peer, plane, self._time_limit)
        self._ask_at(now, probe)
        return True

    def heard(self, peer: str, plane: int) -> None:
        """``peer`` answers in ``plane``."""
        if self._silent and self._silent.pop((peer, plane), None) is not None:
            self._counts["planes_found"] += 1

    def wants(self, probe: PlaneProbe) -> bool:
        """Return whether to put the question now.

        It is open, and the NIC's own port has carrier.
        """
        return probe.plane in self.working and self._is_open(probe)

    def unanswered(self, probe: PlaneProbe, now: int) -> None:
        """The question goes to the end of its pause, and the next pause is twice as long."""
        if self._is_open(probe):
            self._ask_at(now + probe.pause, probe)
            probe.pause = min(2 * probe.pause, _LONGEST_TIME_LIMIT * self._time_limit)

    def _is_open(self, probe: PlaneProbe) -> bool:
        return self._silent.get((probe.peer, probe.plane)) is probe


_VERSION_AT = 14
_SOURCE4, _SOURCE6 = slice(26, 30), slice(22, 38)


@dataclass(slots=True)
class _Waiting:
    """The open work in one plane towards one peer; ``final`` parts must not be issued again."""

    since: int = 0
    count: int = 0
    final: int = 0
    is_watched: bool = False


class Hearing:
    """Knows when the last packet of each peer came in which plane.

    Retransmission alone takes long to give up a peer, as it must where there is no other way.  Here
    is one: a plane is taken for dead in which something has waited for ``after`` ns, without a word
    from the peer. The peer must have answered in another plane since.  ``routes`` has each peer's
    addresses, in the order of planes.
    """

    def __init__(self, routes: Mapping[str, Sequence[str]], *, after: int) -> None:
        self.after = after
        self._address = {
            (peer, plane): ip_address(address).packed
            for peer, route in routes.items()
            for plane, address in enumerate(route)
        }
        self._heard: dict[bytes, int] = {}
        self._waiting = {place: _Waiting() for place in self._address}

    def listen(self, frames: Sequence[memoryview], now: int) -> None:
        """Frames have come in."""
        heard = self._heard
        for frame in frames:
            if len(frame) > _VERSION_AT:
                source = _SOURCE4 if frame[_VERSION_AT] >> 4 == 4 else _SOURCE6
                heard[bytes(frame[source])] = now

    def opened(self, peer: str, plane: int, now: int, *, is_final: bool) -> bool:
        """Something goes there; whether the caller shall :meth:`look` in ``after`` ns."""
        waiting = self._waiting[peer, plane]
        if not waiting.count:
            waiting.since = now
        waiting.count += 1
        waiting.final += is_final
        starts, waiting.is_watched = not waiting.is_watched, True
        return starts

    def ended(self, peer: str, plane: int, *, is_final: bool) -> None:
        """Something that went there has ended."""
        waiting = self._waiting[peer, plane]
        waiting.count -= 1
        waiting.final -= is_final

    def look(self, peer: str, plane: int, now: int) -> int | None:
        """Return when to look again (ns), or ``None`` if nothing waits there.

        ``now`` means that there has been silence for too long.
        """
        waiting = self._waiting[peer, plane]
        if not waiting.count:
            waiting.is_watched = False
            return None
        if waiting.final:  # it would end with an error
            return now + self.after
        return max(now, self._last(peer, plane) + self.after)

    def is_heard_since(self, peer: str, plane: int, others: Sequence[int]) -> bool:
        """Return whether ``peer`` has sent in one of ``others`` since it last did in ``plane``."""
        last = self._last(peer, plane)
        return any(self._heard.get(self._address[peer, other], -1) > last for other in others)

    def _last(self, peer: str, plane: int) -> int:
        """Return when ``plane`` fell silent."""
        since = self._waiting[peer, plane].since
        return max(since, self._heard.get(self._address[peer, plane], since))
