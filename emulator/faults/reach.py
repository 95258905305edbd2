"""Who can still reach whom over a fabric with dead cables.

With static routes a switch leaves out hops whose cables are dead at its own ports, and learns
nothing of those farther away: a way exists if some packet that is sprayed over all hops arrives.
With a routing daemon any way that the cables leave will be found; where a design routes in a way of
its own (``profile.routing``), what the cables leave is all that is told.  The scale-up network of a
server is not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import IPv4Address

from emulator.fabric.carrier import STATIC
from emulator.fabric.routes import Route, behind_bridges, static_routes
from topologies.model import SHORTEST, End, Link, Topology


def cut_off(topology: Topology, dead: Collection[Link]) -> list[str]:
    """The GPUs that ``dead`` keeps from most of those that the fabric joined them with.

    Of two that only had each other, the one that has lost its own cables, or both.
    """
    if not dead:
        return []
    before, now = reached(topology, ()), reached(topology, dead)
    left = [gpu.name for gpu in topology.gpus if before[gpu.name]]
    lost = []
    while left:
        whole = [name for name in left if name == left[0] or name in before[left[0]]]
        left = [name for name in left if name not in whole]
        centre = max(whole, key=lambda name: (len(now[name]), _plugged(topology, name, dead)))
        held = {centre, *now[centre]} if now[centre] or _plugged(topology, centre, dead) else set()
        lost += [name for name in whole if name not in held]
    return [gpu.name for gpu in topology.gpus if gpu.name in lost]


def reached(topology: Topology, dead: Collection[Link]) -> Mapping[str, set[str]]:
    """By GPU, the other GPUs that it reaches and that reach it."""
    gpus = [gpu.name for gpu in topology.gpus]
    wires = {name: _wire(topology, name, dead) for name in gpus}
    fixed = topology.profile.control_plane == STATIC and topology.profile.routing == SHORTEST
    ways = _Routed(topology, dead, wires) if fixed else _Joined(topology, dead)
    one_way = {
        name: {
            other
            for other in gpus
            if other != name
            and (
                other in wires[name]
                or any(
                    ways.leads(switch, other)
                    for switch in wires[name]
                    if topology.node(switch).is_switch
                )
            )
        }
        for name in gpus
    }
    return {name: {other for other in one_way[name] if name in one_way[other]} for name in gpus}


def _plugged(topology: Topology, gpu: str, dead: Collection[Link]) -> int:
    """How many switches ``gpu`` is still plugged into."""
    return sum(topology.node(name).is_switch for name in _wire(topology, gpu, dead))


def _wire(topology: Topology, gpu: str, dead: Collection[Link]) -> set[str]:
    """The switches and GPUs that ``gpu`` is plugged into, over a shared NIC too."""
    found: set[str] = set()
    edge = [gpu]
    while edge:
        for link, _, theirs in topology.neighbours(edge.pop()):
            if link in dead or theirs.node in found or theirs.node == gpu:
                continue
            found.add(theirs.node)
            node = topology.node(theirs.node)
            if node.forwards and not node.is_switch:
                edge.append(theirs.node)
    return found


class _Joined:
    """Whether cables lead from a switch to a GPU, over switches."""

    def __init__(self, topology: Topology, dead: Collection[Link]) -> None:
        self._gpus: dict[str, set[str]] = {}
        left = {node.name for node in topology.nodes if node.forwards}
        while left:
            edge = [left.pop()]
            group: set[str] = set()
            gpus: set[str] = set()
            while edge:
                name = edge.pop()
                group.add(name)
                for link, _, theirs in topology.neighbours(name):
                    if link in dead:
                        continue
                    if theirs.node in left:
                        left.discard(theirs.node)
                        edge.append(theirs.node)
                    elif not topology.node(theirs.node).forwards:
                        gpus.add(theirs.node)
            self._gpus |= dict.fromkeys(group, gpus)

    def leads(self, switch: str, gpu: str) -> bool:
        return gpu in self._gpus.get(switch, ())


class _Routed:
    """Whether static routes lead from a switch to a GPU, over living cables.

    ``wires`` has for each GPU what it is plugged into.
    """

    def __init__(
        self, topology: Topology, dead: Collection[Link], wires: Mapping[str, Collection[str]]
    ) -> None:
        self._topology, self._dead, self._wires = topology, dead, wires
        self._routes = static_routes(topology)
        self._next_of: dict[tuple[str, Route], set[str]] = {}
        self._answers: dict[tuple[str, str], bool] = {}

    def leads(self, switch: str, gpu: str) -> bool:
        key = switch, gpu
        if key not in self._answers:
            self._answers[key] = any(
                self._leads(switch, gpu, address) for address in self._addresses(gpu)
            )
        return self._answers[key]

    def _addresses(self, gpu: str) -> list[IPv4Address]:
        node = self._topology.node(gpu)
        if node.loopback is not None:
            return [node.loopback]
        return [port.address.ip for port in node.ports if port.address is not None]

    def _leads(self, switch: str, gpu: str, address: IPv4Address) -> bool:
        route = self._route(switch, address)
        if route is None or self._is_last(switch, route):
            return switch in self._wires[gpu]
        return any(self._leads(name, gpu, address) for name in self._next(switch, route))

    def _route(self, switch: str, address: IPv4Address) -> Route | None:
        """None: it is in a subnet of the switch."""
        fitting = [route for route in self._routes[switch] if address in route.destination]
        return max(fitting, key=lambda route: route.destination.prefixlen, default=None)

    def _is_last(self, switch: str, route: Route) -> bool:
        """Whether ``route`` leads to a GPU in one of the switch's own subnets."""
        own = behind_bridges(self._topology.node(switch))
        return not own.isdisjoint(hop.port for hop in route.hops)

    def _next(self, switch: str, route: Route) -> set[str]:
        """The switches at the living hops of ``route``."""
        key = switch, route
        if key not in self._next_of:
            ends = [End(switch, hop.port) for hop in route.hops]
            self._next_of[key] = {
                self._topology.far_end(end).node
                for end in ends
                if self._topology.link_at(end) not in self._dead
            }
        return self._next_of[key]
