"""Define where packets get by what the kernels of a lab have: rules, routes, bridges, tunnels."""

import json
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from emulator.dataplane.control_plane.members import EVERYBODY
from emulator.dataplane.lab import Lab
from tests.harness.lab.traffic import within
from topologies.addressing import gpu_address
from topologies.model import Bridge, CableEnd, Link
from topologies.stretch import stretch_of

BUDGET_S = 60.0


@dataclass(frozen=True)
class Route:
    """``hops`` are interfaces that can be used; none: packets end here."""

    table: str
    destination: IPv4Network
    hops: tuple[str, ...]


class Kernels:
    """Hold what every switch of ``lab`` has, and where packets get by it."""

    def __init__(self, lab: Lab, black: Collection[Link]) -> None:
        self._topology, self._black = lab.topology, black
        self._rules: dict[str, list[dict[str, Any]]] = {}
        self._routes: dict[str, list[Route]] = {}
        self._down: dict[str, set[str]] = {}
        self._tunnels = Tunnels(lab) if stretch_of(lab.topology) is not None else None
        for switch in lab.topology.switches:
            ask = "ip -4 -j rule; ip -4 -j route show table all; ip -j link"
            rules, routes, links = dumped(lab, switch.name, ask)
            self._rules[switch.name] = rules
            self._routes[switch.name] = list(_routes(routes))
            self._down[switch.name] = {
                link["ifname"] for link in links if "LOWER_UP" not in link["flags"]
            }

    def reached(self) -> dict[str, set[str]]:
        names = [gpu.name for gpu in self._topology.gpus]
        one_way = {(a, b) for a in names for b in names if a != b and self._arrives(a, b)}
        return {a: {b for b in names if {(a, b), (b, a)} <= one_way} for a in names}

    def _arrives(self, source: str, destination: str) -> bool:
        nodes = self._topology.node(source), self._topology.node(destination)
        here, there = (gpu_address(node).ip for node in nodes)
        front = [far for _, far in self._cables(source)]
        seen = set(front)
        for end in front:  # which grows
            bridge = self._topology.bridge_of(end)
            if bridge is not None and any(
                far.node == destination and self._topology.bridge_of(ours) == bridge
                for ours, far in self._cables(end.node)
            ):
                return True  # a frame to a neighbour on the same bridge, or routed back to it
            if bridge is not None and bridge.vni is not None and self._is_in(bridge, there):
                if self._tunnelled(end.node, bridge.name, self._mac(destination), destination):
                    return True
                continue
            for hop in self._hops(end.node, bridge.name if bridge else end.port, here, there):
                for ours, far in self._cables(end.node):
                    leaves = self._topology.bridge_of(ours)
                    if hop not in (ours.port, leaves.name if leaves else None):
                        continue
                    if far.node == destination:
                        return True
                    if hop == ours.port and far not in seen:
                        seen.add(far)
                        front.append(far)
                if self._tunnels is not None:
                    mac = self._tunnels.neighbours[end.node].get((hop, str(there)), "")
                    if self._tunnelled(end.node, hop, mac, destination):
                        return True
        return False

    @staticmethod
    def _is_in(bridge: Bridge, address: IPv4Address) -> bool:
        return bridge.gateway is not None and address in bridge.gateway.network

    def _mac(self, gpu: str) -> str:
        return self._topology.node(gpu).ports[0].mac

    def _tunnelled(self, switch: str, bridge: str, mac: str, destination: str) -> bool:
        """Whether a frame to ``mac`` gets out of ``bridge`` of ``switch`` by a tunnel, to the
        switch that the table says, and from there to ``destination``."""
        assert self._tunnels is not None
        here = self._topology.node(switch).loopback
        vni = {each.name: each.vni for each in self._topology.node(switch).bridges}.get(bridge)
        assert here is not None
        for far in self._topology.switches:
            if far.loopback is None or str(far.loopback) not in self._tunnels.ends(
                switch, vni, mac
            ):
                continue
            leads = self._routed(switch, far.name, here, far.loopback)
            if leads and any(
                cable.node == destination
                and joined is not None
                and joined.vni == vni
                and ours.port in self._tunnels.members[far.name].get(mac, ())
                for ours, cable in self._cables(far.name)
                for joined in [self._topology.bridge_of(ours)]
            ):
                return True
        return False

    def _routed(self, source: str, owner: str, here: IPv4Address, there: IPv4Address) -> bool:
        """Whether what ``source`` sends itself gets to ``owner``, whose address is ``there``."""
        front = [CableEnd(source, "lo")]
        seen = set(front)
        for end in front:  # which grows
            for hop in self._hops(end.node, end.port, here, there):
                for ours, far in self._cables(end.node):
                    if hop == ours.port and far not in seen:
                        seen.add(far)
                        front.append(far)
        return any(end.node == owner for end in front)

    def _cables(self, node: str) -> Iterator[tuple[CableEnd, CableEnd]]:
        """Our and their ends of cables that carry."""
        for link, ours, theirs in self._topology.neighbours(node):
            ends = {ours.node: ours.port, theirs.node: theirs.port}
            if link not in self._black and all(
                port not in self._down.get(name, ()) for name, port in ends.items()
            ):
                yield ours, theirs

    def _hops(
        self, switch: str, interface: str, here: IPv4Address, there: IPv4Address
    ) -> tuple[str, ...]:
        """The interfaces that packets leave by, as fib_lookup() has it."""
        for rule in self._rules[switch]:
            source = f"{rule['src']}/{rule.get('srclen', 32)}" if rule["src"] != "all" else None
            if rule.get("iif", interface) != interface or (
                source is not None and here not in IPv4Network(source)
            ):
                continue
            fitting = [
                route
                for route in self._routes[switch]
                if route.table == rule["table"] and there in route.destination
            ]
            if fitting:
                return max(fitting, key=lambda route: route.destination.prefixlen).hops
        return ()


class Tunnels:
    """The tables of bridges, tunnel ports and neighbours of every switch of ``lab``."""

    def __init__(self, lab: Lab) -> None:
        #: switch -> (interface, address) -> MAC
        self.neighbours: dict[str, dict[tuple[str, str], str]] = {}
        #: switch -> MAC -> the ports of bridges behind which it is
        self.members: dict[str, dict[str, set[str]]] = {}
        self._ends: dict[str, dict[tuple[str, str], set[str]]] = {}
        for switch in lab.topology.switches:
            known, entries = dumped(lab, switch.name, "ip -4 -j neigh; bridge -j fdb")
            self.neighbours[switch.name] = {
                (row["dev"], row["dst"]): row["lladdr"] for row in known if "lladdr" in row
            }
            members = self.members[switch.name] = {}
            ends = self._ends[switch.name] = {}
            for row in entries:
                if "dst" in row:
                    ends.setdefault((row["ifname"], row["mac"]), set()).add(row["dst"])
                elif "master" in row and row.get("state") != "permanent":
                    members.setdefault(row["mac"], set()).add(row["ifname"])

    def ends(self, switch: str, vni: int | None, mac: str) -> set[str]:
        """The far ends of tunnels that a frame to ``mac`` goes to: all, if nobody knows it."""
        port = f"vxlan{vni}"
        behind = self.members[switch].get(mac)
        if behind is not None and port not in behind:
            return set()
        found = self._ends[switch]
        return found.get((port, mac)) or found.get((port, EVERYBODY), set())


def dumped(lab: Lab, switch: str, commands: str) -> list[list[dict[str, Any]]]:
    """Return what each of ``commands`` says in ``switch``, as JSON."""
    stated = lab.exec(switch, ["sh", "-c", commands]).stdout
    return [json.loads(line) for line in stated.splitlines() if line.strip()]


def _routes(rows: Collection[Mapping[str, object]]) -> Iterator[Route]:
    """Return the routes that a lookup would not pass over."""
    for row in rows:
        kind, dst = row.get("type", "unicast"), str(row["dst"])
        hops = row.get("nexthops") or [row]
        assert isinstance(hops, list)
        usable = [hop["dev"] for hop in hops if not {"dead", "linkdown"} & set(hop["flags"])]
        if kind == "blackhole" or (kind == "unicast" and usable):
            network = IPv4Network("0.0.0.0/0" if dst == "default" else dst)
            yield Route(str(row.get("table", "main")), network, tuple(usable))


def await_kernels(lab: Lab, expected: Mapping[str, Set[str]], black: Collection[Link] = ()) -> None:
    """Return when the kernels of ``lab`` have what leads as ``expected``, by GPU."""
    within(BUDGET_S, lambda: Kernels(lab, black).reached() == expected, f"reached {expected}")
