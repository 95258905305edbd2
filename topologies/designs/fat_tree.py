"""Fat tree of two or three levels, from switches of one radix.

Radix 4, two levels and three (Al-Fares et al., "A Scalable, Commodity Data Center Network
Architecture", SIGCOMM 2008)::

      spine0    spine1                super0   super1   super2   super3      (k/2)^2 cores
       | | \\ \\  / / | |                 |  \\ ...                 / |
       | |  \\ \\/ /  | |             +--spine0  spine1--+ +--spine2  spine3--+ ...
       | |   \\/\\/   | |             |    |  \\  /  |    | |    |  \\  /  |    |
      leaf0 leaf1 leaf2 leaf3       |  leaf0    leaf1  | |  leaf2    leaf3  |  k pods
       | |   | |   | |   | |        |   | |      | |   | |   | |      | |   |
      h0g0  h0g1  h2g0  h2g1        +------ pod 0 -----+ +------ pod 1 -----+
      h1g0  h1g1  h3g0  h3g1

Every switch has k ports.  A leaf gives half of them to GPUs, which share its subnet, and half to
spines.  Each GPU of a server stands at a leaf of its own: as many leaves as a server has GPUs, one
after the other, are a group with k/2 servers.  In the design ``tor`` all GPUs of a server stand at
one leaf, the top-of-rack switch.

Two levels: k leaves, k/2 spines that reach every leaf, k^2/2 GPUs.  Three levels: k pods of k/2
leaves and k/2 spines, (k/2)^2 super-spines (cores) that reach every pod, k^3/4 GPUs; spine s of
each pod is joined to the k/2 super-spines of its number, or with ``core_links=n`` to 1/n of them
by n links each.  So few pods need no super-spines with most ports empty.

================================  ======  ======  ============  ====
computed                          leaves  spines  super-spines  GPUs
================================  ======  ======  ============  ====
radix=8                                8       4             -    32
radix=128                            128      64             -  8192
radix=128,leaves=8                     8      64             -   512
radix=4,levels=3,gpus_per_host=2       8       8             4    16
radix=8,levels=3                      32      32            16   128
================================  ======  ======  ============  ====

``leaves`` builds the first so many of them, with all spines that these are joined to.  With
``oversubscription=n`` a leaf has n ports down for each port up, and fewer spines stand above.
All shortest paths are used; they go up and then down, so that PFC cannot bring them to a standstill
(:mod:`topologies.analysis.deadlock`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from topologies import addressing as plan
from topologies.designs.bottom import Servers
from topologies.model import Role, Topology, TopologyError
from topologies.parts.assembly import MAX_PORTS, Assembly
from topologies.parts.design import CabledDesign, parameter, register, with_defaults
from topologies.parts.design_parameters import COUNT, RATE

LEVELS = (2, 3)


@register
@dataclass(frozen=True, kw_only=True)
class FatTree(CabledDesign):
    """Fat tree of two or three levels, each GPU of a server at a leaf of its own."""

    NAME = "fat_tree"
    #: Whether the GPUs of a server stand at one leaf.
    TOP_OF_RACK: ClassVar[bool] = False

    radix: int = parameter(8, COUNT, "ports of every switch")
    levels: int = parameter(2, COUNT, "tiers of switches: 2 or 3")
    gpus_per_host: int = parameter(4, COUNT, "GPUs of each server")
    leaves: int | None = parameter(None, COUNT, "leaves that are there; auto: all")
    oversubscription: int = parameter(1, COUNT, "ports down for each port up of a leaf")
    core_links: int = parameter(1, COUNT, "parallel links of a spine to each of its super-spines")
    link_rate: int | None = parameter(None, RATE, "rate of a link between switches; auto: nic_rate")

    # ------------------------------------------------------------------ computed

    @property
    def up(self) -> int:
        """Ports of a leaf to spines, and spines that it has."""
        return self.radix // (self.oversubscription + 1)

    @property
    def down(self) -> int:
        """Ports of a leaf to GPUs."""
        return self.radix - self.up

    @property
    def leaves_per_pod(self) -> int:
        """Two levels are one pod, whose spines have all their ports down."""
        return self.radix if self.levels == 2 else self.radix // 2

    @property
    def pods(self) -> int:
        return -(-self.leaf_count // self.leaves_per_pod)

    @property
    def leaf_count(self) -> int:
        return self.leaves or self._most_leaves

    @property
    def _most_leaves(self) -> int:
        return self.radix if self.levels == 2 else self.radix * self.radix // 2

    def parameters(self) -> dict[str, object]:
        """Every parameter with the value it has, computed ones included."""
        values: dict[str, object] = {item.name: getattr(self, item.name) for item in fields(self)}
        return values | {"leaves": self.leaf_count, "link_rate": self.link_rate or self.nic_rate}

    def check(self) -> None:
        """Raise TopologyError unless the parameters agree with each other."""
        if self.levels not in LEVELS:
            raise TopologyError(f"levels is {self.levels}; a fat tree here has 2 or 3")
        if self.radix % 2:
            raise TopologyError(
                f"radix is {self.radix}, an odd number; half of a switch's ports lead up: take "
                f"{self.radix + 1}"
            )
        if self.radix > MAX_PORTS:
            raise TopologyError(f"radix is {self.radix}, above {MAX_PORTS}; take fewer ports")
        parts = self.oversubscription + 1
        if self.radix % parts:
            unit = parts * (1 + parts % 2)  # even as well
            fitting = -(-self.radix // unit) * unit
            way_out = f"a radix of {fitting} or another" if fitting <= MAX_PORTS else "a lower"
            raise TopologyError(
                f"radix is {self.radix} and oversubscription {self.oversubscription}; the ports "
                f"of a leaf divide into {parts} equal parts, one of them up: take {way_out} "
                "oversubscription"
            )
        if self.leaf_count > self._most_leaves:
            raise TopologyError(
                f"leaves is {self.leaves}, and {self.levels} levels of radix {self.radix} join "
                f"{self._most_leaves}; take fewer leaves, a larger radix"
                + (" or levels=3" if self.levels == 2 else "")
            )
        if self.levels == 2:
            if self.core_links > 1:
                raise TopologyError("core_links is of levels=3: two levels have no super-spines")
        elif self.radix // 2 % self.core_links or self.pods * self.core_links > self.radix:
            raise TopologyError(
                f"core_links is {self.core_links}; a spine has {self.radix // 2} ports up, and a "
                f"super-spine {self.radix} for the spines of {self.pods} pods: take a number that "
                "divides the first, and fits as often into the second"
            )
        self._check_places()

    def _check_places(self) -> None:
        """Raise TopologyError unless every GPU of every server has its place."""
        if self.TOP_OF_RACK:
            if self.down % self.gpus_per_host:
                raise TopologyError(
                    f"gpus_per_host is {self.gpus_per_host} and a leaf has {self.down} ports for "
                    "GPUs; whole servers stand at a leaf: take a number that divides them"
                )
            return
        each = f"{self.leaves_per_pod} leaves" + (" of a pod" if self.levels == 3 else "")
        for what, leaves in ((each, self.leaves_per_pod), (f"leaves={self.leaves}", self.leaves)):
            if leaves is not None and leaves % self.gpus_per_host:
                raise TopologyError(
                    f"gpus_per_host is {self.gpus_per_host}, which does not divide {what}; each "
                    "GPU of a server has a leaf of its own: take a number that does, or the design "
                    f"{TopOfRack.NAME}"
                )

    # ------------------------------------------------------------------ built

    def topology(self) -> Topology:
        self.check()
        fabric = Assembly(mtu=self.mtu, buffer_bytes=self.buffer)
        servers = Servers(
            self,
            fabric,
            total=self.leaf_count * self.down // self.gpus_per_host,
            gpus_per_host=self.gpus_per_host,
            fewer="leaves, or a lower radix",
        )
        several = self.levels == 3
        rate, delay = self.link_rate or self.nic_rate, self.uplink_delay
        leaves = [divmod(number, self.leaves_per_pod) for number in range(self.leaf_count)]
        for number, (pod, _) in enumerate(leaves):
            name = fabric.switch(Role.LEAF, f"leaf{number}", pod=pod if several else None)
            subnet, group = plan.leaf_subnet(number, self.down), pod if several else None
            if self.TOP_OF_RACK:
                servers.plug(name, self.down // self.gpus_per_host, subnet, pod=group)
            else:
                rank = number % self.gpus_per_host
                servers.plug_rank(rank, name, self.down, subnet, pod=group)
        spines = [
            [
                fabric.switch(
                    Role.SPINE, f"spine{pod * self.up + spine}", pod=pod if several else None
                )
                for spine in range(self.up)
            ]
            for pod in range(self.pods)
        ]
        for number, (pod, _) in enumerate(leaves):
            for spine in spines[pod]:
                fabric.join(f"leaf{number}", spine, rate_bps=rate, delay_ns=delay)
        if several:
            each = self.radix // 2 // self.core_links  # super-spines that a spine reaches
            cores = [
                fabric.switch(Role.SUPER_SPINE, f"super{number}")
                for number in range(self.up * each)
            ]
            for names in spines:
                for row, spine in enumerate(names):
                    for core in cores[row * each : (row + 1) * each]:
                        for _ in range(self.core_links):
                            fabric.join(spine, core, rate_bps=rate, delay_ns=delay)
        return fabric.topology(self.NAME, self.parameters())


@register
@with_defaults()
class TopOfRack(FatTree):
    """Fat tree in which all GPUs of a server stand at one leaf, the top-of-rack switch."""

    NAME = "tor"
    TOP_OF_RACK = True
