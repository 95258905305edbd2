"""The storage network of a cluster, as a fabric of its own that RDMA runs over.

Numbers in the docstring are those of the defaults; a test computes them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from topologies import cluster
from topologies.cluster import LeafSpine, Machines, NetworkCabling
from topologies.elements import BACKEND, FabricProfile
from topologies.model import Topology
from topologies.parts.design import Design, parameter, register
from topologies.parts.design_parameters import COUNT, MTU, NUMBER, RATE, SIZE, TIME


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
