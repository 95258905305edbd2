"""A rank's worker shares counters with the first rank, and the rest with all."""

from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import pytest

from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.workers.forked.rank_worker import OtherRank, OwnRank
from emulator.workers.forked.worker_part import Counted, EndedSchedules, WorkerPart
from emulator.workers.ranks.rank_exchange import Ranks
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

    def counters(self) -> Counted:
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
        for method in ("counters", "closed"):
            own.give(method)
            answers = [own.answer()]
            if method == "closed" or ranks.number == 0:
                answers += [one.answer() for one in others]
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
        own.give("results", for_all)
        answers = [own.answer(), *(OtherRank(one, ranks).answer() for one in ranks.others)]
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
