"""Credit: what a source spends and asks for, what a receiver grants (UES 3.6.14)."""

import heapq
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.examples import examples
from uet.congestion.congestion_parameters import RcccParameters
from uet.congestion.receiver_credit import CreditPacer, CreditSource
from uet.congestion.signals import ahead

MTU = 4_096
P = RcccParameters(mtu=MTU)  # 100 Gb/s, 12 us
RATE = 12.5  # octets/ns
WRAP = 1 << 24
FAR = 4 * P.max_wnd // 256  # units that a counter may be ahead of the other end's


def granted_source() -> CreditSource:
    """One that has had its first answer."""
    source = CreditSource(P)
    source.on_answer()
    return source


# -- the source ------------------------------------------------------------------------------


@pytest.mark.conformance("C-101")
def test_nothing_leaves_without_credit() -> None:
    source = granted_source()
    assert source.room() == 0
    assert source.on_credit(17) == 17 * 256
    sent = 0
    while source.room() > 0:
        source.on_send(MTU)
        sent += 1
    assert sent == 2  # the second one is 3840 octets more than was granted
    assert source.credit == 17 * 256 - 2 * MTU
    source.on_credit(17 + 15)
    assert source.room() <= 0
    source.on_credit(17 + 16)
    assert source.room() > 0


def test_a_window_on_trust_until_the_first_answer() -> None:
    source = CreditSource(P)
    assert source.room() == 1.5 * 150_000
    source.on_send(MTU)
    source.on_answer()
    assert source.credit == 0
    source = CreditSource(P)
    source.on_send(300_000)
    source.on_answer()
    assert source.credit == 225_000 - 300_000


@pytest.mark.conformance("C-101")
def test_credit_is_cumulative() -> None:
    """Any of them may be lost, late or doubled: the newest one counts."""
    source = granted_source()
    assert source.on_credit(16) == 16 * 256
    assert source.on_credit(64) == 48 * 256  # 32 and 48 were lost
    assert source.on_credit(48) == 0
    assert source.on_credit(64) == 0
    assert source.granted == 64


@given(st.integers(0, WRAP - 1), st.lists(st.integers(1, 500), max_size=50))
def test_credit_wraps(start: int, steps: list[int]) -> None:
    source = granted_source()
    source.granted = start
    for step in steps:
        source.credit = 0
        assert source.on_credit((source.granted + step) % WRAP) == step * 256


def test_no_more_credit_than_a_window() -> None:
    source = granted_source()
    source.on_credit(FAR)
    assert source.credit == P.max_wnd


@pytest.mark.parametrize("ahead_by", [FAR + 1, WRAP // 2 - 1])
def test_what_nobody_can_have_granted_or_want_is_not_believed(ahead_by: int) -> None:
    """A forged counter must not make all honest ones look old."""
    source = granted_source()
    credit = source.credit
    assert source.on_credit(source.granted + ahead_by) == 0
    assert source.credit == credit
    assert source.on_credit(source.granted + 10) == 2_560
    pacer: CreditPacer[int] = CreditPacer(P, speculate=False)
    pacer.on_target(0, ahead_by)
    assert pacer.grants(0) == []
    pacer.on_target(0, 10)
    assert pacer.grants(0) == [(0, 10)]


def test_what_it_asks_for() -> None:
    source = granted_source()
    source.granted = WRAP - 1
    assert ahead(source.target(0), source.granted) == 0
    assert ahead(source.target(1), source.granted) == 1
    assert ahead(source.target(10_000), source.granted) == 40
    assert ahead(source.target(10**9), source.granted) == -(-225_000 // 256)
    assert ahead(source.target(10**9, window=20_000), source.granted) == -(-24_096 // 256)
    source.credit = -1_000
    assert ahead(source.target(10_000), source.granted) == -(-11_000 // 256)
    source.credit = 10_000
    assert source.target(10_000) == source.granted


def test_it_asks_for_a_packet_even_while_it_lives_on_trust() -> None:
    assert CreditSource(P).target(1) == 16
    assert CreditSource(P).target(0) == 0


def test_it_asks_once_per_round_trip_while_it_has_none() -> None:
    source = granted_source()
    at = source.request_at()
    assert at is not None
    assert at <= 0
    source.requested(5_000)
    assert source.request_at() == 17_000
    source.on_credit(1)
    assert source.request_at() is None


# -- the receiver ----------------------------------------------------------------------------


def granted(
    pacer: CreditPacer[int], until: int, *, insatiable: Sequence[int] = ()
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Cumulative units by source, and (time, octets) of every grant.

    ``insatiable`` sources always want a window more than they have.
    """
    now = 0
    sums: dict[int, int] = dict.fromkeys(insatiable, 0)
    when = []
    for key in insatiable:
        pacer.on_target(key, FAR)
    while (at := pacer.next_deadline()) is not None and max(at, now) <= until:
        now = max(at, now)
        for key, credit in pacer.grants(now):
            news = ahead(credit, sums.get(key, 0) % WRAP)
            if news:
                when.append((now, news * 256))
                sums[key] = sums.get(key, 0) + news
        for key in insatiable:
            pacer.on_target(key, (sums[key] + FAR) % WRAP)
    return sums, when


@pytest.mark.conformance("C-102")
@pytest.mark.parametrize("sources", [1, 2, 3, 16])
def test_grants_are_paced_a_little_below_line_rate_and_equal(sources: int) -> None:
    pacer: CreditPacer[int] = CreditPacer(P)
    sums, when = granted(pacer, 10_000_000, insatiable=range(sources))
    total = sum(octets for _, octets in when)
    assert 0.985 < total / (10_000_000 * RATE) < 0.991
    assert max(sums.values()) - min(sums.values()) <= 64
    assert all(octets <= 4 * MTU for _, octets in when)
    for i in range(0, len(when), 97):  # over any span of time, one grant apart
        sent = 0
        for at, octets in when[i:]:
            sent += octets
            assert sent <= RATE * 0.99 * (at - when[i][0]) + 4 * MTU + 256


@pytest.mark.conformance("C-102")
@examples(30)
@given(st.lists(st.integers(1, 2_000), min_size=1, max_size=8), st.integers(0, 2**32))
def test_everybody_gets_what_they_ask_for_and_not_much_more(asked: list[int], seed: int) -> None:
    pacer: CreditPacer[int] = CreditPacer(P, speculate=False)
    rng = random.Random(seed)
    now = 0
    sums: Counter[object] = Counter()
    total = 0
    waiting = [(rng.randrange(50_000), key, units) for key, units in enumerate(asked)]
    first = min(at for at, _, _ in waiting)
    while waiting or pacer.next_deadline() is not None:
        now += rng.randrange(1, 3_000)  # ticks come when they come
        for at, key, units in [w for w in waiting if w[0] <= now]:
            waiting.remove((at, key, units))
            pacer.on_target(key, units)
        for source, credit in pacer.grants(now):
            total += credit - sums[source]
            sums[source] = credit
        assert total * 256 <= RATE * 0.99 * max(now - first, 0) + 4 * MTU + 1
    assert sums == dict(enumerate(asked))


def test_a_late_tick_makes_up_for_a_round_trip_only() -> None:
    pacer: CreditPacer[int] = CreditPacer(P)
    pacer.on_target(0, FAR)
    pacer.grants(0)
    burst = len(pacer.grants(10_000_000)) * 4 * MTU
    assert P.bdp * 0.9 < burst < P.bdp * 1.25


def test_a_port_at_rest_saves_nothing_up() -> None:
    pacer: CreditPacer[int] = CreditPacer(P, speculate=False)
    pacer.on_target(0, 1)
    assert pacer.grants(0) == [(0, 1)]
    assert pacer.next_deadline() is None
    pacer.on_target(0, FAR)
    assert len(pacer.grants(50_000)) == 1


def test_small_grants_take_their_time_too() -> None:
    """A kibioctet's worth: a crowd of tiny messages must not make a storm of CREDITs."""
    pacer: CreditPacer[int] = CreditPacer(P, speculate=False)
    for key in range(100):
        pacer.on_target(key, 1)
    _, when = granted(pacer, 10**9)
    assert len(when) == 100
    assert when[-1][0] == pytest.approx(99 * 1_024 / (RATE * 0.99), rel=0.02)


def test_old_targets_ask_for_nothing() -> None:
    pacer: CreditPacer[int] = CreditPacer(P, speculate=False)
    pacer.on_target(0, 64)
    pacer.on_target(0, 32)
    sums, _ = granted(pacer, 10**6)
    assert sums == {0: 64}
    pacer.on_target(0, 63)
    assert pacer.next_deadline() is None


def test_idle_sources_get_a_window_in_advance_and_those_that_ask_come_first() -> None:
    pacer: CreditPacer[int] = CreditPacer(P)
    pacer.on_arrival(0, MTU)
    pacer.on_arrival(1, MTU)
    sums, _ = granted(pacer, 10**9)
    assert all(P.max_wnd <= units * 256 < P.max_wnd + 4 * MTU for units in sums.values())
    assert pacer.next_deadline() is None
    pacer.on_arrival(0, 4 * MTU)
    pacer.on_target(1, int(sums[1]) + 640)
    order = []
    now = 10**9
    while (at := pacer.next_deadline()) is not None:
        now = max(at, now)
        order += [key for key, _ in pacer.grants(now)]
    assert order == 10 * [1] + [0]


def test_what_was_trimmed_is_granted_once_more() -> None:
    pacer: CreditPacer[int] = CreditPacer(P, speculate=False)
    pacer.on_target(0, 160)
    assert granted(pacer, 10**6)[0] == {0: 160}
    pacer.on_trim(0, MTU)
    assert pacer.grants(2 * 10**6) == [(0, 176)]


def test_lost_credit_is_said_again_to_those_who_ask() -> None:
    pacer: CreditPacer[int] = CreditPacer(P, speculate=False)
    pacer.on_target(0, 64)
    assert pacer.grants(0) == [(0, 64)]
    pacer.on_request(0, 64, 6_000)
    assert pacer.next_deadline() is None  # it may be on its way
    pacer.on_request(0, 64, 12_000)
    assert pacer.next_deadline() is not None
    assert pacer.grants(12_000) == [(0, 64)]
    assert pacer.grants(12_000) == []


def test_a_peer_that_rests_gets_nothing_until_it_is_heard_of_again() -> None:
    pacer: CreditPacer[int] = CreditPacer(P, speculate=False)
    pacer.on_target(0, 100)
    assert pacer.grants(0) == [(0, 64)]
    pacer.on_arrival(1, 1)
    for source in range(3):
        pacer.rest(source)
    assert pacer.next_deadline() is None
    assert pacer.grants(1_000) == []
    pacer.on_target(0, 110)
    assert pacer.grants(20_000) == [(0, 110)]  # from where it was on


# -- both together ---------------------------------------------------------------------------


def carry(
    messages: list[int], seed: int, loss: float, *, speculate: bool, in_data: bool
) -> tuple[list[int], int]:
    """Send so many octets from each source to one receiver; (sent by each, duration).

    CREDIT and CREDIT_REQ are lost at random.  ``in_data``: data packets carry the target as well.
    """
    rng = random.Random(seed)
    pacer: CreditPacer[int] = CreditPacer(P, speculate=speculate)
    sources = [CreditSource(P) for _ in messages]
    left = list(messages)
    sent = [0] * len(messages)
    events: list[tuple[int, int, str, int, int]] = []
    number = 0
    tick = -1
    look = [-1] * len(messages)

    def at(time: int, what: str, who: int, value: int = 0) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (time, number, what, who, value))

    for who in range(len(messages)):
        at(rng.randrange(12_000), "look", who)
    now = 0
    while events and (any(left) or now < 1):
        now, _, what, who, value = heapq.heappop(events)
        assert number < 500_000
        if what == "tick":
            tick = -1
            for key, credit in pacer.grants(now):
                if rng.random() >= loss:
                    assert isinstance(key, int)
                    at(now + 6_000, "credit", key, credit)
        elif what == "credit":
            sources[who].on_credit(value)
        elif what == "request":
            pacer.on_request(who, value, now)
        elif what == "data":
            pacer.on_arrival(who, MTU)
            at(now + 6_000, "ack", who)
        elif what == "target":
            pacer.on_target(who, value)
        elif what == "ack":
            sources[who].on_answer()
        source = sources[who]
        if what != "tick":
            while left[who] > 0 and source.room() > 0:
                size = min(MTU, left[who])
                source.on_send(size)
                left[who] -= size
                sent[who] += size
                at(now + 6_000, "data", who)
                if in_data:
                    at(now + 6_000, "target", who, source.target(left[who]))
            due = source.request_at()
            if left[who] and due is not None:
                if now >= due:
                    source.requested(now)
                    if rng.random() >= loss:
                        at(now + 6_000, "request", who, source.target(left[who]))
                    due = now + P.base_rtt
                if look[who] < due:
                    look[who] = due
                    at(due, "look", who)
        deadline = pacer.next_deadline()
        if deadline is not None and tick < 0:
            tick = max(deadline, now)
            at(tick, "tick", 0)
    return sent, now


@pytest.mark.conformance("C-101")
@examples(40)
@given(
    st.lists(st.integers(0, 600_000), min_size=1, max_size=5),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    st.booleans(),
    st.booleans(),
)
def test_lost_credit_never_ends_a_transfer(
    messages: list[int], seed: int, loss: float, speculate: bool, in_data: bool
) -> None:
    sent, _ = carry(messages, seed, loss, speculate=speculate, in_data=in_data)
    assert sent == messages


@pytest.mark.parametrize("sources", [1, 4, 16])
def test_a_receiver_is_kept_busy(sources: int) -> None:
    octets = 16_000_000 // sources
    _, duration = carry([octets] * sources, 1, 0.0, speculate=True, in_data=True)
    # The window on trust of each source comes on top of what the link could have carried.
    ideal = (16_000_000 - sources * P.max_wnd) / (0.99 * RATE)
    assert ideal < duration < 1.1 * ideal + 2 * P.base_rtt
