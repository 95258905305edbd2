"""A whole cluster: its scale-out fabric, and the other networks of its servers.

Its storage network is also a fabric of its own that RDMA runs over.
Numbers in the docstrings are those of the defaults; a test computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from topologies import cluster, elements
from topologies.cluster import (
    APART,
    EQUAL,
    FIRST_ROUTER_VNI,
    FIRST_SUBNET_VNI,
    FIRST_VNI,
    LAST_VNI,
    LeafSpine,
    Machines,
    NetworkCabling,
    Tenancy,
)
from topologies.designs.clos import Clos
from topologies.elements import BACKEND, FabricProfile
from topologies.model import Topology, TopologyError
from topologies.parts.design import Design, parameter, register
from topologies.parts.design_parameters import (
    COUNT,
    MTU,
    NUMBER,
    RATE,
    SIZE,
    TIME,
    ParameterKind,
    TextKind,
    WordKind,
    parse_count,
)

ALL = "+".join(name for name in elements.NETWORKS if name != elements.BACKEND)
NONE = "none"
VNI = ParameterKind("VNI", "", FIRST_VNI, LAST_VNI, parse_count, str)
HOMES = ParameterKind("count", "", 1, 2, parse_count, str)


@register
@dataclass(frozen=True, kw_only=True)
class Cluster(Clos):
    """A cluster with all four of its networks.

    ::

        backend       h0g0 h0g1 ... h3g1       the GPUs, on rails, as in the design clos
        frontend      h0 ... h3, head0         leaf-spine, 100G; users behind a border router
        storage       h0 ... h3, storage0      leaf-spine, 200G
        management    every machine            one switch, 1G

    Runs use the backend alone. ``uetemu up`` builds all networks, each as a lab of its own.

    8 GPUs, 4 switches, 16 links; bisection: servers 1.6 Tbps, rails 1.6 Tbps;
    oversubscription: rail 1:1.
    """

    NAME = "cluster"

    hosts: int = parameter(4, COUNT, "servers of each segment")
    gpus_per_host: int = parameter(2, COUNT, "GPUs of each server")
    networks: str = parameter(ALL, TextKind("names joined by +"), "networks beside the backend")
    frontend_rate: int = parameter("100Gbps", RATE, "rate of each cable of the frontend")
    frontend_leaves: int = parameter(2, COUNT, "leaves of the frontend")
    frontend_spines: int = parameter(2, NUMBER, "spines of the frontend")
    tenants: int = parameter(
        2, NUMBER, "tenants of the frontend, a VXLAN each; 0: one network for all"
    )
    isolation: str = parameter(
        elements.AUTO_ISOLATION,
        WordKind(elements.ISOLATIONS),
        "how tenants are apart; auto: as this machine can",
    )
    tenant_subnets: int = parameter(1, COUNT, "subnets of each tenant; a leaf has one of them")
    tenant_addresses: str = parameter(
        APART, WordKind((APART, EQUAL)), "whether all tenants have the same subnets"
    )
    subnet_vni: int = parameter(FIRST_SUBNET_VNI, VNI, "VNI of the first subnet of a tenant")
    router_vni: int = parameter(FIRST_ROUTER_VNI, VNI, "L3 VNI of the first tenant")
    frontend_homes: int = parameter(
        1, HOMES, "ports of a server in the frontend, each at a leaf of its own; 2 with tenants=0"
    )
    users: int = parameter(1, NUMBER, "machines of users, outside the border router")
    storage_rate: int = parameter("200Gbps", RATE, "rate of each cable of the storage network")
    storage_leaves: int = parameter(2, COUNT, "leaves of the storage network")
    storage_spines: int = parameter(2, NUMBER, "spines of the storage network")
    storage_nodes: int = parameter(2, COUNT, "storage nodes")
    management_rate: int = parameter("1Gbps", RATE, "rate of each cable of the management network")

    def topology(self) -> Topology:
        backend = super().topology()
        chosen = self._chosen()
        servers = tuple(server.name for server in backend.servers)
        machines = Machines(
            servers=servers,
            storage_nodes=self.storage_nodes,
            users=self.users,
            homes=self.frontend_homes,
        )
        tenancy = Tenancy(
            count=self.tenants,
            subnets=self.tenant_subnets,
            isolation=self.isolation,
            addresses=self.tenant_addresses,
            subnet_vni=self.subnet_vni,
            router_vni=self.router_vni,
        )
        frontend = LeafSpine(leaves=self.frontend_leaves, spines=self.frontend_spines)
        storage = LeafSpine(leaves=self.storage_leaves, spines=self.storage_spines)
        builders: dict[str, Callable[[], Topology]] = {
            elements.FRONTEND: lambda: cluster.frontend(
                machines, frontend, self._cabling(self.frontend_rate), tenancy
            ),
            elements.STORAGE: lambda: cluster.storage(
                machines, storage, self._cabling(self.storage_rate)
            ),
            elements.MANAGEMENT: lambda: cluster.management(
                machines, self._cabling(self.management_rate, cluster.ORDINARY_MTU)
            ),
        }
        return replace(
            backend, networks=tuple(build() for name, build in builders.items() if name in chosen)
        )

    def idle(self) -> dict[str, str]:
        needs, chosen = super().idle(), self._chosen()
        tenancy = ("isolation", "tenant_subnets", "tenant_addresses", "subnet_vni", "router_vni")
        if self.isolation == elements.BY_FILTER:
            needs["router_vni"] = "VRFs (isolation=vrf or netns)"
        if not self.tenants:
            needs |= dict.fromkeys(tenancy, "tenants")
        if elements.FRONTEND not in chosen:
            names = ("frontend_rate", "frontend_leaves", "frontend_spines", "frontend_homes")
            needs |= dict.fromkeys((*names, *tenancy, "tenants", "users"), "networks=frontend")
        if elements.STORAGE not in chosen:
            of_storage = ("storage_rate", "storage_leaves", "storage_spines")
            needs |= dict.fromkeys(of_storage, "networks=storage")
            if elements.MANAGEMENT not in chosen:
                needs["storage_nodes"] = "networks=storage+management, or one of them"
        if elements.MANAGEMENT not in chosen:
            needs["management_rate"] = "networks=management"
        return needs

    def _cabling(self, rate_bps: int, mtu: int | None = None) -> NetworkCabling:
        return NetworkCabling(
            rate_bps=rate_bps,
            delay_ns=self.nic_delay,
            mtu=mtu or self.mtu,
            buffer_bytes=self.buffer,
        )

    def _chosen(self) -> frozenset[str]:
        """Return the names in ``networks``; TopologyError for one that cannot be."""
        names = [] if self.networks == NONE else self.networks.split("+")
        known = [name for name in elements.NETWORKS if name != elements.BACKEND]
        for name in names:
            if name not in known:
                raise TopologyError(
                    f"networks is {self.networks!r}; it is {NONE}, or of {', '.join(known)} some "
                    "that are joined by +"
                )
        return frozenset(names)


@register
@dataclass(frozen=True, kw_only=True)
class ClusterStorage(Design):
    """The storage network of a cluster alone, for runs: its machines are the end points.

    ::

        storage0, storage1, head0, h0 ... h3 === stor-leaf0,1 === stor-spine0,1      200G

    The parameters are those that the design cluster has for it. Routes are computed, where a
    cluster's are learned by eBGP.

    7 GPUs, 4 switches, 11 links; bisection: servers 600 Gbps; oversubscription: leaf 2:1.
    """

    NAME = "cluster_storage"

    hosts: int = parameter(4, COUNT, "servers")
    storage_rate: int = parameter("200Gbps", RATE, "rate of each cable")
    storage_leaves: int = parameter(2, COUNT, "leaves")
    storage_spines: int = parameter(2, NUMBER, "spines")
    storage_nodes: int = parameter(2, COUNT, "storage nodes")
    nic_delay: int = parameter("600ns", TIME, "delay of a cable")
    mtu: int = parameter("9000", MTU, "IP MTU of every link")
    buffer: int = parameter("1MiB", SIZE, "egress queue of every port")

    def topology(self) -> Topology:
        servers = tuple(f"h{number}" for number in range(self.hosts))
        network = cluster.storage(
            Machines(servers=servers, storage_nodes=self.storage_nodes, users=0),
            LeafSpine(leaves=self.storage_leaves, spines=self.storage_spines),
            NetworkCabling(
                rate_bps=self.storage_rate,
                delay_ns=self.nic_delay,
                mtu=self.mtu,
                buffer_bytes=self.buffer,
            ),
        )
        return replace(
            network,
            name=self.NAME,
            parameters=asdict(self),
            network=BACKEND,  # the only one of its lab
            profile=FabricProfile(control_plane="static"),
        )
