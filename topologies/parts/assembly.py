"""Putting a fabric together piece by piece: names, MACs and addresses come from the order.

::

    fabric = Assembly(mtu=9000, buffer_bytes=1 << 20)
    rail0 = fabric.switch(Role.RAIL, "rail0", rail=0)
    fabric.bridge(rail0, "rail0", rail=0, subnet=plan.rail_subnet(0))
    fabric.attach("h0g0", "rail0", "rail0", rate_bps=400 * 10**9, delay_ns=600)
    fabric.join("rail0", "spine0", rate_bps=400 * 10**9, delay_ns=600)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Interface, IPv4Network
from itertools import count
from sys import intern

from topologies import addressing as plan
from topologies.ethernet import HEADER_OCTETS
from topologies.model import (
    BACKEND,
    END_ROLES,
    EVPN,
    MAX_MTU,
    VXLAN,
    VXLAN_OVERHEAD,
    Bridge,
    CableEnd,
    FabricProfile,
    Handoff,
    Link,
    Node,
    Port,
    Role,
    ScaleUp,
    Server,
    Topology,
    TopologyError,
    Vrf,
)
from topologies.units import format_size

MAX_GPUS = 262_144  # of one fabric
MAX_PORTS = 4096  # of one switch: eight times what the largest chips of 2025 offer
ACCESS_BOND = "es"  # and the number of the port that it has


@dataclass
class _Subnet:
    """A subnet, its gateway's address, and how many members it has so far."""

    network: IPv4Network
    gateway: str
    members: int = 0


@dataclass
class _Draft:
    node: Node
    number: int
    local_rank: int = 0
    fep_per_port: bool = False
    ports: list[Port] = field(default_factory=list)
    bridges: dict[str, Bridge] = field(default_factory=dict)
    subnets: dict[str, _Subnet] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)


class Assembly:
    """A fabric in the making, all of whose links have the same MTU and buffers.

    With ``tunnels`` those between switches have room for what a tunnel adds.  ``network`` is which
    one of the cluster's it is; the blocks of its addresses follow from that.

    Raises TopologyError where a buffer cannot hold a frame.
    """

    def __init__(
        self, *, mtu: int, buffer_bytes: int, tunnels: bool = False, network: str = BACKEND
    ) -> None:
        self.network = network
        self._blocks = plan.AddressBlocks.of(network)
        self.mtu, self.buffer_bytes = mtu, buffer_bytes
        self.tunnels = tunnels
        self._fabric_mtu = mtu + (VXLAN_OVERHEAD if tunnels else 0)
        if buffer_bytes < self._fabric_mtu + HEADER_OCTETS:
            tunnel = " in a tunnel" if tunnels else ""
            raise TopologyError(
                f"buffer is {format_size(buffer_bytes)}, less than one frame of mtu {mtu}{tunnel}; "
                "take a larger buffer"
            )
        if self._fabric_mtu > MAX_MTU:
            raise TopologyError(
                f"mtu is {mtu} and a tunnel adds {VXLAN_OVERHEAD} octets, more than {MAX_MTU} in "
                "all; take a smaller mtu"
            )
        self._nodes: dict[str, _Draft] = {}
        self._servers: list[Server] = []
        self._gpus = self._machines = 0
        self._links: list[Link] = []
        self._subnets: dict[tuple[str | None, IPv4Network], _Subnet] = {}  # by VRF and network
        self._numbers: Counter[Role] = Counter()
        blocks = self._blocks.links
        numbers = {block: count() for block in blocks.values()}
        self._link_numbers = {role: numbers[block] for role, block in blocks.items()}

    # ------------------------------------------------------------------ nodes

    def server(
        self,
        name: str,
        gpus: int,
        *,
        scale_up: ScaleUp,
        pod: int | None = None,
        homed: int = 1,
        fep_per_port: bool = False,
        rails: bool = True,
        gpus_per_rail: int = 1,
    ) -> tuple[str, ...]:
        """A server with ``gpus`` GPUs, named after it; their names.

        GPUs with ``homed`` > 1 ports have a fabric address of their own.  With ``fep_per_port``
        each port has one, and all the NIC's MAC.  ``gpus_per_rail`` of them share a NIC, and so a
        rail; without ``rails`` GPUs of equal local rank have nothing in common.
        """
        host = len(self._servers)
        names = tuple(f"{name}g{rank}" for rank in range(gpus))
        first = host - host % scale_up.hosts
        domain = name if first == host else self._servers[first].name
        self._servers.append(Server(name=name, gpus=names, scale_up=scale_up, domain=domain))
        for rank, gpu in enumerate(names):
            node = Node(
                name=gpu,
                role=Role.GPU,
                ports=(),
                server=name,
                local_rank=rank,
                rail=rank // gpus_per_rail if rails else None,
                pod=pod,
                loopback=plan.loopback(Role.GPU, self._gpus) if homed > 1 else None,
            )
            self._gpus += 1
            self._nodes[gpu] = _Draft(node, host, rank, fep_per_port)
        return names

    def machine(self, name: str, *, homed: int = 1, reach: tuple[IPv4Network, ...] = ()) -> str:
        """A machine as an end node of a network of machines; ``reach`` is as in its node.

        With ``homed`` > 1 ports it has an address of its own, which each port leads to.
        """
        number = self._machines
        self._machines += 1
        self._servers.append(Server(name=name, gpus=(name,)))
        node = Node(
            name=name,
            role=Role.SERVER,
            ports=(),
            server=name,
            local_rank=0,
            reach=reach,
            loopback=plan.loopback(Role.SERVER, number, self._blocks) if homed > 1 else None,
        )
        self._nodes[name] = _Draft(node, number)
        return name

    def switch(
        self,
        role: Role,
        name: str,
        *,
        rail: int | None = None,
        pod: int | None = None,
        plane: int | None = None,
        position: tuple[int, ...] = (),
    ) -> str:
        """A switch without ports so far; its number among those of its role gives its addresses."""
        number = self._numbers[role]
        self._numbers[role] += 1
        node = Node(
            name=name,
            role=role,
            ports=(),
            rail=rail,
            pod=pod,
            plane=plane,
            loopback=plan.loopback(role, number, self._blocks),
            hash_seed=plan.hash_seed(name),
            position=position,
        )
        self._nodes[name] = _Draft(node, number + plan.first_switch(self.network))
        return name

    def shared_nic(self, server: str, name: str) -> str:
        """A NIC that several GPUs of ``server`` use: join them by :meth:`attach_shared`."""
        number = self._numbers[Role.NIC]
        self._numbers[Role.NIC] += 1
        draft = _Draft(Node(name=name, role=Role.NIC, ports=(), server=server), number)
        mac = plan.bridge_mac(switch=number, rail=0xFFFF)
        draft.bridges["nic"] = Bridge(name="nic", rail=number, mac=mac)
        self._nodes[name] = draft
        return name

    def bridge(  # noqa: PLR0913  each is a field of what it makes
        self,
        switch: str,
        name: str,
        *,
        rail: int,
        subnet: IPv4Network,
        vlan: int | None = None,
        vni: int | None = None,
        vrf: str | None = None,
        summary: IPv4Network | None = None,
        like: tuple[str, str] | None = None,
    ) -> None:
        """Add a subnet inside ``switch``, which advertises it as part of ``summary``.

        With a ``vni`` it is a part of the subnet that other switches have, too, and has the MAC
        that all parts have.  Else it has one of its own.  Or it has that of ``like``, the bridge
        (switch, name).  ``vrf`` is one of the switch's.
        """
        draft = self._nodes[switch]
        twin = self._nodes[like[0]].bridges[like[1]] if like else None
        gateway = plan.rail_gateway(subnet)
        known = _Subnet(subnet, str(gateway.ip))
        draft.subnets[name] = self._subnets.setdefault((vrf, subnet), known)
        draft.bridges[name] = Bridge(
            name=name,
            rail=rail,
            mac=_bridge_mac(draft, rail, vni, twin),
            gateway=gateway,
            vlan=vlan,
            vni=vni,
            vrf=vrf,
        )
        if summary is not None and summary not in draft.node.summaries:
            draft.node = replace(draft.node, summaries=(*draft.node.summaries, summary))

    def vrf(self, switch: str, name: str, *, vni: int, handoff: Handoff | None = None) -> None:
        """Give ``switch`` the routes of a tenant, whose L3 VNI is ``vni``."""
        draft = self._nodes[switch]
        made = Vrf(name=name, vni=vni, mac=plan.router_mac(switch=draft.number), handoff=handoff)
        draft.node = replace(draft.node, vrfs=(*draft.node.vrfs, made))

    # ------------------------------------------------------------------ cables

    def attach(
        self,
        gpu: str,
        switch: str,
        bridge: str,
        *,
        rate_bps: int,
        delay_ns: int,
        bond: str | None = None,
        segment: bool = False,
        interface: int | None = None,
    ) -> None:
        """A cable from the next port of ``gpu`` to a member of ``bridge``, with its address.

        Ports of one ``bond`` share the first one's; as an Ethernet ``segment`` it ends in access
        bonds.  The member is ``down<interface>``, by default the next one.
        """
        down = self._member(switch, bridge, access_bond=segment, interface=interface)
        self._cable(self._gpu_port(gpu, switch, bridge, bond), down, rate_bps, delay_ns)

    def pair(self, a: str, b: str, bridge: str, *, rate_bps: int, delay_ns: int) -> None:
        """A standby link between the bridges of one name, and one gateway, of two switches."""
        near = self._bridge_port(a, bridge, "peer", self._nodes[a].node.role)
        far = self._bridge_port(b, bridge, "peer", self._nodes[b].node.role)
        self._cable(near, far, rate_bps, delay_ns, standby=True)

    def attach_shared(
        self,
        gpus: tuple[str, ...],
        nic: str,
        switch: str,
        bridge: str,
        *,
        pcie_bps: int,
        rate_bps: int,
        delay_ns: int,
        interface: int | None = None,
    ) -> None:
        """``gpus`` behind the shared ``nic`` at a member of ``bridge``, each by ``pcie_bps``.

        The member is ``down<interface>``, by default the next one.
        """
        for gpu in gpus:
            inside = self._bridge_port(nic, "nic", "pcie", Role.NIC)
            self._cable(self._gpu_port(gpu, switch, bridge), inside, pcie_bps, 0)
        outside = self._bridge_port(nic, "nic", "port", Role.NIC)
        member = self._member(switch, bridge, interface=interface)
        self._cable(outside, member, rate_bps, delay_ns)

    def join(
        self,
        lower: str,
        upper: str,
        *,
        rate_bps: int,
        delay_ns: int,
        names: tuple[str, str] = ("up", "down"),
    ) -> None:
        """A routed cable between two switches; the next free port of each is named by ``names``."""
        role = self._nodes[upper].node.role
        near, far = plan.fabric_link(role, next(self._link_numbers[role]), self._blocks)
        ends = (
            self._port(lower, names[0], address=near),
            self._port(upper, names[1], address=far),
        )
        self._cable(*ends, rate_bps, delay_ns, mtu=self._fabric_mtu)

    def _cable(
        self,
        a: CableEnd,
        b: CableEnd,
        rate_bps: int,
        delay_ns: int,
        *,
        mtu: int | None = None,
        standby: bool = False,
    ) -> None:
        self._links.append(
            Link(
                a=a,
                b=b,
                rate_bps=rate_bps,
                delay_ns=delay_ns,
                mtu=mtu or self.mtu,
                buffer_bytes=self.buffer_bytes,
                standby=standby,
            )
        )

    def _gpu_port(self, gpu: str, switch: str, bridge: str, bond: str | None = None) -> CableEnd:
        draft = self._nodes[gpu]
        first = next((port for port in draft.ports if bond and port.bond == bond), None)
        name = intern(f"{plan.PORT_PREFIXES.get(self.network, 'eth')}{len(draft.ports)}")
        if first is not None:
            draft.ports.append(replace(first, name=name))
            return CableEnd(gpu, draft.ports[-1].name)
        subnet = self._nodes[switch].subnets[bridge]
        address = plan.rail_address(subnet.network, subnet.members)
        subnet.members += 1
        port = len(draft.ports)
        if draft.node.role is Role.SERVER:
            mac = plan.machine_mac(self.network, machine=draft.number, port=port)
        else:
            mac = plan.gpu_mac(
                host=draft.number,
                local_rank=draft.local_rank,
                port=0 if draft.fep_per_port else port,
            )
        draft.ports.append(Port(name=name, mac=mac, address=address, bond=bond))
        if draft.node.gateway is None:
            draft.node = replace(draft.node, gateway=subnet.gateway)
        return CableEnd(gpu, name)

    def _member(
        self,
        switch: str,
        bridge: str,
        *,
        access_bond: bool = False,
        interface: int | None = None,
    ) -> CableEnd:
        role = self._nodes[switch].node.role
        return self._bridge_port(
            switch, bridge, "down", role, access_bond=access_bond, interface=interface
        )

    def _bridge_port(
        self,
        node: str,
        bridge: str,
        prefix: str,
        role: Role,
        *,
        access_bond: bool = False,
        interface: int | None = None,
    ) -> CableEnd:
        draft = self._nodes[node]
        number = draft.uses[prefix] if interface is None else interface
        name = intern(f"{prefix}{number}")
        draft.uses[prefix] += 1
        mac = plan.switch_mac(role, switch=draft.number, port=len(draft.ports))
        bond = f"{ACCESS_BOND}{number}" if access_bond else None
        draft.ports.append(Port(name=name, mac=mac, bridge=bridge, bond=bond))
        return CableEnd(node, name)

    def _port(self, switch: str, prefix: str, *, address: IPv4Interface) -> CableEnd:
        draft = self._nodes[switch]
        name = intern(f"{prefix}{draft.uses[prefix]}")
        draft.uses[prefix] += 1
        mac = plan.switch_mac(draft.node.role, switch=draft.number, port=len(draft.ports))
        draft.ports.append(Port(name=name, mac=mac, address=address))
        return CableEnd(switch, name)

    # ------------------------------------------------------------------ the whole

    def topology(
        self,
        name: str,
        parameters: Mapping[str, object],
        *,
        profile: FabricProfile | None = None,
    ) -> Topology:
        """The fabric, validated: GPUs in rank order, then the other nodes in theirs."""
        for draft in self._nodes.values():
            if len(draft.ports) > MAX_PORTS:
                raise TopologyError(
                    f"{draft.node.name} would have {len(draft.ports)} ports, above {MAX_PORTS}; "
                    "take fewer hosts, spines or parallel links, or a higher rate"
                )
        hosts = self._servers[-1].scale_up.hosts if self._servers else 1
        if len(self._servers) % hosts:
            raise TopologyError(
                f"scale_up_hosts is {hosts}, which does not divide {len(self._servers)} servers; "
                "take a number that does"
            )
        nodes = [
            replace(draft.node, ports=tuple(draft.ports), bridges=tuple(draft.bridges.values()))
            for draft in self._nodes.values()
        ]
        nodes.sort(key=lambda node: node.role not in END_ROLES)
        return Topology(
            name=name,
            parameters=parameters,
            servers=tuple(self._servers),
            nodes=tuple(nodes),
            links=tuple(self._links),
            profile=profile or self.profile,
            network=self.network,
        )

    @property
    def profile(self) -> FabricProfile:
        """Return the fabric's profile unless its designer sets another.

        Tunnels come with EVPN.
        """
        if self.tunnels:
            return FabricProfile(control_plane=EVPN, data_plane=VXLAN)
        return FabricProfile()


def _bridge_mac(draft: _Draft, rail: int, vni: int | None, twin: Bridge | None) -> str:
    if twin is not None:
        return twin.mac
    if vni is not None:
        return plan.anycast_mac(rail=rail)
    return plan.bridge_mac(switch=draft.number, rail=rail)
