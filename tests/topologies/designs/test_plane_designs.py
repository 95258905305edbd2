"""Figure 14-1: a NIC has a fabric endpoint in each plane, with an address of its own."""

import csv
import io
from ipaddress import IPv4Network

import pytest

from topologies import catalogue
from topologies.addressing import gpu_address, next_hops
from topologies.designs.planes import fep_addresses, fep_number, plane_networks
from topologies.exports.address_table import to_csv
from topologies.exports.dot import to_dot
from topologies.exports.mermaid import as_data
from topologies.model import CableEnd, TopologyError
from topologies.routing.paths import path_delays

FEPS = {
    "111": "10.1.1.2",
    "112": "10.1.2.2",
    "121": "10.1.1.3",
    "122": "10.1.2.3",
    "211": "10.2.1.2",
    "212": "10.2.2.2",
    "221": "10.2.1.3",
    "222": "10.2.2.3",
}


def test_feps_are_those_of_the_figure_with_an_address_each_and_one_mac_a_nic() -> None:
    topology = catalogue.load("fabric_planes")
    found = {
        fep_number(topology, gpu, fep.name): (str(fep.address and fep.address.ip), gpu.name)
        for gpu in topology.gpus
        for fep in gpu.feps
    }
    assert {number: address for number, (address, _) in found.items()} == FEPS
    assert found["122"][1] == found["222"][1] == "h1g1"
    for gpu in topology.gpus:
        assert gpu.loopback is None
        assert len({port.mac for port in gpu.ports}) == 1
        assert fep_addresses(gpu) == tuple(str(gpu_address(gpu, p.name).ip) for p in gpu.ports)
    assert len({gpu.ports[0].mac for gpu in topology.gpus}) == 4


def test_a_plane_is_a_leaf() -> None:
    topology = catalogue.load("fabric_planes")
    for gpu in topology.gpus:
        for port, leaf in zip(gpu.ports, ("rail0", "rail1"), strict=True):
            assert topology.far_end(CableEnd(gpu.name, port.name)).node == leaf
    assert [switch.plane for switch in topology.switches] == [0, 1]


def test_a_fep_knows_the_feps_in_its_own_plane() -> None:
    topology = catalogue.load("fabric_planes")
    assert set(next_hops(topology, "h0g0", "eth0")) == {FEPS[n] for n in ("112", "121", "122")}
    assert set(next_hops(topology, "h0g0", "eth1")) == {FEPS[n] for n in ("212", "221", "222")}
    assert set(path_delays(topology, "h0g0", "eth1")) == set(next_hops(topology, "h0g0", "eth1"))
    # The neighbour on the rail by its own MAC, others by that of the leaf of the plane.
    hops = next_hops(topology, "h0g0", "eth1")
    assert hops[FEPS["221"]] == topology.node("h1g0").ports[0].mac
    assert hops[FEPS["222"]] == topology.node("rail1").bridges[0].mac


def test_planes_reach_over_pods() -> None:
    spec = "clos:pods=2,hosts=2,gpus_per_host=2,nic_ports=2,planes=own,homing=planes,spines=1"
    topology = catalogue.load(spec)
    last = topology.gpus[-1]
    assert fep_addresses(last) == ("10.11.2.3", "10.12.2.3")
    assert fep_number(topology, last, "eth1") == "242"
    assert plane_networks(topology, last, "eth1") == (
        IPv4Network("10.2.0.0/16"),
        IPv4Network("10.12.0.0/16"),
    )


def test_numbers_beyond_one_digit_have_hyphens() -> None:
    topology = catalogue.load("fabric_planes:hosts=12")
    assert fep_number(topology, topology.node("h11g1"), "eth0") == "1-12-2"
    assert fep_number(topology, topology.node("h0g0"), "eth0") == "111"


@pytest.mark.parametrize("ports", [4, 8, 16])
def test_each_port_is_a_fep(ports: int) -> None:
    topology = catalogue.load(f"fabric_planes:nic_ports={ports}")
    assert fep_addresses(topology.gpus[0]) == tuple(
        f"10.{plane}.1.2" for plane in range(1, ports + 1)
    )
    assert [switch.plane for switch in topology.switches] == list(range(ports))


def test_pods_are_twenty_apart_with_more_than_nine_planes() -> None:
    spec = "clos:pods=2,hosts=1,gpus_per_host=1,nic_ports=16,planes=own,homing=planes,spines=1"
    last = catalogue.load(spec).gpus[-1]
    assert fep_addresses(last) == tuple(f"10.{20 + plane}.1.2" for plane in range(1, 17))


def test_one_address_over_all_ports_stays_a_choice() -> None:
    gpu = catalogue.load("fabric_planes:homing=paths").gpus[0]
    assert not gpu.feps
    assert fep_addresses(gpu) == ("10.255.192.1",)
    assert len({port.mac for port in gpu.ports}) == 2


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("clos:homing=planes", "take nic_ports=2 and planes=own, or homing=paths"),
        ("clos:homing=planes,nic_ports=2", "planes that nothing joins"),
        (
            "fabric_planes:spines=1,pods=26,hosts=1,gpus_per_host=1,rails_per_switch=1",
            "take fewer pods",
        ),
        (
            "fabric_planes:nic_ports=16,spines=1,pods=13,hosts=1,gpus_per_host=1,rails_per_switch=1",
            "take fewer pods",
        ),
    ],
)
def test_what_cannot_be_is_refused(spec: str, complaint: str) -> None:
    with pytest.raises(TopologyError, match=complaint):
        catalogue.load(spec)


def test_drawing_table_and_data_have_the_numbers() -> None:
    topology = catalogue.load("fabric_planes")
    drawn = to_dot(topology)
    assert all(f"FEP {number}" in drawn and FEPS[number] in drawn for number in FEPS)
    rows = list(csv.DictReader(io.StringIO(to_csv(topology))))
    reported = {row["fep"]: row["address"] for row in rows if row["fep"]}
    assert reported == {number: f"{address}/24" for number, address in FEPS.items()}
    nodes = as_data(topology)["nodes"]
    assert isinstance(nodes, list)
    assert [p["fep"] for p in nodes[0]["ports"]] == ["111", "211"]
    assert "FEP" not in to_dot(catalogue.load("rail_clos"))
