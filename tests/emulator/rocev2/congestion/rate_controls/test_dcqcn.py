"""DCQCN's two ends by themselves: traces, timers, limits (Zhu et al., SIGCOMM 2015)."""

import random
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.rocev2.congestion.dcqcn_parameters import MEANINGS, NAMED, DcqcnParameters
from emulator.rocev2.congestion.rate_controls.dcqcn import NotificationPoint, ReactionPoint
from uet.congestion.congestion_parameters import ParameterError

US = 1_000
G = 10**9
PAPER = DcqcnParameters.named("paper", 40 * G)


def close(value: float, requested: float) -> bool:
    """To the last digit that the traces are written with."""
    return value == pytest.approx(requested, rel=1e-6)


# --- traces ---------------------------------------------------------------------------------------


@pytest.mark.conformance("R-039")
def test_trace_of_the_paper_s_variant() -> None:
    """40 Gb/s, no byte counter, CNPs at 0, 50 and 100 us."""
    point = ReactionPoint(replace(PAPER, byte_counter=0), 40 * G, 0)
    assert point.rate_bps == 40 * G
    for at, target, rate in ((0, 40.0, 20.0), (50, 20.0, 10.0), (100, 10.0, 5.0)):
        point.on_cnp(at * US)
        assert close(point.alpha(at * US), 1)
        assert close(point.target_bps, target * G)
        assert close(point.rate_bps, rate * G)
    for at, alpha, target, rate in (
        (155, 0.99609375, 10, 7.5),
        (210, 0.99220276, 10, 8.75),
        (265, 0.98832697, 10, 9.375),
        (320, 0.98446631, 10, 9.6875),
        (375, 0.98062074, 10.04, 9.86375),
        (430, 0.97679019, 10.08, 9.971875),
    ):
        assert point.next_deadline() == at * US
        before = point.rate_bps
        point.advance(at * US - 1)
        assert point.rate_bps == before
        point.advance(at * US)
        assert point.alpha(at * US) == pytest.approx(alpha, abs=5e-9)
        assert close(point.target_bps, target * G)
        assert close(point.rate_bps, rate * G)


def of_nics(**changes: Any) -> DcqcnParameters:
    """Return what the trace of the periodic variant was reckoned with."""
    trace = {"additive_rate": 50e6, "hyper_rate": 100e6, "least_rate": 100e6}
    return DcqcnParameters.named("hpcc", 100 * G, **{**trace, **changes})


@pytest.mark.conformance("R-039")
def test_trace_of_the_periodic_variant() -> None:
    """100 Gb/s, ticks of 1 and 4 us, CNPs at 0, 3 and 5 us."""
    point = ReactionPoint(of_nics(), 100 * G, 0)
    point.on_cnp(0)
    assert (point.rate_bps, point.target_bps, point.alpha(0)) == (100 * G, 100 * G, 1)
    assert point.next_deadline() == 4 * US
    point.on_cnp(3 * US)
    for at, cnp, alpha, rate in (
        (4, 5, 0.988357306, 50.582135),
        (8, None, 0.976865126, 25.876173),
    ):
        assert point.next_deadline() == at * US
        point.advance(at * US)
        assert point.alpha(at * US) == pytest.approx(alpha, abs=5e-10)
        assert close(point.rate_bps, rate * G)
        assert close(point.target_bps, 100 * G)
        if cnp is not None:
            point.on_cnp(cnp * US)
    for at, rate in ((308, 62.938087), (608, 81.469043), (908, 90.734522)):
        assert point.next_deadline() == at * US
        point.advance(at * US)
        assert close(point.rate_bps, rate * G)
        assert close(point.target_bps, 100 * G)


def test_time_may_advance_in_one_leap() -> None:
    """Whoever asks late gets what step by step would have given."""
    for parameters in (PAPER, of_nics()):
        steps, leap = (ReactionPoint(parameters, 40 * G, 0) for _ in range(2))
        for point in (steps, leap):
            for at in (0, 51, 102, 153):
                point.on_cnp(at * US)
        end = 3_000 * US
        while (due := steps.next_deadline()) is not None and due <= end:
            steps.advance(due)
            steps.alpha(due)
        leap.advance(end)
        assert leap.rate_bps == pytest.approx(steps.rate_bps, rel=1e-12)
        assert leap.alpha(end) == pytest.approx(steps.alpha(end), rel=1e-9)


def test_a_tick_sees_the_cnp_of_its_instant_once() -> None:
    point = ReactionPoint(of_nics(), 100 * G, 0)
    point.on_cnp(0)
    point.on_cnp(4 * US)
    point.advance(4 * US)
    assert point.cuts == 1
    point.advance(300 * US)
    assert point.cuts == 1
    assert point.handled == 2


def test_the_target_is_clamped_when_asked_to() -> None:
    for clamp, target in ((False, 100.0), (True, 50.0)):
        point = ReactionPoint(of_nics(clamp_target=clamp, g=1e-6), 100 * G, 0)
        for at in (0, 5):
            point.on_cnp(at * US)
            point.advance((at + 4) * US)
        assert point.target_bps == pytest.approx(target * G, rel=1e-4)


@pytest.mark.parametrize(
    ("rises", "after_time", "clamped"),
    [("time", True, True), ("time", False, False), ("octets", False, True), ("none", True, False)],
)
def test_a_rise_by_time_clamps_the_target_where_firmware_is_told_so(
    rises: str, after_time: bool, clamped: bool
) -> None:
    parameters = DcqcnParameters.named("mlx", 100 * G, clamp_after_time=after_time)
    point = ReactionPoint(parameters, 100 * G, 0)
    point.on_cnp(0)
    point.advance(4 * US)
    assert point.target_bps == 100 * G
    if rises == "octets":
        point.on_sent(32_767, 5 * US)
    elif rises == "time":
        point.advance(304 * US)
    before = point.rate_bps
    point.on_cnp(310 * US if rises == "time" else 6 * US)
    point.advance(314 * US if rises == "time" else 8 * US)
    assert point.cuts == 2
    assert close(point.target_bps, before if clamped else 100 * G)


@pytest.mark.parametrize(("unit", "octets"), [(1, 32_767), (64, 2_097_088)])
def test_the_firmware_s_byte_counter(unit: int, octets: int) -> None:
    """Recovery, then additive increases; hyper increase needs time as well (802.1Qau)."""
    point = ReactionPoint(DcqcnParameters.named("mlx", 100 * G, byte_unit=unit), 100 * G, 0)
    point.on_cnp(0)
    point.advance(4 * US)
    point.on_cnp(5 * US)  # clamped below 100 Gb/s, so that what is added is seen
    point.on_sent(octets, 6 * US)
    point.advance(8 * US)
    cut, target = point.rate_bps, point.target_bps
    point.on_sent(octets - 1, 9 * US)
    assert point.rate_bps == cut
    point.on_sent(1, 9 * US)
    assert close(point.rate_bps, (cut + target) / 2)
    assert close(point.target_bps, target)
    for more in range(1, 5):
        point.on_sent(octets, 10 * US)
        assert close(point.target_bps, target + more * 5e6)
    point.advance(308 * US)  # the timer's first
    assert close(point.target_bps, target + 25e6)
    point.advance(608 * US)
    assert close(point.target_bps, target + 75e6)


# --- increases ------------------------------------------------------------------------------------


def test_the_byte_counter_increases_too() -> None:
    """Five times B octets: four halvings of the way, and one additive step."""
    point = ReactionPoint(replace(PAPER, byte_counter=1_000_000), 40 * G, 0)
    point.on_cnp(0)
    point.on_cnp(0)
    for sent, rate in ((0.5, 10), (1, 15), (2, 17.5), (3, 18.75), (4, 19.375)):
        octets = 1_000_000 if sent > 1 else 500_000
        point.on_sent(octets, 10 * US)
        assert close(point.rate_bps, rate * G)
        assert close(point.target_bps, 20 * G)
    point.on_sent(1_000_000, 10 * US)
    assert close(point.target_bps, 20.04 * G)


def test_hyper_increase_takes_both_counters() -> None:
    """With T and BC beyond F the target grows by their excess times R_HAI."""
    parameters = replace(PAPER, byte_counter=1_000, recovery_steps=1)
    point = ReactionPoint(parameters, 40 * G, 0)
    for _ in range(5):
        point.on_cnp(0)  # the target is 2.5 Gb/s
    point.on_sent(3_000, 1)  # BC = 3: additive three times, for T is 0
    assert close(point.target_bps, (2.5 + 0.12) * G)
    point.advance(55 * US)  # T = 1
    assert close(point.target_bps, (2.5 + 0.16) * G)
    point.advance(110 * US)  # T = 2: i = 1
    assert close(point.target_bps, (2.66 + 0.4) * G)
    point.advance(165 * US)  # T = 3: i = 2
    assert close(point.target_bps, (3.06 + 0.8) * G)
    point.advance(220 * US)  # T = 4, BC = 3: i = 2 still
    assert close(point.target_bps, (3.86 + 0.8) * G)


def test_a_cnp_starts_the_counters_anew() -> None:
    point = ReactionPoint(replace(PAPER, byte_counter=1_000), 40 * G, 0)
    point.on_cnp(0)
    point.on_sent(900, 1)
    point.on_cnp(40 * US)
    rate = point.rate_bps
    point.on_sent(900, 41 * US)
    assert point.rate_bps == rate
    assert point.next_deadline() == 95 * US
    point.on_sent(100, 42 * US)
    assert point.rate_bps > rate


@pytest.mark.parametrize("name", NAMED)
def test_back_at_line_rate_nothing_limits(name: str) -> None:
    line = 100 * G
    point = ReactionPoint(DcqcnParameters.named(name, line), line, 0)
    assert point.next_deadline() is None
    point.on_cnp(10)
    assert point.limited
    events = 0
    while (due := point.next_deadline()) is not None:
        point.advance(due)
        events += 1
        assert events < 10_000
    assert point.rate_bps == line
    assert not point.limited
    point.on_cnp(due or 10**9)
    assert point.limited


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.conformance("R-040")
@given(
    name=st.sampled_from(sorted(NAMED)),
    seed=st.integers(0, 1 << 32),
    gap=st.integers(1, 500 * US),
)
def test_rate_and_alpha_stay_in_their_limits(name: str, seed: int, gap: int) -> None:
    rng = random.Random(seed)
    line = rng.choice((10, 40, 100, 400)) * G
    parameters = DcqcnParameters.named(name, line, byte_counter=0)
    point = ReactionPoint(parameters, line, 0)
    now = 0
    for _ in range(300):
        now += rng.randrange(gap)
        rng.choice((point.on_cnp, point.advance, lambda at: point.on_sent(10**7, at)))(now)
        assert parameters.least_rate <= point.rate_bps <= line
        assert parameters.least_rate <= point.target_bps <= line
        assert 0 <= point.alpha(now) <= 1
        due = point.next_deadline()
        assert due is None or due > now


@pytest.mark.conformance("R-040")
def test_the_least_rate_is_reached_and_kept() -> None:
    point = ReactionPoint(PAPER, 40 * G, 0)
    for at in range(20):
        point.on_cnp(at * 50 * US)
    assert point.rate_bps == PAPER.least_rate


@pytest.mark.conformance("R-040")
@pytest.mark.parametrize("name", sorted(NAMED))
def test_the_first_cnp_keeps_the_least_rate_too(name: str) -> None:
    point = ReactionPoint(
        DcqcnParameters.named(name, 40 * G, first_cnp_factor=0.001, least_rate=30 * G), 40 * G, 0
    )
    point.on_cnp(0)
    for _ in range(5):
        assert min(point.rate_bps, point.target_bps) >= 30 * G
        point.advance(point.next_deadline() or 0)


# --- the notification point -----------------------------------------------------------------------


@pytest.mark.conformance("R-037")
@pytest.mark.parametrize("interval", [0, 4 * US, 50 * US])
def test_cnps_are_spaced(interval: int) -> None:
    """Marked packets without end: CNPs an interval apart, and at most one packet more."""
    packet = 337
    point = NotificationPoint(interval)
    sent = [now for now in range(0, 5_000 * US, packet) if point.on_marked(now)]
    assert sent[0] == 0
    gaps = [b - a for a, b in pairwise(sent)]
    assert min(gaps) >= interval
    assert max(gaps) <= interval + packet
    assert point.sent == len(sent)
    assert point.marked == len(range(0, 5_000 * US, packet))


@pytest.mark.conformance("R-037")
def test_queue_pairs_are_notified_independently() -> None:
    one, other = NotificationPoint(50 * US), NotificationPoint(50 * US)
    assert one.on_marked(0)
    assert other.on_marked(1)
    assert not one.on_marked(2)
    assert not other.on_marked(50 * US)
    assert other.on_marked(50 * US + 1)


# --- parameters -----------------------------------------------------------------------------------


def test_sets_are_scaled_to_the_line() -> None:
    """The steps stay the same part of the line rate, and B the same part of a second."""
    for name in ("paper", "hpcc"):
        made_for, original = NAMED[name]
        assert made_for is not None
        p = DcqcnParameters.named(name, 400 * G)
        for field in ("additive_rate", "hyper_rate", "byte_counter"):
            requested = getattr(original, field) * 400 * G / made_for
            assert getattr(p, field) == pytest.approx(requested)
        assert p.rate_interval == original.rate_interval
        assert p.least_rate == original.least_rate
    assert DcqcnParameters.named("hpcc", 400 * G).additive_rate == 80e6
    assert DcqcnParameters.named("mlx", 400 * G).additive_rate == 5e6
    assert DcqcnParameters.named("paper", 40 * G) == NAMED["paper"][1]


def test_every_set_says_whose_it_is() -> None:
    assert list(MEANINGS) == list(NAMED)


def test_an_override_is_taken_as_given() -> None:
    p = DcqcnParameters.named("paper", 400 * G, additive_rate=7e6, cnp_interval=20 * US)
    assert p.additive_rate == 7e6
    assert p.cnp_interval == 20 * US
    assert p.hyper_rate == 4_000e6


@pytest.mark.parametrize(
    ("name", "changes", "stated"),
    [
        ("fast", {}, "no parameter set 'fast'; choose one of paper, mlx, hpcc, simai, pollara"),
        ("paper", {"speed": 1}, "no parameter 'speed'; it has variant, g, "),
        ("paper", {"g": 0}, "dcqcn.g is 0; it must lie in 1e-06..1"),
        ("paper", {"g": "much"}, "dcqcn.g is 'much'; give a number"),
        ("paper", {"recovery_steps": -1}, "dcqcn.recovery_steps is -1"),
        ("paper", {"alpha_interval": 50 * US}, "alpha_interval is 50000; it must exceed cnp_"),
        ("paper", {"clamp_target": 2}, "dcqcn.clamp_target is 2; it is 1 (yes) or 0 (no)"),
        ("mlx", {"clamp_after_time": -1}, "dcqcn.clamp_after_time is -1; it is 1 (yes) or 0 (no)"),
        ("mlx", {"byte_unit": 8}, "dcqcn.byte_unit is 8; it is one of 1, 64 octets"),
        ("paper", {"variant": "new"}, "dcqcn.variant is 'new'; choose one of paper, periodic"),
        ("mlx", {"decrease_interval": 0}, "dcqcn.decrease_interval is 0"),
        ("mlx", {"initial_alpha": 1.5}, "dcqcn.initial_alpha is 1.5; it must lie in 0..1"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(
    name: str, changes: dict[str, Any], stated: str
) -> None:
    with pytest.raises(ParameterError) as refused:
        DcqcnParameters.named(name, 40 * G, **changes)
    assert stated in str(refused.value)


def test_a_least_rate_above_the_line_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"dcqcn\.least_rate is 100000000; it must not exceed"):
        ReactionPoint(PAPER, 10_000_000, 0)


def test_every_number_has_a_range() -> None:
    """None of them gets through unchecked."""
    for field in fields(DcqcnParameters):
        if field.name != "variant":
            negative: dict[str, Any] = {field.name: -1}
            with pytest.raises(ParameterError, match=rf"dcqcn\.{field.name} is -1"):
                replace(PAPER, **negative)
