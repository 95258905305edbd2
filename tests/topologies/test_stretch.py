"""Rails whose subnet lies on several switches: the ways over them, and what cannot be."""

from dataclasses import replace
from typing import Any

import pytest

from topologies import catalogue
from topologies.addressing import next_hops
from topologies.analysis.round_trip import ACK_BYTES, base_rtt_ns, mtu_frame_bytes
from topologies.model import VXLAN_OVERHEAD, Bridge, FabricProfile, Node, Topology, TopologyError
from topologies.routing.paths import (
    longest_paths_from,
    octet_times,
    path_delays,
    paths_from,
    spans_from,
    tunnel_times,
)
from topologies.stretch import Passage, Stretch, stretch_of
from topologies.wiring import ticks_of

PODS = (
    "clos:pods=2,hosts=1,gpus_per_host=2,spines=2,super_spines=1,subnets=stretched,"
    "nic_delay=100ns,uplink_delay=1us"
)
SEGMENTS = PODS.replace("pods=2", "segments=2")


def stretched(topology: Topology) -> Stretch:
    found = stretch_of(topology)
    assert found is not None
    return found


def bridge_of(topology: Topology, switch: str) -> Bridge:
    return topology.node(switch).bridges[0]


def test_a_rail_has_one_gateway_on_every_switch() -> None:
    topology = catalogue.load(PODS)
    assert bridge_of(topology, "rail0") == bridge_of(topology, "rail2")
    assert bridge_of(topology, "rail0").vni == 10_101
    assert bridge_of(topology, "rail1") == bridge_of(topology, "rail3")
    assert bridge_of(topology, "rail1").vni == 10_102
    assert stretched(topology).owners == {10_101: ("rail0", "rail2"), 10_102: ("rail1", "rail3")}
    addresses = {gpu.name: str(gpu.ports[0].address) for gpu in topology.gpus}
    assert (addresses["h0g0"], addresses["h1g0"]) == ("10.0.1.2/24", "10.0.1.3/24")
    assert topology.profile == FabricProfile(control_plane="evpn", data_plane="vxlan")


def test_links_between_switches_have_room_for_a_tunnel() -> None:
    topology = catalogue.load(PODS + ",mtu=4096")
    mtus = {
        (topology.node(link.a.node).is_switch and topology.node(link.b.node).is_switch): link.mtu
        for link in topology.links
    }
    assert mtus == {False: 4096, True: 4096 + VXLAN_OVERHEAD}
    assert VXLAN_OVERHEAD == 20 + 8 + 8 + 14


def test_peers_of_a_rail_are_addressed_directly_and_others_by_the_gateway() -> None:
    topology = catalogue.load(PODS)
    peer, other = topology.node("h1g0"), bridge_of(topology, "rail0").mac
    assert next_hops(topology, "h0g0") == {
        "10.0.1.3": peer.ports[0].mac,
        "10.0.2.2": other,
        "10.0.2.3": other,
    }


def test_a_way_to_another_rail_leads_over_the_nearest_switch_that_has_it() -> None:
    """Pod 0: rail0 - spine - rail1, then the tunnel: spine - super - spine - rail3."""
    topology = catalogue.load(PODS)
    assert stretched(topology).nearest("rail0", 10_102) == ("rail1",)
    assert stretched(topology).turns_back
    assert path_delays(topology, "h0g0") == {
        "10.0.1.3": 200 + 4 * 1000,
        "10.0.2.2": 200 + 2 * 1000,
        "10.0.2.3": 200 + 6 * 1000,
    }
    (way,) = stretched(topology).ways("h0g0", "h1g1")
    assert (
        paths_from(topology, "h0g0")["h1g1"] == longest_paths_from(topology, "h0g0")["h1g1"] == way
    )
    assert octet_times(topology, "h0g0")["10.0.2.3"] == pytest.approx(
        sum(8e9 / link.rate_bps for link in way)
    )


def test_of_switches_that_are_equally_near_each_takes_its_part() -> None:
    """Both segments' switches of rail 1 are behind the spines: half of all go on by a tunnel."""
    topology = catalogue.load(SEGMENTS)
    assert stretched(topology).nearest("rail0", 10_102) == ("rail1", "rail3")
    direct, around = 200 + 2 * 1000, 200 + 4 * 1000
    assert path_delays(topology, "h0g0")["10.0.2.2"] == (direct + around) // 2
    shortest, longest = (
        sum(link.delay_ns for link in paths["h0g1"])
        for paths in (paths_from(topology, "h0g0"), longest_paths_from(topology, "h0g0"))
    )
    assert (shortest, longest) == (direct, around)


def test_cables_behind_the_switch_that_has_the_rail_are_passed_in_a_tunnel() -> None:
    """To its own rail from the first switch on, to the other one from that of the same pod; never
    on the cables of GPUs."""
    topology = catalogue.load(PODS)
    stretch = stretched(topology)
    for peer, plain, inside in (("h1g0", 0, 4), ("h0g1", 2, 0), ("h1g1", 2, 4)):
        (way,) = stretch.ways("h0g0", peer)
        assert stretch.tunnel("h0g0", peer, way) == way[1 + plain : 1 + plain + inside]
        span = spans_from(topology, "h0g0")[peer]
        assert (span.hops, span.ticks) == (len(way), ticks_of(topology).span(way).ticks)
        assert span.tunnel_ticks == sum(map(ticks_of(topology).of, way[1 + plain : -1][:inside]))
    assert stretch.passages("h0g0", "h1g0") == (Passage("rail0", "rail0", "rail2"),)
    assert stretch.passages("h0g0", "h1g1") == (Passage("rail0", "rail1", "rail3"),)


def test_what_a_tunnel_adds_takes_time_at_every_port_in_it() -> None:
    """50 octets on four links of 400 Gb/s, 1 ns each; of two ways the mean."""
    topology = catalogue.load(PODS + ",uplink_rate=400G")
    assert tunnel_times(topology, "h0g0") == {"10.0.1.3": 4.0, "10.0.2.2": 0.0, "10.0.2.3": 4.0}
    both = catalogue.load(SEGMENTS + ",uplink_rate=400G")
    assert tunnel_times(both, "h0g0")["10.0.2.2"] == (0 + 2) / 2
    assert tunnel_times(catalogue.load("rail_clos"), "h0g0") == {}


def test_the_base_round_trip_has_the_larger_frame_where_it_is() -> None:
    topology = catalogue.load(PODS + ",uplink_rate=400G,nic_rate=400G")
    frame = mtu_frame_bytes(topology)
    assert frame == 9000 + 38  # as a GPU sends it
    delays, hops, inside = 2 * (200 + 6 * 1000), 8, 4
    octets = hops * (frame + ACK_BYTES) + inside * 2 * VXLAN_OVERHEAD
    assert base_rtt_ns(topology, frame) == -(-(delays * 50 + octets) // 50)


def test_switches_with_all_rails_send_nothing_up_again() -> None:
    topology = catalogue.load(PODS + ",rails_per_switch=2")
    assert not stretched(topology).turns_back
    assert set(path_delays(topology, "h0g0").values()) == {200, 200 + 4 * 1000}


@pytest.mark.parametrize(
    ("spec", "stated"),
    [
        ("clos:subnets=stretched", "there is one segment, over which a subnet lies anyway"),
        ("clos:pods=2,subnets=stretched", "super_spines 0: tunnels need a way"),
        ("clos:segments=2,spines=0,subnets=stretched", "spines 0: tunnels need a way"),
        (PODS + ",nic_ports=2", "nic_ports 2 and homing paths; .* take homing=esi"),
        (PODS + ",vlans=on", "vlans on; tunnels are ports of a bridge for each rail"),
        (PODS + ",vlans=auto", "vlans auto; tunnels are ports of a bridge for each rail"),
        (
            PODS.replace("hosts=1", "hosts=127"),
            "of all 2 segments together, hosts is 254 .* 253 of them; take subnet_prefix=/23",
        ),
        (PODS + ",mtu=65000", "a tunnel adds 50 octets, more than 65000 in all"),
        (PODS + ",buffer=9030B", "less than one frame of mtu 9000 in a tunnel"),
    ],
)
def test_what_cannot_be_stretched(spec: str, stated: str) -> None:
    with pytest.raises(TopologyError, match=stated):
        catalogue.load(spec)


@pytest.mark.parametrize(
    ("spec", "plane", "data", "stated"),
    [
        (PODS, "ebgp:bfd=off", "vxlan", "control_plane is ebgp and data_plane vxlan: only evpn"),
        (PODS, "evpn", "ethernet", "data_plane is ethernet and subnets are stretched"),
        ("rail_clos", "evpn:bfd=off", "vxlan", "no subnet is stretched over switches"),
        ("rail_clos", "evpn", "ethernet", "no subnet is stretched over switches"),
        ("rail_clos", "static", "vxlan", "control_plane is static and data_plane vxlan"),
    ],
)
def test_tunnels_and_who_tells_of_them_go_together(
    spec: str, plane: str, data: str, stated: str
) -> None:
    profile = FabricProfile(control_plane=plane, data_plane=data)
    with pytest.raises(TopologyError, match=stated):
        replace(catalogue.load(spec), profile=profile)


def with_bridge(topology: Topology, switch: str, **changes: Any) -> Topology:
    """``topology`` with the first bridge of ``switch`` changed."""

    def changed(node: Node) -> Node:
        if node.name != switch:
            return node
        first = replace(node.bridges[0], **changes)
        return replace(node, bridges=(first, *node.bridges[1:]))

    return replace(topology, nodes=tuple(changed(node) for node in topology.nodes))


@pytest.mark.parametrize(
    ("changes", "stated"),
    [
        ({"vni": None}, "rail2:rail0 has the MAC address of rail0:rail0"),
        ({"mac": "12:10:00:00:00:77"}, "rail2:rail0 has the address of rail0:rail0"),
        ({"vni": 10_102}, "VNI 10102 is used twice, for the subnet of rail1:rail1 and for the"),
    ],
)
def test_parts_of_a_rail_are_alike(changes: dict[str, object], stated: str) -> None:
    with pytest.raises(TopologyError, match=stated):
        with_bridge(catalogue.load(PODS), "rail2", **changes)


def test_a_tunnel_that_does_not_fit_is_refused() -> None:
    topology = catalogue.load(PODS)
    links = tuple(replace(link, mtu=9000) for link in topology.links)
    with pytest.raises(TopologyError, match="no room for packets of 9000 octets in a tunnel"):
        replace(topology, links=links)
