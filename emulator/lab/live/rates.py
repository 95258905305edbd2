"""Rates between two readings of every port, their balance over tiers and rails, and the busiest.

Plain numbers, no kernel: :mod:`emulator.lab.live.sampler` reads, ``uetemu top`` draws.  A link has
two directions; each is the egress of one port and is called by it (``rail0:up1``).  Octets are
those on the wire, 38 more than the IP packet, rates and intervals those of the fabric.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from emulator.arithmetic import max_mean
from emulator.dataplane.clock import Dilation
from topologies.analysis.capacity import HEIGHT
from topologies.ethernet import PACKET_OVERHEAD_OCTETS
from topologies.model import Node, Role, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDirection:
    """One direction of a link: what leaves through ``port`` (``node:port``) to ``to``.

    ``tier`` is its place in the fabric by the roles of both ends (``rail to spine``). ``rails`` are
    those whose traffic it carries: none above the spines, several where the rail switch has
    several.  ``frame_bytes`` is the longest frame on the wire.
    """

    port: str
    to: str
    tier: str
    rails: tuple[int, ...]
    rate_bps: int
    frame_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One port at ``at_ns`` (CLOCK_MONOTONIC of the host).

    Counts only grow, unless counting begins anew.  ``peak_bytes`` is the deepest that the data
    queue was since the reading before.  Counts that only a switch ASIC has are None at a port
    without. ``overflowed`` are packets that found no room in the kernel's queue; those never count
    anew.
    """

    at_ns: int
    sent_bytes: int
    queue_bytes: int
    overflowed: int
    control_queue_bytes: int = 0
    peak_bytes: int | None = None
    marked: int | None = None
    trimmed: int | None = None
    dropped: int | None = None

    @property
    def admitted_bytes(self) -> int:
        """Return the octets admitted to a queue: sent, or waiting."""
        return self.sent_bytes + self.queue_bytes + self.control_queue_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The traffic of one direction between two readings.

    ``utilisation`` is the share of the link's rate, 1 when it is full.  Queues are those of data at
    the end of the interval, ``peak_bytes`` the deepest in it.  ``marked``, ``trimmed`` and
    ``dropped`` are packets of the interval, ``total_...`` since counting began.  None stands for
    what nobody could count.
    """

    direction: LinkDirection
    rate_bps: float
    utilisation: float
    queue_bytes: int
    peak_bytes: int | None
    control_queue_bytes: int
    marked: int | None
    trimmed: int | None
    dropped: int
    total_marked: int | None
    total_trimmed: int | None
    total_dropped: int

    @property
    def deepest_bytes(self) -> int:
        """The deepest that the queue is known to have been in the interval."""
        return max(self.queue_bytes, self.peak_bytes or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Directions that do the same work: their utilisation, and what their switches did.

    ``max_mean`` is the largest utilisation over the mean, 1 when all carry alike, None when idle.
    """

    links: int
    mean: float
    max: float
    max_mean: float | None
    deepest_bytes: int
    marked: int | None
    trimmed: int | None
    dropped: int

    @classmethod
    def of(cls, members: Sequence[Activity]) -> Group:
        """Return the group of ``members``, of which there must be at least one."""
        shares = [member.utilisation for member in members]
        return cls(
            links=len(members),
            mean=sum(shares) / len(shares),
            max=max(shares),
            max_mean=max_mean(shares),
            deepest_bytes=max(member.deepest_bytes for member in members),
            marked=_sum(member.marked for member in members),
            trimmed=_sum(member.trimmed for member in members),
            dropped=sum(member.dropped for member in members),
        )


class Sort(enum.StrEnum):
    """The order in which the busiest links are listed."""

    UTILISATION = "utilisation"
    QUEUE = "queue"
    MARKS = "marks"
    TRIMS = "trims"
    DROPS = "drops"


def _percents(activity: Activity) -> int:
    return round(activity.utilisation * 100)


def _congested(activity: Activity) -> bool:
    return bool(activity.marked or activity.trimmed or activity.dropped)


_KEYS: Mapping[Sort, Callable[[Activity], int]] = {
    Sort.UTILISATION: _percents,
    Sort.QUEUE: lambda activity: activity.deepest_bytes,
    Sort.MARKS: lambda activity: activity.marked or 0,
    Sort.TRIMS: lambda activity: activity.trimmed or 0,
    Sort.DROPS: lambda activity: activity.dropped,
}


def directions(topology: Topology) -> tuple[LinkDirection, ...]:
    """Both directions of every link, in the order of the topology's nodes."""
    found = []
    for node in topology.nodes:
        for link, ours, far in topology.neighbours(node.name):
            peer = topology.node(far.node)
            found.append(
                LinkDirection(
                    port=str(ours),
                    to=str(far),
                    tier=_tier(node.role, peer.role),
                    rails=_rails(*sorted((node, peer), key=lambda end: HEIGHT[end.role])),
                    rate_bps=link.rate_bps,
                    frame_bytes=link.mtu + PACKET_OVERHEAD_OCTETS,
                )
            )
    return tuple(found)


def tiers(topology: Topology) -> tuple[str, ...]:
    """All tiers as a packet passes them: from the GPUs to the top, and down again."""
    roles = {
        (topology.node(ours.node).role, topology.node(far.node).role)
        for node in topology.nodes
        for _, ours, far in topology.neighbours(node.name)
    }

    def place(pair: tuple[Role, Role]) -> tuple[bool, int]:
        near, far = HEIGHT[pair[0]], HEIGHT[pair[1]]
        return (True, -near) if near > far else (False, near)

    return tuple(_tier(*pair) for pair in sorted(roles, key=place))


def activities(
    directions: Iterable[LinkDirection],
    before: Mapping[str, Reading],
    after: Mapping[str, Reading],
    dilation: float,
) -> list[Activity]:
    """Return what every direction did that has both readings (by port), in the order given.

    When the switches have begun to count anew in between, their counts are all of the interval.
    """
    anew = any(_restarted(before[port], after[port]) for port in before.keys() & after.keys())
    return [
        _activity(direction, before[direction.port], after[direction.port], dilation, anew)
        for direction in directions
        if direction.port in before and direction.port in after
    ]


def busiest(all_of: Iterable[Activity], sort: Sort) -> list[Activity]:
    """The busiest first; equals by utilisation, then those with congestion, then as they were.

    Utilisation is compared in whole percents: full links would change places all the time.
    """
    key = _KEYS[sort]
    return sorted(
        all_of, key=lambda each: (key(each), _percents(each), _congested(each)), reverse=True
    )


def by_tier(all_of: Iterable[Activity]) -> dict[str, Group]:
    members: dict[str, list[Activity]] = {}
    for activity in all_of:
        members.setdefault(activity.direction.tier, []).append(activity)
    return {tier: Group.of(found) for tier, found in members.items()}


def by_rail(all_of: Sequence[Activity]) -> dict[int, dict[str, Group]]:
    """Return the tiers of each rail.  Links that several rails share count in each of them."""
    members: dict[int, list[Activity]] = {}
    for activity in all_of:
        for rail in activity.direction.rails:
            members.setdefault(rail, []).append(activity)
    return {rail: by_tier(members[rail]) for rail in sorted(members)}


def _activity(
    direction: LinkDirection, before: Reading, after: Reading, dilation: float, anew: bool
) -> Activity:
    counted_anew = anew and after.marked is not None  # by an ASIC
    since = 0 if counted_anew else before.sent_bytes
    host_ns = after.at_ns - before.at_ns
    rate_bps = 0.0
    if host_ns > 0:
        sent_bytes = max(0, after.sent_bytes - since)
        rate_bps = Dilation(dilation).fabric_bps(8e9 * sent_bytes / host_ns)
        one_frame_bps = Dilation(dilation).fabric_bps(8e9 * direction.frame_bytes / host_ns)
        if direction.rate_bps < rate_bps <= direction.rate_bps + one_frame_bps:
            rate_bps = float(direction.rate_bps)  # the link was full: frames are counted whole

    def grown(start: int | None, end: int | None) -> int | None:
        return None if end is None else end - (0 if counted_anew else start or 0)

    return Activity(
        direction=direction,
        rate_bps=rate_bps,
        utilisation=rate_bps / direction.rate_bps,
        queue_bytes=after.queue_bytes,
        peak_bytes=after.peak_bytes,
        control_queue_bytes=after.control_queue_bytes,
        marked=grown(before.marked, after.marked),
        trimmed=grown(before.trimmed, after.trimmed),
        dropped=(grown(before.dropped, after.dropped) or 0) + after.overflowed - before.overflowed,
        total_marked=after.marked,
        total_trimmed=after.trimmed,
        total_dropped=(after.dropped or 0) + after.overflowed,
    )


def _restarted(before: Reading, after: Reading) -> bool:
    """Return whether an ASIC's count has gone back."""
    if before.marked is None or after.marked is None:
        return False
    return (
        after.admitted_bytes < before.admitted_bytes
        or after.marked < before.marked
        or (after.trimmed or 0) < (before.trimmed or 0)
        or (after.dropped or 0) < (before.dropped or 0)
    )


def _tier(near: Role, far: Role) -> str:
    return f"{near} to {far}"


def _rails(lower: Node, upper: Node) -> tuple[int, ...]:
    """The rails that a link between them serves: those of the lower one, if it has any."""
    for node in (lower, upper):
        if node.bridges and node.role in (Role.RAIL, Role.NIC):
            return tuple(sorted({bridge.rail for bridge in node.bridges}))
        if node.rail is not None:
            return (node.rail,)
    return ()


def _sum(values: Iterable[int | None]) -> int | None:
    """None if nobody could count."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
