"""Counters and samples of ports, put together from what their ranks have."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.workers.ranks.rank_exchange import Ranks
from emulator.workers.ranks.ranked_ports import RankedPorts
from tests.harness.engine.memory_channel import ranks_of

OWNER = {"rail0": 0, "rail1": 1}
NAMES = ["rail1:down0", "rail0:down0", "rail1:down1"]


def on_both(call: Callable[[RankedPorts, int], Any], ranks: list[Ranks]) -> list[Any]:
    found: list[Any] = [None, None]

    def work(number: int) -> None:
        found[number] = call(RankedPorts(ranks[number], OWNER), number)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_the_first_rank_has_of_each_port_what_its_own_rank_has_of_it() -> None:
    def call(ports: RankedPorts, number: int) -> dict[str, int]:
        return ports.by_name(NAMES, dict.fromkeys(NAMES, 10 + number))

    first, second = on_both(call, ranks_of(2, patience_s=20))
    assert first == {"rail1:down0": 11, "rail0:down0": 10, "rail1:down1": 11}
    assert list(first) == NAMES
    assert second == {}


def test_a_row_at_the_first_rank_is_that_of_the_port_s_rank() -> None:
    def call(ports: RankedPorts, number: int) -> Any:
        own = np.array([[number, row] for row in range(3)])
        return [ports.rows(NAMES, own).tolist() for _ in range(2)]

    first, second = on_both(call, ranks_of(2, patience_s=20))
    assert first == [[[1, 0], [0, 1], [1, 2]]] * 2
    assert second == [[[1, 0], [1, 1], [1, 2]]] * 2


def test_a_rank_that_ends_reads_its_own_alone() -> None:
    first, _ = ranks_of(2, patience_s=1000)
    first.leave("no room")
    ports = RankedPorts(first, OWNER)
    assert ports.by_name(NAMES, {"rail0:down0": 1}) == {"rail0:down0": 1}
    assert ports.rows(NAMES, np.zeros((3, 1))).tolist() == [[0], [0], [0]]


def test_a_rank_reads_its_own_ports_until_it_ends() -> None:
    first, second = ranks_of(2)
    assert RankedPorts(first, OWNER).mine(NAMES) == ["rail0:down0"]
    ports = RankedPorts(second, OWNER)
    assert ports.mine(NAMES) == ["rail1:down0", "rail1:down1"]
    second.leave("no room")
    assert ports.mine(NAMES) == NAMES
