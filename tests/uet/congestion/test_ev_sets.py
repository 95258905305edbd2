"""Sets of EVs drawn at one go are those that single draws would have been."""

import random

import pytest

from uet.congestion.spraying.ev_sets import EvSets
from uet.congestion.spraying.paths import draw_evs


@pytest.mark.parametrize(("count", "size"), [(0, 256), (1, 8), (23, 256), (511, 256), (300, 8)])
@pytest.mark.parametrize("seed", range(4))
def test_sets_drawn_at_one_go_are_those_of_single_draws(count: int, size: int, seed: int) -> None:
    one, other = random.Random(seed), random.Random(seed)
    for rng in (one, other):
        rng.gauss(0.0, 1.0)  # leaves a second value for later
        for _ in range(500 * seed):
            rng.random()
    sets = EvSets(one, size, count)
    singly = [draw_evs(other, size) for _ in range(count)]
    assert [sets[number] for number in range(count)] == singly
    assert one.getstate() == other.getstate()


def test_sets_are_the_same_in_any_order() -> None:
    sets = EvSets(random.Random(9), 256, 200)
    singly = [sets[number] for number in range(200)]
    order = random.Random(1).sample(range(200), 200)
    assert [sets[number] for number in order] == [singly[number] for number in order]
    for missing in (-1, 200):
        with pytest.raises(IndexError):
            sets[missing]
