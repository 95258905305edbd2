"""Scale-up networks: which GPUs they join, and how fast.

::

    switch                     mesh of four                ring of four
    g0  g1  g2  g3             g0 ------- g1               g0 ------- g1
     |   |   |   |             |  \\   /  |                |           |
    +-------------+            |    X     |                |           |
    |  NVSwitch   |            |  /   \\  |                |           |
    +-------------+            g3 ------- g2               g3 ------- g2
    the whole rate by          a third of the rate         half of the rate to
    one port, to all           to each of three            each of two neighbours

A domain is the servers that share one network: one server, or several (``hosts``), whose GPUs are
in rank order.  Without a switch the rate of a GPU divides over its links, of which a product
(:mod:`topologies.parts.scale_up_products`) has so many, whether or not there are peers for all.  A
ring joins neighbours only: GPUs do not forward for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from topologies.model import MESH, RING, ScaleUp, Topology


class ScaleUpDomains:
    def __init__(self, topology: Topology) -> None:
        self._domain = topology.scale_up_domains
        self._network = {gpu: server.scale_up for server in topology.servers for gpu in server.gpus}
        self._members: dict[str, list[str]] = {}
        for gpu, domain in self._domain.items():
            self._members.setdefault(domain, []).append(gpu)
        self.peers = cache(self._peers)

    def network(self, gpu: str) -> ScaleUp:
        return self._network[gpu]

    def joins(self, gpu: str, other: str) -> bool:
        """Return whether a copy from ``gpu`` into ``other``'s memory stays in their network."""
        return other in self.peers(gpu)

    def _peers(self, gpu: str) -> Mapping[str, int]:
        """The GPUs to which ``gpu`` copies, with the rate (bit/s each way) of the links to each."""
        members, network = self._members[self._domain[gpu]], self._network[gpu]
        place, count = members.index(gpu), len(members)
        if network.shape == RING:
            around = [members[(place + step) % count] for step in (1, -1)]
            return {
                peer: network.rate_bps * around.count(peer) // 2 for peer in around if peer != gpu
            }
        links = network.links or count - 1 if network.shape == MESH else 1
        return {peer: network.rate_bps // links for peer in members if peer != gpu}
