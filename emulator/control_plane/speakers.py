"""Who speaks with whom: the BGP sessions of every switch, from the topology alone.

Nothing here knows FRR's language; that is :mod:`emulator.control_plane.render`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, collapse_addresses

from emulator.control_plane.choice import EBGP, PER_TIER, ControlPlane
from emulator.errors import UserError
from emulator.fabric.routes import destinations
from topologies.model import SWITCH_ROLES, Node, Role, Topology

#: Private AS numbers (RFC 6996).
TWO_OCTETS = range(64_512, 65_535)
FOUR_OCTETS = range(4_200_000_000, 4_294_967_295)
#: Switches of a fabric in which all are of one role: so many of them reflect.
REFLECTORS_OF_ONE_TIER = 2
TIERS = (Role.RAIL, Role.SPINE, Role.SUPER_SPINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
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
class Speaker:
    """One switch.  ``networks`` it owns and tells of, ``summaries`` it tells of in their place.

    ``fabric_ports`` lead to other switches, of whatever tier.
    """

    name: str
    system: int
    router_id: IPv4Address
    networks: tuple[IPv4Network, ...]
    summaries: tuple[IPv4Network, ...]
    fabric_ports: tuple[str, ...]
    sessions: tuple[Session, ...]


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
    external = plane.name == EBGP
    systems = as_numbers(topology, plane) if external else _one_system(topology)
    owned = destinations(topology)
    found = {}
    for switch in topology.switches:
        assert switch.loopback is not None
        networks = owned.get(switch.name, [])
        sessions = (
            _to_neighbours(topology, switch, systems, plane.unnumbered)
            if external
            else _to_reflectors(topology, switch, systems)
        )
        found[switch.name] = Speaker(
            name=switch.name,
            system=systems[switch.name],
            router_id=switch.loopback,
            networks=tuple(networks),
            summaries=tuple(_blocks(networks)) if plane.summaries else (),
            fabric_ports=tuple(_ports_to_switches(topology, switch)),
            sessions=tuple(sessions),
        )
    return found


def as_numbers(topology: Topology, plane: ControlPlane) -> dict[str, int]:
    """The AS of every switch.

    Two octets as long as the private numbers last.  With ``as=tier`` spines that share rail
    switches share an AS, and so do all super-spines, so that no path leads down and up again.
    """
    groups = (
        [(switch.name,) for switch in topology.switches]
        if plane.systems != PER_TIER
        else _tiers(topology)
    )
    numbers = TWO_OCTETS if len(groups) <= len(TWO_OCTETS) else FOUR_OCTETS
    return {name: numbers[place] for place, group in enumerate(groups) for name in group}


def reflectors(topology: Topology) -> tuple[str, ...]:
    """Who reflects iBGP's routes: the highest tier, or where all are alike the first two."""
    tiers = [role for role in TIERS if any(s.role is role for s in topology.switches)]
    highest = [switch.name for switch in topology.switches if switch.role is tiers[-1]]
    return tuple(highest if len(tiers) > 1 else highest[:REFLECTORS_OF_ONE_TIER])


def _one_system(topology: Topology) -> dict[str, int]:
    return dict.fromkeys((switch.name for switch in topology.switches), TWO_OCTETS[0])


def _tiers(topology: Topology) -> list[tuple[str, ...]]:
    """Switches in groups that share an AS, in the topology's order."""
    pod_of = _pods(topology)
    groups: dict[object, list[str]] = {}
    for switch in topology.switches:
        key: object = switch.name
        if switch.role is Role.SPINE:
            key = (Role.SPINE, pod_of[switch.name])
        elif switch.role is Role.SUPER_SPINE:
            key = Role.SUPER_SPINE
        groups.setdefault(key, []).append(switch.name)
    return [tuple(group) for group in groups.values()]


def _pods(topology: Topology) -> dict[str, int]:
    """The pod of every switch below the super-spines: what hangs together without those."""
    below = [switch for switch in topology.switches if switch.role is not Role.SUPER_SPINE]
    pod_of: dict[str, int] = {}
    for number, first in enumerate(below):
        front = [first.name] if first.name not in pod_of else []
        while front:
            name = front.pop()
            pod_of[name] = number
            for _, _, far in topology.neighbours(name):
                role = topology.node(far.node).role
                if role in SWITCH_ROLES - {Role.SUPER_SPINE} and far.node not in pod_of:
                    front.append(far.node)
    return pod_of


def _to_neighbours(
    topology: Topology, switch: Node, systems: Mapping[str, int], unnumbered: bool
) -> Iterable[Session]:
    """A session on each cable to another switch, between the addresses of its ends."""
    for _, ours, theirs in topology.neighbours(switch.name):
        near = switch.port(ours.port).address
        far = topology.node(theirs.node).port(theirs.port).address
        if theirs.node in systems and near is not None and far is not None:
            yield Session(
                peer=theirs.node,
                local=near.ip,
                address=far.ip,
                system=systems[theirs.node],
                port=ours.port if unnumbered else None,
            )


def _to_reflectors(
    topology: Topology, switch: Node, systems: Mapping[str, int]
) -> Iterable[Session]:
    """A reflector has everybody for a peer, a client the reflectors; between loopbacks."""
    reflecting = reflectors(topology)
    reflects = switch.name in reflecting
    for peer in topology.switches:
        if peer.name == switch.name or not (reflects or peer.name in reflecting):
            continue
        assert switch.loopback is not None
        assert peer.loopback is not None
        yield Session(
            peer=peer.name,
            local=switch.loopback,
            address=peer.loopback,
            system=systems[peer.name],
            client=reflects and peer.name not in reflecting,
        )


def _ports_to_switches(topology: Topology, switch: Node) -> Iterable[str]:
    for _, ours, theirs in topology.neighbours(switch.name):
        if topology.node(theirs.node).is_switch and switch.port(ours.port).address is not None:
            yield ours.port


def _blocks(networks: Iterable[IPv4Network]) -> Iterable[IPv4Network]:
    """The networks that are exactly several of ``networks``."""
    own = set(networks)
    return (block for block in collapse_addresses(own) if block not in own)
