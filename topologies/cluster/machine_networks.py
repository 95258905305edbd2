"""The networks of the machines of a cluster, built beside its scale-out network.

::

    frontend     user0 -- border0        head0, h0, h1 ...    100G, shared by all of a server
                             |             |
                      front-spine0,1 -- front-leaf0,1         routed leaf-spine, eBGP

    storage      storage0,1, head0, h0, h1 ... -- stor-leaf0,1 -- stor-spine0,1

    management   all machines -- mgmt-switch0                 one subnet, 1G

A machine stands in several of them.  Only the frontend leads further: its servers have their
default route there, and a route to the others' blocks in those.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from topologies import addressing as plan
from topologies.cluster.tenants import Tenancy
from topologies.elements import (
    BY_FILTER,
    FRONTEND,
    MANAGEMENT,
    STORAGE,
    FabricProfile,
    Role,
    TopologyError,
)
from topologies.model import Topology
from topologies.parts.assembly import Assembly

HEAD, TELEMETRY, BORDER = "head0", "telemetry0", "border0"
STORAGE_PREFIX = "storage"  # of the names of storage nodes
MANAGEMENT_SWITCH = "mgmt-switch0"
USERS_BRIDGE = "users"  # of the border router
SERVERS_BRIDGE = "servers"  # of a leaf
MODEL_PORT = 8080  # of servers, which users may reach (TCP)
#: Ethernet's own, on links that no jumbo frame passes (octets).
ORDINARY_MTU = 1500


@dataclass(frozen=True, kw_only=True)
class NetworkCabling:
    """The cables of one network of machines: bit/s, ns, octets."""

    rate_bps: int
    delay_ns: int
    mtu: int
    buffer_bytes: int


@dataclass(frozen=True, kw_only=True)
class LeafSpine:
    """Leaves and spines of a routed network; each leaf has ``uplinks`` to every spine."""

    leaves: int
    spines: int
    uplinks: int = 1

    def check(self, network: str) -> None:
        """Raise TopologyError unless the machines of ``network`` reach each other."""
        if self.leaves > 1 and not self.spines:
            raise TopologyError(
                f"{network}_spines is 0 and {network}_leaves {self.leaves}: nothing joins the "
                "leaves; take a spine, or one leaf"
            )


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The machines of a cluster: servers with GPUs, and those that serve them.

    ``homes`` are the ports that servers and the head node have in the frontend, each at a leaf of
    its own.
    """

    servers: tuple[str, ...]
    storage_nodes: int
    users: int
    homes: int = 1

    @property
    def storage(self) -> tuple[str, ...]:
        """Return the names of the storage nodes."""
        return tuple(f"{STORAGE_PREFIX}{number}" for number in range(self.storage_nodes))

    @property
    def inside(self) -> tuple[str, ...]:
        """Return the names of the machines behind the border router of the frontend."""
        return (*self.servers, HEAD)

    @property
    def user_names(self) -> tuple[str, ...]:
        """Return the names of the machines of users, outside."""
        return tuple(f"user{number}" for number in range(self.users))


def frontend(
    machines: Machines, shape: LeafSpine, cabling: NetworkCabling, tenancy: Tenancy
) -> Topology:
    """The frontend: servers and the head node behind leaves, users behind the border router.

    With tenants each has subnets of its own, which lie on all leaves (VXLAN, BGP EVPN).
    """
    shape.check(FRONTEND)
    tenancy.check(leaves=shape.leaves, spines=shape.spines, users=machines.users)
    _check_homes(machines, shape, tenancy)
    fabric = _assembly(FRONTEND, cabling, tunnels=tenancy.count > 0)
    inside = [fabric.machine(name, homed=machines.homes) for name in machines.inside]
    users = [fabric.machine(name) for name in machines.user_names]
    leaves, spines = _leaf_spine(fabric, FRONTEND, shape, cabling)
    tenancy.build(fabric, leaves)
    head_leaf = _leaf_of(tenancy, len(inside) - 1, len(leaves))
    common = [n for n in range(len(leaves)) if not tenancy.count or n == head_leaf]
    for number in common:
        _common_subnet(fabric, FRONTEND, leaves[number], number)
    for number, machine in enumerate(inside):
        first = _leaf_of(tenancy, number, len(leaves))
        owned = tenancy.count and machine in machines.servers
        tenant = machines.servers.index(machine) % tenancy.count if owned else 0
        for home in range(machines.homes):
            leaf = (first + home) % len(leaves)
            bridge = tenancy.bridge_at(tenant, leaf) if owned else SERVERS_BRIDGE
            _attach(fabric, machine, leaves[leaf], bridge, cabling)
    if users:
        fabric.switch(Role.LEAF, BORDER)
        subnet = plan.network_subnet(FRONTEND, len(leaves))
        fabric.bridge(BORDER, USERS_BRIDGE, rail=0, subnet=subnet)
        shared = (subnet, *(plan.network_subnet(FRONTEND, number) for number in common))
        tenancy.join_border(fabric, BORDER, shared)
        for user in users:
            _attach(fabric, user, BORDER, USERS_BRIDGE, cabling)
        for spine in spines or leaves:
            fabric.join(BORDER, spine, rate_bps=cabling.rate_bps, delay_ns=cabling.delay_ns)
    if tenancy.count:
        isolation = tenancy.isolation if tenancy.routed else BY_FILTER
        return fabric.topology(FRONTEND, {}, profile=replace(fabric.profile, isolation=isolation))
    return _whole(fabric, FRONTEND, "ebgp" if spines else "static")


def _check_homes(machines: Machines, shape: LeafSpine, tenancy: Tenancy) -> None:
    """Raise TopologyError unless servers can have a port at each of two leaves."""
    if machines.homes == 1:
        return
    if tenancy.count:
        raise TopologyError(
            f"frontend_homes is {machines.homes} and tenants {tenancy.count}: a server with a "
            "port at each of two leaves is routed, not bridged; take tenants=0, or "
            "frontend_homes=1"
        )
    if machines.homes > shape.leaves or not shape.spines:
        raise TopologyError(
            f"frontend_homes is {machines.homes}, frontend_leaves {shape.leaves} and "
            f"frontend_spines {shape.spines}: each port of a server has a leaf of its own, and "
            "leaves learn from spines who is behind the others; take as many leaves, and a spine"
        )


def _leaf_of(tenancy: Tenancy, number: int, leaves: int) -> int:
    """Return the leaf of the ``number``-th machine: each tenant has some at every leaf."""
    return number // (tenancy.count or 1) % leaves


def storage(machines: Machines, shape: LeafSpine, cabling: NetworkCabling) -> Topology:
    """The storage network: storage nodes, the head node and servers behind leaves."""
    shape.check(STORAGE)
    fabric = _assembly(STORAGE, cabling)
    reach = (plan.NETWORK_BLOCKS[STORAGE],)
    names = (*machines.servers, HEAD, *machines.storage)
    joined = [fabric.machine(name, reach=reach) for name in names]
    leaves, spines = _leaf_spine(fabric, STORAGE, shape, cabling)
    for number, leaf in enumerate(leaves):
        _common_subnet(fabric, STORAGE, leaf, number)
    for number, machine in enumerate(joined):
        _attach(fabric, machine, leaves[number % len(leaves)], SERVERS_BRIDGE, cabling)
    return _whole(fabric, STORAGE, "ebgp" if spines else "static")


def management(machines: Machines, cabling: NetworkCabling) -> Topology:
    """The management network: one switch and one subnet, with a port of every machine."""
    fabric = _assembly(MANAGEMENT, cabling)
    reach = (plan.NETWORK_BLOCKS[MANAGEMENT],)
    names = (*machines.servers, HEAD, *machines.storage, TELEMETRY)
    joined = [fabric.machine(name, reach=reach) for name in names]
    fabric.switch(Role.LEAF, MANAGEMENT_SWITCH)
    fabric.bridge(MANAGEMENT_SWITCH, "mgmt", rail=0, subnet=plan.network_subnet(MANAGEMENT, 0))
    for machine in joined:
        _attach(fabric, machine, MANAGEMENT_SWITCH, "mgmt", cabling)
    return _whole(fabric, MANAGEMENT, "static")


def _assembly(network: str, cabling: NetworkCabling, *, tunnels: bool = False) -> Assembly:
    return Assembly(
        mtu=cabling.mtu, buffer_bytes=cabling.buffer_bytes, tunnels=tunnels, network=network
    )


def _leaf_spine(
    fabric: Assembly, network: str, shape: LeafSpine, cabling: NetworkCabling
) -> tuple[list[str], list[str]]:
    """Make the switches and the cables between them; return the names of leaves and spines.

    Leaves have no subnet yet: one that nobody is in would not be advertised.
    """
    prefix = plan.PORT_PREFIXES[network]
    leaves = [fabric.switch(Role.LEAF, f"{prefix}-leaf{each}") for each in range(shape.leaves)]
    spines = [fabric.switch(Role.SPINE, f"{prefix}-spine{each}") for each in range(shape.spines)]
    for leaf in leaves:
        for spine in spines:
            for _ in range(shape.uplinks):
                fabric.join(leaf, spine, rate_bps=cabling.rate_bps, delay_ns=cabling.delay_ns)
    return leaves, spines


def _common_subnet(fabric: Assembly, network: str, leaf: str, number: int) -> None:
    """Give ``leaf``, the ``number``-th, the subnet of the machines there that are no tenant's."""
    subnet = plan.network_subnet(network, number)
    fabric.bridge(leaf, SERVERS_BRIDGE, rail=number, subnet=subnet)


def _attach(
    fabric: Assembly, machine: str, switch: str, bridge: str, cabling: NetworkCabling
) -> None:
    fabric.attach(machine, switch, bridge, rate_bps=cabling.rate_bps, delay_ns=cabling.delay_ns)


def _whole(fabric: Assembly, network: str, control_plane: str) -> Topology:
    return fabric.topology(network, {}, profile=FabricProfile(control_plane=control_plane))
