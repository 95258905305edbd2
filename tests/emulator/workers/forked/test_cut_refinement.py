"""Less traffic crosses after each step, and no worker gets more work than the fullest may have."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from emulator.workers.forked.cable_load import GroupLoad
from emulator.workers.forked.cut_refinement import SLACK, cut, refined


def load(pairs: dict[tuple[int, int], int], work: list[int]) -> GroupLoad:
    between = np.zeros((len(work), len(work)), np.int64)
    for (one, other), octets in pairs.items():
        between[one, other] = between[other, one] = octets
    return GroupLoad(between, np.array(work, np.int64))


def test_pairs_that_talk_come_together_by_a_change_of_places() -> None:
    talk = load({(0, 2): 50, (1, 3): 50, (0, 1): 1}, [10] * 4)
    owner = np.array([0, 0, 1, 1])
    after = refined(talk, owner, np.ones(4, np.int64))
    assert after[0] == after[2] != after[1] == after[3]
    assert (cut(talk, owner), cut(talk, after)) == (100, 1)
    assert owner.tolist() == [0, 0, 1, 1]


def test_a_switch_without_gpus_goes_to_those_who_use_it_unless_that_is_too_much_work() -> None:
    busy = np.array([1, 1, 0])
    owner = np.array([0, 1, 1])
    light = load({(0, 2): 50}, [100, 100, 9])
    assert refined(light, owner, busy).tolist() == [0, 1, 0]
    heavy = load({(0, 2): 50}, [100, 10, 80])
    assert refined(heavy, owner, busy).tolist() == [0, 1, 1]


def test_nobody_is_left_without_gpus() -> None:
    one_pair = load({(0, 1): 50}, [0, 0])
    assert refined(one_pair, np.array([0, 1]), np.ones(2, np.int64)).tolist() == [0, 1]


@given(st.integers(2, 9), st.integers(2, 4), st.randoms(use_true_random=False))
def test_the_cut_never_grows_and_the_work_stays_balanced(
    groups: int, workers: int, draw: Random
) -> None:
    workers = min(groups, workers)
    pairs = {(i, j): draw.randrange(100) for i in range(groups) for j in range(i)}
    made = load(pairs, [draw.randrange(1, 50) for _ in range(groups)])
    owner = np.array([number * workers // groups for number in range(groups)])
    after = refined(made, owner, np.ones(groups, np.int64))
    assert cut(made, after) <= cut(made, owner)
    assert set(after.tolist()) == set(range(workers))
    before_most = max(int(made.work[owner == one].sum()) for one in range(workers))
    most = max(before_most, int(made.work.sum()) * SLACK // (100 * workers))
    assert max(int(made.work[after == one].sum()) for one in range(workers)) <= most
