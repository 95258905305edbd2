"""A rank's worker shares counters with the first rank, and the rest with all."""

import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.event_queue import EventQueue
from emulator.workers.ranks.exchange import Ranks
from emulator.workers.ranks.worker import OtherRank, OwnRank, RankedPorts
from emulator.workers.worker import Call, Counted, EndedSchedules, WorkerPart
from tests.harness.engine.memory_channel import ranks_of


def result(rank: int) -> RankResult:
    """The result of a GPU that had one operation."""
    times = np.array([5 + rank])
    return RankResult(
        rank=rank,
        node=f"g{rank}",
        execution=1,
        start_ns=5,
        end_ns=9,
        operation_start=times,
        operation_end=times + 1,
    )


class _Part:
    """Three answers of a worker, which has one GPU."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.events = EventQueue()

    def counters(self) -> Counted[int, object]:
        return Counted({self.number: {"nic": {"frames_in": 7}}})

    def results(self, for_all: bool) -> EndedSchedules:
        return EndedSchedules([result(self.number)], for_all)

    def closed(self) -> bool:
        return bool(self.number)


def test_counters_go_to_the_rank_that_reports_and_all_else_to_everybody() -> None:
    heard: dict[int, list[Any]] = {}

    def work(ranks: Ranks) -> None:
        own = OwnRank(cast(WorkerPart, _Part(ranks.number)), ranks)
        others = [OtherRank(number, ranks) for number in ranks.others]
        for method in (_Part.counters, _Part.closed):
            call: Call[Any] = Call(method)
            answers = [own.give(call)()]
            if method == _Part.closed or ranks.number == 0:
                answers += [one.give(call)() for one in others]
            heard.setdefault(ranks.number, []).append(answers)

    threads = [threading.Thread(target=work, args=(one,)) for one in ranks_of(3, patience_s=20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = [Counted({number: {"nic": {"frames_in": 7}}}) for number in range(3)]
    assert heard == {
        0: [counts, [False, True, True]],
        1: [[counts[1]], [True, False, True]],
        2: [[counts[2]], [True, False, True]],
    }


@pytest.mark.parametrize("for_all", [False, True])
def test_times_of_operations_stay_where_they_are_unless_all_need_them(for_all: bool) -> None:
    heard: dict[int, list[RankResult]] = {}

    def work(ranks: Ranks) -> None:
        own = OwnRank(cast(WorkerPart, _Part(ranks.number)), ranks)
        call = Call(_Part.results, (for_all,))
        answers = [own.give(call)()]
        answers += [OtherRank(one, ranks).give(call)() for one in ranks.others]
        heard[ranks.number] = [one for part in answers for one in part.results]

    threads = [threading.Thread(target=work, args=(one,)) for one in ranks_of(3, patience_s=20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, results in heard.items():
        assert {(one.start_ns, one.end_ns) for one in results} == {(5, 9)}
        timed = {one.rank: one.operation_end.tolist() for one in results}
        known = {0, 1, 2} if for_all else {number}
        assert timed == {rank: [6 + rank] if rank in known else [] for rank in range(3)}
    assert sorted(heard) == [0, 1, 2]


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
