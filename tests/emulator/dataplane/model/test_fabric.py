"""Modelled nodes: bonds of GPUs, and the tables of tunnel ports."""

from functools import reduce
from ipaddress import IPv4Address

import pytest

from emulator.dataplane.control_plane.advertised_members import AdvertisedMembers
from emulator.dataplane.control_plane.failure import without
from emulator.dataplane.model.fabric import ModelBond, layer34_hash, tunnel_table
from emulator.dataplane.model.switch import ModelInterface, octets_of
from emulator.dataplane.model.tunnel import TunnelTable
from topologies import catalogue
from topologies.model import CableEnd, Topology

RAILS = catalogue.load("clos:segments=2,hosts=1,gpus_per_host=2,spines=2,subnets=stretched")
SEGMENTS = catalogue.load(
    "clos:segments=2,hosts=1,gpus_per_host=1,nic_ports=2,spines=1,subnets=stretched,homing=esi"
)
VNI = 10_101


def table(topology: Topology, switch: str, *cut: str) -> TunnelTable:
    links = [topology.link_at(CableEnd(*port.split(":"))) for port in cut]
    advertised = AdvertisedMembers(reduce(without, links, topology), topology)
    made, neighbours = tunnel_table(topology, advertised, switch, VNI)
    assert set(neighbours.values()) == set(made.behind)
    return made


def ends(topology: Topology, *switches: str) -> tuple[bytes, ...]:
    found = [topology.node(name).loopback for name in switches]
    return tuple(each.packed for each in found if each is not None)


def mac(topology: Topology, gpu: str) -> bytes:
    return octets_of(topology.node(gpu).ports[0].mac)


def test_a_gpu_is_behind_its_switch() -> None:
    (there,) = ends(RAILS, "rail2")
    assert table(RAILS, "rail0") == TunnelTable((there,), {mac(RAILS, "h1g0"): (there,)})
    assert table(RAILS, "rail0", "rail2:down0") == table(RAILS, "rail0")


def test_a_switch_that_is_cut_off_is_behind_no_tunnel() -> None:
    ups = [f"rail2:{port.name}" for port in RAILS.node("rail2").ports if port.bridge is None]
    assert table(RAILS, "rail0", *ups) == TunnelTable()


def test_a_segment_is_behind_both_switches_until_a_port_is_gone() -> None:
    first, second = ends(SEGMENTS, "rail0", "rail1")
    gpu = mac(SEGMENTS, "h0g0")
    assert table(SEGMENTS, "rail2").behind == {gpu: (first, second)}
    assert table(SEGMENTS, "rail2", "rail0:down0").behind == {gpu: (second,)}
    assert gpu not in table(SEGMENTS, "rail0").behind
    assert table(SEGMENTS, "rail0", "rail0:down0").behind[gpu] == (second,)


UDP, UET_NATIVE = 17, 253


def frame(protocol: int = UDP, *, fragment: int = 0) -> bytes:
    """A frame of 10.0.1.2 to 10.0.1.3, from and to port 0x12b9 (4793)."""
    addresses = IPv4Address("10.0.1.2").packed + IPv4Address("10.0.1.3").packed
    start = b"\x45" + bytes(5) + fragment.to_bytes(2) + b"\x40" + bytes([protocol]) + bytes(2)
    return bytes(12) + b"\x08\x00" + start + addresses + b"\x12\xb9\x12\xb9" + bytes(4)


@pytest.mark.parametrize(
    ("sent", "hash_"),
    [
        # b912b912 ^ 0201000a ^ 0301000a = b812b912, folded b8120100, then b8aa1301, halved
        (frame(), 0x5C550980),
        # 0201000a ^ 0301000a = 01000000, folded 01000100, then 01010101, halved
        (frame(UET_NATIVE), 0x00808080),
        (frame(fragment=0x2000), 0x00808080),
        (frame(fragment=1), 0x00808080),
        (frame(fragment=0x4000), 0x5C550980),  # "don't fragment" is no fragment
    ],
    ids=["UDP", "no ports", "first fragment", "later fragment", "not to be fragmented"],
)
def test_the_hash_is_of_addresses_and_of_ports_where_there_are_any(sent: bytes, hash_: int) -> None:
    assert layer34_hash(sent) == hash_


def test_another_protocol_than_ipv4_is_refused() -> None:
    with pytest.raises(ValueError, match="type 86dd is not IPv4"):
        layer34_hash(bytes(12) + b"\x86\xdd" + bytes(40))


def test_ports_without_carrier_are_not_chosen() -> None:
    ports = [ModelInterface(f"eth{place}", bytes(6), place + 1, 9000) for place in range(2)]
    bond = ModelBond(ports)
    assert bond.member_for(frame()) is ports[0]  # an even hash
    ports[0].carrier = False
    assert bond.member_for(frame()) is ports[1]
    ports[1].carrier = False
    assert bond.member_for(frame()) is None
