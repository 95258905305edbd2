"""Comparison of the kernel's routes with those of the topology, switch by switch, hop by hop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network

from emulator.control_plane.control_plane_choice import EXTERNAL, PER_TIER, ControlPlane
from emulator.control_plane.kernel_routes import UNNUMBERED, Hops, NextHop, Routes
from emulator.control_plane.speakers import as_numbers, speakers, subnets_apart
from topologies.model import Node, Topology
from topologies.routing.static_routes import Hop, behind_bridges, static_routes

NAMED = 3  # ports of a hop list, in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference: ``switch`` reaches ``destination`` over ``found`` instead of ``requested``."""

    switch: str
    destination: IPv4Network
    requested: Hops
    found: Hops

    def __str__(self) -> str:
        missing = Counter(self.requested) - Counter(self.found)
        extra = Counter(self.found) - Counter(self.requested)
        if not self.found:
            return f"{self.switch} has no route to {self.destination}"
        if not self.requested:
            return (
                f"{self.switch} has a route to {self.destination} that it should not have, over "
                f"{_ports(extra)}"
            )
        stated = f" lacks {_ports(missing)}" if missing else ""
        stated += (" and" if stated and extra else "") + (
            f" has also {_ports(extra)}" if extra else ""
        )
        return f"the route of {self.switch} to {self.destination}{stated}"


class ConvergedState:
    """The routes that every switch of ``topology`` has when ``plane`` has converged.

    All shortest paths to every endpoint subnet, loopback and fabric address, as
    :func:`~topologies.routing.static_routes.static_routes` computes them; but no switch learns what
    only paths through its own AS lead to.  With summaries a route may be to more than that. Beyond
    that no switch has any route.  ``systems`` are the AS numbers of a fabric that has lost
    something since they were given, by switch.
    """

    def __init__(
        self, topology: Topology, plane: ControlPlane, systems: Mapping[str, int] | None = None
    ) -> None:
        self._summaries = {
            block for switch in topology.switches if plane.summaries for block in switch.summaries
        }
        unheard = _unheard(topology, plane, systems)
        routes = static_routes(subnets_apart(topology))
        self.requested: dict[str, Mapping[IPv4Network, Hops]] = {}
        for switch in topology.switches:
            self.requested[switch.name] = {
                route.destination: tuple(sorted(_seen(switch, hop, plane) for hop in route.hops))
                for route in routes[switch.name]
                if route.destination not in unheard[switch.name]
            }

    def differences(self, switch: str, routes: Routes) -> Iterator[Difference]:
        """Yield where ``routes``, the kernel's, are not what ``switch`` is to have."""
        for destination, requested in self.requested[switch].items():
            found = routes.get(destination)
            if found is None:
                found = self._covering(destination, routes)
            if found != requested:
                yield Difference(
                    switch=switch, destination=destination, requested=requested, found=found
                )
        for destination in routes.keys() - self.requested[switch].keys() - self._summaries:
            found = routes[destination]
            yield Difference(switch=switch, destination=destination, requested=(), found=found)

    def _covering(self, destination: IPv4Network, routes: Routes) -> Hops:
        """The hops of the longest summary that holds ``destination``."""
        if self._summaries:
            for length in range(destination.prefixlen - 1, 0, -1):
                hops = routes.get(destination.supernet(new_prefix=length))
                if hops is not None:
                    return hops
        return ()


def _seen(switch: Node, hop: Hop, plane: ControlPlane) -> NextHop:
    """Return ``hop`` as the kernel has it; behind its own bridges a switch always has addresses."""
    unnumbered = plane.unnumbered and hop.port not in behind_bridges(switch)
    return NextHop(hop.port, UNNUMBERED if unnumbered else str(hop.via))


def _unheard(
    topology: Topology, plane: ControlPlane, systems: Mapping[str, int] | None
) -> Mapping[str, Collection[IPv4Network]]:
    """Return for each switch the routes that it cannot learn, as each path has its own AS."""
    names = [switch.name for switch in topology.switches]
    if plane.name not in EXTERNAL or plane.systems != PER_TIER:
        return dict.fromkeys(names, ())
    systems = systems or as_numbers(topology, plane)
    reported: dict[IPv4Network, set[str]] = {}
    for speaker in speakers(topology, plane).values():
        hearing = _hearing(topology, speaker.name, systems)
        for network in speaker.networks:
            reported.setdefault(network, set()).update(hearing)
    return {
        name: {network for network, hearing in reported.items() if name not in hearing}
        for name in names
    }


def _hearing(topology: Topology, origin: str, systems: Mapping[str, int]) -> Collection[str]:
    """Return who learns what ``origin`` owns: nobody takes a path with its own AS in it."""
    path = {origin: frozenset({systems[origin]})}
    front = [origin]
    while front:
        reached = []
        for name in front:
            for _, _, far in topology.neighbours(name):
                system = systems.get(far.node)
                if system is None or far.node in path or system in path[name]:
                    continue
                path[far.node] = path[name] | {system}
                reached.append(far.node)
        front = reached
    return path.keys()


def _ports(hops: Counter[NextHop]) -> str:
    named = [str(hop) for hop in hops]
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return ", ".join(named[:NAMED]) + more
