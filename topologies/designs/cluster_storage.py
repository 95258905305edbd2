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
    """

    NAME = "cluster_storage"

    def topology(self) -> Topology:
        network = super().topology().network_named(STORAGE)
        profile = FabricProfile(control_plane="static")
        return replace(network, network=BACKEND, profile=profile)  # the only one of its lab
