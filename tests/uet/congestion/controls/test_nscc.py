"""The NSCC window, event by event (UES 3.6.13)."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.examples import examples
from uet.congestion.congestion_parameters import NsccParameters
from uet.congestion.controls.nscc import Nscc
from uet.congestion.signals import NO_SAMPLE
from uet.timekeeper import NEVER
from uet.wire.codes import NackCode

US = 1_000
MTU = 4_096
TRIMMED, LASTHOP = int(NackCode.TRIMMED), int(NackCode.TRIMMED_LASTHOP)


@pytest.fixture(params=[None, 0.0125, 0.25], ids=["by octets", "1/80", "1/4"])
def gain(request: pytest.FixtureRequest) -> float | None:
    """How the delay is averaged: UES leaves that open, and no vector may depend on it."""
    value: float | None = request.param
    return value


def context(gain: float | None = None, *, credited: bool = False, **preset: float) -> Nscc:
    """100 Gb/s, 12 us, trimming; in the midst of a transfer, without quick adapt."""
    nscc = Nscc(NsccParameters(mtu=MTU, delay_gain=gain), 0, credited=credited)
    nscc.quick_adapt_end = NEVER
    nscc.last_adjusted = 100 * US
    nscc.last_decreased = 50 * US
    for name, value in preset.items():
        assert hasattr(nscc, name)
        setattr(nscc, name, value)
    return nscc


def acks(nscc: Nscc, count: int, rtt: float, *, marked: bool = False) -> list[int]:
    """The windows after so many ACKs, 0.1 us apart from 100.5 us on."""
    windows = []
    for k in range(count):
        nscc.on_ack(MTU, marked, int(rtt * US), 100_500 + 100 * k)
        windows.append(int(nscc.cwnd))
    return windows


# -- the reference vectors -------------------------------------------------------------------


@pytest.mark.conformance("C-091")
def test_v1_proportional(gain: float | None) -> None:
    nscc = context(gain, cwnd=100_000, inflight=90_000)
    nscc.on_ack(MTU, False, 15 * US, 100_500)
    assert nscc.pending == pytest.approx(33_554_432)
    nscc = context(gain, cwnd=100_000, inflight=90_000)
    assert acks(nscc, 9, 15) == 8 * [100_000] + [103_019]
    assert nscc.inflight == 90_000 - 9 * MTU
    assert nscc.pending == 0


@pytest.mark.conformance("C-091")
def test_v2_fair(gain: float | None) -> None:
    assert acks(context(gain, cwnd=100_000, inflight=90_000), 9, 24) == 8 * [100_000] + [107_549]


@pytest.mark.conformance("C-091")
def test_v3_fast(gain: float | None) -> None:
    nscc = context(gain, cwnd=40_960)
    assert acks(nscc, 12, 12) == 8 * [40_960] + 4 * [52_019]
    assert not nscc.fast
    assert acks(nscc, 1, 12) == [53_043]
    assert nscc.fast


@pytest.mark.conformance("C-091")
def test_v4_decrease(gain: float | None) -> None:
    nscc = context(gain, cwnd=200_000, average=18 * US)
    assert acks(nscc, 1, 30, marked=True)[0] in (119_999, 120_000)
    assert nscc.last_decreased == 100_500


@pytest.mark.conformance("C-091")
def test_v5_decrease_floor(gain: float | None) -> None:
    assert acks(context(gain, cwnd=200_000, average=90 * US), 1, 102, marked=True) == [100_000]


@pytest.mark.conformance("C-091", "C-095")
def test_v6_a_mark_without_delay_is_for_load_balancing(gain: float | None) -> None:
    nscc = context(gain, cwnd=200_000)
    assert acks(nscc, 1, 15, marked=True) == [200_000]
    assert nscc.pending == 0


@pytest.mark.conformance("C-095")
@pytest.mark.parametrize("pending", [0.0, 1e9])
def test_a_mark_below_the_target_delay_changes_nothing(gain: float | None, pending: float) -> None:
    """From no delay up to a nanosecond below the target; beyond it the window is reduced."""
    target = context(gain).parameters.target
    for delay in (0, 1, target // 2, target - 1):
        # A queue that has just gone: on average the delay is still far above the target.
        nscc = context(gain, cwnd=200_000, average=9.0 * target, pending=pending)
        nscc.on_ack(MTU, True, nscc.base_rtt + delay, 100_500)
        assert (nscc.cwnd, nscc.pending, nscc.fast) == (200_000, pending, False)
        assert nscc.last_decreased == 50 * US
    nscc = context(gain, cwnd=200_000, average=2.0 * target)
    nscc.on_ack(MTU, True, nscc.base_rtt + 2 * target, 100_500)
    assert nscc.cwnd < 200_000


@pytest.mark.conformance("C-093", "C-095")
def test_an_ack_without_a_sample_leaves_the_window(gain: float | None) -> None:
    """Marked or not, whatever the delay was on average; the octets leave the network."""
    target = context(gain).parameters.target
    for average in (0, target // 2, 4 * target):
        for marked in (False, True):
            nscc = context(gain, cwnd=200_000, average=float(average), inflight=90_000)
            nscc.on_ack(MTU, marked, NO_SAMPLE, 100_500)
            assert (nscc.cwnd, nscc.pending, nscc.average) == (200_000, 0, average)
            assert (nscc.inflight, nscc.last_adjusted) == (90_000 - MTU, 100 * US)


@pytest.mark.parametrize("marked", [False, True])
def test_the_average_delay_can_stand_in_for_a_sample(gain: float | None, marked: bool) -> None:
    parameters = NsccParameters(mtu=MTU, delay_gain=gain, average_stands_in=True)
    target = parameters.target
    for average, reduced in ((target - 1, False), (2 * target, True)):
        nscc = Nscc(parameters, 0)
        nscc.quick_adapt_end = NEVER
        nscc.last_adjusted, nscc.last_decreased = 100 * US, 50 * US
        nscc.cwnd, nscc.average = 200_000, float(average)
        nscc.on_ack(MTU, marked, NO_SAMPLE, 100_500)
        assert (nscc.cwnd < 200_000) is (reduced and marked)
        assert (nscc.pending > 0) is not marked


@pytest.mark.conformance("C-091")
def test_v7_quick_adapt(gain: float | None) -> None:
    nscc = context(gain, cwnd=225_000, inflight=220_000, quick_adapt_end=100 * US, achieved=5 * MTU)
    nscc.on_nack(MTU, TRIMMED, 101 * US)
    assert nscc.cwnd == 5 * MTU
    assert nscc.to_ignore == 215_904
    assert nscc.quick_adapt_end == 122 * US
    nscc.on_nack(MTU, TRIMMED, 101_100)
    assert nscc.cwnd == 5 * MTU


@pytest.mark.conformance("C-091")
def test_v8_a_trim_before_the_period_ends(gain: float | None) -> None:
    nscc = context(gain, cwnd=225_000, quick_adapt_end=200 * US)
    nscc.on_nack(MTU, TRIMMED, 101 * US)
    assert nscc.cwnd == 220_904
    assert nscc.triggered


@pytest.mark.conformance("C-091", "C-097")
def test_v9_a_trim_after_a_good_period(gain: float | None) -> None:
    nscc = context(gain, cwnd=225_000, quick_adapt_end=100 * US, achieved=50_000)
    nscc.on_nack(MTU, TRIMMED, 101 * US)
    assert nscc.cwnd == 220_904
    assert nscc.quick_adapt_end == 122 * US


@pytest.mark.conformance("C-091", "C-100")
def test_v10_flow_control(gain: float | None) -> None:
    nscc = context(gain, cwnd=200_000, inflight=104_096)
    windows = []
    for penalty, restore in ((64, False), (127, False), (0, True)):
        nscc.on_ack(MTU, False, NO_SAMPLE, 100_500, penalty, restore)
        windows.append(nscc.cwnd)
    assert windows == [97_952, 91_840, 200_000]


@pytest.mark.conformance("C-091")
def test_v11_loss(gain: float | None) -> None:
    nscc = context(gain, cwnd=225_000, inflight=10 * MTU)
    nscc.on_loss(MTU)
    assert (nscc.cwnd, nscc.inflight) == (220_904, 9 * MTU)


@pytest.mark.conformance("C-091", "C-094")
def test_v12_base_rtt(gain: float | None) -> None:
    nscc = context(gain, cwnd=225_000)
    acks(nscc, 1, 10)
    assert (nscc.base_rtt, nscc.max_wnd) == (10 * US, 187_500)


@pytest.mark.conformance("C-091")
def test_v13_eta(gain: float | None) -> None:
    nscc = context(gain, cwnd=100_000)
    nscc.on_ack(MTU, False, 15 * US, 112 * US)
    assert int(nscc.cwnd) == 100_949
    assert nscc.last_adjusted == 112 * US


# -- what always holds -----------------------------------------------------------------------


@pytest.mark.conformance("C-090")
def test_there_is_no_slow_start() -> None:
    for rate in (100, 400):
        p = NsccParameters(link_rate=rate * 10**9)
        assert Nscc(p, 5).cwnd == 1.5 * p.bdp


@pytest.mark.conformance("C-092")
def test_a_full_packet_must_fit() -> None:
    nscc = context(cwnd=10 * MTU)
    sent = 0
    while nscc.room() > 0:
        nscc.on_send(MTU)
        sent += 1
    assert sent == 10
    nscc.on_ack(256, False, NO_SAMPLE, 0)
    assert nscc.room() <= 0
    nscc.on_ack(MTU - 256, False, NO_SAMPLE, 0)
    assert nscc.room() > 0


def test_an_ack_is_wanted_where_none_would_come() -> None:
    nscc = context(cwnd=10 * MTU)
    nscc.inflight = 9 * MTU
    assert not nscc.wants_ack(MTU)
    nscc.inflight += 1
    assert nscc.wants_ack(MTU)
    nscc.inflight = 0
    assert nscc.wants_ack(11 * MTU)


def test_one_answer_after_a_silence_is_not_the_average() -> None:
    """A packet of a slow path comes back long after the others: one of 24 that a window has."""
    nscc = context(cwnd=100_000)
    for k in range(48):
        nscc.on_ack(MTU, False, 12 * US, 100_500 + 500 * k)
    window, target = nscc.cwnd, nscc.parameters.target
    nscc.on_ack(MTU, True, 12 * US + 8 * target, 300_000)
    assert 0 < nscc.average < target
    assert nscc.cwnd >= window
    # A queue that stays is the average within some windows.
    for k in range(100):
        nscc.on_ack(MTU, True, 12 * US + 8 * target, 300_100 + 500 * k)
    assert nscc.average > 7 * target
    assert nscc.cwnd < window


@pytest.mark.conformance("C-096")
def test_one_decrease_per_base_rtt(gain: float | None) -> None:
    nscc = context(gain, cwnd=200_000, average=90 * US)
    before = 200_000.0
    cut_at = []
    for now in range(100_000, 200_000, 500):
        nscc.on_ack(MTU, True, 102 * US, now)
        nscc.pending = 0.0
        nscc.last_adjusted = now  # no growth
        if nscc.cwnd < before:
            assert nscc.cwnd >= before / 2
            cut_at.append(now)
        before = nscc.cwnd
    assert len(cut_at) > 4
    assert all(b - a > 12 * US for a, b in pairwise(cut_at))


@pytest.mark.conformance("C-097")
def test_one_quick_adapt_per_period() -> None:
    """However much is trimmed, and only where little arrived."""
    nscc = context(cwnd=225_000, quick_adapt_end=1)
    changed = []
    for now in range(100_000, 400_000, 250):
        nscc.inflight = 50_000
        end = nscc.quick_adapt_end
        nscc.on_nack(MTU, TRIMMED, now)
        if nscc.quick_adapt_end != end:
            changed.append(now)
            assert nscc.quick_adapt_end == now + 21 * US
    assert len(changed) == len(range(100_000, 400_000, 21_000))


def test_quick_adapt_by_delay_without_trimming() -> None:
    """Where queues drop, a delay near the drop threshold counts like a loss."""
    for rtt, cut in ((60, False), (60.001, True)):
        nscc = Nscc(NsccParameters(trimming=False), 0)
        nscc.quick_adapt_end = 100 * US
        nscc.achieved = MTU
        nscc.on_ack(MTU, False, int(rtt * US), 101 * US)
        assert (nscc.cwnd == 2 * MTU) is cut


def test_quick_adapt_can_be_left_out() -> None:
    nscc = Nscc(NsccParameters(quick_adapt=False), 0)
    for now in range(0, 10**6, 1_000):
        nscc.on_nack(0, TRIMMED, now)
    assert nscc.cwnd == 225_000


def test_marks_of_the_flight_before_the_cut_are_ignored() -> None:
    nscc = context(
        cwnd=225_000, inflight=10 * MTU, quick_adapt_end=100 * US, achieved=MTU, average=90 * US
    )
    nscc.on_nack(MTU, TRIMMED, 101 * US)
    assert (nscc.cwnd, nscc.to_ignore) == (MTU, 9 * MTU)
    nscc.quick_adapt_end = NEVER
    nscc.cwnd = 100_000  # as if it had grown again
    for k in range(8):
        nscc.on_ack(MTU, True, 102 * US, 102 * US + k)
        assert nscc.cwnd == 100_000
    nscc.on_ack(MTU, True, 102 * US, 103 * US)
    assert nscc.cwnd < 100_000


@pytest.mark.conformance("C-183", "C-098")
def test_a_trim_at_the_last_hop_is_the_receivers_matter_where_it_grants_credit() -> None:
    for credited, code, cut in (
        (True, LASTHOP, False),
        (False, LASTHOP, True),
        (True, TRIMMED, True),
        (False, TRIMMED, True),
    ):
        nscc = context(credited=credited, cwnd=100_000, inflight=5 * MTU)
        nscc.on_nack(MTU, code, 101 * US)
        assert (nscc.cwnd < 100_000) is cut
        assert nscc.triggered is cut
        assert nscc.inflight == 4 * MTU


@pytest.mark.conformance("C-183")
@pytest.mark.parametrize("code", set(NackCode) - {NackCode.TRIMMED, NackCode.TRIMMED_LASTHOP})
def test_other_nacks_say_nothing_about_the_network(code: NackCode) -> None:
    nscc = context(cwnd=100_000, inflight=5 * MTU)
    nscc.on_nack(MTU, int(code), 101 * US)
    assert (nscc.cwnd, nscc.inflight, nscc.average) == (100_000, 4 * MTU, 0)


@pytest.mark.conformance("C-094")
def test_base_rtt_never_rises_and_the_window_follows_it() -> None:
    nscc = context()
    least = 12 * US
    rng = random.Random(1)
    for k in range(1_000):
        rtt = rng.randint(8 * US, 40 * US)
        least = min(least, rtt)
        if k % 3:
            nscc.on_ack(MTU, False, rtt, 101 * US + k)
        else:
            nscc.on_nack(MTU, int(NackCode.ROD_OOO), 101 * US + k, rtt)
        assert nscc.base_rtt == least
        assert nscc.max_wnd == pytest.approx(1.5 * 12.5 * least)
        assert nscc.cwnd <= nscc.max_wnd, "at once, not when it settles next"


@pytest.mark.conformance("C-100")
def test_half_a_penalty_for_a_window_halves_it() -> None:
    """The window stays full while it shrinks; what is in flight is the limit otherwise."""
    nscc = context(cwnd=200_000)
    acked = 0
    while acked < 200_000:
        nscc.inflight = int(nscc.cwnd) + MTU
        nscc.on_ack(MTU, False, NO_SAMPLE, 100_500, 64)
        acked += MTU
    assert 0.45 < nscc.cwnd / 200_000 < 0.55
    nscc.on_ack(MTU, False, NO_SAMPLE, 100_500, 0, True)
    assert nscc.cwnd == 200_000


def test_restoring_without_a_penalty_before_is_nothing() -> None:
    nscc = context(cwnd=100_000)
    nscc.on_ack(MTU, False, NO_SAMPLE, 100_500, 0, True)
    assert nscc.cwnd == 100_000


def test_a_penalty_stops_growth() -> None:
    nscc = context(cwnd=100_000, inflight=200_000)
    for k in range(9):
        nscc.on_ack(MTU, False, 15 * US, 100_500 + k, 1)
    assert nscc.pending == 0
    assert nscc.cwnd <= 100_000 - 9 * (MTU >> 7)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ack", "nack", "loss", "send"]),
        st.integers(0, 20_000),  # octets
        st.booleans(),
        st.one_of(st.just(NO_SAMPLE), st.integers(1, 200_000)),
        st.integers(0, 30_000),  # ns since the last event
        st.integers(0, 127),
        st.booleans(),
        st.sampled_from(list(map(int, NackCode))),
    ),
    max_size=200,
)


@pytest.mark.conformance("C-092", "C-094")
@examples(150)
@given(events=EVENTS, trimming=st.booleans(), gain=st.sampled_from([None, 0.0125]))
def test_the_window_keeps_its_bounds(
    events: list[tuple[str, int, bool, int, int, int, bool, int]],
    trimming: bool,
    gain: float | None,
) -> None:
    """Whatever happens: a packet at least, no more than the most it ever could be."""
    nscc = Nscc(NsccParameters(trimming=trimming, delay_gain=gain), 0)
    now = 0
    inflight = 0
    for what, octets, marked, rtt, later, penalty, restore, code in events:
        now += later
        base = nscc.base_rtt
        adjusted = nscc.last_adjusted
        if what == "ack":
            inflight -= octets
            nscc.on_ack(octets, marked, rtt, now, penalty if restore else 0, restore)
        elif what == "nack":
            inflight -= octets
            nscc.on_nack(octets, code, now, rtt)
        elif what == "loss":
            inflight -= octets
            nscc.on_loss(octets)
        else:
            inflight += octets
            nscc.on_send(octets)
        assert nscc.inflight == inflight
        assert nscc.base_rtt <= base
        assert MTU <= nscc.cwnd <= 225_000
        if nscc.last_adjusted != adjusted:
            assert nscc.cwnd <= nscc.max_wnd
