"""The plan of a fabric: what each of its nodes has to configure in the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from emulator.dataplane.clock import Dilation
from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.kernel.fabric import vlans
from emulator.dataplane.kernel.namespaces import PREFIX
from emulator.dataplane.kernel.shaping import Egress
from emulator.dataplane.settings import FabricSettings, Progress
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.wires import Wires
from topologies.interface_indices import interface_indices, vlan_bridge_of
from topologies.model import OF_NAMESPACES, CableEnd, Link, Node, Topology
from topologies.routing.static_routes import (
    Neighbour,
    Route,
    Rule,
    attached,
    static_neighbours,
    static_routes,
    static_rules,
)


class FabricPlan:
    """The configuration of a lab's nodes, computed before the kernel is touched.

    ``asic`` attaches to every port that it selects.  With a virtual clock there are ``wires``: no
    port has queues, and cables are in two parts.
    """

    def __init__(
        self,
        lab: str,
        wires: Wires,
        settings: FabricSettings,
        asic: FabricAsic | None = None,
        progress: Progress | None = None,
    ) -> None:
        topology = wires.topology
        self.asic = asic
        self.wires = wires if settings.virtual else None
        self.shared = settings.shared
        self.topology = topology
        self.lab = lab
        self._settings = settings
        self.indices: Mapping[CableEnd, int] = interface_indices(topology)
        self.vlans = vlans.requested(topology)
        self.routes: Mapping[str, tuple[Route, ...]] = static_routes(topology)
        if control_plane.of(topology) is not None:
            self.routes = _not_learned(topology, self.routes)
        self.rules: Mapping[str, tuple[Rule, ...]] = static_rules(topology)
        self.neighbours: Mapping[str, tuple[Neighbour, ...]] = static_neighbours(topology)
        self._progress = progress
        self._done = 0
        self._total = 2 * len(topology.nodes) + len(topology.links)

    def here(self, node: str) -> bool:
        """Return whether ``node`` is built here, and not by another rank."""
        return self.wires is None or self.wires.here(node)

    def step(self, label: str, count: int = 1) -> None:
        """Report ``count`` more objects done."""
        self._done += count
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total, label)

    def egress(self, cable: Link, node: Node) -> Egress | None:
        """The egress of the end of ``cable`` at ``node``, in host terms; None without queues."""
        if self.wires is not None:
            return None
        dilation, delayed = Dilation(self._settings.dilation), self._settings.cable_delay == "netem"
        plain = Egress(
            rate_bps=dilation.host_bps(cable.rate_bps),
            mtu=cable.mtu,
            buffer_bytes=cable.buffer_bytes,
            delay_ns=round(dilation.host_ns(cable.delay_ns)) if delayed else 0,
        )
        if self.asic is None:
            return plain
        return self.asic.egress(cable, plain) if node.is_switch else self.asic.nic_egress(plain)

    def alias(self, end: CableEnd) -> str:
        return alias_of(self.lab, end)

    def vlan_bridge(self, node: Node) -> CableEnd | None:
        """The bridge whose VLANs the rails of ``node`` are, if they are that."""
        return vlan_bridge_of(self.topology, node) if self.vlans else None

    @property
    def of_namespaces(self) -> bool:
        """Return whether VRFs are network namespaces."""
        return self.topology.profile.isolation == OF_NAMESPACES

    def behind(self, end: CableEnd) -> Iterator[str]:
        """The MAC addresses that are reached through the bridge member ``end``."""
        return (item.mac for _, item in self.topology.beyond(end))


def _not_learned(
    topology: Topology, routes: Mapping[str, tuple[Route, ...]]
) -> Mapping[str, tuple[Route, ...]]:
    """Return the routes of ``routes`` that exist before switches exchange any."""
    known = dict(routes)
    for switch in topology.switches:
        known[switch.name] = tuple(attached(switch, routes[switch.name]))
    return known


def alias_of(lab: str, end: CableEnd) -> str:
    """Return what ``ip link`` shows as the alias of an interface of a fabric."""
    return f"{PREFIX}:{lab}:{end.node}:{end.port}"
