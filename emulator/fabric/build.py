"""From a topology to a working fabric in the kernel, by Mininet's own lifecycle.

Order: every namespace; every cable between them; the GPUs (Mininet's ``configHosts``); the
switches (``start``); then wait until every port can send.  Nothing is undone here: all objects
carry the lab's name, and :mod:`emulator.cleanup` removes them by it.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mininet.net import Mininet

from emulator.control_plane import control_plane_choice as control_plane
from emulator.errors import UserError
from emulator.fabric import vlans
from emulator.fabric.cable_delay import CableDelay
from emulator.fabric.inner.inner_ends import InnerEnds
from emulator.fabric.inner.wires import Wires
from emulator.fabric.links import VethLink, VethPort, alias_of
from emulator.fabric.nodes import GpuNode, NamespaceNode, SwitchNode
from emulator.kernel import namespaces
from emulator.kernel.netlink import RouteSocket
from emulator.kernel.shaping import Egress
from topologies.interface_indices import interface_indices, vlan_bridge_of
from topologies.mininet_topo import FabricTopo
from topologies.model import End, Link, Node, Topology
from topologies.routing.static_routes import (
    Neighbour,
    Route,
    Rule,
    attached,
    static_neighbours,
    static_routes,
    static_rules,
)

if TYPE_CHECKING:
    from emulator.asic.fabric_asic import FabricAsic

Progress = Callable[[int, int, str], None]

READY_BUDGET_S = 30.0
HANDLES_PER_NODE = 2  # the namespace and a netlink socket in it
HANDLES_SPARE = 64


class Plan:
    """What the nodes of one lab have to configure, computed before the kernel is touched.

    ``cable_delay`` says who delays frames by the length of a cable: ``netem`` at each port, or
    ``nic``, the delay line of the receiving endpoint (then nothing is done here); the choice is
    explained in :mod:`emulator.fabric.cable_delay`.  ``asic`` goes on every port that it wants.
    With ``wires`` the clock is virtual: no port has queues, and cables are in two parts.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        lab: str,
        dilation: float,
        cable_delay: CableDelay = "nic",
        asic: FabricAsic | None = None,
        wires: Wires | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.asic = asic
        self.wires = wires
        self.topology = topology
        self.lab = lab
        self.dilation = dilation
        self.cable_delay = cable_delay
        self.indices: Mapping[End, int] = interface_indices(topology)
        self.vlans = vlans.wanted(topology)
        self.routes: Mapping[str, tuple[Route, ...]] = static_routes(topology)
        if control_plane.of(topology) is not None:
            self.routes = _not_learned(topology, self.routes)
        self.rules: Mapping[str, tuple[Rule, ...]] = static_rules(topology)
        self.neighbours: Mapping[str, tuple[Neighbour, ...]] = static_neighbours(topology)
        self._progress = progress
        self._done = 0
        self._total = 2 * len(topology.nodes) + len(topology.links)

    def step(self, label: str, count: int = 1) -> None:
        """Report ``count`` more objects done."""
        self._done += count
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total, label)

    def egress(self, cable: Link, node: Node) -> Egress | None:
        """The egress of the end of ``cable`` at ``node``, in host terms; None without queues."""
        if self.wires is not None:
            return None
        plain = Egress(
            rate_bps=cable.rate_bps / self.dilation,
            mtu=cable.mtu,
            buffer_bytes=cable.buffer_bytes,
            delay_ns=round(cable.delay_ns * self.dilation) if self.cable_delay == "netem" else 0,
        )
        if self.asic is None:
            return plain
        return self.asic.egress(cable, plain) if node.is_switch else self.asic.nic_egress(plain)

    def alias(self, end: End) -> str:
        return alias_of(self.lab, end)

    def vlan_bridge(self, node: Node) -> End | None:
        """The bridge whose VLANs the rails of ``node`` are, if they are that."""
        return vlan_bridge_of(self.topology, node) if self.vlans else None

    def behind(self, end: End) -> Iterator[str]:
        """The MAC addresses that are reached through the bridge member ``end``."""
        return (item.mac for _, item in self.topology.beyond(end))


class Fabric(Mininet):
    """A Mininet network of GPUs and switches.

    The usual life: ``net = Fabric(topo, plan=...)`` makes nodes and cables, ``net.start()`` brings
    it to work, ``net["h0g0"].cmd("ip route")`` looks inside, ``net.stop()`` lets go of it.
    """

    def __init__(self, topo: FabricTopo, *, plan: Plan) -> None:
        self.plan = plan
        Mininet.inited = True  # its own initialisation would raise limits of the whole host
        _allow_handles(HANDLES_PER_NODE * len(plan.topology.nodes) + HANDLES_SPARE)
        namespaces.share_directory()
        self.hosts: list[GpuNode] = []
        self.switches: list[SwitchNode] = []
        self.inner_ends: InnerEnds | None = None
        try:
            if plan.wires is not None:
                self.inner_ends = InnerEnds(plan.lab, plan.wires)
            super().__init__(
                topo,
                host=GpuNode,
                switch=SwitchNode,
                link=VethLink,
                intf=VethPort,
                controller=None,
            )
        except BaseException:
            self.stop()  # or its handles would keep the namespaces alive
            raise

    def addHost(self, name: str, cls: Any = None, **params: Any) -> GpuNode:
        host: GpuNode = super().addHost(name, cls, **params, plan=self.plan)
        self.plan.step(name)
        return host

    def addSwitch(self, name: str, cls: Any = None, **params: Any) -> SwitchNode:
        switch: SwitchNode = super().addSwitch(name, cls, **params, plan=self.plan)
        self.plan.step(name)
        return switch

    def addLink(self, node1: Any, node2: Any, *args: Any, **params: Any) -> VethLink:
        link: VethLink = super().addLink(
            node1,
            node2,
            *args,
            **params,
            indices=self.plan.indices,
            inner_ends=self.inner_ends,
        )
        return link

    def buildFromTopo(self, topo: FabricTopo | None = None) -> None:
        """Make the nodes and queue the cables (Mininet), then have the kernel lay the cables."""
        super().buildFromTopo(topo)
        laid = dict.fromkeys(self.all_nodes(), 0)
        for link in self.links:
            laid[link.intf1.node] += 1
        for node, cables in laid.items():
            node.kernel.flush()
            self.plan.step(f"cables of {node.name}", cables)
        if self.inner_ends is not None:
            self.inner_ends.configure(self.plan.alias)

    def start(self) -> None:
        """Bring the switches to work and wait until every port can send."""
        super().start()
        self.await_ports()

    def await_ports(self, budget_s: float = READY_BUDGET_S) -> None:
        """Return when every port is ready to send; raises UserError after ``budget_s``."""
        deadline = time.monotonic() + budget_s
        pause = 0.001
        waiting: list[NamespaceNode | InnerEnds] = [*self.all_nodes()]
        if self.inner_ends is not None:
            waiting.append(self.inner_ends)
        while waiting := [node for node in waiting if not node.ready()]:
            if time.monotonic() > deadline:
                names = ", ".join(node.name for node in waiting[:8])
                raise UserError(
                    f"ports of {names} were not ready to send after {budget_s:g} s: the machine is "
                    "overloaded or something took them down; try again"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def stop(self) -> None:
        """Let go of every node.  The namespaces stay until the lab is removed by its name."""
        for node in self.all_nodes():
            node.terminate()
        if self.inner_ends is not None:
            self.inner_ends.terminate()

    def kernel_of(self, name: str) -> RouteSocket:
        """The netlink socket in the namespace of a node, or of the inner ends."""
        if self.inner_ends is not None and name == self.inner_ends.name:
            return self.inner_ends.kernel
        node: NamespaceNode = self[name]
        return node.kernel

    def all_nodes(self) -> list[NamespaceNode]:
        nodes: list[NamespaceNode] = [*self.hosts, *self.switches]
        return nodes


def build_fabric(
    topology: Topology,
    *,
    lab: str,
    dilation: float,
    cable_delay: CableDelay = "nic",
    asic: FabricAsic | None = None,
    wires: Wires | None = None,
    progress: Progress | None = None,
) -> Fabric:
    """Build ``topology`` as the lab named ``lab`` and bring it to work.

    The caller has recorded the lab beforehand and removes it by its name if this raises:
    UserError, TopologyError, or :class:`~emulator.kernel.netlink.KernelRefusal`.
    """
    plan = Plan(
        topology,
        lab=lab,
        dilation=dilation,
        cable_delay=cable_delay,
        asic=asic,
        wires=wires,
        progress=progress,
    )
    fabric = Fabric(FabricTopo(topology), plan=plan)
    try:
        fabric.start()
    except BaseException:
        fabric.stop()
        raise
    return fabric


def _not_learned(
    topology: Topology, routes: Mapping[str, tuple[Route, ...]]
) -> Mapping[str, tuple[Route, ...]]:
    """What of ``routes`` is there before the switches tell each other of the rest."""
    known = dict(routes)
    for switch in topology.switches:
        known[switch.name] = tuple(attached(switch, routes[switch.name]))
    return known


def _allow_handles(needed: int) -> None:
    """Raise this process's own soft limit on open files as far as it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed + len(os.listdir("/proc/self/fd"))
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise UserError(
                f"the fabric needs {wanted} open files and the limit is {hard}: "
                f"raise it with ulimit -Hn {wanted}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
