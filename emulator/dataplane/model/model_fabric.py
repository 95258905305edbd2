"""All nodes of a fabric as a model: frames go in at ports and come out of a list, in no time.

::

    send(end, frame) --> switch: program, bridge or route, program --> taken: (inner end, frame)
                     --> GPU: its interface's filter               --> its ring

It stands in for the namespaces of a lab with a virtual clock
(:mod:`emulator.dataplane.kernel.fabric.inner`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.control_plane.advertised_members import AdvertisedMembers
from emulator.dataplane.control_plane.computed_routing import ComputedRouting
from emulator.dataplane.kernel.fabric.inner.wires import Wires
from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.kernel.port_counters import PortCounters
from emulator.dataplane.model.model_bond import ModelBond
from emulator.dataplane.model.model_switch import ModelInterface, ModelSwitch, octets_of
from emulator.dataplane.model.switch.model_port import ModelPort
from emulator.dataplane.model.switch.model_program import ModelProgram
from emulator.dataplane.model.tunnel_members import tunnel_table
from emulator.dataplane.switch.switch_port import switch_ports
from topologies.model import CableEnd, Link, Node, Topology
from topologies.routing.static_routes import (
    Route,
    static_neighbours,
    static_routes,
    static_rules,
)

_ETHERNET = 14
_IPV4 = b"\x08\x00"
_UDP = 17
_LATER_FRAGMENT = 0x1FFF


class Explain(Protocol):
    """A function that returns why a switch dropped a frame."""

    def __call__(self, frame: bytes) -> str | None: ...


class ModelFabric:
    """The nodes of ``topology``; switches work by ``program``, None without a switch ASIC.

    Of another MPI rank's nodes, by ``wires``, it makes nothing.
    ``taken`` has what has come out of nodes and nobody has taken yet, in order.
    """

    def __init__(self, topology: Topology, wires: Wires, program: ModelProgram | None) -> None:
        self._topology = topology
        self.taken: deque[tuple[int, bytes]] = deque()
        self._interfaces = {
            end: ModelInterface(
                end.port,
                octets_of(topology.node(end.node).port(end.port).mac),
                wires.index(end),
                link.mtu,
                bridge=topology.node(end.node).port(end.port).bridge,
                standby=link.standby,
            )
            for link in topology.links
            for end in link.ends
            if wires.here(end.node)
        }
        if program is not None:
            for port in switch_ports(topology, wires.indices):
                if wires.here(port.end.node):
                    made = ModelPort(program, port.index, port.switch)
                    self._interfaces[port.end].program = made
        routes, rules = static_routes(topology), static_rules(topology)
        neighbours = static_neighbours(topology)
        #: what frames pass through: switches, and NICs that GPUs share
        self.switches = {
            node.name: ModelSwitch(
                node,
                [self._interfaces[CableEnd(node.name, port.name)] for port in node.ports],
                {
                    port.name: [
                        item.mac for _, item in topology.beyond(CableEnd(node.name, port.name))
                    ]
                    for port in node.ports
                    if port.bridge is not None
                },
                (routes[node.name], rules[node.name], neighbours[node.name]),
                self.taken.append,
                vlans=topology.profile.vlans == "on" and node.is_switch,
            )
            for node in topology.nodes
            if node.forwards and wires.here(node.name)
        }
        self._bonds = {
            CableEnd(gpu.name, bond): ModelBond(
                [self._interfaces[CableEnd(gpu.name, port.name)] for port in members]
            )
            for gpu in topology.gpus
            if wires.here(gpu.name)
            for bond, members in gpu.bonds.items()
        }
        self._rings: dict[CableEnd, tuple[TransportFrames, deque[bytes]]] = {}
        plane = control_plane.of(topology)
        #: the control plane of the switches, None where routes are static
        self.routing = (
            None
            if plane is None
            else ComputedRouting(
                plane,
                topology,
                self._learn,
                members=self._learn_members,
                vlans=topology.profile.vlans == "on",
            )
        )

    def _learn(self, switch: str, routes: Sequence[Route]) -> None:
        if switch in self.switches:
            self.switches[switch].learn(routes)

    def _learn_members(self, advertised: AdvertisedMembers) -> None:
        for name, switch in self.switches.items():
            for bridge in switch.node.bridges:
                if bridge.vni is not None:
                    table, neighbours = tunnel_table(self._topology, advertised, name, bridge.vni)
                    switch.learn_members(bridge.vni, table, neighbours)

    def open(self, end: CableEnd, frames: TransportFrames) -> deque[bytes]:
        """Open the interface ``end`` of a GPU for ``frames``; return what arrives there.

        It is a port, or a bond of ports.
        """
        arrived: deque[bytes] = deque()
        self._rings[end] = frames, arrived
        return arrived

    def close(self, end: CableEnd) -> None:
        """Have nobody listen at ``end`` any more."""
        self._rings.pop(end, None)

    def sender(self, end: CableEnd) -> Callable[[bytes], int]:
        """Return the function that brings a frame from the cable into the node of ``end``."""
        interface = self._interfaces[end]
        switch = self.switches.get(end.node)
        if switch is None:
            port = self._topology.node(end.node).port(end.port)
            return partial(self._into_gpu, CableEnd(end.node, port.interface), interface)
        arrive = switch.arrive

        def send(frame: bytes) -> int:
            arrive(interface, frame)
            return len(frame)

        return send

    def _into_gpu(self, end: CableEnd, interface: ModelInterface, frame: bytes) -> int:
        interface.frames_in += 1
        interface.octets_in += len(frame)
        opened = self._rings.get(end)
        if opened is not None and frame[:6] == interface.mac and is_for(opened[0], frame):
            opened[1].append(frame)
        return len(frame)

    def from_gpu(self, end: CableEnd) -> Callable[[bytes], int]:
        """Return the function that sends a frame of a GPU out by its port or bond ``end``."""
        bond = self._bonds.get(end)
        if bond is None:
            return partial(self._out_of_gpu, self._interfaces[end])

        def send(frame: bytes) -> int:
            member = bond.member_for(frame)
            return len(frame) if member is None else self._out_of_gpu(member, frame)

        return send

    def _out_of_gpu(self, interface: ModelInterface, frame: bytes) -> int:
        interface.frames_out += 1
        interface.octets_out += len(frame)
        self.taken.append((interface.wire, frame))
        return len(frame)

    def counters(self, nodes: Iterable[Node]) -> dict[str, PortCounters]:
        """Counters of the ports of ``nodes`` by ``node:port``, in their order."""
        return {
            f"{node.name}:{port.name}": self._interfaces[CableEnd(node.name, port.name)].counters()
            for node in nodes
            for port in node.ports
            if CableEnd(node.name, port.name) in self._interfaces
        }

    # ------------------------------------------------------------------ cables

    def pull(self, links: Iterable[Link]) -> None:
        """Take carrier from both ends of ``links``; no harm if they have none."""
        self._set_carrier(links, carrier=False)

    def plug(self, links: Collection[Link], *, out: Collection[Link] = ()) -> None:
        """Give ``links`` carrier; those of ``out`` stay pulled."""
        self._set_carrier([link for link in links if link not in out], carrier=True)

    def _set_carrier(self, links: Iterable[Link], *, carrier: bool) -> None:
        for link in links:
            for end in link.ends:
                if end in self._interfaces:
                    self._interfaces[end].carrier = carrier
                if end.node in self.switches:
                    self.switches[end.node].carrier_changed()

    def reasons(self) -> Mapping[str, Explain]:
        """Return the functions that name why a switch dropped its last frame, by switch."""
        return {name: switch.explain for name, switch in self.switches.items()}


def is_for(frames: TransportFrames, frame: bytes) -> bool:
    """Return whether ``frame`` is one of ``frames``; see :meth:`TransportFrames.program`."""
    kind = frame[12:14]
    if kind == _IPV4:
        if (frame[20] << 8 | frame[21]) & _LATER_FRAGMENT:
            return False
        protocol, ports_at = frame[23], _ETHERNET + (frame[14] & 0xF) * 4
    elif kind == b"\x86\xdd":
        protocol, ports_at = frame[20], _ETHERNET + 40
    else:
        return False
    if protocol in frames.ip_protocols:
        return True
    port = int.from_bytes(frame[ports_at + 2 : ports_at + 4])
    return protocol == _UDP and len(frame) >= ports_at + 4 and port in frames.udp_ports
