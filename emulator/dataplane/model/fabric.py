"""A fabric whose nodes are a model in this process, which takes neither root nor Mininet.

::

    enter(frame) --> switch: program, bridge or route, program --> (inner end, frame), ...
    arrive(frame) --> GPU: its interface's filter --> deliver
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, Self

from mypy_extensions import i64

from emulator.dataplane import homing
from emulator.dataplane.account import Account
from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.control_plane.advertised_members import AdvertisedMembers
from emulator.dataplane.control_plane.computed_routing import ComputedRouting
from emulator.dataplane.dataplane import (
    FILTERED,
    NO_CARRIER,
    Astray,
    Enter,
    Host,
    HostPort,
    Taken,
)
from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.kernel.port_counters import PortCounters
from emulator.dataplane.lab_record import check_name
from emulator.dataplane.model.port import ModelPort
from emulator.dataplane.model.program import ModelProgram
from emulator.dataplane.model.switch import (
    INTERFACE_WORDS,
    ModelInterface,
    ModelSwitch,
    counter_words,
    octets_of,
)
from emulator.dataplane.model.tunnel import TunnelTable
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.switch_fitting import fit, size_of
from emulator.dataplane.switch.switch_port import switch_ports
from emulator.dataplane.wires import Wires
from topologies.model import CableEnd, Link, Node, Topology
from topologies.routing.static_routes import (
    Route,
    static_neighbours,
    static_routes,
    static_rules,
)
from uet.transport import Frame


def tunnel_table(
    topology: Topology, advertised: AdvertisedMembers, switch: str, vni: int
) -> tuple[TunnelTable, dict[bytes, bytes]]:
    """Return the table of the tunnel port of ``vni`` in ``switch``, and who is a neighbour by it.

    Neighbours are IPv4 address -> MAC.  To everybody a frame goes in the order of the topology.
    As zebra (FRR 8.4) writes it into a kernel: a MAC behind one far end of a tunnel, or, on an
    Ethernet segment, behind a group of next hops in the order of ``zebra_evpn_es_vtep_cmp``.
    """
    loopbacks = topology.loopbacks
    behind: dict[bytes, tuple[bytes, ...]] = {}
    neighbours: dict[bytes, bytes] = {}
    for gpu, owners in advertised.elsewhere(switch, vni):
        ends = tuple(sorted((loopbacks[one].packed for one in owners), key=_as_zebra_sorts))
        for port in topology.node(gpu).ports if ends else ():
            mac = bytes.fromhex(port.mac.replace(":", ""))
            behind[mac] = ends
            neighbours[topology.addresses[CableEnd(gpu, port.name)].ip.packed] = mac
    everybody = tuple(loopbacks[one].packed for one in advertised.others(switch, vni))
    return TunnelTable(everybody, behind), neighbours


def _as_zebra_sorts(address: bytes) -> int:
    """Return ``address`` as the number that a little-endian machine takes its octets for."""
    return int.from_bytes(address, "little")


_IPV4: Final = b"\x08\x00"
_ETHERNET: Final = 14
#: More fragments, or an offset: such a packet counts by its addresses alone.
_FRAGMENT = 0x3FFF
#: Protocols whose header begins with two port numbers (``proto_ports_offset``).
_WITH_PORTS = frozenset({6, 17, 33, 50, 132, 136})


class ModelBond:
    """The bond of ``members``, in the order in which they have joined it.

    As Linux's in mode ``balance-xor`` with ``xmit_hash_policy=layer3+4``: addresses and port
    numbers choose among the ports with carrier (``bond_3ad_xor_xmit``, ``bond_xmit_hash``;
    drivers/net/bonding/bond_main.c).
    """

    def __init__(self, members: Sequence[ModelInterface]) -> None:
        self._members = members

    def member_for(self, frame: bytes) -> ModelInterface | None:
        """Return the port that ``frame`` leaves by; None if no port has carrier."""
        usable = [member for member in self._members if member.carrier]
        return usable[layer34_hash(frame) % len(usable)] if usable else None


def layer34_hash(frame: bytes) -> int:
    """Return the hash of an IPv4 frame that a bond chooses its port by.

    Raises ValueError for another frame: modelled endpoints send none.
    """
    if frame[12:14] != _IPV4:
        raise ValueError(f"a frame of type {frame[12:14].hex()} is not IPv4")
    ports = b""
    if not (frame[20] << 8 | frame[21]) & _FRAGMENT and frame[23] in _WITH_PORTS:
        start = _ETHERNET + (frame[14] & 0xF) * 4
        ports = frame[start : start + 4]
    source, destination = frame[26:30], frame[30:34]
    hash_ = 0
    for octets in (ports, source, destination):  # words as x86 and ARM load them
        hash_ ^= int.from_bytes(octets, "little")
    hash_ ^= hash_ >> 16
    hash_ ^= hash_ >> 8
    return hash_ >> 1


#: A change of the nodes, which can be pickled.
NodeChange = Callable[["ModelFabric"], None]


class ModelFabric:
    """The nodes of ``topology``; switches work by ``program``, None without a switch ASIC.

    Of nodes of other processes, by ``wires``, it makes nothing.
    """

    def __init__(self, topology: Topology, wires: Wires, program: ModelProgram | None) -> None:
        self._topology, self._program = topology, program
        #: what forked workers have to do yet, each
        self._followers: list[list[NodeChange]] = []
        if program is not None:
            program.changed = self._note_of_program
        #: interfaces with counts that other processes do not see yet
        self._counted: list[ModelInterface] = []
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
            interface.counted = self._counted
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
        """Do ``change`` to the switch program's tables, where there are any."""
        if self._program is not None:
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

    def write_counters(self) -> None:
        """Let other processes see what interfaces have counted."""
        if self._counted:
            for interface in self._counted:
                interface.write()
            self._counted.clear()
        if self._program is not None:
            self._program.write_counts()

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


_IPV4_TYPE: Final = 0x0800
_IPV6_TYPE: Final = 0x86DD
_UDP: Final = 17
_LATER_FRAGMENT: Final = 0x1FFF


class ModelEntrance:
    """Port ``interface`` of ``switch``, for what arrives there.

    ``without_carrier`` are the ports of the switch that have none now.
    """

    __slots__ = (
        "_account",
        "_counts",
        "_interface",
        "_switch",
        "_without_carrier",
    )

    def __init__(
        self,
        interface: ModelInterface,
        switch: ModelSwitch,
        account: Account,
        without_carrier: Collection[CableEnd],
    ) -> None:
        self._interface, self._switch = interface, switch
        self._account, self._without_carrier = account, without_carrier
        #: None: there is no program
        self._counts = None if interface.program is None else interface.program.of_switch

    def __call__(self, frame: bytes, now_ns: int) -> Sequence[Taken]:
        """See :data:`emulator.dataplane.dataplane.Enter`."""
        return self.enter(frame, now_ns)

    def enter(self, frame: bytes, now_ns: int) -> Sequence[Taken]:
        """Bring ``frame`` into the switch; return what comes out at its ports."""
        account, counts = self._account, self._counts
        account.injected += 1
        dropped = 0
        if counts is not None:
            counts.begin(now_ns)
            dropped = counts.dropped
        out = self._switch.arrive(self._interface, frame)
        if out:
            account.delivered += 1
        else:
            self._count_lost(dropped)
        return out

    def _count_lost(self, dropped: int) -> None:
        reason = self._switch.reason
        if self._counts is not None and self._counts.dropped != dropped:
            reason = "switch"
        if reason is None and self._without_carrier:
            reason = NO_CARRIER
        node = self._switch.node.name
        if reason is None:
            raise Astray(f"a frame went into {node} and nothing came of it")
        self._account.dropped[f"{node}: {reason}"] += 1


class ModelFrames:
    """The way of frames through the nodes of ``fabric``."""

    def __init__(self, fabric: ModelFabric) -> None:
        self._fabric = fabric
        self.account = Account()
        self._hosts: list[ModelHostPort] = []

    def entrance(self, end: CableEnd, without_carrier: Collection[CableEnd]) -> Enter:
        """Return the function that brings frames into port ``end`` of a switch."""
        return ModelEntrance(
            self._fabric.interface(end),
            self._fabric.switches[end.node],
            self.account,
            without_carrier,
        )

    def open_hosts(self, hosts: Sequence[Host]) -> list[list[HostPort]]:
        """Open the interfaces of ``hosts``, in their order."""
        opened: list[list[HostPort]] = []
        for host in hosts:
            ends = [CableEnd(host.node, interface) for interface in host.interfaces]
            ports = [ModelHostPort(self._fabric, end, host.frames, self.account) for end in ends]
            self._hosts += ports
            opened.append(list(ports))
        return opened

    def rest(self) -> None:
        """Let other processes see what was counted."""
        self._fabric.write_counters()

    def close_hosts(self) -> None:
        """Have no GPU listen any more."""
        for port in self._hosts:
            port.listens = False
        self._hosts.clear()

    def close(self) -> None:
        """Have no GPU listen any more."""
        self.close_hosts()


class ModelHostPort:
    """Interface ``end`` of a GPU, a port or a bond of ports, for its ``frames``."""

    lost = 0

    def __init__(
        self, fabric: ModelFabric, end: CableEnd, frames: TransportFrames, account: Account
    ) -> None:
        self._fabric, self.node, self.account = fabric, end.node, account
        self._udp_ports = frames.udp_ports
        #: whether an IP protocol is the transport's, by its number
        self._protocols = bytes(number in frames.ip_protocols for number in range(256))
        self._bond = fabric.bond(end)
        self._port = fabric.interface(end) if self._bond is None else None
        self.listens = True

    def send(self, frame: Frame) -> Sequence[Taken]:
        """Send ``frame`` out; return it as it comes out, or nothing if no port has carrier."""
        account, port = self.account, self._port
        account.injected += 1
        joined = b"".join(frame)
        if self._bond is not None:
            port = self._bond.member_for(joined)
        if port is None:
            account.dropped[f"{self.node}: {FILTERED}"] += 1
            return ()
        account.delivered += 1
        port.went(joined)
        return ((port.wire, joined),)

    def receiver(
        self, end: CableEnd, deliver: Callable[[memoryview], None]
    ) -> Callable[[bytes], None]:
        """Return the function that brings a frame from the cable to ``end`` in, to ``deliver``."""
        return _Receiver(self, self._fabric.interface(end), deliver).arrive

    def takes(self, frame: bytes) -> bool:
        """Return whether ``frame`` is the transport's; see :meth:`TransportFrames.program`."""
        kind: i64 = frame[12]
        kind = kind << 8 | frame[13]
        ports_at: i64
        if kind == _IPV4_TYPE:
            if (frame[20] << 8 | frame[21]) & _LATER_FRAGMENT:
                return False
            protocol, ports_at = frame[23], _ETHERNET + (frame[14] & 0xF) * 4
        elif kind == _IPV6_TYPE:
            protocol, ports_at = frame[20], _ETHERNET + 40
        else:
            return False
        if self._protocols[protocol]:
            return True
        if protocol != _UDP or len(frame) < ports_at + 4:
            return False
        return (frame[ports_at + 2] << 8 | frame[ports_at + 3]) in self._udp_ports


class _Receiver:
    """Brings frames from the cable to ``port`` in, to the interface ``host`` and ``deliver``."""

    __slots__ = ("_deliver", "_host", "_port")

    def __init__(
        self, host: ModelHostPort, port: ModelInterface, deliver: Callable[[memoryview], None]
    ) -> None:
        self._host, self._port, self._deliver = host, port, deliver

    def arrive(self, frame: bytes) -> None:
        host, port = self._host, self._port
        account = host.account
        account.injected += 1
        port.came(frame)
        if host.listens and frame[:6] == port.mac and host.takes(frame):
            account.delivered += 1
            self._deliver(memoryview(frame))
        else:
            account.dropped[f"{host.node}: {FILTERED}"] += 1


class ModelDataplane:
    """The nodes of ``topology``, which :class:`emulator.dataplane.kinds.ModelKind` has checked."""

    dilation = 1.0
    cable_delay = "nic"
    directory = None

    def __init__(self, name: str, topology: Topology, settings: FabricSettings) -> None:
        self.name, self.seed = check_name(name), settings.seed
        self.topology, _ = homing.resolved(topology)
        switch = settings.switch
        self.wires = settings.wires(self.topology)
        self.asic: FabricAsic | None = None
        program: ModelProgram | None = None
        if switch is not None:
            program = ModelProgram(name, size_of(self.topology))
            fitted = fit(switch, self.topology, 1, clock="virtual")
            self.asic = FabricAsic.load(fitted, name, self.wires, settings, program=program)
        #: the nodes, and their cables
        self.cables = ModelFabric(self.topology, self.wires, program)

    @property
    def routing(self) -> ComputedRouting | None:
        """The control plane of the switches, None where routes are static."""
        return self.cables.routing

    def counters(self, nodes: Iterable[str] | None = None) -> dict[str, PortCounters]:
        """Counters of all ports here, or those of ``nodes``, by ``node:port``, in their order."""
        topology = self.topology
        return self.cables.counters(topology.nodes if nodes is None else map(topology.node, nodes))

    def frames(self, worker: int) -> ModelFrames:
        """Return the way of frames through the nodes."""
        return ModelFrames(self.cables)

    def follow(self) -> list[NodeChange]:
        """Return a list to which all that changes the nodes from now on is added."""
        return self.cables.follow()

    def take(self, changes: Sequence[NodeChange]) -> None:
        """Do ``changes``, which the process that this one was forked from has done."""
        self.cables.take(changes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the tables of the switch program."""
        if self.asic is not None:
            self.asic.close()
            self.asic = None
