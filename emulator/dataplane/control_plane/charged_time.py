"""The fabric time that a run in virtual time charges for convergence after a fault.

FRR lives by the host's clock, which has no relation to a fabric's.  So the time is computed, from
what the switches are configured to do::

    detection  +  hops x HOP_NS

``detection`` is 0 for a cable that loses or gets carrier, as both ends see it at once; the BFD
interval times its multiplier (RFC 5880, 6.8.4) where a cable swallows everything, or begins to
carry again, and keeps carrier; without BFD the hold time of BGP, or OSPF's dead interval.  ``hops``
is how far the farthest switch whose routes change is from the nearest end of the cable.  HOP_NS is
an assumption, stated in the table: the time for a switch's processor to receive an update, choose,
write its tables and pass the update on.  Measurements of real switches spread over two orders of
magnitude around it; ``--convergence TIME`` charges another time, for every change of routes.

Not in the computed time: timers of sessions that come up again, hello and advertisement intervals,
dampening, SPF delays, and how far BFD's phase shortens its detection.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from emulator.dataplane.control_plane.control_plane_choice import COMPUTED, MEASURED, ControlPlane
from emulator.dataplane.control_plane.convergence import ConvergedState
from emulator.dataplane.control_plane.failure import without
from emulator.errors import UserError
from topologies.model import Link, Topology
from topologies.units import UnitError, format_time, parse_time_ns

HOP_NS = 1_000_000
NS_PER_S = 10**9


@dataclass(frozen=True, slots=True)
class Convergence:
    """The time that routes take to change: ``given_ns``, computed or measured, by ``mode``."""

    mode: str = COMPUTED
    given_ns: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """``computed``, ``measured`` or a time.  Raises :class:`UserError` for anything else."""
        if text in (COMPUTED, MEASURED):
            return cls(text)
        try:
            return cls("given", parse_time_ns(text))
        except UnitError:
            raise UserError(
                f"--convergence is {text!r}: it takes {COMPUTED}, {MEASURED}, or a time such as "
                "10ms"
            ) from None

    @property
    def repeatable(self) -> bool:
        """Return whether another run of the same command has the same times."""
        return self.mode != MEASURED

    def words(self, plane: ControlPlane) -> str:
        """Return what is charged, for the table."""
        if self.given_ns is not None:
            return f"{format_time(self.given_ns)} for every change of routes, as given"
        if self.mode == MEASURED:
            return "measured, in the time of this machine: the run is not repeatable"
        how = "BFD" if plane.bfd else "hold time"
        detected = format_time(round(plane.detection_s * NS_PER_S))
        return f"computed: carrier at once, else {how} {detected}; {format_time(HOP_NS)} a hop"


@dataclass(frozen=True)
class Broken:
    """The cables that carry nothing: ``dead`` without carrier, ``black`` with it."""

    dead: frozenset[Link] = frozenset()
    black: frozenset[Link] = frozenset()

    @property
    def links(self) -> frozenset[Link]:
        return self.dead | self.black

    def noticed(self, topology: Topology) -> frozenset[Link]:
        """Return the cables that some switch misses: none listens for a GPU that keeps carrier."""
        return self.dead | {
            link
            for link in self.black
            if all(topology.node(end.node).is_switch for end in link.ends)
        }


class ChargedTime:
    """Computes the time for changes of the fabric ``topology`` under ``plane``.

    ``vlans``: the rails of a switch are VLANs of one bridge.
    """

    def __init__(self, topology: Topology, plane: ControlPlane, *, vlans: bool = False) -> None:
        self._topology, self._plane, self._vlans = topology, plane, vlans
        self._expected: dict[frozenset[Link], ConvergedState] = {}

    def expected(self, broken: Broken) -> ConvergedState:
        """Return the routes of all switches once they have rerouted without what is ``broken``."""
        links = broken.noticed(self._topology)
        if links not in self._expected:
            left = self.left(broken)
            self._expected[links] = ConvergedState(
                left, self._plane, self._topology, vlans=self._vlans
            )
        return self._expected[links]

    def left(self, broken: Broken) -> Topology:
        """Return what the switches take the fabric for, without what is ``broken``."""
        left = self._topology
        for link in sorted(broken.noticed(left), key=lambda one: one.a):
            left = without(left, link)
        return left

    def of(self, before: Broken, after: Broken) -> int:
        """The computed time (ns) from the change of ``before`` to ``after`` to the new routes."""
        changed = before.noticed(self._topology) ^ after.noticed(self._topology)
        detection_ns = 0
        if any(link in before.black ^ after.black for link in changed):
            detection_ns = round(self._plane.detection_s * NS_PER_S)
        return detection_ns + HOP_NS * self._hops(before, after, changed)

    def _hops(self, before: Broken, after: Broken, changed: Collection[Link]) -> int:
        old, new = self.expected(before).requested, self.expected(after).requested
        names = {switch.name for switch in self._topology.switches}
        affected = {name for name in names if old[name] != new[name]}
        front = sorted({end.node for link in changed for end in link.ends} & names)
        distance = dict.fromkeys(front, 0)
        for name in front:  # which grows
            for link, _, far in self._topology.neighbours(name):
                if far.node in names and far.node not in distance and link not in after.links:
                    distance[far.node] = distance[name] + 1
                    front.append(far.node)
        return max((distance[name] for name in affected & distance.keys()), default=0)
