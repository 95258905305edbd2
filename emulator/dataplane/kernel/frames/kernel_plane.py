"""The namespaces of a lab for the frames of a run: packet sockets, one ring at the inner ends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

from emulator.dataplane.dataplane import Enter, Host, HostPort, switch_words
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.fabric.inner.passage import ring_filter
from emulator.dataplane.kernel.frames.kernel_drops import KernelDrops, TunnelEnds
from emulator.dataplane.kernel.frames.kernel_switch import KernelPort, Outlets, SwitchEntrance
from emulator.dataplane.kernel.frames.packet_ring import (
    PacketRing,
    close_together,
    open_together,
    sender,
)
from emulator.dataplane.kernel.frames.softirq_barrier import SoftirqBarrier
from emulator.dataplane.kernel.icmp_guard import guard_interface
from emulator.dataplane.kernel.programs.classic_bpf import WHOLE_FRAME, attach
from emulator.dataplane.model.switch import octets_of
from emulator.dataplane.switch.switch_fitting import has_tunnels
from topologies.model import CableEnd, Node

if TYPE_CHECKING:
    from emulator.dataplane.lab import Lab

_RING_SLOTS = 4096
#: Frames that come to a GPU one at a time wait in few slots.
_HOST_SLOTS = 8
_ETHERNET = 14
#: A tunnel's headers beside the MTU of what it carries.
_TUNNEL = 64


class KernelFrames:
    """The namespaces of ``lab``, with sockets for the ports of ``worker`` and the ports beyond."""

    def __init__(self, lab: Lab, worker: int) -> None:
        self._lab, self._wires = lab, lab.wires
        self._senders: dict[CableEnd, socket.socket] = {}
        self._drops: dict[str, KernelDrops] = {}
        self._hosts: list[KernelPort] = []
        owner = lab.wires.worker_of
        ends = [end for end in lab.wires.ends.values() if owner[end.node] == worker]
        with ExitStack() as undo:
            undo.callback(self._close_sockets)
            ring = namespaces.visitor().inside(
                lab.wires_namespace, lambda: self._open_wires(ends, worker)
            )
            undo.callback(ring.close)
            self._barrier = SoftirqBarrier()
            undo.pop_all()
        tunnels = has_tunnels(lab.topology)
        self._outlets = Outlets(ring, self._barrier, tunnels=tunnels)
        self.account = self._outlets.account

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

    def entrance(self, end: CableEnd, without_carrier: Collection[CableEnd]) -> Enter:
        """Return the function that brings frames into port ``end`` of a switch."""
        return SwitchEntrance(
            end.node,
            self._outlets,
            self._senders[end].send,
            self._explanation(self._lab.topology.node(end.node)),
            switch_words(self._lab.asic, end),
            without_carrier,
        ).enter

    def _explanation(self, node: Node) -> KernelDrops:
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

    def open_hosts(self, hosts: Sequence[Host]) -> list[list[HostPort]]:
        """Open sockets for ``hosts``, whose frames the kernel's own stack never sees."""
        return open_together(self._open_host, hosts)

    def _open_host(self, host: Host) -> list[HostPort]:
        frames = host.frames
        program = frames.program(matching=WHOLE_FRAME, other=0, only_for_us=True)
        made: list[PacketRing] = []

        def make() -> None:
            for interface in host.interfaces:
                made.append(
                    PacketRing(
                        lambda raw: attach(raw, program),
                        interface=interface,
                        frame_octets=host.frame_octets + _TUNNEL,
                        slots=_HOST_SLOTS,
                    )
                )
            for interface in host.interfaces:
                guard_interface(interface, frames)

        try:
            self._lab.inside(host.node, make)
        except BaseException:
            close_together(made)
            raise
        ports = [KernelPort(host.node, ring, self._outlets, self._sender) for ring in made]
        self._hosts += ports
        return list(ports)

    def _sender(self, end: CableEnd) -> Callable[[bytes], int]:
        return self._senders[end].send

    def rest(self) -> None:
        """Do nothing: the kernel counts."""

    def close_hosts(self) -> None:
        """Close the sockets of all hosts."""
        hosts, self._hosts = self._hosts, []
        close_together(hosts)

    def _close_sockets(self) -> None:
        senders, self._senders = self._senders, {}
        close_together(senders.values())
        while self._drops:
            self._drops.popitem()[1].close()

    def close(self) -> None:
        """Give up all sockets."""
        self.close_hosts()
        self._close_sockets()
        self._outlets.ring.close()
        self._barrier.close()
