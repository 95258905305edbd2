"""Tables of modelled tunnel ports: who is behind which end, whole and after faults."""

from __future__ import annotations

from functools import reduce

from emulator.dataplane.control_plane.advertised_members import AdvertisedMembers
from emulator.dataplane.control_plane.failure import without
from emulator.dataplane.model.model_switch import octets_of
from emulator.dataplane.model.model_tunnel import TunnelTable
from emulator.dataplane.model.tunnel_members import tunnel_table
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
