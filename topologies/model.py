"""What a fabric is made of, as plain data.

A :class:`Topology` is complete before the kernel is touched: every port has its name, MAC and
address, every link its rate, delay, MTU and buffer.  Units are in the field names: ``_bps`` is
bits per second, ``_ns`` nanoseconds, ``_bytes`` octets, all in the real fabric's own terms (time
dilation is the emulator's business, not the topology's).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from types import MappingProxyType
from typing import TYPE_CHECKING

from topologies import spans
from topologies.ethernet import HEADER_OCTETS
from topologies.spans import Span, Ticks

if TYPE_CHECKING:
    from topologies.multihoming import Segment
    from topologies.routing import Forwarding
    from topologies.routing.stretch import Stretch

MIN_MTU, MAX_MTU = 576, 65_000
#: What a tunnel puts around a packet within a link's MTU: IPv4 20, UDP 8, VXLAN 8, and the header
#: of the frame inside (RFC 7348).
VXLAN_OVERHEAD = 36 + HEADER_OCTETS
ETHERNET, VXLAN, EVPN = "ethernet", "vxlan", "evpn"
VLAN_USES = ("off", "auto", "on")
MAX_VLAN = 4094
AXES = "xyz"  # the dimensions of a torus
SHORTEST = "shortest"  # all paths of the fewest hops: how a fabric routes unless it says otherwise
SCALE_UP_SHAPES = (SWITCH, MESH, RING) = ("switch", "mesh", "ring")
ROUTINGS = (SHORTEST, "dimension-order", "minimal", "valiant", "up-down")


class TopologyError(ValueError):
    """The description contradicts itself; the message names the element and the way out."""


class Role(enum.StrEnum):
    """What a node is.  ``NIC`` is one that several GPUs share: a bridge inside the server that
    holds its senders back instead of dropping.  ``LEAF`` is a bottom switch whose subnet is not a
    rail's, ``ROUTER`` one of a direct network (torus, dragonfly)."""

    GPU = "gpu"
    SERVER = "server"
    NIC = "nic"
    RAIL = "rail"
    LEAF = "leaf"
    ROUTER = "router"
    SPINE = "spine"
    SUPER_SPINE = "super-spine"


SWITCH_ROLES = frozenset({Role.RAIL, Role.LEAF, Role.ROUTER, Role.SPINE, Role.SUPER_SPINE})


@dataclass(frozen=True, kw_only=True)
class Port:
    """One network interface.  A port is either routed (it has an address) or a bridge member.

    Members of the bond ``bond`` have its MAC and its address, or it is the bridge's member in their
    place (an access bond).
    """

    name: str
    mac: str
    address: IPv4Interface | None = None
    bridge: str | None = None
    bond: str | None = None

    @property
    def interface(self) -> str:
        """What has the address or is the bridge's member: the port, or its bond."""
        return self.bond or self.name


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """One rail inside a rail switch: its member ports share a subnet, the bridge is its gateway.

    A bridge without ``gateway``, that of a shared NIC, only passes frames on.  ``vlan`` is the id
    that the design's drawing gives the rail, and its 802.1Q id where the bridges of a switch are
    VLANs of one (:class:`FabricProfile`); these have the one MAC of the switch.  Bridges of one
    ``vni`` are one network that is stretched over several switches: they have the same gateway and
    MAC (anycast), and tunnels between the loopbacks of their switches join them.
    """

    name: str
    rail: int
    mac: str
    gateway: IPv4Interface | None = None
    vlan: int | None = None
    vni: int | None = None


@dataclass(frozen=True, kw_only=True)
class Node:
    """A GPU or a switch; each becomes one network namespace.

    ``hash_seed`` seeds this switch's ECMP hash; seeds differ between switches so that tiers do
    not all choose alike (polarisation).  ``gateway`` is the IPv4 address (no prefix) of a GPU's
    default gateway, ``loopback`` a switch's router id.  A GPU with a ``loopback`` is reached at
    that fabric address (FA) over each of its ports, and has a gateway on each.

    ``pod`` and ``plane`` say to which part of the fabric the node belongs, where there are several
    (a group of a dragonfly is a pod).  ``summaries`` are what the others are told instead of the
    subnets of this switch that they contain.  ``position`` are the coordinates of a router of a
    torus.
    """

    name: str
    role: Role
    ports: tuple[Port, ...]
    bridges: tuple[Bridge, ...] = ()
    server: str | None = None
    local_rank: int | None = None
    rail: int | None = None
    gateway: str | None = None
    loopback: IPv4Address | None = None
    hash_seed: int = 0
    pod: int | None = None
    plane: int | None = None
    summaries: tuple[IPv4Network, ...] = ()
    position: tuple[int, ...] = ()

    @property
    def is_switch(self) -> bool:
        return self.role in SWITCH_ROLES

    @property
    def forwards(self) -> bool:
        """Whether frames pass through it from one port to another."""
        return self.is_switch or self.role is Role.NIC

    @property
    def transparent(self) -> bool:
        """Whether it is seen by nobody: a bridge without an address of its own."""
        return bool(self.bridges) and all(bridge.gateway is None for bridge in self.bridges)

    def bridge_of(self, port: Port) -> Bridge | None:
        """The bridge that ``port`` is a member of."""
        return next((bridge for bridge in self.bridges if bridge.name == port.bridge), None)

    @property
    def bonds(self) -> Mapping[str, tuple[Port, ...]]:
        """The ports of each bond."""
        names = dict.fromkeys(port.bond for port in self.ports if port.bond)
        return {name: tuple(p for p in self.ports if p.bond == name) for name in names}

    @property
    def feps(self) -> tuple[Port, ...]:
        """The ports of a GPU whose NIC has a fabric endpoint (FEP) on each, in the order of planes.

        They have addresses of their own and the NIC's one MAC.  Empty where one endpoint has all
        ports.
        """
        several = self.role is Role.GPU and len(self.ports) > 1 and self.loopback is None
        if not several or any(port.bond or port.mac != self.ports[0].mac for port in self.ports):
            return ()
        return self.ports

    def port(self, name: str) -> Port:
        for port in self.ports:
            if port.name == name:
                return port
        raise TopologyError(
            f"node {self.name} has no port {name!r}; it has {', '.join(p.name for p in self.ports)}"
        )


@dataclass(frozen=True, order=True)
class End:
    """One end of a cable, written ``node:port``."""

    node: str
    port: str

    def __str__(self) -> str:
        return f"{self.node}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Link:
    """A full-duplex cable.  ``buffer_bytes`` is the egress queue at each of its two ends.

    A ``standby`` joins the bridges of two switches that look like one gateway, and carries only
    frames to those whose own port at one of the two is down: it is no path otherwise.
    """

    a: End
    b: End
    rate_bps: int
    delay_ns: int
    mtu: int
    buffer_bytes: int
    standby: bool = False

    @property
    def ends(self) -> tuple[End, End]:
        return self.a, self.b


@dataclass(frozen=True, kw_only=True)
class ScaleUp:
    """The NVLink/NVSwitch network of a server, or of ``hosts`` servers: per-GPU rate each way, and
    latency.  Its ``shape`` is one of :mod:`topologies.parts.scale_up`.

    The default is 450 GB/s each way: 18 NVLink 4 links, whose 900 GB/s counts both directions.
    """

    rate_bps: int = 3_600_000_000_000
    latency_ns: int = 700
    shape: str = SWITCH
    hosts: int = 1


@dataclass(frozen=True, kw_only=True)
class Server:
    """Servers of one ``domain`` share a scale-up network; by default each has its own."""

    name: str
    gpus: tuple[str, ...]
    scale_up: ScaleUp = field(default_factory=ScaleUp)
    domain: str | None = None


@dataclass(frozen=True, kw_only=True)
class FabricProfile:
    """What holds for the whole fabric.

    ``routing`` says which paths its routes take: ``shortest`` (all of them), or another way of
    :mod:`topologies.routing`.  ``control_plane`` is ``NAME[:PARAMETER=VALUE,...]``, ``data_plane``
    ``ethernet`` or ``vxlan``.  ``vlans`` says whether the bridges of a switch are VLANs of one
    (``on``), are so where the kernel can (``auto``), or stand for themselves (``off``).
    """

    control_plane: str = "static"
    data_plane: str = ETHERNET
    load_balancing: str = "flow"
    routing: str = SHORTEST
    vlans: str = "off"


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A validated fabric.  ``parameters`` are what its designer chose, for the run's record.

    ``switch_latency_ns`` is the time that a packet takes through the pipeline of each switch; the
    switch's choice says it, not the designer's (:meth:`with_switch_latency`).
    """

    name: str
    parameters: Mapping[str, object]
    servers: tuple[Server, ...]
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    profile: FabricProfile = field(default_factory=FabricProfile)
    switch_latency_ns: int = 0

    def __post_init__(self) -> None:
        from topologies.validation import validate  # here, as it is written in terms of topologies

        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))
        validate(self)

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        return MappingProxyType({node.name: node for node in self.nodes})

    def node(self, name: str) -> Node:
        try:
            return self.by_name[name]
        except KeyError:
            nodes = ", ".join(self.by_name)
            raise TopologyError(
                f"topology {self.name} has no node {name!r}; its nodes are {nodes}"
            ) from None

    @property
    def gpus(self) -> tuple[Node, ...]:
        """GPUs in rank order: servers in order, local ranks within each server."""
        return tuple(self.by_name[gpu] for server in self.servers for gpu in server.gpus)

    @property
    def switches(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.is_switch)

    @cached_property
    def scale_up_domains(self) -> Mapping[str, str]:
        """The scale-up domain of each GPU, in rank order."""
        return {gpu: one.domain or one.name for one in self.servers for gpu in one.gpus}

    def with_switch_latency(self, latency_ns: int) -> Topology:
        """This fabric with switches whose pipeline takes ``latency_ns``."""
        if latency_ns == self.switch_latency_ns:
            return self
        return replace(self, switch_latency_ns=latency_ns)

    def latency_ns(self, node: str) -> int:
        """The time that a packet takes through ``node``, beside its queues: that of a switch."""
        return self.switch_latency_ns if self.by_name[node].is_switch else 0

    def server_of(self, gpu: str) -> Server:
        for server in self.servers:
            if gpu in server.gpus:
                return server
        raise TopologyError(f"{gpu} is not a GPU of topology {self.name}")

    @cached_property
    def _neighbours(self) -> Mapping[str, tuple[tuple[Link, End, End], ...]]:
        table: dict[str, list[tuple[Link, End, End]]] = {node.name: [] for node in self.nodes}
        for link in self.links:
            table[link.a.node].append((link, link.a, link.b))
            table[link.b.node].append((link, link.b, link.a))
        return {name: tuple(rows) for name, rows in table.items()}

    def neighbours(self, node: str) -> Iterator[tuple[Link, End, End]]:
        """Every cable of ``node`` as (link, our end, their end)."""
        return iter(self._neighbours[node])

    def link_at(self, end: End) -> Link:
        for link, ours, _ in self._neighbours[end.node]:
            if ours == end:
                return link
        raise TopologyError(f"no cable is plugged into {end}")

    @cached_property
    def forwarding(self) -> Forwarding:
        """The next hops of all switches under the routing in force."""
        from topologies.routing import Forwarding  # here, as it is written in terms of topologies

        return Forwarding(self)

    def paths(self, source: str, port: str | None = None) -> Mapping[str, tuple[Link, ...]]:
        """One shortest path (fewest hops, then least delay) from ``source`` to every node.

        It is the shortest of those that the routing in force takes, which all have one length
        except under ``valiant``.  With ``port`` all leave ``source`` through that one, which tells
        something apart only on fabrics of shortest paths: nobody has several ports on others.
        """
        if self.profile.routing != SHORTEST:
            return self.forwarding.paths(source)
        if self.stretch is not None:
            return self.stretch.paths(source)
        return self.shortest_paths(source, port)

    def shortest_paths(
        self, source: str, port: str | None = None
    ) -> Mapping[str, tuple[Link, ...]]:
        """A shortest path of the graph from ``source`` to every node, whatever the routing."""
        return spans.shortest_paths(self, source, port)

    def longest_paths(self, source: str) -> Mapping[str, tuple[Link, ...]]:
        """As :meth:`paths`, but the longest of the ways that the routing in force takes."""
        if self.profile.routing != SHORTEST:
            return self.forwarding.paths(source, longest=True)
        if self.stretch is not None:
            return self.stretch.paths(source, longest=True)
        return self.paths(source)

    def spans(self, source: str, *, longest: bool = False) -> Mapping[str, Span]:
        """How long the ways of :meth:`paths`, or of :meth:`longest_paths`, are."""
        if self.profile.routing != SHORTEST:
            return self.forwarding.spans(source, longest=longest)
        if self.stretch is not None:
            return self.stretch.spans(source, longest=longest)
        if source not in self._spans:
            self._spans[source] = spans.shortest_spans(self, source)
        return self._spans[source]

    @cached_property
    def _spans(self) -> dict[str, Mapping[str, Span]]:
        """Spans that :meth:`spans` has computed, by source."""
        return {}

    @cached_property
    def ticks(self) -> Ticks:
        """The unit of the times that octets take at the ports of this fabric."""
        return Ticks(self.links)

    @cached_property
    def stretch(self) -> Stretch | None:
        """The networks that lie on several switches, if there are any."""
        from topologies.routing.stretch import (
            Stretch,  # here, as it is written in terms of topologies
        )

        found = Stretch(self)
        return found if found.owners else None

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The Ethernet segments: bonds of GPUs that their switches tell each other of."""
        from topologies.multihoming import segments  # here, as it is written in terms of topologies

        return segments(self)

    @cached_property
    def _far_ends(self) -> Mapping[End, End]:
        pairs = [link.ends for link in self.links]
        return dict(pairs) | {b: a for a, b in pairs}

    @cached_property
    def standby_ends(self) -> frozenset[End]:
        """The ends of standby links."""
        return frozenset(end for link in self.links if link.standby for end in link.ends)

    @cached_property
    def twins(self) -> Mapping[str, str]:
        """``node:bridge`` -> that of the pair of bridges that look like one which stands first."""
        found: dict[str, str] = {}
        for link in self.links:
            if link.standby:
                bridges = ((end.node, self.bridge_of(end)) for end in link.ends)
                names = [f"{node}:{bridge.name}" for node, bridge in bridges if bridge]
                for name in names:
                    found[name] = names[0]
        return found

    def bridge_of(self, end: End) -> Bridge | None:
        """The bridge that the port ``end`` is a member of."""
        node = self.node(end.node)
        return node.bridge_of(node.port(end.port))

    def far_end(self, end: End) -> End:
        """The other end of the cable that is plugged into ``end``."""
        return self._far_ends[end]

    def beyond(self, end: End) -> Iterator[tuple[End, Port | Bridge]]:
        """Everything that has an address on the wire that ``end`` is plugged into, itself excluded.

        A port with an address is where its cable ends.  Behind a bridge there are the bridge, if
        it is a gateway, and what its other members are plugged into.  Standby links lead nowhere.
        """
        if end in self.standby_ends:
            return
        far = self._far_ends[end]
        node = self.by_name[far.node]
        port = node.port(far.port)
        if port.bridge is None:
            yield far, port
            return
        for bridge in node.bridges:
            if bridge.name == port.bridge and bridge.gateway is not None:
                yield End(node.name, bridge.name), bridge
        for other in node.ports:
            if other.bridge == port.bridge and other is not port:
                yield from self.beyond(End(node.name, other.name))

    def gateway_of(self, end: End) -> Bridge | None:
        """The bridge that is the gateway of the GPU port ``end``, if there is one."""
        found = (item for _, item in self.beyond(end) if isinstance(item, Bridge))
        return next(found, None)

    def path_delay_ns(self, source: str, destination: str) -> int:
        """Sum of cable delays, without switches, on a shortest path of the routing in force: ns."""
        path = self.paths(source).get(destination)
        if path is None:
            raise TopologyError(f"{destination} cannot be reached from {source}")
        return sum(link.delay_ns for link in path)
