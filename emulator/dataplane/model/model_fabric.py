"""All nodes of a fabric as a model in this process, in place of the namespaces of a lab.

How frames pass them: :mod:`emulator.dataplane.model.model_frames`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.control_plane.advertised_members import AdvertisedMembers
from emulator.dataplane.control_plane.computed_routing import ComputedRouting
from emulator.dataplane.dataplane import Taken
from emulator.dataplane.kernel.port_counters import PortCounters
from emulator.dataplane.model.model_bond import ModelBond
from emulator.dataplane.model.model_switch import (
    INTERFACE_WORDS,
    ModelInterface,
    ModelSwitch,
    counter_words,
    octets_of,
)
from emulator.dataplane.model.switch.model_port import ModelPort
from emulator.dataplane.model.switch.model_program import ModelProgram
from emulator.dataplane.model.tunnel_members import tunnel_table
from emulator.dataplane.switch.switch_port import switch_ports
from emulator.dataplane.wires import Wires
from topologies.model import CableEnd, Link, Node, Topology
from topologies.routing.static_routes import (
    Route,
    static_neighbours,
    static_routes,
    static_rules,
)

#: A change of the nodes, which can be pickled.
NodeChange = Callable[["ModelFabric"], None]


class ModelFabric:
    """The nodes of ``topology``; switches work by ``program``, None without a switch ASIC.

    Of another MPI rank's nodes, by ``wires``, it makes nothing.
    ``left`` has what has come out of switches and nobody has taken yet, in order.
    """

    def __init__(self, topology: Topology, wires: Wires, program: ModelProgram | None) -> None:
        self._topology, self._program = topology, program
        #: what forked workers have to do yet, each
        self._followers: list[list[NodeChange]] = []
        if program is not None:
            program.changed = self._note_of_program
        self.left: list[Taken] = []
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
        words = counter_words(len(self._interfaces))
        for number, interface in enumerate(self._interfaces.values()):
            interface.words, interface.at = words, number * INTERFACE_WORDS
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
                self.left.append,
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

    # ------------------------------------------------------------------ workers

    def follow(self) -> list[NodeChange]:
        """Return a list to which all that changes these nodes from now on is added.

        A process that is forked now has the nodes as they are, and shares their counters and what
        the switch program counts.  It has to :meth:`take` the changes.
        """
        self._followers.append([])
        return self._followers[-1]

    def take(self, changes: Sequence[NodeChange]) -> None:
        """Do ``changes``, which another process has done before."""
        self._followers.clear()  # those of the process that this one was forked from
        for change in changes:
            change(self)

    def _note(self, change: NodeChange) -> None:
        for changes in self._followers:
            changes.append(change)

    def _note_of_program(self, change: Callable[[ModelProgram], None]) -> None:
        self._note(partial(ModelFabric.change_program, change=change))

    def change_program(self, change: Callable[[ModelProgram], None]) -> None:
        """Do ``change`` to the switch program's tables."""
        assert self._program is not None
        change(self._program)

    # ------------------------------------------------------------------ routes

    def _learn(self, switch: str, routes: Sequence[Route]) -> None:
        self.learn(switch, routes)
        self._note(partial(ModelFabric.learn, switch=switch, routes=routes))

    def learn(self, switch: str, routes: Sequence[Route]) -> None:
        """Have ``routes`` at ``switch``, if it is here."""
        if switch in self.switches:
            self.switches[switch].learn(routes)

    def _learn_members(self, advertised: AdvertisedMembers) -> None:
        self.learn_members(advertised)
        self._note(partial(ModelFabric.learn_members, advertised=advertised))

    def learn_members(self, advertised: AdvertisedMembers) -> None:
        """Have tunnels lead to those who are ``advertised``."""
        for name, switch in self.switches.items():
            for bridge in switch.node.bridges:
                if bridge.vni is not None:
                    table, neighbours = tunnel_table(self._topology, advertised, name, bridge.vni)
                    switch.learn_members(bridge.vni, table, neighbours)

    def bond(self, end: CableEnd) -> ModelBond | None:
        """Return the bond ``end`` of a GPU, None if it is a port."""
        return self._bonds.get(end)

    def interface(self, end: CableEnd) -> ModelInterface:
        """Return the interface of port ``end``."""
        return self._interfaces[end]

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
        changed = list(links)
        self.set_carrier(changed, carrier=carrier)
        self._note(partial(ModelFabric.set_carrier, links=changed, carrier=carrier))

    def set_carrier(self, links: Sequence[Link], *, carrier: bool) -> None:
        """Let ``links`` have ``carrier``, or not, at both ends."""
        for link in links:
            for end in link.ends:
                if end in self._interfaces:
                    self._interfaces[end].carrier = carrier
                if end.node in self.switches:
                    self.switches[end.node].carrier_changed()
