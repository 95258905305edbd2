"""Topology descriptions: the addressing plan, rail_clos, its numbers, and validation."""

import dataclasses
from fractions import Fraction
from ipaddress import IPv4Interface, IPv4Network
from typing import Any

import pytest

from topologies import addressing
from topologies.analysis.capacity import (
    bisection_bandwidth,
    format_ratio,
    max_flow,
    oversubscription,
)
from topologies.designs.rail_clos import rail_clos
from topologies.model import CableEnd, Node, Port, Role, ScaleUp, Server, Topology, TopologyError
from topologies.parts.assembly import Assembly
from topologies.routing.paths import path_delays, paths_from

GBPS = 10**9


@pytest.fixture(scope="module")
def reference() -> Topology:
    return rail_clos()


@pytest.fixture(scope="module")
def largest() -> Topology:
    return rail_clos(hosts=64, gpus_per_host=8, spines=4)


# --- the addressing plan -------------------------------------------------------------------------


def test_subnets_gateways_and_addresses_are_those_of_the_figures(reference: Topology) -> None:
    for rail in range(4):
        (bridge,) = reference.node(f"rail{rail}").bridges
        assert str(bridge.gateway) == f"10.0.{rail + 1}.1/24"
        for host in range(6):
            gpu = reference.node(f"h{host}g{rail}")
            assert str(gpu.port("eth0").address) == f"10.0.{rail + 1}.{host + 2}/24"
            assert gpu.gateway == f"10.0.{rail + 1}.1"


def test_every_mac_and_address_is_unique_at_512_gpus(largest: Topology) -> None:
    assert len(largest.gpus) == 512
    macs = [port.mac for node in largest.nodes for port in node.ports]
    macs += [bridge.mac for node in largest.nodes for bridge in node.bridges]
    assert len(set(macs)) == len(macs)
    addresses = [port.address.ip for node in largest.nodes for port in node.ports if port.address]
    addresses += [
        each.gateway.ip for node in largest.nodes for each in node.bridges if each.gateway
    ]
    addresses += [node.loopback for node in largest.nodes if node.loopback]
    assert len(set(addresses)) == len(addresses)
    seeds = [switch.hash_seed for switch in largest.switches]
    assert len(set(seeds)) == len(seeds)
    assert 0 not in seeds


def test_macs_are_locally_administered_unicast_and_tell_the_position(reference: Topology) -> None:
    for node in reference.nodes:
        macs = [*(port.mac for port in node.ports), *(bridge.mac for bridge in node.bridges)]
        assert all(int(mac[:2], 16) & 3 == 2 for mac in macs)
    assert reference.node("h5g3").port("eth0").mac == "12:01:00:05:03:00"
    assert reference.node("rail2").port("up1").mac == "12:11:00:02:00:07"


def test_switch_links_are_slash_31_outside_the_rails(reference: Topology) -> None:
    for link in reference.links:
        ends = [reference.node(end.node).port(end.port).address for end in link.ends]
        if all(reference.node(end.node).is_switch for end in link.ends):
            a, b = ends
            assert a is not None
            assert b is not None
            assert a.network == b.network
            assert a.network.prefixlen == 31
            assert a.ip in IPv4Network("172.16.0.0/13")


@pytest.mark.parametrize(
    ("rail", "prefix", "subnet"),
    [
        (0, 28, "10.0.1.0/28"),
        (1, 28, "10.0.2.0/28"),
        (0, 22, "10.0.4.0/22"),
        (1, 23, "10.0.4.0/23"),
    ],
)
def test_rail_subnets_with_other_prefixes(rail: int, prefix: int, subnet: str) -> None:
    assert str(addressing.rail_subnet(rail, subnet_prefix=prefix)) == subnet


def test_the_largest_host_count_of_a_prefix_fits_and_one_more_is_refused() -> None:
    assert rail_clos(hosts=13, subnet_prefix=28).node("h12g0").port("eth0").address == (
        IPv4Interface("10.0.1.14/28")
    )
    with pytest.raises(TopologyError, match=r"hosts is 14 .*subnet_prefix=/28.*take .*=/27"):
        rail_clos(hosts=14, subnet_prefix=28)


def test_next_hops_are_the_peer_on_the_rail_and_the_gateway_elsewhere(reference: Topology) -> None:
    table = addressing.next_hops(reference, "h0g1")
    assert len(table) == 23
    assert table["10.0.2.7"] == reference.node("h5g1").port("eth0").mac
    assert table["10.0.1.2"] == reference.node("rail1").bridges[0].mac
    assert "10.0.2.2" not in table


def test_path_delays_are_sums_of_link_delays() -> None:
    topology = rail_clos(nic_delay="100ns", uplink_delay="1us")
    delays = path_delays(topology, "h0g0")
    assert delays["10.0.1.3"] == 200
    assert delays["10.0.2.2"] == 2200
    assert len(delays) == 23


def test_addressing_of_a_switch_is_refused(reference: Topology) -> None:
    with pytest.raises(TopologyError, match="spine0 is a spine node, not a GPU"):
        addressing.next_hops(reference, "spine0")
    with pytest.raises(TopologyError, match="has no node 'h9g9'"):
        path_delays(reference, "h9g9")


# --- rail_clos -----------------------------------------------------------------------------------


def test_the_default_is_the_6x4_cluster_and_non_blocking(reference: Topology) -> None:
    assert [len(server.gpus) for server in reference.servers] == [4] * 6
    assert [gpu.name for gpu in reference.gpus[:5]] == ["h0g0", "h0g1", "h0g2", "h0g3", "h1g0"]
    assert [s.name for s in reference.switches] == [
        *("rail0", "rail1", "rail2", "rail3"),
        *("spine0", "spine1"),
    ]
    assert {link.rate_bps for link in reference.links} == {400 * GBPS}
    assert len(reference.links) == 24 + 4 * 2 * 3
    assert oversubscription(reference) == {Role.RAIL: Fraction(1)}
    assert bisection_bandwidth(reference) == {"servers": 4800 * GBPS, "rails": 4800 * GBPS}


@pytest.mark.parametrize(
    ("parameters", "ratio", "shown"),
    [
        ({"uplinks_per_spine": 1}, Fraction(3), "3:1"),
        ({"uplinks_per_spine": 2}, Fraction(3, 2), "1.5:1"),
        ({"spines": 1, "uplink_rate": "800G"}, Fraction(1), "1:1"),
        ({"hosts": 5}, Fraction(5, 6), "0.83:1"),  # 2.5 links a spine, rounded up to 3
        ({"hosts": 64, "gpus_per_host": 8, "spines": 8}, Fraction(1), "1:1"),
    ],
)
def test_oversubscription(parameters: dict[str, int], ratio: Fraction, shown: str) -> None:
    topology = rail_clos(**parameters)
    assert oversubscription(topology) == {Role.RAIL: ratio}
    assert format_ratio(ratio) == shown


def test_oversubscribed_spines_bound_the_cut_between_rails_only() -> None:
    topology = rail_clos(uplinks_per_spine=1)
    assert bisection_bandwidth(topology) == {"servers": 4800 * GBPS, "rails": 1600 * GBPS}


def test_max_flow_of_one_pair_is_its_nic_and_does_not_pass_through_other_gpus() -> None:
    topology = rail_clos(uplinks_per_spine=1, uplink_rate="100G")
    assert max_flow(topology, {"h0g0"}, {"h1g0"}) == 400 * GBPS
    assert max_flow(topology, {"h0g0"}, {"h1g1"}) == 200 * GBPS
    with pytest.raises(TopologyError, match="h0g0 is a source and a sink"):
        max_flow(topology, {"h0g0"}, {"h0g0"})


def test_equal_paths_in_a_clos_have_the_fewest_hops(reference: Topology) -> None:
    paths = paths_from(reference, "h0g0")
    assert len(paths["h5g0"]) == 2
    assert len(paths["h5g3"]) == 4
    assert set(paths) == {node.name for node in reference.nodes}


@pytest.mark.parametrize("hosts", [1, 2, 33])
@pytest.mark.parametrize("gpus_per_host", [1, 8])
@pytest.mark.parametrize("spines", [1, 5])
def test_other_shapes_build(hosts: int, gpus_per_host: int, spines: int) -> None:
    topology = rail_clos(hosts=hosts, gpus_per_host=gpus_per_host, spines=spines)
    assert len(topology.gpus) == hosts * gpus_per_host
    assert oversubscription(topology)[Role.RAIL] <= 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"hosts": 0}, r"hosts is 0; it must lie in 1 \.\. 16384"),
        ({"hosts": "six"}, r"hosts: 'six' is not a whole number"),
        ({"gpus_per_host": 256}, r"leaves room for 255 rails .*fewer gpus_per_host"),
        ({"spines": 0, "super_spines": 1}, r"super_spines is 1 and spines 0"),
        ({"rails": 2}, r"rails is 2 and gpus_per_host 4; .*leave rails out"),
        ({"nic_rate": "400"}, r"nic_rate: '400' has no unit"),
        ({"uplink_rate": 0}, r"uplink_rate is 0 bps"),
        ({"uplink_rate": "1M"}, r"2400006 ports.*higher uplink_rate"),
        ({"nic_delay": "2s"}, r"nic_delay is 2 s"),
        ({"uplink_delay": "600"}, r"uplink_delay: '600' has no unit"),
        ({"mtu": 100}, r"mtu is 100 B; it must lie in 576 B \.\. 65000 B"),
        ({"buffer": "9000"}, r"buffer is 9000 B, less than one frame"),
        ({"subnet_prefix": "/31"}, r"subnet_prefix is /31; it must lie in /17 \.\. /30"),
        ({"scale_up_rate": "fast"}, r"scale_up_rate: 'fast' is not a rate"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, int], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        rail_clos(**parameters)


# --- validation of hand-made topologies ----------------------------------------------------------


def _with_node(topology: Topology, which: str, /, **changes: Any) -> Topology:
    nodes = [
        dataclasses.replace(node, **changes) if node.name == which else node
        for node in topology.nodes
    ]
    return dataclasses.replace(topology, nodes=tuple(nodes))


def _with_port(topology: Topology, end: CableEnd, **changes: Any) -> Topology:
    ports = [
        dataclasses.replace(p, **changes) if p.name == end.port else p
        for p in topology.node(end.node).ports
    ]
    return _with_node(topology, end.node, ports=tuple(ports))


def _with_first_link(topology: Topology, **changes: Any) -> Topology:
    first, *rest = topology.links
    return dataclasses.replace(
        topology,
        links=(dataclasses.replace(first, **changes), *rest),
    )


GPU_PORT, UPLINK = CableEnd("h0g0", "eth0"), CableEnd("rail0", "up0")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: _with_node(t, "h0g0", name="H0"), r"node name 'H0'"),
        (lambda t: _with_node(t, "h0g1", name="h0g0"), r"two nodes are named h0g0"),
        (lambda t: _with_node(t, "h0g0", gateway="10.9.9.9"), r"h0g0: .*gateway address 10\.9"),
        (
            lambda t: _with_node(t, "spine0", loopback=t.node("rail0").loopback),
            r"loopback of spine0 has the address of the loopback of rail0",
        ),
        (lambda t: _with_port(t, GPU_PORT, mac="02:00"), r"h0g0:eth0: '02:00' is not a MAC"),
        (
            lambda t: _with_port(t, GPU_PORT, mac=t.node("h0g1").ports[0].mac),
            r"h0g1:eth0 has the MAC address of h0g0:eth0",
        ),
        (
            lambda t: _with_port(t, GPU_PORT, address=IPv4Interface("10.0.1.3/24")),
            r"h1g0:eth0 has the address of h0g0:eth0",
        ),
        (
            lambda t: _with_port(t, GPU_PORT, address=IPv4Interface("10.7.0.2/24")),
            r"link h0g0:eth0 - rail0:down0: .*different subnets, 10\.7\.0\.0/24 and 10\.0\.1\.0",
        ),
        (lambda t: _with_port(t, UPLINK, bridge="rail0"), r"rail0:up0 must have either"),
        (lambda t: _with_port(t, UPLINK, address=None, bridge="x"), r"rail0:up0: .*no bridge 'x'"),
        (lambda t: _with_port(t, UPLINK, name="a-very-long-name"), r"at most 15"),
        (lambda t: _with_port(t, UPLINK, name="up1"), r"rail0:up1 exists twice"),
        (lambda t: _with_first_link(t, rate_bps=0), r"rail0:down0: the rate"),
        (lambda t: _with_first_link(t, delay_ns=-1), r"rail0:down0: the delay"),
        (lambda t: _with_first_link(t, mtu=10), r"rail0:down0: the MTU"),
        (lambda t: _with_first_link(t, buffer_bytes=10), r"rail0:down0: a buffer"),
        (lambda t: _with_first_link(t, a=CableEnd("h9g0", "eth0")), r"there is no node 'h9g0'"),
        (lambda t: _with_first_link(t, a=CableEnd("h0g0", "eth7")), r"h0g0 has no port 'eth7'"),
        (lambda t: _with_first_link(t, a=CableEnd("h1g0", "eth0")), r"two cables .* h1g0:eth0"),
        (lambda t: dataclasses.replace(t, links=t.links[1:]), r"h0g0:eth0 has no cable"),
        (lambda t: dataclasses.replace(t, servers=t.servers[1:]), r"h0g0 stands in no server"),
        (
            lambda t: dataclasses.replace(t, servers=(*t.servers, t.servers[0])),
            r"h0g0 stands in two servers",
        ),
        (
            lambda t: dataclasses.replace(
                t, servers=(*t.servers[:-1], dataclasses.replace(t.servers[-1], name="h0"))
            ),
            r"two servers are named h0",
        ),
        (
            lambda t: dataclasses.replace(
                t,
                servers=(
                    dataclasses.replace(t.servers[0], scale_up=ScaleUp(rate_bps=0)),
                    *t.servers[1:],
                ),
            ),
            r"server h0: the scale-up rate",
        ),
        (lambda t: dataclasses.replace(t, servers=(), nodes=(), links=()), r"has no GPUs"),
        (
            lambda t: dataclasses.replace(
                t, servers=(*t.servers, Server(name="x", gpus=("rail0",)))
            ),
            r"server x: 'rail0' is not a GPU",
        ),
    ],
)
def test_contradictions_are_refused(reference: Topology, spoil: object, message: str) -> None:
    assert callable(spoil)
    with pytest.raises(TopologyError, match=message):
        spoil(reference)


def test_overlapping_rail_subnets_are_refused(reference: Topology) -> None:
    (bridge,) = reference.node("rail1").bridges
    wide = dataclasses.replace(bridge, gateway=IPv4Interface("10.0.1.200/16"))
    with pytest.raises(TopologyError, match=r"subnet of rail1:rail1 overlaps that of rail0:rail0"):
        _with_node(reference, "rail1", bridges=(wide,))


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        (("10.0.1.128/25", "10.0.1.129/25"), r"rail0:rail0 overlaps that of link rail0:up0 - s"),
        (("172.16.0.0/30", "172.16.0.1/30"), r"link rail0:up0 - .* overlaps that of link .*:up1"),
        (("10.255.0.6/29", "10.255.0.7/29"), r"link rail0:up0 - .* that of the loopback of rail0"),
    ],
)
def test_overlapping_subnets_of_cables_are_refused(
    reference: Topology, addresses: tuple[str, str], message: str
) -> None:
    ends = (UPLINK, reference.far_end(UPLINK))
    nodes = []
    for node in reference.nodes:
        ports = tuple(
            dataclasses.replace(port, address=IPv4Interface(addresses[ends.index(end)]))
            if (end := CableEnd(node.name, port.name)) in ends
            else port
            for port in node.ports
        )
        nodes.append(dataclasses.replace(node, ports=ports))
    with pytest.raises(TopologyError, match=message):
        dataclasses.replace(reference, nodes=tuple(nodes))


def test_a_cable_from_a_switch_to_itself_is_refused() -> None:
    fabric = Assembly(mtu=9000, buffer_bytes=1 << 20)
    fabric.switch(Role.ROUTER, "r0")
    fabric.join("r0", "r0", rate_bps=GBPS, delay_ns=0)
    with pytest.raises(TopologyError, match=r"link r0:up0 - r0:down0: both ends .* into r0"):
        fabric.topology("loop", {})


def test_a_gpu_without_an_address_has_no_next_hop() -> None:
    gpu = Node(
        name="g", role=Role.GPU, ports=(Port(name="p", mac="02:00:00:00:00:00", bridge="b"),)
    )
    with pytest.raises(TopologyError, match="GPU g has no port with an address"):
        addressing.gpu_address(gpu)
