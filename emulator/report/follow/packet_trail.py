"""The sightings of one packet put in order: each attempt, and the ports that it passed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from emulator.report.follow.packet_view import FlowKey, PacketView
from topologies.model import CableEnd

#: Sightings and attempts of one packet that are kept, at most.
MOST_SIGHTINGS, MOST_ATTEMPTS = 512, 32


@dataclass(frozen=True, slots=True)
class Sighting:
    """A packet at a port: the time (ns of the file's clock), the way, and the frame's octets."""

    at_ns: int
    end: CableEnd
    leaves: bool
    length: int
    seen: PacketView


@dataclass
class SendAttempt:
    """One transmission of a packet: its sightings in order of time."""

    sightings: list[Sighting] = field(default_factory=list)

    @property
    def first(self) -> Sighting:
        return self.sightings[0]

    @property
    def last(self) -> Sighting:
        return self.sightings[-1]

    def reached(self, node: str) -> Sighting | None:
        """Return the sighting of its arrival at ``node``."""
        found = (one for one in self.sightings if one.end.node == node and not one.leaves)
        return next(found, None)


@dataclass
class PacketTrail:
    """A packet by its flow and PSN, and its attempts.

    ``left_out`` counts sightings beyond those that are kept.
    """

    flow: FlowKey
    psn: int
    attempts: list[SendAttempt] = field(default_factory=list)
    left_out: int = 0
    kept: int = 0

    def add(self, sighting: Sighting, follows: Callable[[Sighting, Sighting], bool]) -> None:
        """Append a sighting to the attempt that it continues, or begin another one.

        ``follows`` says of two sightings whether the second is the next place after the first.
        Frames of attempts can be equal in every octet: then the newest that is one place behind has
        it, else the newest that has not been at this place.
        """
        if self.kept >= MOST_SIGHTINGS:
            self.left_out += 1
            return
        attempt = self._continued(sighting, follows)
        if attempt is None:
            if len(self.attempts) >= MOST_ATTEMPTS:
                self.left_out += 1
                return
            attempt = SendAttempt()
            self.attempts.append(attempt)
        self.kept += 1
        attempt.sightings.append(sighting)

    def _continued(
        self, sighting: Sighting, follows: Callable[[Sighting, Sighting], bool]
    ) -> SendAttempt | None:
        place = (sighting.end, sighting.leaves)
        open_ones = [
            attempt
            for attempt in reversed(self.attempts)
            if _alike(attempt.last.seen, sighting.seen)
            and all((one.end, one.leaves) != place for one in attempt.sightings)
        ]
        adjacent = [one for one in open_ones if follows(one.last, sighting)]
        return next(iter(adjacent or open_ones), None)


def _alike(one: PacketView, other: PacketView) -> bool:
    """Return whether two sightings can be of one transmission: switches change neither."""
    return (one.port, one.retransmission) == (other.port, other.retransmission)
