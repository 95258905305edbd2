"""Profiles: values that make sense, and one sentence for those that do not."""

from typing import Any

import pytest

from emulator.dataplane.switch.balancing import METHODS, Balancing, LoadBalancing
from emulator.dataplane.switch.bpf.layout import (
    PORT_HEAD,
    PORT_SETTINGS_BYTES,
    TAIL,
    TAIL_AT,
    TrafficClass,
    unpack,
)
from emulator.dataplane.switch.switch_profile import PROFILES, CodePoints, named, port_settings
from emulator.errors import UserError
from tests.harness.asic.port_bench import POINTS, profile
from topologies.ethernet import PACKET_OVERHEAD_OCTETS


@pytest.mark.parametrize("name", PROFILES)
def test_named_profiles_pack(name: str) -> None:
    rules = profile(name)
    settings = port_settings(rules, rate_bps=400e9, dilation=1000, seed=-1, faces_nic=True)
    assert len(settings) == PORT_SETTINGS_BYTES
    rate, seed = PORT_HEAD.unpack_from(settings)
    assert rate == round(0.05 * 2**24)
    assert seed == 2**64 - 1
    tail = unpack(TAIL, settings, TAIL_AT)
    points = tail["class_of"]
    assert (tail["trim_payload"], tail["trimmed_dscp"]) == (24, 12)
    assert points[46] == TrafficClass.CONTROL
    assert points[10] == points[12] == TrafficClass.TRIMMED


def test_shallow_is_in_units_of_the_bdp() -> None:
    rules = profile(bdp=1_000_000)
    assert (rules.data.kmin_bytes, rules.data.kmax_bytes) == (200_000, 800_000)
    assert (rules.data.trim_bytes, rules.retransmission.trim_bytes) == (1_000_000, 1_500_000)
    assert rules.trims
    assert not profile("deep").trims
    assert not profile("lossless").trims


def test_trimming_can_be_switched_off_without_a_code_point() -> None:
    off = {"data.trim_bytes": None, "retransmission.trim_bytes": None}
    assert not named("shallow", bdp_bytes=100_000, mtu=4500, changes=off).trims


def test_dilation_stretches_times_and_lowers_rates() -> None:
    way = LoadBalancing(method=Balancing.FLOWLET, flowlet_gap_ns=5000)
    for dilation in (100, 1000):
        settings = port_settings(
            profile(), rate_bps=100e9, dilation=dilation, seed=1, balancing=way
        )
        assert unpack(TAIL, settings, TAIL_AT)["flowlet_gap"] == 5000 * dilation
        assert PORT_HEAD.unpack_from(settings)[0] == round(12.5 / dilation * 2**24)


@pytest.mark.parametrize("name", PROFILES)
def test_histogram_spans_the_queue(name: str) -> None:
    rules = profile(name, bdp=1_000_000)
    deepest = rules.untrimmed.limit_bytes or 4 * 800_000
    assert 16 << rules.bin_shift < deepest <= 32 << rules.bin_shift


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data__kmin_bytes": 90_000}, "data.kmin_bytes is 90000, above data.kmax_bytes of 80000"),
        ({"data__kmin_bytes": -1}, "holds 0 octets or more"),
        ({"untrimmed__pmax": 0}, "above 0, at most 1"),
        ({"control__limit_bytes": 4000}, "less than one frame of the MTU"),
        ({"data__trim_bytes": 300_000}, "dropped before they are trimmed"),
        ({"control__trim_bytes": 90_000}, "trims neither control"),
        ({"code_points__trimmed": None, "code_points__trimmed_last_hop": None}, "no code point"),
        ({"code_points__trimmed": 46}, "trimmed and control have the same code point 46"),
        ({"code_points__data": 64}, "a DSCP is 0 to 63"),
        ({"trim_size": 23}, "leaves at least 24 octets"),
        ({"trim_size": 4500}, "less than the MTU"),
        ({"trimmed_queue": "low"}, "the queue high or medium"),
        ({"data_share": 0.6}, "data_share is 0.6: data own a share of 0 to 0.5"),
        ({"data_share": "half"}, "data_share is 'half'"),
        ({"data__limit_bytes": "1 MB"}, "data.limit_bytes is '1 MB': give a whole number"),
        ({"data__kmin_bytes": None}, "data.kmin_bytes is None: give a whole number"),
        ({"code_points__data": "EF"}, "code_points.data is 'EF'"),
        ({"trim_size": 30.5}, "trim_size is 30.5"),
        ({"untrimmed__pmax": "high"}, "untrimmed.pmax is 'high'"),
        ({"buffer": 1}, "a switch profile has no 'buffer'"),
        ({"data__limit": 1}, "data has no 'limit': it has kmin_bytes"),
    ],
)
def test_values_that_cannot_be(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        profile(**changes)
    assert "\n" not in str(caught.value)


def test_names_that_are_none() -> None:
    with pytest.raises(UserError, match="choose shallow, deep, lossless"):
        profile("huge")
    assert METHODS["least-loaded"].number is Balancing.LEAST_LOADED


def test_rates_beyond_what_the_model_counts() -> None:
    for rate in (1000.0, 400e9):
        with pytest.raises(UserError, match="choose a dilation for which"):
            port_settings(profile(), rate_bps=rate, dilation=1, seed=1)


def test_flowlets_need_a_gap() -> None:
    with pytest.raises(UserError, match="flowlets need a gap"):
        LoadBalancing(method=Balancing.FLOWLET)


def test_code_points_may_be_few() -> None:
    assert CodePoints().classes().count(TrafficClass.UNTRIMMED) == 61
    assert CodePoints().classes().count(TrafficClass.CONTROL) == 2
    assert POINTS.classes().count(TrafficClass.TRIMMED) == 2


def test_code_points_wait_where_they_are_told_to() -> None:
    reported = profile(dscp__46="low", dscp__26="high", dscp__0="low", dscp__7="low")
    usual = reported.code_points.classes()
    assert [usual[point] for point in (46, 26, 7)] == [
        TrafficClass.CONTROL,
        TrafficClass.UNTRIMMED,
        TrafficClass.UNTRIMMED,
    ]
    table = reported.classes()
    assert table[46] == TrafficClass.UNTRIMMED
    assert table[26] == TrafficClass.CONTROL
    assert table[reported.code_points.data] == TrafficClass.DATA  # it may still be trimmed
    changed = [point for point in range(64) if table[point] != usual[point]]
    assert changed == [26, 46]
    settings = port_settings(reported, rate_bps=1e9, dilation=1, seed=1)
    assert table in settings


def test_a_code_point_of_trimmed_packets_stays_where_they_are() -> None:
    with pytest.raises(UserError, match=r"code point 10 is what this switch writes .*trim=off"):
        profile(dscp__10="low")
    assert profile("deep", dscp__10="high").classes()[10] == TrafficClass.CONTROL


def test_thresholds_scaled_to_a_slower_port_are_that_ports() -> None:
    fast = named("shallow", bdp_bytes=400_000, mtu=9000, code_points=POINTS)
    slow = named("shallow", bdp_bytes=100_000, mtu=9000, code_points=POINTS)
    assert fast.scaled(0.25) == slow
    frame = 9000 + PACKET_OVERHEAD_OCTETS
    assert fast.scaled(0.001).data.trim_bytes == fast.scaled(0.001).data.limit_bytes == frame
