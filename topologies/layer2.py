"""Checks of the second layer: bridges, VLANs, bonds and pairs of switches must agree."""

from __future__ import annotations

from topologies.elements import MAX_VLAN, CableEnd, Node, TopologyError
from topologies.multihoming import segments_of, validate_segments
from topologies.wiring import Wiring


def validate(topology: Wiring) -> None:
    """Raise :class:`TopologyError`, which names the element, unless all parts agree."""
    if topology.profile.vlans != "off":
        for switch in topology.switches:
            _validate_vlans(switch)
    bonded = False
    for node in topology.nodes:
        if any(port.bond for port in node.ports):
            bonded = True
            _validate_bonds(node)
    for link in topology.links:
        if link.standby:
            _validate_standby(topology, link.a, link.b)
    validate_segments(topology)
    if bonded and not segments_of(topology) and topology.profile.control_plane != "static":
        raise TopologyError(
            f"GPUs have bonds (homing=bond) and control_plane is {topology.profile.control_plane}; "
            "two switches that look like one need control_plane=static: take that, or homing=paths"
        )


def _validate_vlans(node: Node) -> None:
    seen: dict[int, str] = {}
    for bridge in node.bridges:
        where = f"{node.name}:{bridge.name}"
        if bridge.vlan is None:
            raise TopologyError(f"{where} has no VLAN id: give it one, or take vlans=off")
        if not 1 <= bridge.vlan <= MAX_VLAN:
            raise TopologyError(f"{where}: VLAN id {bridge.vlan} is not in 1..{MAX_VLAN}")
        if bridge.vlan in seen:
            raise TopologyError(f"{where} has the VLAN id {bridge.vlan} of {seen[bridge.vlan]}")
        seen[bridge.vlan] = where
    if len({bridge.mac for bridge in node.bridges}) > 1:
        raise TopologyError(
            f"the bridges of {node.name} have several MAC addresses: as VLANs of one bridge they "
            "have one"
        )


def _validate_bonds(node: Node) -> None:
    names = {port.name for port in node.ports}
    for bond, members in node.bonds.items():
        where = f"{node.name}:{bond}"
        if bond in names:
            raise TopologyError(f"{where} exists twice, as a bond and as a port")
        if node.is_switch:
            if len(members) > 1 or members[0].bridge is None:
                raise TopologyError(f"{where}: an access bond has one port, in a bridge")
            continue
        if any(port.address is None for port in members):
            raise TopologyError(f"{where}: a port of a bond has the bond's address")
        if len({(port.mac, port.address) for port in members}) > 1:
            raise TopologyError(f"{where}: its ports have the bond's one MAC and one address")


def _validate_standby(topology: Wiring, a: CableEnd, b: CableEnd) -> None:
    bridges = [topology.bridge_of(end) for end in (a, b)]
    looks = [bridge and (bridge.gateway, bridge.mac) for bridge in bridges]
    if None in looks or looks[0] != looks[1]:
        raise TopologyError(
            f"link {a} - {b} is a standby: it joins two bridges with one gateway and one MAC"
        )
