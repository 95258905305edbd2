"""The BGP sessions of every switch, computed from the topology alone.

Nothing here depends on FRR's language; that is :mod:`emulator.dataplane.control_plane.render`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

from emulator.dataplane.control_plane.control_plane_choice import (
    EXTERNAL,
    PER_SWITCH,
    PER_TIER,
    ControlPlane,
)
from emulator.errors import UserError
from topologies.analysis.capacity import HEIGHT
from topologies.model import SWITCH_ROLES, Node, Role, Topology
from topologies.routing.static_routes import attached, destinations, static_routes
from topologies.stretch import Segment, segments_of
from topologies.validation import subnets_in

#: Private AS numbers (RFC 6996).
TWO_OCTETS = range(64_512, 65_535)
FOUR_OCTETS = range(4_200_000_000, 4_294_967_295)
#: So many switches reflect where all are of one tier.
REFLECTORS_OF_ONE_TIER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BgpSession:
    """A BGP session as one of its two ends sees it, between ``local`` and ``address``.

    ``port`` is the interface of an unnumbered one, else None.  ``client``: the peer is a client of
    this route reflector.
    """

    peer: str
    local: IPv4Address
    address: IPv4Address
    system: int
    port: str | None = None
    client: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSpeaker:
    """A tenant's routes in a switch, whose L3 VNI is ``vni``; it advertises ``networks``."""

    name: str
    vni: int
    networks: tuple[IPv4Network, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """One switch with the ``networks`` it owns, and the ``summaries`` it advertises in their place.

    ``fabric_ports`` lead to other switches, of whatever tier.  ``cluster`` is that of a route
    reflector. All have the same, for they have the same clients, and none advertises a route twice
    to another. ``tunnels`` end here: the switch advertises who is behind it, all others only pass
    that on. ``vrfs`` are its tenants with routes of their own. ``segments`` are by access bond the
    Ethernet segments that it shares with other switches.
    """

    name: str
    system: int
    router_id: IPv4Address
    networks: tuple[IPv4Network, ...]
    summaries: tuple[IPv4Network, ...]
    fabric_ports: tuple[str, ...]
    sessions: tuple[BgpSession, ...]
    tunnels: bool = False
    vrfs: tuple[TenantSpeaker, ...] = ()
    segments: Mapping[str, Segment] = field(default_factory=dict)
    cluster: IPv4Address | None = None


def speakers(topology: Topology, plane: ControlPlane) -> Mapping[str, Speaker]:
    """Every switch of ``topology``, by name.

    Raises UserError for a fabric in which ``plane`` cannot be spoken.
    """
    for switch in topology.switches:
        if switch.loopback is None:
            raise UserError(
                f"{switch.name} has no loopback, which the control plane {plane.name} takes for "
                "its router id: give it one in the topology, or take static"
            )
    external = plane.name in EXTERNAL
    systems = as_numbers(topology, plane) if external else _one_system(topology)
    apart = subnets_apart(topology)
    owned, routes = destinations(apart), static_routes(apart)
    part_of = parts(topology, SWITCH_ROLES)
    clusters = _clusters(topology, part_of)
    found = {}
    for switch in topology.switches:
        behind = [route.destination for route in attached(switch, routes[switch.name])]
        sessions = (
            _to_neighbours(topology, switch, systems, plane.unnumbered)
            if external
            else _to_reflectors(topology, switch, systems, part_of)
        )
        found[switch.name] = Speaker(
            name=switch.name,
            system=systems[switch.name],
            router_id=topology.loopbacks[switch.name],
            networks=(*owned.get(switch.name, ()), *behind),
            summaries=switch.summaries if plane.summaries else (),
            fabric_ports=tuple(_ports_to_switches(topology, switch)),
            sessions=tuple(sessions),
            tunnels=bool(switch.vrfs) or any(b.vni is not None for b in switch.bridges),
            vrfs=tuple(_vrfs(switch)),
            segments=_segments(topology, switch),
            cluster=None if external else clusters.get(switch.name),
        )
    return found


def _segments(topology: Topology, switch: Node) -> dict[str, Segment]:
    return {
        switch.port(end.port).interface: segment
        for segment in segments_of(topology)
        for end in segment.ports
        if end.node == switch.name
    }


def _vrfs(switch: Node) -> Iterator[TenantSpeaker]:
    """A border leaf advertises to a tenant what all share, another leaf the tenant's subnets."""
    for vrf in switch.vrfs:
        shared = vrf.handoff.shared if vrf.handoff is not None else ()
        networks = (*subnets_in(switch, vrf.name), *shared)
        yield TenantSpeaker(name=vrf.name, vni=vrf.vni, networks=networks)


def subnets_apart(topology: Topology) -> Topology:
    """``topology`` whose switches own every subnet by itself, whatever they are to sum up."""
    nodes = tuple(dataclasses.replace(node, summaries=()) for node in topology.nodes)
    return dataclasses.replace(topology, nodes=nodes)


def as_numbers(topology: Topology, plane: ControlPlane) -> dict[str, int]:
    """The AS of every switch.

    Two octets as long as the private numbers last.  With ``as=tier`` spines that share rail
    switches share an AS, and so do all super-spines, so that no path leads down and up again.
    Raises UserError where such switches are neighbours.
    """
    groups = (
        [(switch.name,) for switch in topology.switches]
        if plane.systems != PER_TIER
        else _tiers(topology)
    )
    numbers = TWO_OCTETS if len(groups) <= len(TWO_OCTETS) else FOUR_OCTETS
    systems = {name: numbers[place] for place, group in enumerate(groups) for name in group}
    for link in topology.links:
        a, b = link.a.node, link.b.node
        if a in systems and systems[a] == systems.get(b):
            raise UserError(
                f"{a} and {b} are joined and would share an AS with as={PER_TIER}, which is for "
                f"tiers without links of their own: take as={PER_SWITCH}"
            )
    return systems


def reflectors(switches: Iterable[Node]) -> tuple[str, ...]:
    """Return who reflects iBGP's routes: the highest tier, or where all are alike the first two."""
    by_role: dict[Role, list[str]] = {}
    for switch in switches:
        by_role.setdefault(switch.role, []).append(switch.name)
    highest = by_role[max(by_role, key=HEIGHT.__getitem__)]
    return tuple(highest if len(by_role) > 1 else highest[:REFLECTORS_OF_ONE_TIER])


def reflectors_of(topology: Topology) -> frozenset[str]:
    """All switches that reflect iBGP's routes: those of each part that hangs together."""
    return frozenset(_clusters(topology, parts(topology, SWITCH_ROLES)))


def _clusters(topology: Topology, part_of: Mapping[str, int]) -> dict[str, IPv4Address]:
    """The cluster of every reflector: the router id of the first of them in its part."""
    found = {}
    for part in set(part_of.values()):
        reflecting = reflectors(s for s in topology.switches if part_of[s.name] == part)
        found.update(dict.fromkeys(reflecting, topology.loopbacks[reflecting[0]]))
    return found


def _one_system(topology: Topology) -> dict[str, int]:
    return dict.fromkeys((switch.name for switch in topology.switches), TWO_OCTETS[0])


def _tiers(topology: Topology) -> list[tuple[str, ...]]:
    """Switches in groups that share an AS, in the topology's order."""
    pod_of = parts(topology, SWITCH_ROLES - {Role.SUPER_SPINE})
    groups: dict[object, list[str]] = {}
    for switch in topology.switches:
        key: object = switch.name
        if switch.role is Role.SPINE:
            key = (Role.SPINE, pod_of[switch.name])
        elif switch.role is Role.SUPER_SPINE:
            key = Role.SUPER_SPINE
        groups.setdefault(key, []).append(switch.name)
    return [tuple(group) for group in groups.values()]


def parts(topology: Topology, roles: Collection[Role]) -> dict[str, int]:
    """Switches of ``roles``, each with the number of the part that hangs together over them."""
    part_of: dict[str, int] = {}
    for number, first in enumerate(topology.switches):
        front = [first.name] if first.role in roles and first.name not in part_of else []
        while front:
            name = front.pop()
            part_of[name] = number
            for _, _, far in topology.neighbours(name):
                if topology.node(far.node).role in roles and far.node not in part_of:
                    front.append(far.node)
    return part_of


def _to_neighbours(
    topology: Topology, switch: Node, systems: Mapping[str, int], unnumbered: bool
) -> Iterator[BgpSession]:
    """A session on each cable to another switch, between the addresses of its ends."""
    for _, ours, theirs in topology.neighbours(switch.name):
        near = switch.port(ours.port).address
        far = topology.node(theirs.node).port(theirs.port).address
        if theirs.node in systems and near is not None and far is not None:
            yield BgpSession(
                peer=theirs.node,
                local=near.ip,
                address=far.ip,
                system=systems[theirs.node],
                port=ours.port if unnumbered else None,
            )


def _to_reflectors(
    topology: Topology, switch: Node, systems: Mapping[str, int], part_of: Mapping[str, int]
) -> Iterator[BgpSession]:
    """A reflector has everybody for a peer, a client the reflectors; between loopbacks."""
    part = [peer for peer in topology.switches if part_of[peer.name] == part_of[switch.name]]
    reflecting = reflectors(part)
    reflects = switch.name in reflecting
    for peer in part:
        if peer.name == switch.name or not (reflects or peer.name in reflecting):
            continue
        yield BgpSession(
            peer=peer.name,
            local=topology.loopbacks[switch.name],
            address=topology.loopbacks[peer.name],
            system=systems[peer.name],
            client=reflects and peer.name not in reflecting,
        )


def _ports_to_switches(topology: Topology, switch: Node) -> Iterator[str]:
    for _, ours, theirs in topology.neighbours(switch.name):
        if topology.node(theirs.node).is_switch and switch.port(ours.port).address is not None:
            yield ours.port
