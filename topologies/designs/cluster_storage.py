"""The storage network of a cluster, as a fabric of its own that RDMA runs over.

Numbers in the docstring are those of the defaults; a test computes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from topologies.designs.cluster import Cluster
from topologies.elements import BACKEND, STORAGE, FabricProfile
from topologies.model import Topology


@dataclass(frozen=True, kw_only=True)
class ClusterStorage(Cluster):
    """The storage network of a cluster alone, for runs: its machines are the end points.

    ::

        storage0, storage1, head0, h0 ... h3 === stor-leaf0,1 === stor-spine0,1      200G

    The parameters are those of the design cluster. Routes are computed, where a cluster's are
    learned by eBGP.

    7 GPUs, 4 switches, 11 links; bisection: servers 600 Gbps; oversubscription: leaf 2:1.
    """

    NAME = "cluster_storage"

    def topology(self) -> Topology:
        cluster = super().topology()
        return replace(
            cluster.network_named(STORAGE),
            name=self.NAME,
            parameters=cluster.parameters,
            network=BACKEND,  # the only one of its lab
            profile=FabricProfile(control_plane="static"),
        )
