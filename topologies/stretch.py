"""Rails whose subnet lies on several switches, joined by tunnels between them.

A packet to such a subnet is routed to a switch that has it; of several, to the nearest, and over
all of those where some are equally near.  That switch need not be the one at which the destination
is plugged in: then a tunnel takes the packet on, by a shortest path again.

Ethernet segments (RFC 7432): GPUs with a bond to two switches that advertise it to each other.

::

    rail0 -- es0 -- down0 ---------- eth0 +
      (tunnel, and BGP EVPN)              +-- bond0 of h0g0: segment 1 of the pair's system MAC
    rail1 -- es0 -- down0 ---------- eth1 +

At each switch the port is the only one of an access bond, which is the bridge's port: what a bond
is at one end it must be at the other, and FRR takes nothing else for a segment.  The identifier is
of type 3 (RFC 7432, 5): the MAC of the system that both switches pose as, and a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from topologies import addressing as plan
from topologies import wiring
from topologies.elements import (
    END_ROLES,
    EVPN,
    SHORTEST,
    VXLAN,
    VXLAN_OVERHEAD,
    Bridge,
    CableEnd,
    Link,
    Node,
    Port,
    TopologyError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The bond ``gpu`` and the two switches at its ports.

    ``ports`` are the switches' ends of its cables, ``number`` counts from 1 in rank order; switches
    of one ``system_mac`` look like one system to it.
    """

    gpu: CableEnd
    number: int
    system_mac: str
    ports: tuple[CableEnd, ...]


@wiring.once_per_topology
def segments_of(topology: wiring.Wiring) -> tuple[Segment, ...]:
    """The bonds of GPUs that are plugged into access bonds of switches, in rank order."""
    places = {switch.name: place for place, switch in enumerate(topology.switches)}
    found = []
    for number, gpu in enumerate(topology.gpus, start=1):
        for bond, members in gpu.bonds.items():
            ends = [topology.far_end(CableEnd(gpu.name, port.name)) for port in members]
            if any(_port(topology, end).bond for end in ends):
                first = min(places.get(end.node, 0) for end in ends)
                found.append(
                    Segment(
                        gpu=CableEnd(gpu.name, bond),
                        number=number,
                        system_mac=plan.segment_mac(switch=first),
                        ports=tuple(ends),
                    )
                )
    return tuple(found)


def validate_segments(topology: wiring.Wiring) -> None:
    """Raise TopologyError unless the switches of each segment can advertise it to each other."""
    for segment in segments_of(topology):
        vnis = set()
        for end in segment.ports:
            bridge = topology.bridge_of(end)
            if bridge is None or _port(topology, end).bond is None:
                raise TopologyError(
                    f"{end} is no access bond, and {segment.gpu} an Ethernet segment: all of its "
                    "cables lead to access bonds, or none"
                )
            vnis.add(bridge.vni)
        if len(vnis) > 1 or None in vnis:
            raise TopologyError(
                f"{segment.gpu} is an Ethernet segment, and its switches have no network in "
                "common: join their bridges by a VNI (subnets=stretched)"
            )


def _port(topology: wiring.Wiring, end: CableEnd) -> Port:
    return topology.node(end.node).port(end.port)


Path = tuple[Link, ...]


class Passage(NamedTuple):
    """The switches of a packet's way over a stretched rail.

    They are the switch where it comes into the fabric, the one where it gets onto its destination's
    rail, and the one that it leaves by.  Between the last two it is in a tunnel.
    """

    enters: str
    joins: str
    leaves: str


class Stretch:
    """The stretched networks of ``topology``.  ``owners``: VNI -> the switches that have it."""

    def __init__(self, topology: wiring.Wiring) -> None:
        self.topology = topology
        owners: dict[int, list[str]] = {}
        for switch in topology.switches:
            for bridge in switch.bridges:
                if bridge.vni is not None:
                    owners.setdefault(bridge.vni, []).append(switch.name)
        self.owners: Mapping[int, tuple[str, ...]] = {
            vni: tuple(names) for vni, names in owners.items()
        }
        self._from: dict[str, Mapping[str, Path]] = {}
        self._passages: dict[tuple[str, str], tuple[Passage, ...]] = {}

    @cached_property
    def homes(self) -> Mapping[str, tuple[tuple[str, ...], int]]:
        """GPU -> the switches that it is plugged into, and the VNI of its subnet."""
        found: dict[str, tuple[tuple[str, ...], int]] = {}
        for gpu in self.topology.gpus:
            for port in gpu.ports:
                for end, item in self.topology.beyond(CableEnd(gpu.name, port.name)):
                    if isinstance(item, Bridge) and item.vni is not None:
                        others, _ = found.get(gpu.name, ((), item.vni))
                        found[gpu.name] = (*others, end.node), item.vni
        return found

    @property
    def turns_back(self) -> bool:
        """Return whether a packet may have to go up again from a switch to which it went down.

        That is so where a switch with one stretched subnet lacks another.
        """
        return len({frozenset(names) for names in self.owners.values()}) > 1

    def nearest(self, switch: str, vni: int) -> tuple[str, ...]:
        """Return the switches to which ``switch`` sends what goes to the subnet of ``vni``.

        That is itself, if it has the subnet, and nobody, if it reaches none.
        """
        reached = self._paths(switch)
        hops = {owner: len(reached[owner]) for owner in self.owners[vni] if owner in reached}
        return tuple(owner for owner, far in hops.items() if far == min(hops.values()))

    def ways(self, source: str, destination: str) -> tuple[Path, ...]:
        """Return the paths between two GPUs over each switch that is nearest to the last one.

        There are none if the fabric does not join them.
        """
        reached = self._paths(source)
        if destination not in reached:
            return ()
        if source not in self.homes or destination not in self.homes:
            return (reached[destination],)
        (switches, _), (_, vni) = self.homes[source], self.homes[destination]
        if len(switches) == 1:
            (switch,) = switches
            return tuple(
                (*reached[owner], *self._paths(owner)[destination])
                if owner != switch
                else reached[destination]
                for owner in self.nearest(switch, vni)
            )
        return tuple(
            (*reached[switch], *self._paths(switch)[owner], *self._paths(owner)[destination])
            for switch in switches
            for owner in self.nearest(switch, vni)
        )

    def paths(self, source: str, *, longest: bool = False) -> Mapping[str, Path]:
        """One of the ways to each GPU, and a shortest path to all other nodes."""
        found = dict(self._paths(source))
        if self.topology.node(source).role not in END_ROLES:
            return found
        for gpu in self.topology.gpus:
            ways = self.ways(source, gpu.name) if gpu.name != source else ()
            if ways:
                found[gpu.name] = (max if longest else min)(ways, key=_length)
        return found

    def spans(self, source: str, *, longest: bool = False) -> Mapping[str, wiring.Span]:
        """Return how long the ways of :meth:`paths` are."""
        ticks = wiring.ticks_of(self.topology)
        return {
            name: wiring.span_from(self.topology, source, way)._replace(
                tunnel_ticks=sum(map(ticks.of, self.tunnel(source, name, way)))
            )
            for name, way in self.paths(source, longest=longest).items()
        }

    def tunnel(self, source: str, destination: str, way: Path) -> Path:
        """Return the cables of ``way`` that packets from one GPU to another pass in a tunnel.

        They are those behind the first switch that has the destination's subnet, but for the last,
        to the GPU.
        """
        if source not in self.homes or destination not in self.homes:
            return ()
        _, vni = self.homes[destination]
        here = source
        for place, link in enumerate(way):
            if here in self.owners[vni]:
                return way[place:-1]
            here = next(end.node for end in link.ends if end.node != here)
        return ()

    def passages(self, source: str, destination: str) -> tuple[Passage, ...]:
        """Return the switches that packets from one GPU to another may pass, whatever the cables.

        There are none if one of the two is on no stretched subnet.
        """
        if (source, destination) not in self._passages:
            self._passages[source, destination] = tuple(self._passed(source, destination))
        return self._passages[source, destination]

    def _passed(self, source: str, destination: str) -> Iterator[Passage]:
        if source not in self.homes or destination not in self.homes:
            return
        (switches, _), (ends, vni) = self.homes[source], self.homes[destination]
        for switch in switches:
            for owner in self.nearest(switch, vni):
                for end in (owner,) if owner in ends else ends:
                    yield Passage(switch, owner, end)

    def _paths(self, node: str) -> Mapping[str, Path]:
        if node not in self._from:
            self._from[node] = wiring.shortest_paths(self.topology, node)
        return self._from[node]


@wiring.once_per_topology
def stretch_of(topology: wiring.Wiring) -> Stretch | None:
    """The networks of ``topology`` that lie on several switches, if there are any."""
    found = Stretch(topology)
    return found if found.owners else None


def _length(path: Path) -> tuple[int, int]:
    return len(path), sum(link.delay_ns for link in path)


def plane_name(topology: wiring.Wiring) -> str:
    return topology.profile.control_plane.partition(":")[0].strip()


def validate_stretch(topology: wiring.Wiring) -> None:
    """Raise TopologyError unless tunnels, their control plane and their underlay agree."""
    profile, plane = topology.profile, plane_name(topology)
    tunnels = stretch_of(topology) is not None
    if tunnels and profile.data_plane != VXLAN:
        raise TopologyError(
            f"data_plane is {profile.data_plane} and subnets are stretched over switches: only "
            f"tunnels join them; take data_plane={VXLAN} with control_plane={EVPN}, or "
            "subnets=apart"
        )
    if profile.data_plane == VXLAN and plane != EVPN:
        raise TopologyError(
            f"control_plane is {plane} and data_plane {VXLAN}: only {EVPN} tells who is behind "
            f"which tunnel; take control_plane={EVPN}, or subnets=apart with data_plane=ethernet"
        )
    if plane == EVPN and not tunnels:
        raise TopologyError(
            f"control_plane is {EVPN} and no subnet is stretched over switches: it would have "
            "nothing to tell; take subnets=stretched of clos, or control_plane=ebgp"
        )
    if not tunnels:
        return
    if profile.routing != SHORTEST:
        raise TopologyError(
            f"routing is {profile.routing} and subnets are stretched over switches: take "
            f"routing={SHORTEST}"
        )
    if segments_of(topology) and profile.vlans != "on":
        raise TopologyError(
            f"vlans is {profile.vlans} and GPUs are Ethernet segments (homing=esi), which FRR has "
            "on VLANs of one bridge only: take vlans=on"
        )
    if profile.vlans != "off" and not segments_of(topology):
        raise TopologyError(
            f"vlans is {profile.vlans} and subnets are stretched over switches: tunnels are ports "
            "of a bridge for each rail; take vlans=off"
        )
    for switch in topology.switches:
        _validate_switch(topology, switch)


def _validate_switch(topology: wiring.Wiring, switch: Node) -> None:
    numbers = [bridge.vni for bridge in switch.bridges if bridge.vni is not None]
    if not numbers:
        return
    if len(set(numbers)) < len(numbers):
        raise TopologyError(f"{switch.name} has two bridges of one VNI: join them to one")
    if switch.loopback is None:
        raise TopologyError(
            f"{switch.name} has a VNI and no loopback, between which tunnels are: give it one"
        )
    for bridge in switch.bridges:
        if bridge.vni is not None and bridge.gateway is None:
            raise TopologyError(
                f"{switch.name}:{bridge.name} has a VNI and is no gateway: give it an address"
            )
    largest = max(
        (
            link.mtu
            for link, _, far in topology.neighbours(switch.name)
            if not _switch(topology, far)
        ),
        default=0,
    )
    for link in topology.links:
        if all(_switch(topology, end) for end in link.ends) and link.mtu < largest + VXLAN_OVERHEAD:
            raise TopologyError(
                f"link {link.a} - {link.b}: an MTU of {link.mtu} has no room for packets of "
                f"{largest} octets in a tunnel, which adds {VXLAN_OVERHEAD}"
            )


def _switch(topology: wiring.Wiring, end: CableEnd) -> bool:
    return topology.node(end.node).is_switch
