"""Spraying over spines of which one is slow or swallows packets, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.congestion.fabric import US, Fabric, Port, Rules

KIB, PAIRS = 1_024, 4


def spray(
    octets: int, *, spines: int = 4, slow: float = 1, black: bool = False, **parameters: object
) -> Fabric:
    """Four endpoints of one leaf write to four of another; the first spine is not as the others."""
    fabric = Fabric(2 * PAIRS, nic_delay=lambda index: 500, **parameters)
    rules, rate = Rules.shallow(fabric.bdp), fabric.rate * PAIRS / spines
    up = [Port(fabric, rate, 1_000, rules, black=black and not s) for s in range(spines)]
    down = [Port(fabric, rate * (slow if not s else 1), 1_000, rules) for s in range(spines)]
    back = [Port(fabric, rate, 1_000, rules) for s in range(spines)]
    last = [Port(fabric, fabric.rate, 500, replace(rules, last_hop=True)) for _ in range(2 * PAIRS)]

    def route(source: int, to: int, ev: int) -> Sequence[Port]:
        spine = random.Random(ev).randrange(spines)
        if source < PAIRS:
            return up[spine], down[spine], last[to]
        return back[spine], last[to]

    fabric.route = route
    for pair in range(PAIRS):
        fabric.register(PAIRS + pair, octets)
        fabric.write(pair, PAIRS + pair, octets)
    return fabric


@pytest.mark.conformance("C-182")
@pytest.mark.parametrize("spraying", ["oblivious", "reps"])
def test_a_slow_path_is_not_taken_for_loss(spraying: str) -> None:
    """One spine of four at a quarter of its rate: next to nothing is sent twice."""
    seeds = range(1, 5)
    made = [spray(512 * KIB, slow=0.25, spraying=spraying, seed=seed) for seed in seeds]
    for fabric in made:
        fabric.run(5_000 * US)
        assert fabric.completed == PAIRS
    assert sum(fabric.count("rx_duplicates") for fabric in made) <= 4 * len(made)


@pytest.mark.parametrize("spraying", ["oblivious", "reps"])
def test_a_black_path_is_left_without_a_timer(spraying: str) -> None:
    """It earns its keep: without inference and probes each packet lost waits for its RTO."""
    took = {}
    for infer in (True, False):
        fabrics = [
            spray(
                256 * KIB,
                spines=8,
                black=True,
                spraying=spraying,
                seed=seed,
                infer_loss=infer,
                **({} if infer else {"tail_loss_time": 0}),
            )
            for seed in range(1, 4)
        ]
        took[infer] = sum(fabric.run(50_000 * US) for fabric in fabrics)
        assert all(fabric.completed == PAIRS for fabric in fabrics)
        assert not infer or not any(fabric.count("rx_duplicates") for fabric in fabrics)
    assert took[True] < 0.7 * took[False]
