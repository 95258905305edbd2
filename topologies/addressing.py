"""The addressing plan: every MAC and IPv4 address follows from a position in the fabric.

====================  =========================================================================
10.<pod>.<r+1>.0/24   rail r of a pod: the bridge (gateway) is .1, the GPU of host h is .(h+2).
                      A longer prefix keeps the same start (rail 0 as 10.0.1.0/28); a shorter one
                      takes as many third octets per rail as it needs (/22: 10.0.4.0, 10.0.8.0)
10.<10p+n>.<r+1>.0    rail r in plane n (1, 2, ...) of pod p, where GPUs have a fabric endpoint
                      (FEP) in each plane: 10.1.1.2 and 10.2.1.2 are those of one GPU.  With more
                      than nine planes pods are twenty apart: 10.<20p+n>
10.<g>.<n+1>.0/24     without rails: one subnet for each bottom switch (leaf, router), the n-th of
                      its group, or all in one row; the switch is .1, its GPUs follow
10.255.0.0/16         loopbacks: bottom switches (rail, leaf, router), spines and super-spines have
                      a /18 each, the fourth is for fabric addresses (FA) of GPUs with several ports
172.16.0.0/13         links of bottom switches and between spines, one /31 (RFC 3021) each:
                      262,144 links
172.24.0.0/13         spine - super-spine links, likewise
100.96.0.0/11         links of bottom switches beyond the 262,144: 1,048,576 more
100.64.0.0/13         the frontend: its subnets from 100.64.0.0/14, links between switches from
                      100.68.0.0/15, loopbacks from 100.70.0.0/15 (shared address space, RFC 6598)
100.72.0.0/13         storage, likewise
100.80.0.0/13         management, likewise
====================  =========================================================================

The ports of a NIC with a FEP each have one MAC, the first port's.
MAC addresses are locally administered unicast. The first octet is 12, which no maker has (Wireshark
knows 02:01 to 02:20 as servers of Microsoft's load balancer). The rest reads left to right:
role, node (16 bits), then local rank and port for a GPU, or port (16 bits) for a switch:
``12:01:00:05:03:00`` is host 5, local rank 3, first port; ``12:11:00:02:00:07`` is rail switch 2,
port 7.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from topologies.elements import (
    END_ROLES,
    FRONTEND,
    MANAGEMENT,
    STORAGE,
    CableEnd,
    Node,
    Role,
    TopologyError,
)
from topologies.wiring import Wiring, once_per_topology

MAX_PODS = 255
SHORTEST_PREFIX, LONGEST_PREFIX = 17, 30  # of a rail's subnet
FABRIC_LINKS: Mapping[Role, IPv4Network] = {  # keyed by the role of the upper end
    Role.ROUTER: IPv4Network("172.16.0.0/13"),
    Role.SPINE: IPv4Network("172.16.0.0/13"),
    Role.SUPER_SPINE: IPv4Network("172.24.0.0/13"),
}
#: Where links go on that the block of this role has no room for.
MORE_LINKS: Mapping[Role, IPv4Network] = {
    Role.ROUTER: IPv4Network("100.96.0.0/11"),
    Role.SPINE: IPv4Network("100.96.0.0/11"),
}
LOOPBACKS: Mapping[Role, IPv4Network] = {
    Role.RAIL: IPv4Network("10.255.0.0/18"),
    Role.LEAF: IPv4Network("10.255.0.0/18"),
    Role.ROUTER: IPv4Network("10.255.0.0/18"),
    Role.SPINE: IPv4Network("10.255.64.0/18"),
    Role.SUPER_SPINE: IPv4Network("10.255.128.0/18"),
    Role.GPU: IPv4Network("10.255.192.0/18"),
}
#: Of the networks of machines, whose first half has subnets; links and loopbacks share the second.
NETWORK_BLOCKS: Mapping[str, IPv4Network] = {
    FRONTEND: IPv4Network("100.64.0.0/13"),
    STORAGE: IPv4Network("100.72.0.0/13"),
    MANAGEMENT: IPv4Network("100.80.0.0/13"),
}
#: Of links inside a border leaf; FRR takes addresses at the block's start for itself.
HANDOFFS = IPv4Network("169.254.128.0/17")
#: What the ports of a machine are named after, by network.
PORT_PREFIXES: Mapping[str, str] = {FRONTEND: "front", STORAGE: "stor", MANAGEMENT: "mgmt"}
_MAC_ROLE = {
    Role.GPU: 0x01,
    Role.NIC: 0x02,
    Role.SERVER: 0x03,
    Role.RAIL: 0x11,
    Role.SPINE: 0x12,
    Role.SUPER_SPINE: 0x13,
    Role.LEAF: 0x14,
    Role.ROUTER: 0x15,
}
_MAC_BRIDGE, _MAC_SEGMENT, _MAC_ROUTER = 0x10, 0x20, 0x21
#: Numbers that the switches of a network of machines have to themselves.
SWITCHES_OF_A_NETWORK = 1 << 14
_ANYCAST = 0xFFFF  # the node number of all switches; no single one has so high a number


def gpu_mac(*, host: int, local_rank: int, port: int = 0) -> str:
    """MAC of NIC ``port`` of a GPU."""
    _bounded("local rank", local_rank, 256, "gpus_per_host")
    return _mac(_MAC_ROLE[Role.GPU], host, local_rank << 8 | port)


def first_switch(network: str) -> int:
    """Return the number of the first switch of each role in ``network``, by which it has its MACs.

    No two networks of a cluster have a MAC in common.
    """
    if network not in NETWORK_BLOCKS:
        return 0
    return SWITCHES_OF_A_NETWORK * (1 + list(NETWORK_BLOCKS).index(network))


def machine_mac(network: str, *, machine: int, port: int = 0) -> str:
    """MAC of port ``port`` of a machine in ``network``."""
    _bounded("port", port, 256, "ports")
    place = list(NETWORK_BLOCKS).index(network)
    return _mac(_MAC_ROLE[Role.SERVER], machine, place << 8 | port)


def switch_mac(role: Role, *, switch: int, port: int) -> str:
    """MAC of front-panel port ``port`` of the ``switch``-th switch of ``role``."""
    return _mac(_MAC_ROLE[role], switch, port)


def bridge_mac(*, switch: int, rail: int) -> str:
    """MAC of the bridge (the gateway) of ``rail`` inside the ``switch``-th rail switch."""
    return _mac(_MAC_BRIDGE, switch, rail)


def anycast_mac(*, rail: int) -> str:
    """MAC of the bridges of a ``rail`` that is stretched over switches, the same on all of them."""
    return _mac(_MAC_BRIDGE, _ANYCAST, rail)


def router_mac(*, switch: int) -> str:
    """Return the MAC of the ``switch``-th switch as a router between tunnels (RFC 9135)."""
    return _mac(_MAC_ROUTER, switch, 0)


def segment_mac(*, switch: int) -> str:
    """Return the MAC that two switches share as one system to GPUs with a port in each.

    ``switch`` is the place of the first among all.
    """
    return _mac(_MAC_SEGMENT, switch, 0)


def _mac(kind: int, node: int, port: int) -> str:
    if (node | port) >> 16:
        _bounded("node number", node, 1 << 16, "servers or switches")
        _bounded("port number", port, 1 << 16, "ports")
    return (0x12 << 40 | kind << 32 | node << 16 | port).to_bytes(6, "big").hex(":")


def _bounded(what: str, value: int, limit: int, fewer: str) -> None:
    if not 0 <= value < limit:
        raise TopologyError(
            f"{what} {value} does not fit the addressing plan (0..{limit - 1}); take fewer {fewer}"
        )


def rail_subnet(rail: int, *, subnet_prefix: int = 24, pod: int = 0) -> IPv4Network:
    """Subnet of ``rail``; raises when the plan has no room for it under ``subnet_prefix``."""
    if not SHORTEST_PREFIX <= subnet_prefix <= LONGEST_PREFIX:
        raise TopologyError(
            f"subnet_prefix is /{subnet_prefix}; it must lie in "
            f"/{SHORTEST_PREFIX} .. /{LONGEST_PREFIX}"
        )
    _bounded("pod", pod, MAX_PODS, "pods or segments")
    octets = 1 << max(0, 24 - subnet_prefix)  # third octets that one rail takes
    third = (rail + 1) * octets
    if third + octets > 256:
        raise TopologyError(
            f"subnet_prefix=/{subnet_prefix} leaves room for {256 // octets - 1} rails and rail "
            f"{rail} is one too many; take fewer gpus_per_host or segments"
            + (", or a longer subnet_prefix" if octets > 1 else "")
        )
    return IPv4Network(f"10.{pod}.{third}.0/{subnet_prefix}")


def leaf_subnet(number: int, members: int) -> IPv4Network:
    """Subnet of the ``number``-th bottom switch of a fabric without rails, for ``members`` GPUs.

    They follow each other as 10.0.1.0/24 ... 10.0.255.0/24, 10.1.1.0/24 and so on, all /24 unless
    the members need more.  Raises TopologyError when the plan has no room left.
    """
    prefix = min(24, 32 - (members + 2).bit_length())
    if prefix < SHORTEST_PREFIX:
        raise TopologyError(
            f"{members} GPUs of one switch do not fit a subnet of /{SHORTEST_PREFIX}; take fewer"
        )
    each = (256 >> (24 - prefix)) - 1
    pod, place = divmod(number, each)
    if pod >= MAX_PODS:
        raise TopologyError(
            f"the addressing plan has room for {MAX_PODS * each} bottom switches with subnets of "
            f"/{prefix}, and not for number {number}; take fewer"
        )
    return rail_subnet(place, subnet_prefix=prefix, pod=pod)


def group_subnet(group: int, number: int, members: int) -> IPv4Network:
    """10.<group>.<number+1>.0/24, of a bottom switch of a group with ``members`` GPUs.

    Raises TopologyError when the plan has no room for it.
    """
    for what, value, limit in (
        ("groups", group + 1, MAX_PODS),
        ("switches with GPUs in a group", number + 1, 255),
        ("GPUs at a switch", members, 253),
    ):
        if value > limit:
            raise TopologyError(
                f"the addressing plan has room for {limit} {what}, and not for {value}; take fewer"
            )
    return rail_subnet(number, pod=group)


def plane_octet(pod: int, plane: int, planes: int) -> int:
    """The second octet in ``plane`` of ``pod``, both counted from 0, where FEPs are per plane.

    Pods are ten apart, or twenty with more than nine ``planes``.
    """
    apart = 10 if planes < 10 else 20
    _bounded("plane", plane, apart - 1, "nic_ports")
    _bounded("pod", pod, 250 // apart, "pods or segments")
    return apart * pod + plane + 1


def rail_gateway(subnet: IPv4Network) -> IPv4Interface:
    """The first address of a rail's subnet, which its bridge has."""
    return _interface(subnet, 1)


def rail_address(subnet: IPv4Network, host: int) -> IPv4Interface:
    """Address of the GPU of ``host`` on the rail; raises when the subnet is exhausted."""
    check_room(host + 1, subnet.prefixlen)
    return _interface(subnet, host + 2)


def _interface(network: IPv4Network, place: int) -> IPv4Interface:
    """Return ``network[place]`` with the prefix of ``network``, which all of them share.

    The constructor makes another one for each: half the memory of a large fabric's addresses.
    """
    made = IPv4Interface.__new__(IPv4Interface)
    made.network, made.netmask = network, network.netmask
    made._prefixlen = network.prefixlen  # type: ignore[attr-defined]  # noqa: SLF001
    made._ip = int(network.network_address) + place  # type: ignore[attr-defined]  # noqa: SLF001
    return made


def check_room(hosts: int, subnet_prefix: int, *, gpus_per_nic: int = 1) -> None:
    """Raise TopologyError unless a rail's subnet has an address for each GPU of ``hosts``."""
    members = hosts * gpus_per_nic
    room = 2 ** (32 - subnet_prefix) - 3  # network, gateway, broadcast
    if members > room:
        needed = 32 - (members + 2).bit_length()
        way_out = f"take subnet_prefix=/{needed} or" if needed >= SHORTEST_PREFIX else "take"
        each = f", each with {gpus_per_nic} GPUs on a rail," if gpus_per_nic > 1 else ""
        of_them = "GPUs" if each else "of them"
        raise TopologyError(
            f"hosts is {hosts}{each} and subnet_prefix=/{subnet_prefix} has addresses for {room} "
            f"{of_them}; {way_out} fewer hosts"
        )


def check_switches(role: Role, count: int, fewer: str) -> None:
    """Raise TopologyError unless ``count`` of ``role`` have a loopback each.

    ``role`` are switches, or GPUs with a fabric address; the error advises to take ``fewer``.
    """
    room = LOOPBACKS[role].num_addresses - 1
    if count > room:
        what = "GPUs with several ports" if role is Role.GPU else f"{role} switches"
        raise TopologyError(
            f"there would be {count} {what}, and the addressing plan has loopbacks for {room}; "
            f"take fewer {fewer}"
        )


def check_links(upper: Role, count: int, fewer: str) -> None:
    """Raise TopologyError unless ``count`` links below tier ``upper`` have a subnet each.

    The error advises to take ``fewer``.
    """
    room = FABRIC_LINKS[upper].num_addresses // 2
    if upper in MORE_LINKS:
        room += MORE_LINKS[upper].num_addresses // 2
    if count > room:
        raise TopologyError(
            f"there would be {count} links to {upper} switches, and the addressing plan has "
            f"subnets for {room}; take fewer {fewer}"
        )


@dataclass(frozen=True)
class AddressBlocks:
    """The blocks that a network's links and loopbacks come from, by role."""

    links: Mapping[Role, IPv4Network]
    loopbacks: Mapping[Role, IPv4Network]

    @classmethod
    def of(cls, network: str) -> AddressBlocks:
        """Return the blocks of ``network``: a machine's, or those of the scale-out network."""
        if network not in NETWORK_BLOCKS:
            return cls(FABRIC_LINKS, LOOPBACKS)
        _, second = NETWORK_BLOCKS[network].subnets(1)
        links, loopbacks = second.subnets(1)
        parts = loopbacks.subnets(2)
        return cls(
            {Role.SPINE: links},
            dict(zip((Role.LEAF, Role.SPINE, Role.SERVER), parts, strict=False)),
        )


def network_subnet(network: str, number: int) -> IPv4Network:
    """The ``number``-th subnet (/24) of a network of machines.

    Raises TopologyError when the network's block has no room for it.
    """
    first, _ = NETWORK_BLOCKS[network].subnets(1)
    room = 1 << (24 - first.prefixlen)
    if number >= room:
        raise TopologyError(
            f"the addressing plan has {room} subnets for the network {network}, and not for number "
            f"{number}; take fewer leaves"
        )
    return IPv4Network((int(first.network_address) + (number << 8), 24))


def fabric_link(
    upper: Role, number: int, blocks: AddressBlocks | None = None
) -> tuple[IPv4Interface, IPv4Interface]:
    """The /31 of the ``number``-th link below tier ``upper`` as (lower end, upper end).

    It is one of ``blocks``, by default the scale-out network's.
    """
    block = FABRIC_LINKS[upper] if blocks is None else blocks.links[upper]
    first, room = 2 * number, block.num_addresses
    if first >= room and block is FABRIC_LINKS[upper] and upper in MORE_LINKS:
        first -= room
        block = MORE_LINKS[upper]
        room = block.num_addresses
    if first >= room:
        raise TopologyError(
            f"{block} has no /31 left for link {number} to the {upper} tier; take fewer switches "
            "or parallel links"
        )
    network = IPv4Network((int(block.network_address) + first, 31))
    return _interface(network, 0), _interface(network, 1)


def handoff_link(tenant: int) -> tuple[IPv4Interface, IPv4Interface]:
    """Return the /31 between a border leaf's own routes and those of ``tenant``: (own, tenant's).

    It is of the link-local block (RFC 3927), and known in the border leaf alone.
    """
    first = HANDOFFS[2 * tenant] if 2 * tenant < HANDOFFS.num_addresses else None
    if first is None:
        raise TopologyError(f"{HANDOFFS} has no /31 left for tenant {tenant}; take fewer tenants")
    return IPv4Interface(f"{first}/31"), IPv4Interface(f"{first + 1}/31")


def loopback(role: Role, switch: int, blocks: AddressBlocks | None = None) -> IPv4Address:
    """Loopback (router id) of the ``switch``-th switch of ``role``, or a GPU's fabric address.

    It is one of ``blocks``, by default the scale-out network's.
    """
    block = LOOPBACKS[role] if blocks is None else blocks.loopbacks[role]
    if switch + 1 >= block.num_addresses:
        what = "GPUs with several ports" if role is Role.GPU else "switches"
        raise TopologyError(f"{block} has no loopback left for {role} {switch}; take fewer {what}")
    return block[switch + 1]


def hash_seed(switch: str) -> int:
    """Seed of a switch's ECMP hash: 31 bits, well spread, never 0, the same in every run."""
    return int.from_bytes(hashlib.sha256(switch.encode()).digest()[:4], "big") >> 1 or 1


def gpu_address(gpu: Node, port: str | None = None) -> IPv4Interface:
    """Return the address of a GPU: its fabric address, or that of its only port.

    The fabric address has the prefix of a host.

    Where each port has a fabric endpoint it is that of ``port``, by default the first.
    """
    if port is not None and gpu.feps:
        for fep in gpu.feps:
            if fep.name == port and fep.address is not None:
                return fep.address
    if gpu.loopback is not None:
        return IPv4Interface(gpu.loopback)
    for each in gpu.ports:
        if each.address is not None:
            return each.address
    raise TopologyError(f"GPU {gpu.name} has no port with an address")


def next_hops(topology: Wiring, gpu: str, port: str | None = None) -> dict[str, str]:
    """Destination MAC of a frame of ``gpu`` to each peer, keyed by the peer's IPv4 address.

    A peer in the same subnet is addressed directly; any other through the gateway's MAC, that of
    the first port where there are several.  Where each port has a fabric endpoint, frames leave by
    ``port`` and peers are those in its plane.
    """
    table = dict(shared_next_hops(topology, gpu, port))
    table.pop(str(gpu_address(gpu_node(topology, gpu), port).ip), None)
    return table


def shared_next_hops(topology: Wiring, gpu: str, port: str | None = None) -> HopTable:
    """Return what :func:`next_hops` does, with an entry that ``gpu`` has no use for: its own.

    GPUs of one subnet behind one gateway have the same table, which is made once.
    """
    source = gpu_node(topology, gpu)
    ours = gpu_address(source, port).network
    network = None if ours.num_addresses == 1 else ours  # in which nobody else is
    known = _hop_tables(topology)
    if port not in known.subnets:
        known.subnets[port] = Subnets.of(topology, port)
    subnets = known.subnets[port]
    near = {} if network is None else subnets.macs[network]
    gateway: str | None = None
    if len(subnets.addresses) > max(1, len(near)):
        gateway = gateway_mac(topology, source, port if source.feps else None)
    key = network, port, gateway
    if key not in known.tables:
        known.tables[key] = HopTable(near, subnets.addresses, gateway)
    return known.tables[key]


class HopTable(Mapping[str, str]):
    """The MACs of frames to all ``addresses``: those of ``near`` ones, else that of ``gateway``.

    Tables of one fabric have ``addresses`` in common. Without a gateway there are near ones alone.
    """

    def __init__(
        self, near: Mapping[str, str], addresses: Mapping[str, None], gateway: str | None
    ) -> None:
        self.near, self.addresses, self.gateway = near, addresses, gateway

    def __getitem__(self, address: str) -> str:
        mac = self.near.get(address)
        if mac is not None:
            return mac
        if self.gateway is None or address not in self.addresses:
            raise KeyError(address)
        return self.gateway

    def __iter__(self) -> Iterator[str]:
        return iter(self.near if self.gateway is None else self.addresses)

    def __len__(self) -> int:
        return len(self.near if self.gateway is None else self.addresses)


@dataclass(frozen=True)
class Subnets:
    """The ``addresses`` of all GPUs, in rank order, and by subnet the ``macs`` at those in it."""

    addresses: Mapping[str, None]
    macs: Mapping[IPv4Network, Mapping[str, str]]

    @classmethod
    def of(cls, topology: Wiring, port: str | None) -> Subnets:
        """Return those of ``topology``, behind ``port`` where each has a fabric endpoint."""
        addresses: dict[str, None] = {}
        macs: dict[IPv4Network, dict[str, str]] = {}
        for gpu in topology.gpus:
            address = gpu_address(gpu, port)
            spelled = str(address.ip)
            addresses[spelled] = None
            for each in gpu.ports:
                if each.address is not None and each.address.ip == address.ip:
                    macs.setdefault(address.network, {})[spelled] = each.mac
                    break
        return cls(addresses, macs)


@dataclass
class _HopTables:
    """Tables of next hops by subnet, port and gateway, and what they are made of by port."""

    subnets: dict[str | None, Subnets] = field(default_factory=dict)
    tables: dict[tuple[IPv4Network | None, str | None, str | None], HopTable] = field(
        default_factory=dict
    )


@once_per_topology
def _hop_tables(topology: Wiring) -> _HopTables:
    """Hold the tables that :func:`shared_next_hops` has made for ``topology``."""
    return _HopTables()


def gpu_node(topology: Wiring, name: str) -> Node:
    """Return the GPU ``name``; TopologyError if it is none."""
    node = topology.node(name)
    if node.role not in END_ROLES:
        raise TopologyError(f"{name} is a {node.role} node, not a GPU")
    return node


def gateway_mac(topology: Wiring, gpu: Node, port: str | None = None) -> str:
    """MAC of the gateway behind ``port`` of ``gpu``, by default its first."""
    end = CableEnd(gpu.name, port or gpu.ports[0].name)
    bridge = topology.gateway_of(end)
    if bridge is None:
        raise TopologyError(f"there is no gateway behind {end}")
    return bridge.mac
