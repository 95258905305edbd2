"""The elements of a fabric as plain data: ports, bridges, nodes, cables, servers.

Units are in the field names: ``_bps`` is bits per second, ``_ns`` nanoseconds, ``_bytes`` octets,
all in the real fabric's own terms (time dilation is the emulator's business, not the topology's).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from topologies.ethernet import HEADER_OCTETS

MIN_MTU, MAX_MTU = 576, 65_000
#: What a tunnel puts around a packet within a link's MTU: IPv4 20, UDP 8, VXLAN 8, and the header
#: of the frame inside (RFC 7348).
VXLAN_OVERHEAD = 36 + HEADER_OCTETS
ETHERNET, VXLAN, EVPN = "ethernet", "vxlan", "evpn"
VLAN_USES = ("off", "auto", "on")
MAX_VLAN = 4094
AXES = "xyz"  # the dimensions of a torus
SHORTEST = "shortest"  # all paths of the fewest hops: how a fabric routes by default
SCALE_UP_SHAPES = (SWITCH, MESH, RING) = ("switch", "mesh", "ring")
#: How tenants of a frontend are kept apart: VRF devices, VRFs that are network namespaces, filters.
ISOLATIONS = (AUTO_ISOLATION, OF_DEVICES, OF_NAMESPACES, BY_FILTER) = (
    *("auto", "vrf"),
    *("netns", "filter"),
)
#: The networks of a cluster: the scale-out one, and those of its servers.
NETWORKS = (BACKEND, FRONTEND, STORAGE, MANAGEMENT) = (
    *("backend", "frontend"),
    *("storage", "management"),
)
ROUTINGS = (SHORTEST, "dimension-order", "minimal", "valiant", "up-down")


class TopologyError(ValueError):
    """The description contradicts itself; the message names the element and the way out."""


class Role(enum.StrEnum):
    """The role of a node.

    ``SERVER`` is a machine as the networks beside the scale-out one see it: what ends there is a
    port of the machine and not of one of its GPUs.
    ``NIC`` is one that several GPUs share: a bridge inside the server that holds its senders back
    instead of dropping.  ``LEAF`` is a bottom switch whose subnet is not a rail's, ``ROUTER`` one
    of a direct network (torus, dragonfly).
    """

    GPU = "gpu"
    SERVER = "server"
    NIC = "nic"
    RAIL = "rail"
    LEAF = "leaf"
    ROUTER = "router"
    SPINE = "spine"
    SUPER_SPINE = "super-spine"


#: Where cables end and nothing passes through.
END_ROLES = frozenset({Role.GPU, Role.SERVER})
SWITCH_ROLES = frozenset({Role.RAIL, Role.LEAF, Role.ROUTER, Role.SPINE, Role.SUPER_SPINE})


@dataclass(frozen=True, kw_only=True, slots=True)
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
        """Return what has the address or is the bridge's member: the port, or its bond."""
        return self.bond or self.name


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """One rail inside a rail switch: its member ports share a subnet, the bridge is its gateway.

    A bridge without ``gateway``, that of a shared NIC, only passes frames on.  ``vlan`` is the id
    that the design's drawing gives the rail. It is the rail's 802.1Q id where the bridges of a
    switch are VLANs of one (:class:`FabricProfile`); these have the one MAC of the switch.  Bridges
    of one ``vni`` are one network that is stretched over several switches: they have the same
    gateway and MAC (anycast), and tunnels between the loopbacks of their switches join them.  The
    routes of a ``vrf`` of the switch lead to its subnet, and no others.
    """

    name: str
    rail: int
    mac: str
    gateway: IPv4Interface | None = None
    vlan: int | None = None
    vni: int | None = None
    vrf: str | None = None


@dataclass(frozen=True, kw_only=True)
class Handoff:
    """A link inside a border leaf, between its own routes and those of a tenant.

    ``outside`` is the address at the switch's own end, ``inside`` that at the tenant's.  The tenant
    has routes to ``shared`` over it, and the switch has routes to the tenant's ``networks``.
    """

    outside: IPv4Interface
    inside: IPv4Interface
    shared: tuple[IPv4Network, ...]
    networks: tuple[IPv4Network, ...]


@dataclass(frozen=True, kw_only=True)
class Vrf:
    """The routes of a tenant in a switch, apart from all others.

    ``vni`` is its L3 VNI: packets that one switch routes to a subnet behind another pass between
    them in a tunnel of that number, addressed to the other's router MAC, ``mac`` (RFC 9135,
    symmetric IRB).
    """

    name: str
    vni: int
    mac: str
    handoff: Handoff | None = None


@dataclass(frozen=True, kw_only=True)
class Node:
    """A GPU, a machine or a switch; each becomes one network namespace.

    ``hash_seed`` seeds this switch's ECMP hash; seeds differ between switches so that tiers do
    not all choose alike (polarisation).  ``gateway`` is the IPv4 address (no prefix) of a GPU's
    default gateway, ``loopback`` a switch's router id.  A GPU with a ``loopback`` is reached at
    that fabric address (FA) over each of its ports, and has a gateway on each.

    ``reach`` are the networks that an end node sends to its gateway; it sends all where there are
    none.

    ``pod`` and ``plane`` are the part of the fabric that the node belongs to, where there are
    several (a group of a dragonfly is a pod). ``summaries`` are advertised to others instead of the
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
    reach: tuple[IPv4Network, ...] = ()
    vrfs: tuple[Vrf, ...] = ()

    @property
    def is_switch(self) -> bool:
        """Return whether the node is a switch of the fabric."""
        return self.role in SWITCH_ROLES

    @property
    def forwards(self) -> bool:
        """Return whether frames pass through it from one port to another."""
        return self.is_switch or self.role is Role.NIC

    @property
    def transparent(self) -> bool:
        """Return whether it is seen by nobody: a bridge without an address of its own."""
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
        """Return the port ``name``; TopologyError if there is none."""
        for port in self.ports:
            if port.name == name:
                return port
        raise TopologyError(
            f"node {self.name} has no port {name!r}; it has {', '.join(p.name for p in self.ports)}"
        )


@dataclass(frozen=True, order=True, slots=True)
class CableEnd:
    """One end of a cable, written ``node:port``."""

    node: str
    port: str

    def __str__(self) -> str:
        return f"{self.node}:{self.port}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A full-duplex cable.  ``buffer_bytes`` is the egress queue at each of its two ends.

    A ``standby`` joins the bridges of two switches that look like one gateway. It carries only
    frames to those whose own port at one of the two is down: it is no path otherwise.
    """

    a: CableEnd
    b: CableEnd
    rate_bps: int
    delay_ns: int
    mtu: int
    buffer_bytes: int
    standby: bool = False

    @property
    def ends(self) -> tuple[CableEnd, CableEnd]:
        """Return both ends of the cable."""
        return self.a, self.b


@dataclass(frozen=True, kw_only=True)
class ScaleUp:
    """The NVLink/NVSwitch network of a server, or of ``hosts`` servers.

    It has a rate for each GPU and way, and a latency.  Its ``shape`` is one of
    :mod:`topologies.parts.scale_up`.  ``links``: so many links of a GPU have the rate, and of a
    mesh one leads to each peer (0: as many as there are peers).  ``sums``: its switch sums (NVLS).

    The default is 450 GB/s each way: 18 NVLink 4 links, whose 900 GB/s counts both directions.
    """

    rate_bps: int = 3_600_000_000_000
    latency_ns: int = 700
    shape: str = SWITCH
    hosts: int = 1
    links: int = 0
    sums: bool = True


@dataclass(frozen=True, kw_only=True)
class Server:
    """Servers of one ``domain`` share a scale-up network; by default each has its own.

    ``gpus`` are the end nodes that it has in the network: its GPUs, or in a network of machines
    itself.
    """

    name: str
    gpus: tuple[str, ...]
    scale_up: ScaleUp = field(default_factory=ScaleUp)
    domain: str | None = None


@dataclass(frozen=True, kw_only=True)
class FabricProfile:
    """The settings of the whole fabric.

    ``routing`` selects the paths of its routes: ``shortest`` (all of them), or another way of
    :mod:`topologies.routing`.  ``control_plane`` is ``NAME[:PARAMETER=VALUE,...]``, ``data_plane``
    ``ethernet`` or ``vxlan``.  ``vlans``: the bridges of a switch are VLANs of one (``on``), are so
    where the kernel can (``auto``), or stand for themselves (``off``).  ``isolation``, one of
    :data:`ISOLATIONS`, is what the VRFs of switches are, where they have some.
    """

    control_plane: str = "static"
    data_plane: str = ETHERNET
    load_balancing: str = "flow"
    routing: str = SHORTEST
    vlans: str = "off"
    isolation: str = BY_FILTER
