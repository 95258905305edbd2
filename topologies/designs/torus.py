"""Torus of two or three dimensions: each server is a router, joined to its neighbours.

x=3, y=3::

        :         :         :
      +--------+--------+--------+
    ..| r0-2   | r1-2   | r2-2   |..    every row and every column is a ring: its ends are joined
      +--------+--------+--------+      (the dots)
    ..| r0-1   | r1-1   | r2-1   |..
      +--------+--------+--------+      xplus: to the next in x, xminus: to the one before;
    ..| r0-0   | r1-0   | r2-0   |..    likewise y and z
      +--------+--------+--------+
        :         :         :

Router ``r<x>-<y>[-<z>]`` and server h<n> with n = x + X (y + Y z) are one machine: its GPUs share a
subnet whose bridge is the router.  A dimension of 2 has one cable between its two routers, or two
with ``pair_cables=2``; a dimension of 1 has none.

===========  =======  ======  ========  ======================================
computed     routers  cables  diameter  cables between two halves along x
===========  =======  ======  ========  ======================================
x=3,y=3            9      18         2  - (an odd number has no halves)
x=4,y=4           16      32         4  8
4 x 4 x 4         64     192         6  32
8 x 8 x 8        512    1536        12  128
===========  =======  ======  ========  ======================================

The bisection is the cut along the longest dimension.

Routing: ``dimension-order`` (the default; x, then y, then z, the shorter way round), ``shortest``
(every shortest path) or ``up-down``.  With the first packets can wait for each other in a cycle
around a ring of four or more routers. With the second they can also around a square of a 2D torus;
PFC is refused there.  Real machines have virtual channels for that, switches of Ethernet have not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import product

from topologies import addressing as plan
from topologies.designs.bottom import Servers
from topologies.model import AXES, FabricProfile, Role, Topology, TopologyError
from topologies.parts.assembly import Assembly
from topologies.parts.design import CabledDesign, parameter, register
from topologies.parts.design_parameters import COUNT, RATE, WordKind

#: Hops that a packet survives (the TTL of Linux and of the endpoints is 64), with some to spare.
MAX_HOPS = 60


@register
@dataclass(frozen=True, kw_only=True)
class Torus(CabledDesign):
    """Torus of two or three dimensions: each server is joined to its 4 or 6 neighbours."""

    NAME = "torus"

    x: int = parameter(4, COUNT, "routers along the first dimension")
    y: int = parameter(4, COUNT, "routers along the second dimension")
    z: int = parameter(1, COUNT, "routers along the third dimension; 1: a 2D torus")
    gpus_per_host: int = parameter(1, COUNT, "GPUs of each server")
    link_rate: int | None = parameter(None, RATE, "rate of a link between routers; auto: nic_rate")
    pair_cables: int = parameter(1, COUNT, "cables between the routers of a dimension of 2: 1 or 2")
    routing: str = parameter(
        "dimension-order",
        WordKind(("dimension-order", "shortest", "up-down")),
        "which paths are taken",
    )

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.x, self.y, self.z) if self.z > 1 else (self.x, self.y)

    def parameters(self) -> dict[str, object]:
        """Every parameter with the value it has, computed ones included."""
        values: dict[str, object] = {item.name: getattr(self, item.name) for item in fields(self)}
        return values | {"link_rate": self.link_rate or self.nic_rate}

    def check(self) -> None:
        """Raise TopologyError unless the parameters agree with each other."""
        if self.pair_cables not in (1, 2):
            raise TopologyError(f"pair_cables is {self.pair_cables}; it is 1 or 2")
        if 2 not in self.sizes:
            self.refuse_idle({"pair_cables": "a dimension of 2 (x, y or z)"})
        far = sum(size // 2 for size in self.sizes) * (2 if self.routing == "up-down" else 1)
        if far > MAX_HOPS:
            raise TopologyError(
                f"packets would take up to {far} hops with routing {self.routing}, and live for "
                f"{MAX_HOPS}; take fewer routers along a dimension, or more dimensions"
            )

    def topology(self) -> Topology:
        self.check()
        fabric = Assembly(mtu=self.mtu, buffer_bytes=self.buffer)
        places = list(self._places())
        servers = Servers(
            self,
            fabric,
            total=len(places),
            gpus_per_host=self.gpus_per_host,
            fewer="routers (x, y, z) or gpus_per_host",
        )
        for number, place in enumerate(places):
            fabric.switch(Role.ROUTER, router(place), position=place)
            subnet = plan.leaf_subnet(number, self.gpus_per_host)
            servers.plug(router(place), 1, subnet, pod=None)
        for place in places:
            for axis, size in enumerate(self.sizes):
                following = (place[axis] + 1) % size
                if size == 1 or (size == 2 and self.pair_cables == 1 and following == 0):
                    continue
                after = (*place[:axis], following, *place[axis + 1 :])
                fabric.join(
                    router(place),
                    router(after),
                    rate_bps=self.link_rate or self.nic_rate,
                    delay_ns=self.uplink_delay,
                    names=(f"{AXES[axis]}plus", f"{AXES[axis]}minus"),
                )
        profile = FabricProfile(routing=self.routing)
        return fabric.topology(self.NAME, self.parameters(), profile=profile)

    def _places(self) -> Iterator[tuple[int, ...]]:
        """Positions, x counting fastest."""
        for backwards in product(*map(range, reversed(self.sizes))):
            yield backwards[::-1]


def router(place: tuple[int, ...]) -> str:
    return "r" + "-".join(map(str, place))
