"""Test which paths packets take, and what feedback does to that (UES 3.6.16)."""

import random
from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.examples import examples
from tests.harness.uet.spray import DEAD, GOOD, MARKS, RTT, TRIMS, Paths
from uet.congestion.spraying.bitmap import PenaltySpraying
from uet.congestion.spraying.paths import (
    CLEAN,
    ECN,
    EV_FIRST,
    EV_LAST,
    LOST,
    NACK,
    TIMEOUT,
    PathSelection,
    RoundRobin,
    draw_evs,
    ev_set_size,
    shuffle_evs,
)
from uet.congestion.spraying.reps import CACHE_SIZE, Reps

BDP, MTU = 150_000, 4_096
WINDOW = BDP // MTU
FREEZE = 100_000


def reps(seed: int = 1, *, warm: bool = True) -> Reps:
    """``warm``: its first window of packets has left."""
    policy = Reps(random.Random(seed), window_packets=WINDOW, freeze_time=FREEZE)
    if warm:
        for _ in range(WINDOW):
            policy.pick()
    return policy


def penalties(seed: int = 1) -> PenaltySpraying:
    return PenaltySpraying(random.Random(seed), size=ev_set_size(BDP, MTU), rest=RTT)


def test_a_set_comes_round_in_two_round_trips() -> None:
    for bdp in (150_000, 300_000, 450_000):
        assert bdp / MTU <= ev_set_size(bdp, MTU) <= 2 * bdp / MTU
    assert ev_set_size(100, MTU) == 8
    assert ev_set_size(10**9, MTU) == 256


@pytest.mark.conformance("C-110")
def test_round_robin_uses_all_before_any_again() -> None:
    for seed in range(10):
        policy = RoundRobin(random.Random(seed), 64)
        rounds = [[policy.pick() for _ in range(64)] for _ in range(3)]
        assert rounds[0] == rounds[1] == rounds[2]
        assert len(set(rounds[0])) == 64
        assert all(EV_FIRST <= ev <= EV_LAST for ev in rounds[0])
        policy.on_feedback(rounds[0][1], TIMEOUT, 0)
        assert [policy.pick() for _ in range(64)] == rounds[0]


@pytest.mark.parametrize("size", [8, 73, 256])
def test_a_set_drawn_as_it_is_needed_is_that_drawn_at_once(size: int) -> None:
    for seed in range(20):
        policy = RoundRobin(random.Random(seed), size)
        assert [policy.pick() for _ in range(size)] == list(draw_evs(random.Random(seed), size))


# -- REPS --------------------------------------------------------------------------------------


@pytest.mark.conformance("C-111")
def test_a_clean_ev_is_used_once_more_oldest_first() -> None:
    policy = reps()
    for ev in range(5):
        policy.on_feedback(ev, CLEAN, 0)
    assert [policy.pick() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert all(policy.pick() >= EV_FIRST for _ in range(300))


@pytest.mark.conformance("C-111")
def test_a_clean_ev_is_used_once() -> None:
    """Though its answer stands for more packets: chance would pile them onto some paths."""
    policy = reps()
    policy.on_feedback(1, CLEAN, 0, 3)
    policy.on_feedback(2, CLEAN, 0)
    assert [policy.pick() for _ in range(2)] == [1, 2]
    assert policy.pick() not in (1, 2)


def test_where_a_path_was_bad_a_clean_ev_is_used_for_as_many_as_its_answer_stands_for() -> None:
    policy = reps()
    policy.on_feedback(9, ECN, 0)
    policy.on_feedback(1, CLEAN, 0, 3)
    policy.on_feedback(2, CLEAN, 0)
    policy.on_feedback(3, CLEAN, 0, 2)
    assert [policy.pick() for _ in range(6)] == [1, 1, 1, 2, 3, 3]
    assert policy.pick() >= EV_FIRST
    policy.on_feedback(1, CLEAN, 0, 4)
    policy.on_feedback(2, CLEAN, 0, 2)
    policy.pick()
    policy.on_feedback(1, TIMEOUT, 0)  # what is left of it is not used any more
    assert [policy.pick() for _ in range(2)] == [2, 2]


def test_a_frozen_cache_does_not_end_with_one_path() -> None:
    """Answers on one good path, however many, leave the others in."""
    policy = reps()
    for ev in range(CACHE_SIZE):
        policy.on_feedback(ev, CLEAN, 0)
    policy.on_feedback(99, TIMEOUT, 1)
    for _ in range(100):
        policy.on_feedback(3, CLEAN, 2)
    assert {policy.pick() for _ in range(3 * CACHE_SIZE)} == set(range(CACHE_SIZE))


@pytest.mark.conformance("C-111")
def test_the_newest_eight_are_kept() -> None:
    policy = reps()
    for ev in range(20):
        policy.on_feedback(ev, CLEAN, 0)
    assert [policy.pick() for _ in range(CACHE_SIZE)] == list(range(12, 20))
    assert policy.pick() >= EV_FIRST


@pytest.mark.conformance("C-111")
@examples(100)
@given(st.lists(st.one_of(st.none(), st.sampled_from([CLEAN, ECN, NACK])), max_size=300))
def test_only_clean_ones_come_back_and_each_once(events: list[int | None]) -> None:
    """``None`` sends a packet; anything else is feedback about an EV never used before."""
    policy = reps()
    clean: Counter[int] = Counter()
    for number, how in enumerate(events):
        if how is None:
            ev = policy.pick()
            if ev < EV_FIRST:
                clean[ev] -= 1
                assert clean[ev] == 0
        else:
            policy.on_feedback(number, how, number)
            if how == CLEAN:
                clean[number] += 1


def test_the_first_window_explores() -> None:
    policy = reps(warm=False)
    for ev in range(8):
        policy.on_feedback(ev, CLEAN, 0)
    assert all(policy.pick() >= EV_FIRST for _ in range(WINDOW))
    assert [policy.pick() for _ in range(8)] == list(range(8))


@pytest.mark.conformance("C-112")
def test_a_timeout_freezes_until_time_and_a_clean_answer() -> None:
    policy = reps()
    for ev in range(6):
        policy.on_feedback(ev, CLEAN, 0)
    assert [policy.pick() for _ in range(4)] == [0, 1, 2, 3]
    policy.on_feedback(7, TIMEOUT, 1_000)
    assert policy.frozen
    assert [policy.pick() for _ in range(2)] == [4, 5]  # those not used yet come first
    assert Counter(policy.pick() for _ in range(60)) == dict.fromkeys(range(6), 10)
    policy.on_feedback(6, CLEAN, FREEZE)  # too early
    assert policy.frozen
    assert policy.pick() == 6
    assert all(policy.pick() < EV_FIRST for _ in range(1_000))  # time alone does nothing
    policy.on_feedback(3, ECN, 10 * FREEZE)
    assert policy.frozen
    policy.on_feedback(3, CLEAN, 1_000 + FREEZE)
    assert not policy.frozen


@pytest.mark.conformance("C-112")
def test_it_explores_a_little_after_a_freeze() -> None:
    policy = reps()
    policy.on_feedback(1, TIMEOUT, 0)
    policy.on_feedback(2, CLEAN, FREEZE)
    new = 0
    for _ in range(WINDOW):
        policy.on_feedback(2, CLEAN, FREEZE)
        new += policy.pick() >= EV_FIRST
    assert new == -(-WINDOW // 8)
    for _ in range(100):
        policy.on_feedback(2, CLEAN, FREEZE)
        assert policy.pick() == 2


def test_a_timeout_does_not_lengthen_a_freeze() -> None:
    policy = reps()
    for at in range(0, FREEZE, FREEZE // 10):
        policy.on_feedback(9, TIMEOUT, at)
    policy.on_feedback(1, CLEAN, FREEZE)
    assert not policy.frozen


def test_frozen_it_drops_what_was_lost_itself() -> None:
    policy = reps()
    for ev in (0, 1, 2, 1, 3):
        policy.on_feedback(ev, CLEAN, 0)
    assert policy.pick() == 0
    policy.on_feedback(1, TIMEOUT, 0)
    assert [policy.pick() for _ in range(2)] == [2, 3]
    assert {policy.pick() for _ in range(50)} == {0, 2, 3}
    for ev in (0, 2, 3):
        policy.on_feedback(ev, TIMEOUT, 0)
    assert len({policy.pick() for _ in range(50)}) == 50  # nothing good is known: all are tried


@pytest.mark.conformance("C-182")
def test_an_inferred_loss_freezes_nothing() -> None:
    """Its EV is forgotten; the others are used once each, then there are new ones."""
    policy = reps()
    for ev in (1, 2, 3):
        policy.on_feedback(ev, CLEAN, 0)
    policy.on_feedback(2, LOST, 0)
    assert not policy.frozen
    assert [policy.pick() for _ in range(2)] == [1, 3]
    assert policy.pick() >= EV_FIRST


# -- penalties -----------------------------------------------------------------------------------


def test_without_feedback_it_is_round_robin() -> None:
    policy = penalties()
    size = ev_set_size(BDP, MTU)
    rounds = [[policy.pick() for _ in range(size)] for _ in range(30)]
    assert all(sorted(each) == sorted(rounds[0]) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1  # the order changes now and then


@pytest.mark.conformance("C-113")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("marking", [1, 3, 7])
def test_a_marked_ev_rests_for_a_round_trip(seed: int, marking: int) -> None:
    """An EV rests as long as most paths are good, at full rate."""
    paths = Paths(penalties(seed), [MARKS] * marking + [GOOD] * (16 - marking), seed)
    paths.run(100 * RTT)
    marks = [(at, ev) for at, ev, how in paths.feedback if how == ECN]
    assert marks
    for at, ev in marks:
        assert not any(at <= used < at + RTT for used in paths.seen.uses(ev))


def test_paths_that_mark_carry_less() -> None:
    paths = Paths(penalties(), [MARKS, TRIMS] + [GOOD] * 6, 1)
    paths.run(100 * RTT)
    fair = Paths(RoundRobin(random.Random(1), ev_set_size(BDP, MTU)), [GOOD] * 8, 1)
    fair.run(100 * RTT)
    usual = [fair.seen.share(path, 5 * RTT, 100 * RTT) for path in (0, 1)]
    assert paths.seen.share(0, 5 * RTT, 100 * RTT) < 0.7 * usual[0]
    assert paths.seen.share(1, 5 * RTT, 100 * RTT) < 0.4 * usual[1]


def test_when_all_mark_all_are_used() -> None:
    """Saturated: the signal says nothing about paths any more."""
    paths = Paths(penalties(), [MARKS] * 4, 1)
    paths.run(50 * RTT)
    size = ev_set_size(BDP, MTU)
    recent = [ev for at, ev, _ in paths.seen.packets if at > 40 * RTT]
    assert len(set(recent)) > 0.8 * size


@pytest.mark.conformance("C-113")
@pytest.mark.parametrize(("part", "passed_over"), [(0.4, True), (0.6, False)])
def test_marks_of_more_than_half_of_the_evs_pass_over_none(part: float, passed_over: bool) -> None:
    policy = penalties()
    size = ev_set_size(BDP, MTU)
    order = [policy.pick() for _ in range(size)]
    marked = int(part * size)
    for ev in order[:marked]:
        policy.on_feedback(ev, ECN, 0)
    assert policy.pick() == order[marked if passed_over else 0]


def test_feedback_about_strangers_is_nothing() -> None:
    policy = penalties()
    size = ev_set_size(BDP, MTU)
    for ev in range(1_000):
        policy.on_feedback(ev, TIMEOUT, 0)
    assert len({policy.pick() for _ in range(size)}) == size


@examples(50)
@given(
    st.lists(st.tuples(st.integers(0, 100), st.sampled_from([ECN, NACK, TIMEOUT])), max_size=200)
)
def test_there_is_always_an_ev(feedback: list[tuple[int, int]]) -> None:
    """Even if all were lost, and time stands still."""
    policy = PenaltySpraying(random.Random(1), size=8, rest=RTT)
    mine = sorted({policy.pick() for _ in range(8)})
    for which, how in feedback:
        policy.on_feedback(mine[which % 8], how, 0)
        assert policy.pick() in mine
    for at in range(40 * 8):  # what is forgiven comes back, by and by
        policy.on_feedback(CLEAN, CLEAN, at * RTT)
        policy.pick()
    assert {policy.pick() for _ in range(16)} == set(mine)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 256, 257])
def test_a_set_is_shuffled_as_the_generator_does(size: int) -> None:
    ours, theirs = random.Random(size), random.Random(size)
    evs, expected = array("H", range(size)), array("H", range(size))
    shuffle_evs(ours, evs)
    theirs.shuffle(expected)
    assert evs == expected
    assert ours.getstate() == theirs.getstate()


# -- broken paths --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["reps", "bitmap"])
def test_a_dead_path_is_left_within_a_few_round_trips(kind: str, seed: int) -> None:
    """The path dies at full rate; all that is sent in the three RTTs until then is lost."""
    policy: PathSelection = (
        Reps(random.Random(seed), window_packets=WINDOW, freeze_time=100 * RTT)
        if kind == "reps"
        else penalties(seed)
    )
    paths = Paths(policy, [GOOD] * 8, seed)
    paths.run(50 * RTT)
    assert paths.seen.share(0, 10 * RTT, 50 * RTT) > 0.02
    paths.states[0] = DEAD
    paths.run(80 * RTT)
    assert paths.seen.share(0, 56 * RTT, 80 * RTT) < 0.01


@pytest.mark.parametrize("seed", range(3))
def test_round_robin_goes_on_into_a_dead_path(seed: int) -> None:
    """What the others are measured by."""
    paths = Paths(RoundRobin(random.Random(seed), 256), [DEAD] + [GOOD] * 7, seed)
    paths.run(100 * RTT)
    assert 0.05 < paths.seen.share(0, 50 * RTT, 100 * RTT) < 0.25


def test_a_path_that_is_mended_is_used_again() -> None:
    paths = Paths(penalties(3), [DEAD] + [GOOD] * 3, 3)
    paths.run(60 * RTT)
    paths.states[0] = GOOD
    paths.run(400 * RTT)
    assert paths.seen.share(0, 300 * RTT, 400 * RTT) > 0.05


def test_reps_finds_a_mended_path_when_the_others_are_busy() -> None:
    """Before that it has no reason to look for one: all its EVs come back clean."""
    policy = Reps(random.Random(3), window_packets=WINDOW, freeze_time=10 * RTT)
    paths = Paths(policy, [DEAD] + [GOOD] * 3, 3)
    paths.run(60 * RTT)
    paths.states[:] = [GOOD] + [MARKS] * 3
    paths.run(90 * RTT)
    assert paths.seen.share(0, 70 * RTT, 90 * RTT) > 0.9
