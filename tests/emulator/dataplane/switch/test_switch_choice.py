"""A switch as a user writes it, and fitted to a fabric."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from emulator.dataplane.kernel.shaping import CONTROL_BUFFER_BYTES, Egress
from emulator.dataplane.switch import switch_choice as choosing
from emulator.dataplane.switch.balancing import METHODS, Balancing
from emulator.dataplane.switch.code_points import LAB, endpoint_fields
from emulator.dataplane.switch.parameters import CHANGES, DSCP, OfBdp
from emulator.dataplane.switch.switch_choice import (
    SwitchChoice,
    describe_options,
    parse,
    requested,
)
from emulator.dataplane.switch.switch_fitting import MARGIN, fit, size_of
from emulator.dataplane.switch.switch_profile import POOLS, PROFILES
from emulator.errors import UserError
from topologies import catalogue
from topologies.analysis.round_trip import base_rtt_ns, mtu_frame_bytes, plane_bdp_bytes
from topologies.model import Topology
from uet.config import FepConfig

SMALL = "rail_clos:hosts=2,gpus_per_host=2"
PLAIN = Egress(rate_bps=1e9, mtu=9000, buffer_bytes=1 << 20)


@pytest.fixture
def topology() -> Topology:
    return catalogue.load(SMALL)


def test_the_last_hop_can_be_left_to_rccc() -> None:
    choice = parse("deep:last_hop_ecn=off,trim=on")
    assert choice.changes["last_hop_ecn"] is False
    assert parse(choice.spec).changes == choice.changes
    with pytest.raises(UserError, match="a switch takes last_hop_ecn=on or last_hop_ecn=off"):
        parse("deep:last_hop_ecn=maybe")


def test_everything_that_can_be_said_is_read() -> None:
    choice = parse(
        "deep:balance=flowlet,flowlet_gap=1.5us,trim=on,trim_size=64,trimmed_queue=medium,data_share=0.1,"
        "data.kmin_bytes=20KiB,data.kmax_bytes=none,data.limit_bytes=2.5bdp,control.pmax=0.5"
    )
    assert (choice.profile, choice.method, choice.flowlet_gap_ns) == (
        "deep",
        Balancing.FLOWLET,
        1500,
    )
    assert choice.changes == {
        "data.trim_bytes": OfBdp(Fraction(1)),
        "retransmission.trim_bytes": OfBdp(Fraction(3, 2)),
        "trim_size": 64,
        "trimmed_queue": "medium",
        "data_share": 0.1,
        "data.kmin_bytes": 20 * 1024,
        "data.kmax_bytes": None,
        "data.limit_bytes": OfBdp(Fraction(5, 2)),
        "control.pmax": 0.5,
    }


@pytest.mark.parametrize(
    "text",
    [
        "shallow",
        "lossless:balance=least-loaded",
        "lossless:pfc=off",
        "lossless:xoff=0.25bdp,xon=20KiB,headroom=300KB,pfc_response=1us",
        "lossless:pfc_priority=5",
        "lossless:pfc_watchdog=50us,pfc_watchdog_action=forward",
        "lossless:pfc_deadlock=allow",
        "shallow:trim=off",
        "deep:trim=on,data.kmin_bytes=0.25bdp",
        "deep:balance=flowlet,flowlet_gap=1.5us,data.pmax=0.125",
        "shallow:latency=0.65us",
        "th5:mark_on=departure",
    ],
)
def test_the_complete_form_means_the_same(text: str) -> None:
    choice = parse(text)
    assert choice.name == text
    assert replace(parse(choice.spec), name=text) == choice


def test_each_parameter_is_described() -> None:
    described = describe_options()
    named = (key for key in CHANGES if not key.startswith(DSCP))
    assert all(key.rpartition(".")[2] in described for key in named)
    assert f"{DSCP}N" in described
    assert all(name in choosing.describe() for name in (*PROFILES, *METHODS))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "there is no switch ''"),
        ("shalow", r"did you mean shallow\?"),
        ("deep:balanse=packet", r"no parameter 'balanse' \(did you mean balance\?\)"),
        ("deep:data.kmin=3", r"did you mean data.kmin_bytes\?"),
        ("deep:balance=paket", r"did you mean packet\?"),
        ("deep:trim", "not param=value"),
        ("deep:trim=maybe", "trim=on or trim=off"),
        ("deep:trim_size=64", "trim_size says nothing of the switch deep without trimming"),
        ("shallow:trim=off,trimmed_queue=medium", "trimmed_queue says nothing"),
        ("deep:balance=flow,balance=packet", "given twice"),
        ("deep:data.kmin_bytes=3Q", "unknown unit 'Q'.* or 0.2bdp"),
        ("deep:data.kmin_bytes=none", "is not a size"),
        ("deep:trim_size=0.2bdp", "unknown unit 'bdp'"),
        ("deep:data.pmax=0", "above 0, at most 1"),
        ("deep:data.pmax=nan", "above 0, at most 1"),
        ("deep:data_share=0.7", "0 to 0.5"),
        ("deep:trimmed_queue=low", "high or medium"),
        ("deep:flowlet_gap=2us", "say balance=flowlet"),
        ("deep:balance=flowlet,flowlet_gap=2", "has no unit"),
        ("deep:latency=2", "latency of the switch: .* has no unit"),
        ("deep:latency=2ms", "a pipeline takes 1 ms at most"),
        ("deep:mark_on=dequeue", "packets are marked on arrival or departure"),
        ("shallow:trim=off,data.trim_bytes=1bdp", "contradict"),
        ("shallow:trim=on,data.trim_bytes=none", "contradict"),
        ("deep:pfc=on", "switch deep has none: take lossless"),
        ("deep:xoff=20KiB", "without priority flow control: take the switch lossless"),
        ("lossless:pfc=off,xon=20KiB", "xon says nothing without .*: say pfc=on"),
        ("lossless:pfc=maybe", "pfc=on or pfc=off"),
        ("lossless:xoff=3Q", "unknown unit 'Q'.* or 0.2bdp"),
        ("lossless:pfc_watchdog=20", "has no unit"),
        ("lossless:pfc_priority=8", "give one of 0 to 7"),
        ("lossless:pfc_priority=03", "give one of 0 to 7"),
        ("lossless:pfc_watchdog_action=panic", "drop or forward"),
        ("lossless:pfc_deadlock=yes", "refuse or allow"),
        ("non", r"did you mean none\?"),
        ("none:balance=packet", "takes no parameters"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as reported:
        parse(text)
    assert "\n" not in str(reported.value)


def test_made_in_python_it_is_checked_too() -> None:
    with pytest.raises(UserError, match=r"did you mean data\.pmax"):
        SwitchChoice(name="x", profile="deep", changes={"data.pmx": 0.5})
    with pytest.raises(UserError, match="no load balancing"):
        SwitchChoice(name="x", profile="deep", balance="ecmp")


def test_none_is_no_asic() -> None:
    assert requested("none") is None
    assert requested("deep") == parse("deep")


def test_thresholds_are_of_the_planes_bdp(topology: Topology) -> None:
    fitted = fit(parse("shallow:data.kmin_bytes=0.1bdp"), topology, 1000)
    rules = fitted.profile(topology.links[0])
    # 4 cables of 600 ns there and back; 4 times 9038 octets and the ACK's at 400 Gb/s
    assert fitted.base_rtt_ns == 8 * 600 + round(4 * (9038 + 110) * 8 / 400)
    assert fitted.bdp_bytes == fitted.base_rtt_ns * 50
    assert rules.data.kmin_bytes == round(0.1 * fitted.bdp_bytes)
    assert rules.data.trim_bytes == fitted.bdp_bytes
    assert rules.data.limit_bytes == 2 * fitted.bdp_bytes
    assert fitted.balancing(switch=1, seed=2).flowlet_gap_ns == fitted.base_rtt_ns


def test_a_pipeline_is_part_of_round_trips(topology: Topology) -> None:
    plain = fit(parse("lossless"), topology, 1, clock="virtual")
    fitted = fit(parse("lossless:latency=650ns"), topology, 1, clock="virtual")
    assert fitted.base_rtt_ns == plain.base_rtt_ns + 2 * 3 * 650  # rail, spine, rail
    assert fitted.bdp_bytes == fitted.base_rtt_ns * 50
    assert fitted.flowlet_gap_ns == fitted.base_rtt_ns
    for kind, rules in fitted.pauses.items():  # and frames in it fill no buffer yet
        assert rules.needed_bytes == plain.pauses[kind].needed_bytes + 650 * kind.rate_bps // 8e9


def test_the_slowest_port_is_the_planes() -> None:
    topology = catalogue.load(f"{SMALL},uplink_rate=100G")
    frame = mtu_frame_bytes(topology)
    # two hops at 400 Gb/s, two at a quarter of that
    expected = 8 * 600 + (2 + 2 * 4) * (frame + 110) * 8 / 400
    assert base_rtt_ns(topology, frame) == pytest.approx(expected, abs=1)
    assert plane_bdp_bytes(topology, frame) == pytest.approx(expected * 100 / 8, rel=1e-3)


def test_a_fabric_of_one_gpu_has_a_round_trip() -> None:
    topology = catalogue.load("rail_clos:hosts=1,gpus_per_host=1")
    assert base_rtt_ns(topology, 9038) > 4 * 600  # to the spine and back


def test_buffers_bound_switches_without_other_memory() -> None:
    topology = catalogue.load(f"{SMALL},buffer=64KiB")
    (shallow, deep, lossless) = (
        fit(parse(name), topology, 1000).profile(topology.links[0])
        for name in ("shallow", "deep", "lossless:pfc=off")
    )
    assert shallow.data.trim_bytes == shallow.data.limit_bytes == 64 * 1024
    assert deep.data.limit_bytes == 5 * fit(parse("deep"), topology, 1000).bdp_bytes
    assert lossless.data.limit_bytes == 64 * 1024
    with pytest.raises(UserError, match="raise the topology's buffer"):
        fit(parse("shallow:data.trim_bytes=65KiB"), topology, 1000)


@pytest.mark.parametrize("name", sorted(set(PROFILES) - set(POOLS)))
def test_the_kernels_queues_hold_more_than_the_models(name: str, topology: Topology) -> None:
    cable = topology.links[0]
    fitted = fit(parse(name), topology, 1000)
    rules, below = fitted.profile(cable), fitted.egress(cable, PLAIN)
    assert rules.data.limit_bytes is not None
    assert below.buffer_bytes >= MARGIN * max(rules.data.limit_bytes, cable.buffer_bytes)
    high = max(rules.control.limit_bytes or 0, rules.trimmed.limit_bytes or 0)
    assert below.control_buffer_bytes >= max(MARGIN * high, CONTROL_BUFFER_BYTES)
    assert (below.rate_bps, below.mtu) == (PLAIN.rate_bps, PLAIN.mtu)


def test_trimming_on_and_off(topology: Topology) -> None:
    cable = topology.links[0]
    off = fit(parse("shallow:trim=off"), topology, 1000)
    assert not off.profile(cable).trims
    assert off.profile(cable).data.limit_bytes == 2 * off.bdp_bytes
    on = fit(parse("deep:trim=on"), topology, 1000)
    assert on.profile(cable).data.trim_bytes == on.bdp_bytes
    explicit = fit(parse("deep:trim=on,data.trim_bytes=2bdp"), topology, 1000)
    assert explicit.profile(cable).data.trim_bytes == 2 * on.bdp_bytes


@pytest.mark.parametrize(
    ("spec", "text", "dilation", "sentence"),
    [
        (SMALL, "shallow:data.kmin_bytes=0.9bdp", 1000, r"above data\.kmax_bytes.* one BDP of"),
        (SMALL, "shallow:data.limit_bytes=2000", 1000, "less than one frame of the MTU"),
        (SMALL, "deep:data.limit_bytes=3GiB", 1000, "the kernel queues at most"),
        (SMALL, "deep:data.kmax_bytes=999999999bdp", 1000, "kmax_bytes.* the kernel queues at"),
        (SMALL, "deep:data.kmin_bytes=1KiB,data.kmax_bytes=none", 1000, "says nothing without"),
        (
            SMALL,
            "deep:data.kmin_bytes=30KB,data.limit_bytes=20KB",
            1000,
            "full at 20000 B, before any",
        ),
        (SMALL, "deep:balance=flowlet,flowlet_gap=99999999s", 1000, "no flow pauses that long"),
        (SMALL, "shallow:trim_size=9000", 1000, "less than the MTU"),
        (f"{SMALL},buffer=9020", "shallow", 1000, "the topology's buffer of 9020 B is less"),
        (SMALL, "shallow:latency=650ns", 1000, "latency=650 ns of the switch takes the"),
        (SMALL, "shallow:mark_on=departure", 1000, "mark_on=departure of the switch takes the"),
        (SMALL, "shallow", 0.5, "choose a dilation of 3.125 to"),
        (SMALL, "shallow", 1e9, "choose a dilation of 3.125 to"),
        (f"{SMALL},uplinks_per_spine=40", "deep:balance=least-loaded", 1000, "at most 64"),
    ],
)
def test_what_cannot_be_in_a_fabric(spec: str, text: str, dilation: float, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        fit(parse(text), catalogue.load(spec), dilation)


def test_many_next_hops_are_no_matter_to_hashing() -> None:
    topology = catalogue.load(f"{SMALL},uplinks_per_spine=40")
    assert fit(parse("deep:balance=packet"), topology, 1000).choice.method is Balancing.PACKET


def test_tables_hold_the_fabric() -> None:
    topology = catalogue.load("rail_clos")
    size = size_of(topology)
    assert size.ports == 2 + 2 * len(topology.links) + 4  # loopback's 1, each end, each bridge
    assert size.switches == 6
    # a rail reaches 3 rails' subnets and loopbacks, and 2 spines' loopbacks (3 links each);
    # a spine 4 rails' subnets and loopbacks over 3 links each, and another spine's loopback
    assert size.prefixes == 4 * (3 * 2 + 2) + 2 * (4 * 2 + 1)


def test_endpoints_and_switches_agree_on_code_points() -> None:
    fields: dict[str, Any] = {**endpoint_fields()}
    config = FepConfig(address="10.0.0.1", mac="02:00:00:00:00:01", **fields)
    assert (config.dscp_data, config.dscp_control) == (LAB.data, LAB.control)
    assert config.dscp_trimmed == LAB.trimmed
    assert config.dscp_trimmed_lasthop == LAB.trimmed_last_hop
    assert None not in (LAB.trimmed, LAB.trimmed_last_hop)


def test_trimming_leaves_what_a_transport_needs() -> None:
    """A secured PDS header, unless the user says otherwise; nothing changes without trimming."""
    shallow, deep = parse("shallow"), parse("deep")
    assert shallow.leaving(24) is shallow
    assert shallow.leaving(32).changes["trim_size"] == 32
    assert deep.leaving(32) is deep
    stated = parse("shallow:trim_size=64")
    assert stated.leaving(32) is stated
