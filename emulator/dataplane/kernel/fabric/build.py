"""Building a fabric: from a topology to nodes and cables in the kernel, in Mininet's lifecycle.

Order: every namespace; every cable between them; the GPUs (Mininet's ``configHosts``); the
switches (``start``); then wait until every port can send.  Nothing is undone here: all objects
carry the lab's name, and :mod:`emulator.dataplane.cleanup` removes them by it.
"""

from __future__ import annotations

import os
import resource
import time
from typing import Any

from mininet.net import Mininet
from mininet.node import Node as MininetNode

from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.fabric.fabric_plan import FabricPlan
from emulator.dataplane.kernel.fabric.inner.inner_ends import InnerEnds
from emulator.dataplane.kernel.fabric.links import VethLink, VethPort
from emulator.dataplane.kernel.fabric.nodes import GpuNode, NamespaceNode, SwitchNode
from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.dataplane.settings import FabricSettings, Progress
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.wires import Wires
from emulator.errors import UserError
from topologies.interface_indices import vrf_space
from topologies.mininet_topo import FabricTopo
from topologies.model import Node, Topology

READY_BUDGET_S = 30.0
HANDLES_PER_NODE = 2  # the namespace and a netlink socket in it; a VRF may have them, too
HANDLES_PER_GPU = 2  # its memory and its counters; as many for each port: the rings
HANDLES_PER_SWITCH = 2  # its counters of IP and UDP
HANDLES_SPARE = 64
#: Address space of a run (octets): 1.5 GB with 4 GPUs, 2.1 with 24 and 2.5 with 128, most of it
#: stacks of threads and what malloc keeps for them.
ADDRESSES, ADDRESSES_PER_GPU = 2 << 30, 8 << 20


class Fabric(Mininet):
    """A Mininet network of GPUs and switches.

    The usual life: ``net = Fabric(topo, plan=...)`` makes nodes and cables, ``net.start()`` brings
    it to work, ``net["h0g0"].cmd("ip route")`` looks inside, ``net.stop()`` lets go of it.
    """

    def __init__(self, topo: FabricTopo, *, plan: FabricPlan) -> None:
        self.plan = plan
        Mininet.inited = True  # its own initialisation would raise limits of the whole host
        _allow_handles(handles(plan.topology))
        _require_memory(plan.topology)
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
        host: GpuNode = super().addHost(name, cls or self._absent(name), **params, plan=self.plan)
        self.plan.step(name)
        return host

    def addSwitch(self, name: str, cls: Any = None, **params: Any) -> SwitchNode:
        of = cls or self._absent(name)
        switch: SwitchNode = super().addSwitch(name, of, **params, plan=self.plan)
        self.plan.step(name)
        return switch

    def _absent(self, name: str) -> type[AbsentNode] | None:
        """The class of a node that another rank builds; None for one of this machine."""
        return None if self.plan.here(name) else AbsentNode

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
            if link.intf1.node in laid:
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
        """The netlink socket in the namespace of a node, of a VRF, or of the inner ends."""
        if self.inner_ends is not None and name == self.inner_ends.name:
            return self.inner_ends.kernel
        for switch in self.all_nodes():
            if not isinstance(switch, SwitchNode):
                continue
            for vrf, space in switch.vrfs.spaces.items():
                if name == vrf_space(switch.name, vrf):
                    return space.kernel
        node: NamespaceNode = self[name]
        return node.kernel

    def all_nodes(self) -> list[NamespaceNode]:
        """The nodes that are namespaces of this machine."""
        nodes: list[NamespaceNode] = [*self.hosts, *self.switches]
        return [node for node in nodes if isinstance(node, NamespaceNode)]


def build_fabric(
    lab: str,
    wires: Wires,
    settings: FabricSettings,
    asic: FabricAsic | None,
    progress: Progress | None,
) -> Fabric:
    """Build the topology of ``wires`` as the lab named ``lab`` and bring it to work.

    The caller has recorded the lab beforehand and removes it by its name if this raises:
    UserError, TopologyError, or :class:`~emulator.dataplane.kernel.netlink.KernelRefusal`.
    """
    plan = FabricPlan(lab, wires, settings, asic, progress)
    fabric = Fabric(FabricTopo(plan.topology), plan=plan)
    try:
        fabric.start()
    except BaseException:
        fabric.stop()
        raise
    return fabric


def handles(topology: Topology) -> int:
    """Return how many files a run on ``topology`` opens at most, whatever it is asked for."""
    gpus = [node for node in topology.nodes if not node.is_switch]
    spaces = sum(1 + len(node.vrfs) for node in topology.nodes)
    ports = sum(len(node.ports) for node in topology.nodes)
    gpu_ports = sum(len(node.ports) for node in gpus)
    switches = len(topology.nodes) - len(gpus)
    return (
        HANDLES_PER_NODE * spaces
        + HANDLES_PER_GPU * (len(gpus) + gpu_ports)
        + ports
        + HANDLES_PER_SWITCH * switches
        + HANDLES_SPARE
    )


def _require_memory(topology: Topology) -> None:
    """Raise UserError if this process may not have the addresses that a run takes at most.

    With fewer, threads and children do not start, or end without a word.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    gpus = sum(not node.is_switch for node in topology.nodes)
    needed = ADDRESSES + gpus * ADDRESSES_PER_GPU
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise UserError(
            f"the fabric needs {needed >> 20} MiB of memory by addresses and the limit is "
            f"{limit >> 20} MiB: raise it with ulimit -v {needed >> 10}, or take --fabric model of "
            "uetemu run"
        )


def _allow_handles(needed: int) -> None:
    """Raise this process's own soft limit on open files as far as it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    requested = needed + len(os.listdir("/proc/self/fd"))
    if soft != resource.RLIM_INFINITY and soft < requested:
        if hard != resource.RLIM_INFINITY and hard < requested:
            raise UserError(
                f"the fabric needs {requested} open files and the limit is {hard}: "
                f"raise it with ulimit -Hn {requested}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (requested, hard))


class AbsentNode(MininetNode):
    """The far end of cables, with a name and ports; it has no namespace, and takes every order."""

    isSetup = True  # nothing to look for
    model: Node

    def __init__(self, name: str, *, model: Node, plan: FabricPlan, **parameters: Any) -> None:
        self.lab = plan.lab
        self.model = model
        super().__init__(name, **parameters | {"inNamespace": True})

    def startShell(self, mnopts: str | None = None) -> None:
        """Make nothing."""

    def config(self, **_: Any) -> dict[str, object]:
        """Configure nothing."""
        return {}

    def start(self, controllers: object = None) -> None:
        """Bring nothing to work."""
