"""The named designs: their numbers, subnets, VLANs, interfaces and summaries are the figures'."""

import dataclasses
import inspect
from ipaddress import IPv4Network

import pytest

from tests import CHECKOUT
from topologies import catalogue
from topologies.analysis.capacity import (
    bisection_bandwidth,
    format_ratio,
    oversubscription,
    switch_ports,
)
from topologies.analysis.failure_domain import failure_domains
from topologies.model import Bridge, CableEnd, Role, Topology, TopologyError
from topologies.units import format_rate

NAMED = [
    "nic_per_gpu",
    "shared_nic",
    "single_rail_switch",
    "dual_rail_switch",
    "rail_only",
    "host_segment",
    "pod",
    "multi_pod",
    "multi_rail_per_switch",
    "dual_rail_per_switch",
    "single_rail_per_switch",
    "fabric_planes",
    "cluster",
    "cluster_storage",
]
TBPS = 10**12


def numbers(topology: Topology) -> str:
    """Return what the docstring of a design says of it."""
    switches = len(topology.switches)
    cuts = (f"{name} {format_rate(bps)}" for name, bps in bisection_bandwidth(topology).items())
    stated = (
        f"{len(topology.gpus)} GPUs, {switches} switch{'es' if switches > 1 else ''}, "
        f"{len(topology.links)} links; bisection: {', '.join(cuts)}"
    )
    ratios = oversubscription(topology)
    if ratios:
        shown = (f"{role} {format_ratio(ratio)}" for role, ratio in ratios.items())
        stated += f"; oversubscription: {', '.join(shown)}"
    return f"{stated}."


@pytest.mark.parametrize("name", NAMED)
def test_the_numbers_in_a_docstring_are_those_of_the_fabric(name: str) -> None:
    design = catalogue.DESIGNS[name].parameters
    words = " ".join((inspect.getdoc(design) or "").split())
    assert numbers(catalogue.load(name)) in words


@pytest.mark.parametrize("name", NAMED)
def test_the_spec_of_a_named_design_builds_it_again(name: str) -> None:
    topology = catalogue.load(name)
    assert topology.name == name
    assert catalogue.load(catalogue.spec_of(topology)) == topology


def members(topology: Topology, switch: str, bridge: str) -> list[tuple[int, str]]:
    """(interface number of the switch from 1, GPU behind it) of one rail."""
    node = topology.node(switch)
    return [
        (
            int(port.name.removeprefix("down")) + 1,
            next(far.node for far, _ in topology.beyond(CableEnd(switch, port.name))),
        )
        for port in node.ports
        if port.bridge == bridge and CableEnd(switch, port.name) not in topology.standby_ends
    ]


def rails(topology: Topology, switch: str) -> list[tuple[str, int | None]]:
    found = []
    for bridge in topology.node(switch).bridges:
        assert bridge.gateway is not None
        found.append((str(bridge.gateway.network), bridge.vlan))
    return found


def summaries(topology: Topology, switch: str) -> list[str]:
    return [str(summary) for summary in topology.node(switch).summaries]


def behind(topology: Topology, gpu: str, port: str = "eth0") -> str:
    """The switch behind a port of a GPU, through its NIC if that is shared."""
    far = topology.far_end(CableEnd(gpu, port)).node
    if topology.node(far).role is Role.NIC:
        (far,) = (
            end.node for _, _, end in topology.neighbours(far) if topology.node(end.node).is_switch
        )
    return far


def test_single_rail_switch_groups_its_interfaces_by_server() -> None:
    topology = catalogue.load("single_rail_switch")
    (switch,) = topology.switches
    assert [topology.far_end(CableEnd("rail0", port.name)).node for port in switch.ports] == [
        f"h{host}g{rank}" for host in range(3) for rank in range(8)
    ]
    assert rails(topology, "rail0") == [(f"10.0.{rail + 1}.0/24", 101 + rail) for rail in range(8)]
    assert all(
        topology.node(f"h{host}g{rank}").gateway == f"10.0.{rank + 1}.1"
        for host in range(3)
        for rank in range(8)
    )


@pytest.mark.parametrize(
    ("name", "bonded"),
    [
        ("dual_rail_switch", True),
        ("host_segment", True),
        ("host_segment:homing=paths", False),
        ("fabric_planes", False),
    ],
)
def test_the_ports_of_a_dual_port_nic_are_on_two_switches(name: str, bonded: bool) -> None:
    topology = catalogue.load(name)
    for gpu in topology.gpus:
        assert [behind(topology, gpu.name, port.name) for port in gpu.ports] == ["rail0", "rail1"]
        assert (gpu.loopback is None) is (bonded or bool(gpu.feps))
        assert bool(gpu.feps) is (name == "fabric_planes")
        assert ({port.bond for port in gpu.ports} == {"bond0"}) is bonded
    assert {switch.plane for switch in topology.switches} == {0, 1}


@pytest.mark.parametrize(
    ("name", "ports", "rate"),
    [
        ("nic_per_gpu", 1, 200),
        ("single_rail_switch", 1, 200),
        ("dual_rail_switch", 2, 200),
        ("host_segment", 2, 200),
        ("pod", 2, 100),
        ("multi_pod", 2, 100),
    ],
)
def test_gpus_have_the_ports_of_the_figure(name: str, ports: int, rate: int) -> None:
    topology = catalogue.load(name)
    for gpu in topology.gpus:
        rates = [link.rate_bps for link, _, _ in topology.neighbours(gpu.name)]
        assert rates == [rate * 10**9] * ports


def test_two_ports_of_200_gbps_are_400() -> None:
    for name in ("dual_rail_switch", "host_segment"):
        topology = catalogue.load(name)
        rates = [link.rate_bps for link, _, _ in topology.neighbours("h1g5")]
        assert rates == [200 * 10**9] * 2


#: The interfaces of each rail on a 48-port switch, of hosts 1 to 4 (figure 13-6).
PORT_MAP = (
    (1, 4, 7, 10),
    (13, 16, 19, 22),
    (25, 28, 31, 34),
    (37, 40, 43, 46),
    (2, 5, 8, 11),
    (14, 17, 20, 23),
    (26, 29, 32, 35),
    (38, 41, 44, 47),
)


def test_host_segment_maps_interfaces_to_rails() -> None:
    topology = catalogue.load("host_segment")
    for switch in ("rail0", "rail1"):
        for rail, interfaces in enumerate(PORT_MAP):
            assert members(topology, switch, f"rail{rail}") == [
                (interface, f"h{host}g{rail}") for host, interface in enumerate(interfaces)
            ]


@pytest.mark.parametrize(
    "homing",
    ["bond", "paths", "esi,subnets=stretched,spines=2,uplink_rate=800G,uplinks_per_spine=2"],
)
def test_the_port_map_holds_for_every_homing(homing: str) -> None:
    topology = catalogue.load(f"host_segment:homing={homing}")
    found = {
        bridge.name: members(topology, "rail1", bridge.name)
        for bridge in topology.node("rail1").bridges
    }
    assert [tuple(n for n, _ in found[f"rail{rail}"]) for rail in range(8)] == list(PORT_MAP)


def test_shared_nics_take_the_port_map_too() -> None:
    topology = catalogue.load("shared_nic:hosts=4,port_order=interleaved,switch_ports=24")
    taken = {port.name: port.bridge for port in topology.node("rail0").ports}
    assert taken == {f"down{n}": f"rail{n // 12}" for n in (*range(0, 12, 3), *range(12, 24, 3))}


def test_rail_only_has_nothing_between_rails() -> None:
    topology = catalogue.load("rail_only")
    assert bisection_bandwidth(topology)["rails"] == 0
    assert all(
        not topology.node(end.node).is_switch
        for switch in topology.switches
        for _, _, end in topology.neighbours(switch.name)
    )


def test_pod_is_three_point_two_tbps_down_and_up() -> None:
    for spec in ("pod", "pod:uplink_rate=400G"):
        topology = catalogue.load(spec)
        assert [switch.name for switch in topology.switches if switch.role is Role.RAIL] == [
            *("rail0", "rail1", "rail2", "rail3")
        ]
        for rail in range(4):
            ways = {Role.GPU: 0, Role.SPINE: 0}
            down = []
            for link, _, end in topology.neighbours(f"rail{rail}"):
                ways[topology.node(end.node).role] += link.rate_bps
                if topology.node(end.node).role is Role.GPU:
                    down.append(link.rate_bps)
            assert ways == {Role.GPU: 3.2 * TBPS, Role.SPINE: 3.2 * TBPS}
            assert down == [100 * 10**9] * 32
        links = [end.node for _, _, end in topology.neighbours("rail0")]
        assert links.count("spine0") == (2 if "400G" in spec else 1)


def test_multi_pod_joins_every_spine_to_four_super_spines() -> None:
    topology = catalogue.load("multi_pod")
    assert [sum(gpu.pod == pod for gpu in topology.gpus) for pod in range(2)] == [64, 64]
    for number in range(8):
        up = [
            (end.node, link.rate_bps)
            for link, _, end in topology.neighbours(f"spine{number}")
            if topology.node(end.node).role is Role.SUPER_SPINE
        ]
        assert up == [(f"super{top}", 800 * 10**9) for top in range(4)]


def test_multi_rail_per_switch_has_a_28_and_a_vlan_for_each_rail() -> None:
    topology = catalogue.load("multi_rail_per_switch")
    assert rails(topology, "rail0") == [(f"10.0.{n}.0/28", 100 + n) for n in range(1, 9)]
    for rail in range(8):  # four interfaces each: 1-4, 5-8, ...
        assert members(topology, "rail0", f"rail{rail}") == [
            (4 * rail + host + 1, f"h{host}g{rail}") for host in range(4)
        ]
    assert summaries(topology, "rail0") == [f"10.0.{octet}.0/24" for octet in range(1, 9)]
    assert summaries(topology, "rail1") == [f"10.0.{octet}.0/24" for octet in range(9, 17)]
    assert {len(s.ports) for s in topology.switches if s.role is Role.RAIL} == {48}
    four = catalogue.load("multi_rail_per_switch:segments=1,rails_per_switch=4,hosts=8")
    assert [len(rails(four, f"rail{number}")) for number in range(2)] == [4, 4]


def test_dual_rail_per_switch_divides_a_24() -> None:
    topology = catalogue.load("dual_rail_per_switch")
    assert rails(topology, "rail0") == [("10.0.1.0/25", 101), ("10.0.1.128/25", 102)]
    assert summaries(topology, "rail0") == ["10.0.1.0/24"]
    assert members(topology, "rail0", "rail0") == [(n, f"h{n - 1}g0") for n in range(1, 17)]
    assert members(topology, "rail0", "rail1") == [(n, f"h{n - 17}g1") for n in range(17, 33)]
    assert rails(topology, "rail3") == [("10.0.4.0/25", 107), ("10.0.4.128/25", 108)]


def test_single_rail_per_switch_needs_no_summary() -> None:
    topology = catalogue.load("single_rail_per_switch")
    assert rails(topology, "rail0") == [("10.0.1.0/24", 101)]
    assert rails(topology, "rail7") == [("10.0.8.0/24", 108)]
    assert not any(switch.summaries for switch in topology.switches)
    assert members(topology, "rail0", "rail0") == [(n, f"h{n - 1}g0") for n in range(1, 33)]


def test_four_gpus_share_a_nic_of_200_gbps() -> None:
    topology = catalogue.load("shared_nic")
    for server in topology.servers:
        nics = {topology.far_end(CableEnd(gpu, "eth0")).node: gpu for gpu in server.gpus}
        assert len(nics) == 2
        for nic in nics:
            rates = sorted(link.rate_bps for link, _, _ in topology.neighbours(nic))
            assert rates == [200 * 10**9, *[256 * 10**9] * 4]
    assert [topology.node(f"h1g{rank}").rail for rank in range(8)] == [0] * 4 + [1] * 4


def test_switch_ports_are_both_ends_of_uplinks_and_one_of_nic_links() -> None:
    assert switch_ports(catalogue.load("pod")) == 128 + 2 * 16
    assert switch_ports(catalogue.load("shared_nic")) == 4


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "multi_rail_per_switch:hosts=5",
            r"switch_ports is 48 and a rail switch would need 60 .*\(40 down, 20 up\)",
        ),
        ("single_rail_switch:switch_ports=23", r"switch_ports is 23 .* need 24"),
        ("multi_rail_per_switch:hosts=14,switch_ports=192", r"hosts is 14 and subnet_prefix=/28"),
        ("pod:nic_rate=0G", r"nic_rate is 0 bps; it must lie in"),
        ("pod:uplink_rate=0G", r"uplink_rate is 0 bps"),
        ("pod:rails_per_switch=3", r"rails_per_switch is 3 and a server has 8 rails"),
        ("pod:nic_ports=3", r"nic_ports is 3; a NIC has 1, 2, 4, 8 or 16 ports"),
        ("pod:nic_ports=4,homing=bond", r"homing is bond and nic_ports 4; a bond has two ports"),
        (
            "host_segment:hosts=6,homing=paths",
            r"panel of 48 ports has 3 rows for 2 rails of 6 servers .* has 8 rails; .*fewer hosts",
        ),
        ("clos:hosts=17,port_order=interleaved", r"3 rows for 0 rails of 17 servers"),
        ("shared_nic:gpus_per_nic=3", r"gpus_per_host is 8 and gpus_per_nic 3"),
        ("shared_nic:nic_ports=2", r"nic_ports is 2 and gpus_per_nic 4"),
        ("multi_pod:pods=256,hosts=1", r"pod 255 does not fit"),
        ("multi_pod:spines=0", r"super_spines is 4 and spines 0"),
        ("clos:gpus_per_host=256", r"leaves room for 255 rails"),
        ("clos:gpus_per_host=16,subnet_prefix=20", r"room for 15 rails .* or segments"),
        ("dual_rail_per_switch:rails_per_switch=4", r"do not fit in one /24.*longer subnet_prefix"),
        ("clos:subnets=divided,subnet_prefix=20", r"the rail of a switch does not fit in one /24"),
        (
            "clos:hosts=16,gpus_per_nic=4,subnet_prefix=28",
            r"hosts is 16, each with 4 GPUs on a rail, .* addresses for 13 GPUs; .*=/25",
        ),
        (
            "clos:segments=64,hosts=1,gpus_per_host=1,spines=4000,uplinks_per_spine=1"
            ",super_spines=4000,uplinks_per_super=1",
            r"would be 16000000 links to super-spine .* for 262144; take fewer .*super_spines",
        ),
        ("clos:super_spines=16384", r"would be 16384 super-spine .* for 16383; .* super_spines"),
        (
            "clos:segments=60,hosts=70,gpus_per_host=4,nic_ports=2,spines=0",
            r"would be 16800 GPUs with several ports, .* for 16383; .*hosts or gpus_per_host",
        ),
        ("dual_rail_per_switch:hosts=127", r"hosts is 127 and subnet_prefix=/25"),
        ("fabric_planes:spines=2,super_spines=1", r"super-spines would join the planes"),
        ("pod:planes=both", r"planes is 'both'; it is one of shared, own"),
    ],
)
def test_bad_parameters_are_refused_by_name(spec: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        catalogue.load(spec)


def test_more_rails_per_switch_than_there_are_divide_a_24_like_those_there_are() -> None:
    spec = "clos:subnets=divided,rails_per_switch=8,subnet_prefix=25,gpus_per_host=2"
    assert rails(catalogue.load(spec), "rail0") == [("10.0.1.0/25", 101), ("10.0.1.128/25", 102)]


def test_a_bridge_of_a_shared_nic_has_no_vlan() -> None:
    topology = catalogue.load("shared_nic")
    assert topology.node("h0n0").bridges == (
        Bridge(name="nic", rail=0, mac=topology.node("h0n0").bridges[0].mac),
    )


README = CHECKOUT / "topologies" / "README.md"


@pytest.mark.parametrize("name", NAMED)
def test_the_readme_has_the_numbers_of_every_design(name: str) -> None:
    (row,) = (line for line in README.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    assert row.endswith(readme_row(name))


def readme_row(name: str) -> str:
    """The numbers of a design's row, between its drawing's number and what it is."""
    topology = catalogue.load(name)
    domains = {domain.kind: domain.reported() for domain in failure_domains(topology)}
    cells = (
        len(topology.gpus),
        len(topology.switches),
        len(topology.links),
        f"{switch_ports(topology) / len(topology.gpus):.3g}",
        " / ".join(format_rate(bps) for bps in bisection_bandwidth(topology).values()),
        domains.get("rail switch") or domains["leaf switch"],
        domains.get("spine switch", "-"),
    )
    return f"| {' | '.join(map(str, cells))} |"


def test_a_summary_that_overlaps_the_subnet_of_another_switch_is_refused() -> None:
    topology = catalogue.load("multi_rail_per_switch:hosts=2")
    wide = dataclasses.replace(topology.node("rail0"), summaries=(IPv4Network("10.0.0.0/20"),))
    nodes = tuple(wide if node.name == "rail0" else node for node in topology.nodes)
    with pytest.raises(TopologyError, match=r"summary 10\.0\.0\.0/20 of rail0 overlaps 10\.0\.9"):
        dataclasses.replace(topology, nodes=nodes)
