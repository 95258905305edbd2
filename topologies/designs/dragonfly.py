r"""Dragonfly: groups of fully meshed routers, and links between all groups.

routers=4, gpus_per_host=2, global_links=2 (two of nine groups drawn)::

      +-- group 0 (pod 0) ---------------+      +-- group 1 (pod 1) ---------------+
      |  g0-r0 ======== g0-r1            |      |  g1-r0 ======== g1-r1            |
      |   | \ \        / / |            |      |   | \ \        / / |            |
      |   |   local links   |  global    |      |   |   local links   |            |
      |   | / /        \ \ |  links ----+------+---| / /        \ \ |            |
      |  g0-r2 ======== g0-r3 ---- ...   |      |  g1-r2 ======== g1-r3 ---- ...   |
      +---|-----------------|------------+      +----------------------------------+
         h2g0 h2g1         h3g0 h3g1

A group has a routers, each joined to the a - 1 others; every router has p GPUs (``hosts`` servers
of ``gpus_per_host``) and h global links.  a h + 1 groups are joined by one link between any two;
with fewer groups there are more links between two, as many as fit
(:func:`global_links` selects the ports).  Balanced is a = 2 p = 2 h, the default
for a given p (Kim et al., "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008).  A
router of it has p + a - 1 + h = 4 p - 1 ports.

=============================  ======  =======  ====  ===========  ============
computed                       groups  routers  GPUs  local links  global links
=============================  ======  =======  ====  ===========  ============
gpus_per_host=1                     3        6     6            3             3
(default) gpus_per_host=2           9       36    72           54            36
gpus_per_host=4                    33      264  1056          924           528
=============================  ======  =======  ====  ===========  ============

Routing: ``minimal`` (the default: local, global, local link, each at most once), ``valiant`` (over
any other group first, which evens out traffic that would all take one global link), ``shortest``
(also two global links over a third group, where that is no longer) or ``up-down``.  Only up-down
is free of cyclic buffer dependencies, and takes PFC; the others need virtual channels for it.

Valiant's choice of a group is made hop by hop, by the hash of a packet.  The router of its hosts
takes one of its own h global links, or one of its a - 1 neighbours, all equally likely. A neighbour
takes one of its h; so the own global links get h / (h + a - 1) of the packets, where even shares
were 1 / a.  A rule of the kernel selects packets that come from the group's own subnets and have to
leave it. The others only pass through (:mod:`topologies.routing`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import combinations
from typing import NamedTuple

from topologies import addressing as plan
from topologies.designs.bottom import Servers
from topologies.model import FabricProfile, Role, Topology, TopologyError
from topologies.parts.assembly import Assembly
from topologies.parts.design import CabledDesign, parameter, register
from topologies.parts.design_parameters import COUNT, RATE, TIME, WordKind

ARRANGEMENTS = ("absolute", "relative")


class GlobalPort(NamedTuple):
    group: int
    port: int


def rounds(groups: int, ports: int) -> int:
    """Links between every two of ``groups`` groups of ``ports`` global ports each."""
    return ports // (groups - 1) if groups > 1 else 0


def global_links(
    groups: int, ports: int, arrangement: str
) -> Iterator[tuple[GlobalPort, GlobalPort]]:
    """Every global link, from the group of the lower number to the other."""
    for number in range(rounds(groups, ports)):
        first = number * (groups - 1)
        for group in range(groups):
            for other in range(group + 1, groups):
                yield (
                    GlobalPort(group, first + _port(group, other, groups, arrangement)),
                    GlobalPort(other, first + _port(other, group, groups, arrangement)),
                )


def _port(group: int, other: int, groups: int, arrangement: str) -> int:
    if arrangement == "relative":
        return (other - group - 1) % groups
    return other if other < group else other - 1


ROUTINGS = ("minimal", "valiant", "shortest", "up-down")


@dataclass(frozen=True, kw_only=True)
class Grouped(CabledDesign):
    """The parameters of both kinds of dragonfly; see :class:`Dragonfly`."""

    hosts: int = parameter(1, COUNT, "servers at each router that has any")
    gpus_per_host: int = parameter(2, COUNT, "GPUs of each server")
    groups: int | None = parameter(
        None, COUNT, "groups; auto: one more than a group's global links"
    )
    global_links: int | None = parameter(
        None, COUNT, "global links of each router that has any; auto: its GPUs, or a leaf's"
    )
    arrangement: str = parameter(
        "absolute", WordKind(ARRANGEMENTS), "which global ports are joined to which group"
    )
    local_rate: int | None = parameter(None, RATE, "rate of a link inside a group; auto: nic_rate")
    global_rate: int | None = parameter(None, RATE, "rate of a link between groups; auto: nic_rate")
    global_delay: int | None = parameter(
        None, TIME, "delay of a link between groups; auto: uplink_delay"
    )
    routing: str = parameter("minimal", WordKind(ROUTINGS), "which paths are taken")

    @property
    def gpus(self) -> int:
        """GPUs at a router that has any (p)."""
        return self.hosts * self.gpus_per_host

    @property
    def globals_each(self) -> int:
        """Global links of a router that has any (h)."""
        return self.global_links or self.gpus

    @property
    def joining(self) -> int:
        """Routers of a group that have global links."""
        raise NotImplementedError

    @property
    def hosting(self) -> int:
        raise NotImplementedError

    @property
    def most_groups(self) -> int:
        return self.joining * self.globals_each + 1

    @property
    def group_count(self) -> int:
        return self.groups or self.most_groups

    def parameters(self) -> dict[str, object]:
        """Every parameter with the value it has, computed ones included."""
        values: dict[str, object] = {item.name: getattr(self, item.name) for item in fields(self)}
        return values | {
            "groups": self.group_count,
            "global_links": self.globals_each,
            "local_rate": self.local_rate or self.nic_rate,
            "global_rate": self.global_rate or self.nic_rate,
            "global_delay": self.delay_between,
        }

    @property
    def delay_between(self) -> int:
        return self.uplink_delay if self.global_delay is None else self.global_delay

    def check(self) -> None:
        """Raise TopologyError unless the parameters agree with each other."""
        if self.group_count > self.most_groups:
            raise TopologyError(
                f"groups is {self.groups}, and a group has {self.most_groups - 1} global links, "
                f"one for each other group: take at most {self.most_groups} groups or more "
                "global_links"
            )

    # ------------------------------------------------------------------ built

    def topology(self) -> Topology:
        self.check()
        fabric = Assembly(mtu=self.mtu, buffer_bytes=self.buffer)
        servers = Servers(
            self,
            fabric,
            total=self.group_count * self.hosting * self.hosts,
            gpus_per_host=self.gpus_per_host,
            fewer="groups, hosts or gpus_per_host",
        )
        joining = [self.build_group(fabric, servers, group) for group in range(self.group_count)]
        ports = self.joining * self.globals_each
        for ends in global_links(self.group_count, ports, self.arrangement):
            a, b = (joining[end.group][end.port // self.globals_each] for end in ends)
            fabric.join(
                a,
                b,
                rate_bps=self.global_rate or self.nic_rate,
                delay_ns=self.delay_between,
                names=("global", "global"),
            )
        profile = FabricProfile(routing=self.routing)
        return fabric.topology(self.NAME, self.parameters(), profile=profile)

    def build_group(self, fabric: Assembly, servers: Servers, group: int) -> list[str]:
        """The switches, servers and local links of ``group``; who of it has global links."""
        raise NotImplementedError

    def local(self, fabric: Assembly, a: str, b: str, names: tuple[str, str]) -> None:
        rate = self.local_rate or self.nic_rate
        fabric.join(a, b, rate_bps=rate, delay_ns=self.uplink_delay, names=names)


@register
@dataclass(frozen=True, kw_only=True)
class Dragonfly(Grouped):
    """Dragonfly: groups of fully meshed routers, every two groups joined by global links."""

    NAME = "dragonfly"

    routers: int | None = parameter(
        None, COUNT, "routers of each group; auto: twice the GPUs of one (balanced)"
    )

    @property
    def joining(self) -> int:
        return self.routers or 2 * self.gpus

    @property
    def hosting(self) -> int:
        return self.joining

    def parameters(self) -> dict[str, object]:
        return super().parameters() | {"routers": self.joining}

    def build_group(self, fabric: Assembly, servers: Servers, group: int) -> list[str]:
        names = [f"g{group}-r{number}" for number in range(self.joining)]
        for number, name in enumerate(names):
            fabric.switch(Role.ROUTER, name, pod=group)
            subnet = plan.group_subnet(group, number, self.gpus)
            servers.plug(name, self.hosts, subnet, pod=group)
        for a, b in combinations(names, 2):
            self.local(fabric, a, b, ("local", "local"))
        return names
