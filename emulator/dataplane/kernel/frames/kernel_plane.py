"""The namespaces of a lab as its data plane: packet sockets, and one ring at the inner ends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Sequence
from functools import cached_property

from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.fabric.inner.passage import ring_filter
from emulator.dataplane.kernel.fabric.inner.wires import Wires
from emulator.dataplane.kernel.frames.gpu_port import GpuPort
from emulator.dataplane.kernel.frames.kernel_drops import KernelDrops, TunnelEnds
from emulator.dataplane.kernel.frames.line import Line
from emulator.dataplane.kernel.frames.packet_ring import PacketRing, close_together, sender
from emulator.dataplane.kernel.frames.softirq_barrier import SoftirqBarrier
from emulator.dataplane.kernel.icmp_guard import guard_interface
from emulator.dataplane.lab import Lab
from emulator.dataplane.model.model_switch import octets_of
from emulator.sim.endpoint.agent_spec import AgentSpec, PortSpec
from topologies.model import CableEnd, Node

_RING_SLOTS = 4096
_ETHERNET = 14
#: A tunnel's headers beside the MTU of what it carries.
_TUNNEL = 64


class KernelPlane:
    """The namespaces of ``lab``, with sockets for the ports ``ends`` of ``worker``."""

    def __init__(self, lab: Lab, wires: Wires, ends: Collection[CableEnd], worker: int) -> None:
        self._lab, self._wires = lab, wires
        self._senders: dict[CableEnd, socket.socket] = {}
        self._drops: dict[str, KernelDrops] = {}
        try:
            self.ring = namespaces.visitor().inside(
                lab.wires_namespace, lambda: self._open_wires(ends, worker)
            )
            self.barrier = SoftirqBarrier()
        except BaseException:
            self.close()
            raise

    def _open_wires(self, ends: Collection[CableEnd], worker: int) -> PacketRing:
        """Open the ring and a socket for each end in the namespace of the inner ends."""
        longest = max(link.mtu for link in self._lab.topology.links) + _ETHERNET + _TUNNEL
        for end in ends:
            self._senders[end] = sender(self._wires.name(end))
        return PacketRing(
            lambda raw: ring_filter(raw, self._wires, worker=worker),
            interface=None,
            frame_octets=longest,
            slots=_RING_SLOTS,
        )

    def sender(self, end: CableEnd) -> Callable[[bytes], int]:
        """Return the function that brings a frame from the cable into port ``end``."""
        return self._senders[end].send

    def explanation(self, node: Node) -> KernelDrops:
        """Explains what the kernel drops in the namespace of ``node``."""
        if node.name not in self._drops:
            macs = [port.mac for port in node.ports] + [bridge.mac for bridge in node.bridges]
            ours = [octets_of(mac) for mac in macs]
            tunnels = self._tunnels(node)
            self._drops[node.name] = self._lab.inside(node.name, lambda: KernelDrops(ours, tunnels))
        return self._drops[node.name]

    def _tunnels(self, node: Node) -> TunnelEnds | None:
        vnis = {bridge.vni for bridge in node.bridges if bridge.vni is not None}
        if not vnis:
            return None
        topology = self._lab.topology
        ends = [CableEnd(node.name, port.name) for port in node.ports if port.bridge is not None]
        near = {item.mac for end in ends for _, item in topology.beyond(end)}
        return TunnelEnds(vnis, frozenset(map(octets_of, near)), self._gpu_macs)

    @cached_property
    def _gpu_macs(self) -> frozenset[bytes]:
        gpus = self._lab.topology.gpus
        return frozenset(octets_of(port.mac) for gpu in gpus for port in gpu.ports)

    def open_ports(
        self, spec: AgentSpec, lines: Callable[[PortSpec], Sequence[Line]]
    ) -> list[GpuPort]:
        """Open the ports of the GPU of ``spec``, whose frames the kernel's own stack never sees."""
        longest = (spec.frame_octets or spec.mtu + _ETHERNET) + _TUNNEL
        made: list[GpuPort] = []

        def make() -> None:
            for port in spec.ports:
                made.append(
                    GpuPort.open(port, spec.frames, frame_octets=longest, lines=lines(port))
                )
            for port in spec.ports:
                guard_interface(port.interface, spec.frames)

        try:
            self._lab.inside(spec.node, make)
        except BaseException:
            close_together(made)
            raise
        return made

    def close(self) -> None:
        """Give up all sockets but those of GPUs."""
        senders, self._senders = self._senders, {}
        close_together(senders.values())
        while self._drops:
            self._drops.popitem()[1].close()
        if hasattr(self, "ring"):
            self.ring.close()
        if hasattr(self, "barrier"):
            self.barrier.close()
