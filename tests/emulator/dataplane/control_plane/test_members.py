"""The members behind each tunnel are computed for what faults have left."""

from functools import reduce
from ipaddress import IPv4Address

from emulator.dataplane.control_plane.failure import without
from emulator.dataplane.control_plane.members import EVERYBODY, Members
from topologies import catalogue
from topologies.interface_indices import interface_indices
from topologies.model import CableEnd, Topology

STRETCHED = catalogue.load("clos:segments=2,hosts=1,gpus_per_host=2,spines=2,subnets=stretched")
SEGMENTS = catalogue.load(
    "clos:segments=2,hosts=1,gpus_per_host=1,nic_ports=2,spines=1,subnets=stretched,homing=esi"
)


def far_ends(topology: Topology, switch: str, mac: str, *cut: str) -> set[IPv4Address]:
    """Where ``switch`` is to have ``mac``, without the cables at the ports ``cut``."""
    links = [topology.link_at(CableEnd(*port.split(":"))) for port in cut]
    left = reduce(without, links, topology)
    members = Members(left, interface_indices(topology), topology)
    return {
        entry.address
        for entry in members.requested.get(switch, ())
        if entry.mac == mac and entry.address is not None and str(entry.address)[:6] == "10.255"
    }


def loopback(topology: Topology, switch: str) -> IPv4Address:
    address = topology.node(switch).loopback
    assert address is not None
    return address


def port_mac(topology: Topology, gpu: str) -> str:
    return topology.node(gpu).ports[0].mac


def test_gpu_stays_a_member_behind_its_dead_port() -> None:
    first, far = "h0g0", "rail2"  # of the same rail in the other segment
    mac = port_mac(STRETCHED, first)
    there = {loopback(STRETCHED, "rail0")}
    assert far_ends(STRETCHED, far, mac) == there
    assert far_ends(STRETCHED, far, mac, f"{first}:eth0") == there


def test_switch_that_is_cut_off_is_behind_no_tunnel() -> None:
    ups = [f"rail0:{port.name}" for port in STRETCHED.node("rail0").ports if port.bridge is None]
    assert far_ends(STRETCHED, "rail2", port_mac(STRETCHED, "h0g0"), *ups) == set()
    assert loopback(STRETCHED, "rail0") in far_ends(STRETCHED, "rail2", EVERYBODY)
    assert loopback(STRETCHED, "rail0") not in far_ends(STRETCHED, "rail2", EVERYBODY, *ups)


def test_segment_leaves_a_switch_with_its_port() -> None:
    mac = port_mac(SEGMENTS, "h0g0")
    pair = {loopback(SEGMENTS, name) for name in ("rail0", "rail1")}
    assert far_ends(SEGMENTS, "rail2", mac) == pair
    left = pair - {loopback(SEGMENTS, "rail1")}
    assert far_ends(SEGMENTS, "rail2", mac, "h0g0:eth1") == left
    assert far_ends(SEGMENTS, "rail1", mac, "h0g0:eth1") == left
    assert far_ends(SEGMENTS, "rail2", mac, "h0g0:eth0", "h0g0:eth1") == set()
