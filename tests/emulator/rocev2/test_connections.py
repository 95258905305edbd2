"""Test who talks to whom, and what a run makes of ``rocev2:...``."""

from typing import Any

import pytest

from emulator.dataplane.switch.code_points import LAB
from emulator.errors import UserError
from emulator.rocev2.config import HcaConfig
from emulator.rocev2.connections import Connection, full_mesh
from emulator.rocev2.hca import HostChannelAdapter
from emulator.rocev2.wire.codes import FIRST_SOURCE_PORT, flow_label, source_port, timeout_ns
from emulator.transports import describe_options, fit
from emulator.transports.rocev2_transport import FREE, ROCEV2, rocev2_endpoint
from emulator.transports.transport_choice import RTO_BASE_RTTS
from topologies import catalogue
from topologies.addressing import gpu_address
from topologies.analysis.round_trip import base_rtt_ns
from uet.config_checks import ConfigurationError
from uet.encapsulation_choice import EncapsulationError
from uet.transport import WriteRequest

TOPOLOGY = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,spines=1")
ADDRESSES = [f"10.0.0.{n}" for n in range(1, 17)]


@pytest.mark.parametrize("qps", [1, 4])
def test_both_ends_agree(qps: int) -> None:
    meshes = [full_mesh(ADDRESSES, own, qps, seed=3) for own in range(len(ADDRESSES))]
    for own, mesh in enumerate(meshes):
        numbers = [one.local_qpn for several in mesh.values() for one in several]
        assert len(set(numbers)) == len(numbers) == qps * (len(ADDRESSES) - 1)
        for peer, several in mesh.items():
            back = meshes[ADDRESSES.index(peer)][ADDRESSES[own]]
            for one, other in zip(several, back, strict=True):
                assert (one.local_qpn, one.remote_qpn) == (other.remote_qpn, other.local_qpn)
                assert (one.first_psn, one.expected_psn) == (other.expected_psn, other.first_psn)


def test_endpoints_share_their_neighbours_and_make_peers_on_demand() -> None:
    configs = fit("rocev2", TOPOLOGY, seed=1).configs
    tables = {id(config["neighbours"].table) for config in configs.values()}
    assert len(tables) < len(configs)
    hca = rocev2_endpoint(**configs["h0g0"], seed=1)
    assert not hca.peers
    peer = str(gpu_address(TOPOLOGY.gpus[3]).ip)
    hca.post(WriteRequest(peer=peer, key=1, offset=0, payload=memoryview(b"x")))
    assert [one.address for one in hca.peers.values()] == [peer]


def test_a_neighbour_out_of_reach_is_refused_at_once() -> None:
    known = {"10.0.0.2": "02:00:00:00:00:02", "10.0.0.3": "02:00"}
    config = HcaConfig(address="10.0.0.1", mac="02:00:00:00:00:01", neighbours=known)
    with pytest.raises(EncapsulationError, match="02:00"):
        HostChannelAdapter(config)


@pytest.mark.conformance("R-013")
def test_queue_pairs_of_one_peer_have_their_own_ports() -> None:
    """Entropy for switches that hash ports: what several queue pairs to a peer are for."""
    mesh = full_mesh(ADDRESSES, 0, 8, seed=1)
    for several in mesh.values():
        ports = {source_port(flow_label(one.local_qpn, one.remote_qpn)) for one in several}
        assert min(ports) >= FIRST_SOURCE_PORT
        assert max(ports) <= 0xFFFF
        assert len(ports) >= 7


@pytest.mark.parametrize("seed", [1, 2])
def test_the_endpoints_of_a_run_understand_each_other(seed: int) -> None:
    choice = fit("rocev2:qps=2", TOPOLOGY, seed=seed)
    one, other, *_ = (rocev2_endpoint(seed=1, **config) for config in choice.configs.values())
    memory = memoryview(bytearray(20_000))
    other.register(memory, key=1)
    data = memoryview(bytes(n % 251 for n in range(20_000)))
    for _ in range(2):
        one.post(
            WriteRequest(
                peer=other.config.address, key=1, offset=0, payload=data, header_data=(1 << 32) - 2
            )
        )
    for now in range(0, 10_000, 100):
        for here, there in ((one, other), (other, one)):
            frames = [memoryview(b"".join(frame)) for frame in here.transmit(now, 8)]
            assert max(map(len, frames), default=0) <= choice.wire.payload_mtu + 78
            there.receive(frames, now)
    assert [c.error for c in one.completions()] == [None, None]
    assert [c.header_data for c in other.completions()] == [(1 << 32) - 2] * 2
    assert memory == data
    assert other.counters()["qps_open"] == 2


def test_what_a_run_configures() -> None:
    choice = fit("rocev2", TOPOLOGY)
    config = next(iter(choice.configs.values()))
    assert choice.wire.payload_mtu == config["mtu"] == 4096
    assert choice.wire.around_bytes == 82
    base_rtt = base_rtt_ns(TOPOLOGY, 4096 + 82)
    exponent = config["timeout"]
    assert isinstance(exponent, int)
    assert timeout_ns(exponent) >= RTO_BASE_RTTS * base_rtt > timeout_ns(exponent - 1)
    assert choice.frames.udp_ports == (4791,)
    assert choice.frames.ip_protocols == ()
    roles = (LAB.data, LAB.retransmission, LAB.control, LAB.trimmed, LAB.trimmed_last_hop)
    assert config["dscp_data"] == 26 not in roles
    assert config["dscp_cnp"] == LAB.control
    # ACKs wait where those of UET do, unless they are to wait behind data, as on many NICs.
    assert config["dscp_ack"] == LAB.control
    assert "dscp_ack" not in next(iter(fit("rocev2:acks=data", TOPOLOGY).configs.values()))
    small = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,spines=1,mtu=1500")
    assert fit("rocev2", small).wire.payload_mtu == 1024
    assert next(iter(fit("rocev2:timeout=20", small).configs.values()))["timeout"] == 20
    assert next(iter(fit("rocev2:rto=1ms", small).configs.values()))["timeout"] == 8
    windowed = next(iter(fit("rocev2:window=bdp", small).configs.values()))
    window = windowed["window_packets"]
    assert isinstance(window, int)
    assert 64 < window < 10_000


@pytest.mark.parametrize(
    ("requested", "complaint"),
    [
        ("rocev3", "did you mean rocev2?"),
        ("rocev2:qp=4", "did you mean qps?"),
        ("rocev2:qps=0", "whole number in 1..64"),
        ("rocev2:qps=some", "give a number"),
        ("rocev2:qps=1.5", "whole number in 1..64"),
        ("rocev2:mtu=1500", "256, 512, 1024, 2048, 4096"),
        ("rocev2:recovery=sr", "takes one of go_back_n, selective_repeat"),
        ("rocev2:timeout=32", "0..31"),
        ("rocev2:timeout=3,rto=1ms", "keep one of them"),
        ("rocev2:rto=soon", "rto: "),
        ("rocev2:reorder=8", "add recovery=selective_repeat"),
        ("rocev2:cc=nscc", "takes one of dcqcn, none"),
        ("rocev2:dcqcn.speed=1", "dcqcn has no parameter 'speed'"),
        ("rocev2:dcqcn.g=fast", "give a number"),
        ("rocev2:tss=direct", "no parameter 'tss'"),
    ],
)
def test_what_cannot_be(requested: str, complaint: str) -> None:
    with pytest.raises(UserError) as error:
        fit(requested, TOPOLOGY)
    assert complaint in str(error.value)


def test_another_life_has_other_queue_pairs() -> None:
    """What is left of the first life finds nobody to go to, and flows take other paths."""
    addresses = ["10.0.1.2", "10.0.1.3"]
    lives = [full_mesh(addresses, 0, 2, seed=1, life=life)["10.0.1.3"] for life in range(3)]
    numbers = [{one.local_qpn for one in life} for life in lives]
    assert not numbers[0] & numbers[1]
    assert not numbers[1] & numbers[2]
    theirs = full_mesh(addresses, 1, 2, seed=1, life=2)["10.0.1.2"]
    assert [(c.local_qpn, c.first_psn) for c in lives[2]] == [
        (c.remote_qpn, c.expected_psn) for c in theirs
    ]
    assert lives[0] == full_mesh(addresses, 0, 2, seed=1)["10.0.1.3"]


def test_an_mtu_that_does_not_fit() -> None:
    small = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,spines=1,mtu=1500")
    with pytest.raises(UserError, match="choose mtu=1024, or raise"):
        fit("rocev2:mtu=4096", small)


def test_help_lists_every_parameter() -> None:
    shown = describe_options()
    for name, values in ROCEV2.options.items():
        assert f"{name}={'|'.join(values)} " in shown
    for name in FREE:
        assert name in shown


BASE: dict[str, Any] = {"address": "10.0.0.1", "mac": "02:00:00:00:00:01"}
BASE["neighbours"] = {"10.0.0.2": "x"}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"mtu": 1500}, "mtu is 1500; choose one of 256"),
        ({"timeout": 32}, "timeout is 32"),
        ({"rnr_retry": 8}, "rnr_retry is 8"),
        ({"recovery": "none"}, "choose one of go_back_n"),
        ({"address": "here"}, "not an IP address"),
        ({"neighbours": {"fd00::1": "x"}}, "same IP version"),
        ({"remote_access": ("erase",)}, "'erase' is none of write, read, atomic"),
        ({"connections": {"10.0.0.9": ()}}, "10.0.0.9 is not among the neighbours"),
        (
            {"connections": {"10.0.0.2": (Connection(local_qpn=9, remote_qpn=9),) * 2}},
            "number 9 is taken twice",
        ),
        ({"dscp_ack": 64}, "dscp_ack is 64"),
    ],
)
def test_configurations_that_cannot_be(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        HcaConfig(**{**BASE, **changes})


@pytest.mark.parametrize(
    "fields", [{"local_qpn": 1}, {"remote_qpn": 0xFFFFFF}, {"first_psn": 1 << 24}, {"service": "x"}]
)
def test_connections_that_cannot_be(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="connections: "):
        Connection(**{"local_qpn": 5, "remote_qpn": 6, **fields})
