"""Test what agents and switches are given for a run, before any of them exists."""

import pytest

from emulator.dataplane.switch import switch_choice as choice
from emulator.run.endpoint_specs import RINGS_OCTETS, endpoint_specs, receive_slots
from emulator.sim.endpoint.endpoint_spec import EndpointSpec
from emulator.sim.endpoint.nic.delay_line import PathDelay
from emulator.transports import default_switch, fit
from topologies.catalogue import load
from topologies.model import CableEnd
from topologies.parts.attachment import nic_rate_bps, switch_ends, way_out
from topologies.routing.paths import octet_times, path_delays, paths_from

FRAME = 4_220


def test_a_receive_ring_holds_what_all_others_may_send_at_once() -> None:
    """Sixteen windows of 1.5 bandwidth-delay products, of which every packet may be trimmed."""
    few, many = (
        receive_slots(load(f"rail_clos:hosts={hosts},gpus_per_host=1,spines=1"), FRAME)
        for hosts in (2, 17)
    )
    assert few == EndpointSpec.receive_slots
    assert many > 2 * EndpointSpec.receive_slots


@pytest.mark.parametrize("hosts", [17, 64, 200])
def test_receive_rings_share_a_bounded_memory(hosts: int) -> None:
    topology = load(f"rail_clos:hosts={hosts},gpus_per_host=1,spines=1")
    slots = receive_slots(topology, FRAME)
    assert slots >= EndpointSpec.receive_slots
    least = EndpointSpec.receive_slots * FRAME * hosts
    assert slots * FRAME * hosts <= max(least, RINGS_OCTETS)


@pytest.mark.parametrize(
    ("requested", "switch"),
    [
        ("uet", "shallow"),
        ("uet:cc=nscc", "shallow"),
        ("uet:cc=rccc", "shallow:last_hop_ecn=off"),
        ("uet:cc=both", "shallow:last_hop_ecn=off"),
    ],
)
def test_where_credit_rules_the_last_hop_it_marks_nothing(requested: str, switch: str) -> None:
    """UES 3.6.14: the receiver answers for its own port."""
    assert default_switch(requested, load("rail_clos:hosts=2,gpus_per_host=1,spines=1")) == switch


TWO_PORTS = "clos:hosts=2,gpus_per_host=2,spines=1,nic_ports=2"
SHARED = "clos:hosts=2,gpus_per_host=4,gpus_per_nic=4,spines=0"
G = 10**9


@pytest.mark.parametrize(
    ("spec", "rate", "ends"),
    [
        ("rail_clos:hosts=2,gpus_per_host=2", 400 * G, ["rail1:down0"]),
        (TWO_PORTS, 800 * G, ["rail1:down0", "rail3:down0"]),
        (SHARED, 256 * G, ["rail0:down0"]),
        (f"{SHARED},pcie_rate=512Gbps", 400 * G, ["rail0:down0"]),
    ],
)
def test_rates_and_switch_ports(spec: str, rate: int, ends: list[str]) -> None:
    topology = load(spec)
    assert nic_rate_bps(topology, "h0g1") == rate
    assert [str(end) for end in switch_ends(topology, "h0g1")] == ends


def test_the_way_out_of_a_shared_nic_has_two_cables() -> None:
    topology = load(SHARED)
    inside, outside = way_out(topology, CableEnd("h0g1", "eth0"))
    assert {str(end) for end in inside.ends} == {"h0g1:eth0", "h0n0:pcie1"}
    assert {str(end) for end in outside.ends} == {"h0n0:port0", "rail0:down0"}


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
@pytest.mark.parametrize(("spec", "rate"), [(TWO_PORTS, 800 * G), (SHARED, 256 * G)])
def test_congestion_control_sees_the_rate_of_all_ports(
    transport: str, spec: str, rate: int
) -> None:
    (config, *_) = fit(transport, load(spec)).configs.values()
    assert config["link_rate" if transport == "uet" else "line_rate"] == rate


def test_paths_begin_at_the_port_that_is_asked_for() -> None:
    topology = load(f"{TWO_PORTS},nic_delay=100ns,uplink_delay=1us")
    first, second = (paths_from(topology, "h0g0", port)["h1g0"] for port in ("eth0", "eth1"))
    assert {end.node for link in first for end in link.ends} == {"h0g0", "rail0", "h1g0"}
    assert {end.node for link in second for end in link.ends} == {"h0g0", "rail2", "h1g0"}
    peer = str(topology.node("h1g1").loopback)
    assert path_delays(topology, "h0g0", "eth1")[peer] == 2200


def test_peers_out_of_reach_are_nobodys_peers() -> None:
    topology = load("clos:hosts=2,gpus_per_host=2,spines=0")
    assert list(path_delays(topology, "h0g0")) == list(octet_times(topology, "h0g0"))
    assert list(path_delays(topology, "h0g0")) == ["10.0.1.3"]
    spec = endpoint_specs(
        topology,
        fit("uet", topology),
        namespace=str,
        nic_delays=True,
        seed=1,
        memory_octets=1,
    )[0]
    assert list(spec.peers) == [2]


def test_every_port_of_an_agent_has_its_gateway_and_its_delays() -> None:
    topology = load(TWO_PORTS)
    spec, *_ = endpoint_specs(
        topology, fit("uet", topology), namespace=str, nic_delays=True, seed=1, memory_octets=1
    )
    assert [port.interface for port in spec.ports] == ["eth0", "eth1"]
    assert [port.gateway_mac for port in spec.ports] == [
        topology.node(rail).bridges[0].mac for rail in ("rail0", "rail2")
    ]
    peer = str(topology.node("h1g0").loopback)
    assert [port.path_delays[peer] for port in spec.ports] == [PathDelay(1200, 0.04)] * 2
    assert spec.address == str(topology.node("h0g0").loopback)


def test_what_waits_in_a_shared_nic_is_not_taken_for_lost() -> None:
    """Its buffer holds the windows of all of its GPUs, and trims none of it."""
    switch, plain = choice.parse("shallow"), "clos:hosts=2,gpus_per_host=4,spines=0"
    own, shared = (
        next(iter(fit("uet", load(spec), switch=switch).configs.values()))
        for spec in (plain, f"{plain},gpus_per_nic=4")
    )
    windows = 4 * shared["window_bytes"] * 8e9 / (256 * 10**9)
    assert own["tail_loss_time"] < windows < shared["tail_loss_time"]
