"""Spraying over several ports: evenly, and not over one that swallows everything."""

from __future__ import annotations

import random
from collections import Counter, deque

import pytest

from uet.config import FepConfig
from uet.congestion.paths import CLEAN, TIMEOUT
from uet.congestion.ports import TRY_EVERY, PerPort, choices, evs_of, hash_of
from uet.congestion.reps import Reps

WINDOW, FREEZE = 32, 1000


def policy(ports: int, seed: int) -> PerPort:
    rng = random.Random(seed)
    return PerPort(
        rng,
        ports,
        lambda evs: Reps(rng, window_packets=WINDOW // ports, freeze_time=FREEZE, evs=evs),
        size=64,
    )


def port_of(ev: int, ports: int) -> int:
    return choices(range(ports))[hash_of(ev)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ports", [2, 4])
def test_ports_take_turns_whatever_comes_back_first(ports: int, seed: int) -> None:
    """Answers come in any order, some for several packets, as a network brings them."""
    spray, rng = policy(ports, seed), random.Random(seed)
    flying: deque[int] = deque()
    sent: Counter[int] = Counter()
    for now in range(4000):
        ev = spray.pick()
        sent[port_of(ev, ports)] += 1
        flying.append(ev)
        if len(flying) > WINDOW:
            for _ in range(rng.randint(0, 2)):
                at = rng.randrange(len(flying))
                spray.on_feedback(flying[at], CLEAN, now, rng.randint(1, 3))
                del flying[at]
    assert max(sent.values()) - min(sent.values()) <= 1


def test_a_port_that_swallows_everything_is_only_tried_and_comes_back() -> None:
    spray = policy(2, 1)
    sent: Counter[int] = Counter()

    def work(now: int, *, dead: int | None) -> None:
        ev = spray.pick()
        port = port_of(ev, 2)
        sent[port] += 1
        spray.on_feedback(ev, TIMEOUT if port == dead else CLEAN, now)

    for now in range(1000):
        work(now, dead=0)
    assert 0 < sent[0] <= 2 + 1000 / TRY_EVERY
    sent.clear()
    for now in range(1000, 2000):
        work(now, dead=None)
    assert sent[0] > 400


def test_where_no_port_answers_all_go_on_being_tried() -> None:
    spray = policy(2, 1)
    tried = Counter()
    for now in range(200):
        ev = spray.pick()
        tried[port_of(ev, 2)] += 1
        spray.on_feedback(ev, TIMEOUT, now)
    assert min(tried.values()) > 50


def test_every_value_belongs_to_one_port() -> None:
    parts = [evs_of(port, 4) for port in range(4)]
    assert len({ev for part in parts for ev in part}) == sum(map(len, parts))


def test_an_endpoint_of_one_port_sprays_as_ever() -> None:
    settings = {"address": "10.0.0.1", "mac": "02:00:00:00:00:01", "spraying": "reps"}
    kinds = [
        type(FepConfig(**settings, ports=ports).congestion(4096).open(random.Random(1), 0).paths)  # type: ignore[arg-type]
        for ports in (1, 2)
    ]
    assert kinds == [Reps, PerPort]
