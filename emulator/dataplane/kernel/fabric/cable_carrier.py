"""Pulls cables out of a fabric that runs, and plugs them in again.

A veth pair has carrier while both of its ends are up, so taking one end down
takes carrier from both.  They are not alike then:

- the far end keeps its addresses, permanent neighbours and routes.  Its routes are marked
  ``linkdown``, and a switch does not use those (``ignore_routes_with_linkdown``, set when a switch
  is made); of a multipath route the other hops stay.
- the end that is taken down keeps its queues, filters, addresses and the static entries of its
  bridge. It loses its neighbours and the routes that have no other hop.

That end is a bridge's member, where one of the two is: it has neither neighbours nor routes but
those to a fabric address. Else it is the one in the lower tier, whose routes upwards have other
hops.  Plugging in puts back what it has lost.

Routes are put back where they are static.  With a routing daemon those that lead to other switches
are the daemon's: it gets notice of the carrier like everybody else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property

from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.dataplane.kernel.port_counters import ports_not_ready
from emulator.errors import UserError
from topologies.analysis.capacity import HEIGHT
from topologies.model import CableEnd, Link, Topology
from topologies.routing.static_routes import (
    Neighbour,
    Route,
    attached,
    static_neighbours,
    static_routes,
)

PLUG_BUDGET_S = 10.0
STATIC = "static"

#: A netlink socket in the namespace of a node.
Kernels = Callable[[str], RouteSocket]


def lowered_end(topology: Topology, link: Link) -> CableEnd:
    """The end of ``link`` that is taken down when the cable is pulled."""

    def preference(end: CableEnd) -> tuple[bool, bool, int, CableEnd]:
        node = topology.node(end.node)
        routed = node.port(end.port).bridge is None
        return not node.is_switch, routed, HEIGHT[node.role], end

    return min(link.ends, key=preference)


class Cables:
    """The cables of the fabric ``topology``; ``indices`` are those of the interfaces."""

    def __init__(
        self, topology: Topology, *, kernels: Kernels, indices: Mapping[CableEnd, int]
    ) -> None:
        self._topology, self._kernels, self._indices = topology, kernels, indices
        self._static = topology.profile.control_plane == STATIC

    def pull(self, links: Iterable[Link]) -> None:
        """Take carrier from both ends of ``links``; no harm if they have none."""
        nodes = set()
        for link in links:
            end = lowered_end(self._topology, link)
            kernel_object.lower_link(self._kernels(end.node), self._indices[end], subject=str(end))
            nodes.add(end.node)
        for node in sorted(nodes):
            self._kernels(node).flush()

    def plug(self, links: Collection[Link], *, out: Collection[Link] = ()) -> None:
        """Give ``links`` carrier and what their ends had; those of ``out`` stay pulled.

        Returns when all of them can send.  Raises :class:`UserError` if that takes too long.
        """
        ends = sorted(lowered_end(self._topology, link) for link in links)
        lowered = {lowered_end(self._topology, link) for link in out}
        for end in ends:
            kernel_object.raise_link(self._kernels(end.node), self._indices[end], subject=str(end))
        for node in sorted({end.node for end in ends}):
            self._restore(node, [end for end in ends if end.node == node], lowered)
            self._kernels(node).flush()
        self._await([end for link in links for end in link.ends])

    def _restore(
        self, node: str, ends: Collection[CableEnd], lowered: Collection[CableEnd]
    ) -> None:
        """Queue the neighbours and routes of ``node`` that went with ``ends``."""
        kernel = self._kernels(node)
        ports = {end.port for end in ends}
        for neighbour in self._neighbours[node]:
            if neighbour.interface in ports:
                kernel_object.neighbour(
                    kernel,
                    self._indices[CableEnd(node, neighbour.interface)],
                    neighbour.address,
                    neighbour.mac,
                    subject=f"{node}, neighbour {neighbour.address}",
                    replace=True,
                )
        routes: Iterable[Route] = self._routes[node]
        if not self._static:
            routes = attached(self._topology.node(node), routes)
        for route in routes:
            if ports.isdisjoint(hop.port for hop in route.hops):
                continue
            hops = [hop for hop in route.hops if CableEnd(node, hop.port) not in lowered]
            kernel_object.route(
                kernel,
                route.destination,
                [(self._indices[CableEnd(node, hop.port)], hop.via, hop.on_link) for hop in hops],
                source=route.source,
                table=kernel_object.routing_table(route.table),
                subject=f"{node}, route to {route.destination}",
                replace=True,
            )

    def _await(self, ends: Collection[CableEnd]) -> None:
        deadline = time.monotonic() + PLUG_BUDGET_S
        pause = 0.0005
        waiting = set(ends)
        while waiting:
            for node in sorted({end.node for end in waiting}):
                missing = set(ports_not_ready(self._kernels(node)))
                waiting -= {end for end in waiting if end.node == node and end.port not in missing}
            if waiting and time.monotonic() > deadline:
                raise UserError(
                    f"{min(waiting)} has no carrier {PLUG_BUDGET_S:g} s after its cable was "
                    "plugged in: something else holds it or its other end down"
                )
            if waiting:
                time.sleep(pause)
                pause = min(2 * pause, 0.02)

    @cached_property
    def _neighbours(self) -> Mapping[str, tuple[Neighbour, ...]]:
        return static_neighbours(self._topology)

    @cached_property
    def _routes(self) -> Mapping[str, tuple[Route, ...]]:
        return static_routes(self._topology)
