"""The networks of the machines of a cluster, built beside its scale-out network.

::

    frontend     user0 -- border0        head0, h0, h1 ...    100G, shared by all of a server
                             |             |
                      front-spine0,1 -- front-leaf0,1         routed leaf-spine, eBGP

    storage      storage0,1, head0, h0, h1 ... -- stor-leaf0,1 -- stor-spine0,1

    management   all machines -- mgmt-switch0                 one subnet, 1G

A machine stands in several of them.  Only the frontend leads further: its servers have their
default route there, and a route to the others' blocks in those.

The tenants of a frontend: their subnets and VNIs, and the VRFs that keep their routes apart.

::

    front-leaf0                                        front-leaf1
      VRF tenant0                                        VRF tenant0
        tenant0-net0, gateway --+                  +-- tenant0-net1, gateway
          |      (L2 VNI)       |                  |      |
          h0                    +-- L3 VNI 30000 --+      h2
                                  router MAC to router MAC

A tenant with several subnets has one of them on each leaf, in turn.  A packet from one to the other
is routed twice, into the L3 VNI and out of it (RFC 9135, symmetric IRB).  Users reach tenants by
the border router, which has all of their VRFs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Network

from topologies import addressing as plan
from topologies.elements import (
    AUTO_ISOLATION,
    BY_FILTER,
    FRONTEND,
    MANAGEMENT,
    STORAGE,
    FabricProfile,
    Handoff,
    Role,
    TopologyError,
)
from topologies.model import Topology
from topologies.parts.assembly import Assembly

TENANT_PREFIX = "tenant"
#: Of the first tenant of a frontend: the number of its subnet, the VNIs of subnet and routes.
FIRST_TENANT_SUBNET, FIRST_SUBNET_VNI, FIRST_ROUTER_VNI = 512, 20_000, 30_000
#: Numbers of 24 bits (RFC 7348, 5); 0 is none.
FIRST_VNI, LAST_VNI = 1, (1 << 24) - 1
APART, EQUAL = "apart", "equal"


@dataclass(frozen=True, kw_only=True)
class Tenancy:
    """The tenants of a frontend, of which there are ``count``.

    ``subnets`` are those of each.  ``isolation`` is one of
    :data:`topologies.elements.ISOLATIONS`. ``addresses`` of all tenants are ``apart`` or ``equal``.
    The first of the subnets has the VNI ``subnet_vni``, the first tenant the L3 VNI ``router_vni``.
    """

    count: int
    subnets: int = 1
    isolation: str = AUTO_ISOLATION
    addresses: str = APART
    subnet_vni: int = FIRST_SUBNET_VNI
    router_vni: int = FIRST_ROUTER_VNI

    def check(self, *, leaves: int, spines: int, users: int) -> None:
        """Raise TopologyError unless leaves can hold the tenants and users can reach them."""
        if not self.count:
            return
        if not spines:
            raise TopologyError(
                f"tenants is {self.count} and frontend_spines 0: tunnels between leaves need a "
                "spine; take one, or tenants=0"
            )
        if self.subnets > leaves:
            raise TopologyError(
                f"tenant_subnets is {self.subnets} and frontend_leaves {leaves}: a leaf has one of "
                "them; take as many leaves"
            )
        if self.addresses == EQUAL and self.isolation == BY_FILTER:
            raise TopologyError(
                f"tenant_addresses is {EQUAL} and isolation {BY_FILTER}: one table of routes "
                "cannot hold a subnet twice; take isolation=auto, or tenant_addresses=apart"
            )
        if self.addresses == EQUAL and users:
            raise TopologyError(
                f"tenant_addresses is {EQUAL} and users {users}: users could not name a server; "
                "take users=0, or tenant_addresses=apart"
            )
        for first, last, key in (
            (self.subnet_vni, self.subnet_vni + self.count * self.subnets - 1, "subnet_vni"),
            (self.router_vni, self.router_vni + self.count - 1, "router_vni"),
        ):
            if last > LAST_VNI:
                raise TopologyError(
                    f"{key} is {first} and the last of them would be {last}, above {LAST_VNI}: "
                    "take a smaller one"
                )
        self._check_unique()

    def _check_unique(self) -> None:
        subnets = {
            self.vni_of(tenant, subnet): f"subnet {subnet} of {tenant_name(tenant)}"
            for tenant in range(self.count)
            for subnet in range(self.subnets)
        }
        for tenant in range(self.count if self.routed else 0):
            vni = self.router_vni + tenant
            if vni in subnets:
                raise TopologyError(
                    f"VNI {vni} is used twice, for {subnets[vni]} and as the L3 VNI of "
                    f"{tenant_name(tenant)}: take another router_vni"
                )

    @property
    def routed(self) -> bool:
        """Return whether tenants have VRFs."""
        return self.count > 0 and self.isolation != BY_FILTER

    def vni_of(self, tenant: int, subnet: int) -> int:
        return self.subnet_vni + tenant * self.subnets + subnet

    def subnet_of(self, tenant: int, subnet: int) -> IPv4Network:
        """Return the addresses of a subnet of a tenant; TopologyError if there are none left."""
        place = subnet if self.addresses == EQUAL else tenant * self.subnets + subnet
        return plan.network_subnet(FRONTEND, FIRST_TENANT_SUBNET + place)

    def bridge_at(self, tenant: int, leaf: int) -> str:
        return f"{tenant_name(tenant)}-net{leaf % self.subnets}"

    def build(self, fabric: Assembly, leaves: Sequence[str]) -> None:
        """Give every leaf a subnet of each tenant, and its VRF."""
        for tenant in range(self.count):
            for number, leaf in enumerate(leaves):
                subnet = number % self.subnets
                fabric.bridge(
                    leaf,
                    self.bridge_at(tenant, number),
                    rail=FIRST_TENANT_SUBNET + tenant * self.subnets + subnet,
                    subnet=self.subnet_of(tenant, subnet),
                    vni=self.vni_of(tenant, subnet),
                    vrf=tenant_name(tenant) if self.routed else None,
                )
                if self.routed:
                    fabric.vrf(leaf, tenant_name(tenant), vni=self.router_vni + tenant)

    def join_border(self, fabric: Assembly, border: str, shared: tuple[IPv4Network, ...]) -> None:
        """Give ``border`` the VRF of every tenant, with a way to the subnets that all share."""
        for tenant in range(self.count if self.routed else 0):
            outside, inside = plan.handoff_link(tenant)
            networks = tuple(self.subnet_of(tenant, each) for each in range(self.subnets))
            handoff = Handoff(outside=outside, inside=inside, shared=shared, networks=networks)
            fabric.vrf(border, tenant_name(tenant), vni=self.router_vni + tenant, handoff=handoff)


def tenant_name(tenant: int) -> str:
    """Return the name of a tenant, which its VRF has, too."""
    return f"{TENANT_PREFIX}{tenant}"


def tenant_of_bridge(bridge: str) -> str | None:
    name, dash, _ = bridge.partition("-net")
    return name if dash and name.startswith(TENANT_PREFIX) else None


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
