"""Spraying over several ports: evenly, and not over one that swallows everything."""

import itertools
import math
import random
from collections import Counter, deque
from dataclasses import replace

import pytest

from uet.config import FepConfig
from uet.congestion.spraying.paths import CLEAN, EV_FIRST, EV_LAST, TIMEOUT, SinglePath
from uet.congestion.spraying.policies import SPRAYING
from uet.congestion.spraying.port_entropy import (
    TRY_AFTER,
    TRY_AFTER_MOST,
    PerPort,
    Ports,
    choices,
    evs_of,
    hash_of,
)
from uet.congestion.spraying.reps import Reps
from uet.fep import FabricEndpoint

WINDOW, FREEZE = 32, 1000


def policy(ports: int, seed: int, shared: Ports | None = None) -> PerPort:
    rng = random.Random(seed)
    return PerPort(
        rng,
        shared or Ports(ports),
        lambda evs: Reps(rng, window_packets=WINDOW // ports, freeze_time=FREEZE, evs=evs),
        size=64,
    )


def port_of(ev: int, ports: int) -> int:
    return choices(range(ports))[hash_of(ev)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ports", [2, 4, 16])
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


@pytest.mark.conformance("C-184")
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
    assert 1 < sent[0] <= 2 + math.log2(1000 / TRY_AFTER)
    sent.clear()
    for now in range(1000, 4000):  # it is found again after as long as it was away, at most
        work(now, dead=None)
    assert sent[0] > 900


def test_a_port_that_never_answers_is_tried_ever_more_rarely_but_for_ever() -> None:
    spray = policy(2, 1)
    tries = []
    for now in range(20 * TRY_AFTER_MOST):
        ev = spray.pick()
        dead = port_of(ev, 2) == 0
        spray.on_feedback(ev, TIMEOUT if dead else CLEAN, now)
        if dead:
            tries.append(now)
    gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert gaps == sorted(gaps)
    assert len(set(gaps[-3:])) == 1  # as rare as it gets


@pytest.mark.conformance("C-184")
@pytest.mark.parametrize("spraying", SPRAYING)
def test_no_packet_has_the_entropy_of_a_port_without_carrier(spraying: str) -> None:
    """Whatever the spraying: the entropy says by which plane the peer answers."""
    fep = FepConfig(
        address="10.0.0.1", mac="02:00:00:00:00:01", spraying=spraying, base_rtt=100_000
    )
    ports = Ports(4)
    paths = fep.congestion(4096).open(random.Random(1), 0, ports=ports).paths

    def taken(packets: int = 4000) -> set[int]:
        evs = [paths.pick() for _ in range(packets)]
        assert all(EV_FIRST <= ev <= EV_LAST for ev in evs)
        return {port_of(ev, 4) for ev in evs}

    assert taken() == {0, 1, 2, 3}
    ports.use([1, 3])
    assert taken() == {1, 3}
    ports.use([2])
    assert taken() == {2}
    ports.use([0, 1, 2, 3])
    assert taken() == {0, 1, 2, 3}


def test_an_ordered_flow_moves_only_if_it_has_to() -> None:
    for seed in range(20):
        ports = Ports(2)
        path = ports.steer(SinglePath(random.Random(seed)))
        before = path.pick()
        dead = port_of(before, 2)
        ports.use([dead])
        assert path.pick() == before
        ports.use([1 - dead])
        assert port_of(path.pick(), 2) == 1 - dead
        assert path.pick() == path.pick()
        ports.use([0, 1])
        assert path.pick() == before


def test_where_no_port_answers_all_go_on_being_tried() -> None:
    spray = policy(2, 1)
    tried: Counter[int] = Counter()
    for now in range(200):
        ev = spray.pick()
        tried[port_of(ev, 2)] += 1
        spray.on_feedback(ev, TIMEOUT, now)
    assert min(tried.values()) > 50


@pytest.mark.conformance("C-184")
def test_every_value_belongs_to_one_port() -> None:
    parts = [evs_of(port, 4) for port in range(4)]
    assert len({ev for part in parts for ev in part}) == sum(map(len, parts))


def test_an_endpoint_of_one_port_sprays_as_ever() -> None:
    one = FepConfig(
        address="10.0.0.1",
        mac="02:00:00:00:00:01",
        spraying="reps",
        neighbours={"10.0.0.2": "02:00:00:00:00:02"},
    )
    assert [
        type(made.peers[bytes((10, 0, 0, 2))].congestion.paths)
        for made in (FabricEndpoint(replace(one, ports=ports), seed=1) for ports in (1, 2))
    ] == [Reps, PerPort]
