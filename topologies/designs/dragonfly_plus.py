"""Dragonfly+: groups of leaves and spines, and links between the spines of all groups.

leaves=2, spines=2, gpus_per_host=2, global_links=2 (two of five groups drawn)::

      +-- group 0 (pod 0) -------+         +-- group 1 (pod 1) -------+
      |  g0-spine0    g0-spine1 -+-- ... --+- g1-spine0    g1-spine1  |   global links between
      |      |    \\  /    |      |         |      |    \\  /    |      |   spines only
      |      |     \\/     |      |         |      |     \\/     |      |
      |      |     /\\     |      |         |      |     /\\     |      |   every leaf of a group to
      |      |    /  \\    |      |         |      |    /  \\    |      |   each of its spines
      |  g0-leaf0     g0-leaf1   |         |  g1-leaf0     g1-leaf1   |
      +----|-------------|-------+         +--------------------------+
        h0g0 h0g1     h1g0 h1g1

A group is a two-level fat tree whose spines have global links instead of a level above (Shpiner et
al., "Dragonfly+: Low Cost Topology for Scaling Datacenters", HiPINEB 2017).  With s spines of h
global links each, s h + 1 groups are joined by one link between any two; with fewer groups there
are more links between two, as many as fit (:mod:`topologies.designs.dragonfly`).  By default
leaves, spines and global links are as many as the GPUs of a leaf: every leaf and spine has half of
its ports down.

=============================  ======  ======  ======  ====  ===========  ============
computed                       groups  leaves  spines  GPUs  local links  global links
=============================  ======  ======  ======  ====  ===========  ============
gpus_per_host=1                     2       2       2     2            2             1
(default) gpus_per_host=2           5      10      10    20           20            10
gpus_per_host=4                    17      68      68   272          272           136
=============================  ======  ======  ======  ====  ===========  ============

Routing as in :mod:`topologies.designs.dragonfly`: ``minimal`` is leaf, spine, global link, spine,
leaf; ``valiant`` goes up to any spine, over any of its global links, and from there on minimally.
That may be down to a leaf, and up to the spine that has the right global link.  Minimal ways go up,
over, and down, so that PFC takes them; Valiant's have cycles.
"""

from __future__ import annotations

from dataclasses import dataclass

from topologies import addressing as plan
from topologies.designs.bottom import Servers
from topologies.designs.dragonfly import Grouped
from topologies.model import Role
from topologies.parts.assembly import Assembly
from topologies.parts.design import parameter, register
from topologies.parts.design_parameters import COUNT


@register
@dataclass(frozen=True, kw_only=True)
class DragonflyPlus(Grouped):
    """Dragonfly+: groups of leaves and spines, the spines of every two groups joined."""

    NAME = "dragonfly_plus"

    leaves: int | None = parameter(None, COUNT, "leaves of each group; auto: the GPUs of one")
    spines: int | None = parameter(None, COUNT, "spines of each group; auto: the GPUs of a leaf")

    @property
    def joining(self) -> int:
        return self.spines or self.gpus

    @property
    def hosting(self) -> int:
        return self.leaves or self.gpus

    def parameters(self) -> dict[str, object]:
        return super().parameters() | {"leaves": self.hosting, "spines": self.joining}

    def build_group(self, fabric: Assembly, servers: Servers, group: int) -> list[str]:
        leaves = [f"g{group}-leaf{number}" for number in range(self.hosting)]
        spines = [f"g{group}-spine{number}" for number in range(self.joining)]
        for number, name in enumerate(leaves):
            fabric.switch(Role.LEAF, name, pod=group)
            subnet = plan.group_subnet(group, number, self.gpus)
            servers.plug(name, self.hosts, subnet, pod=group)
        for name in spines:
            fabric.switch(Role.SPINE, name, pod=group)
        for leaf in leaves:
            for spine in spines:
                self.local(fabric, leaf, spine, ("up", "down"))
        return spines
