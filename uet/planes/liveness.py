"""Working planes, by the carrier of the NIC's own ports and by the answers of peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

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
