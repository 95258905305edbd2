"""A rank's worker shares counters with the first rank, and the rest with all."""

from __future__ import annotations

import threading
from typing import Any, cast

from emulator.engine.ranks.rank_exchange import Ranks
from emulator.engine.workers.rank_worker import OtherRank, OwnRank
from emulator.engine.workers.worker_part import Counted, WorkerPart
from tests.harness.engine.memory_channel import ranks_of


class _Part:
    """Two answers of a worker."""

    def __init__(self, number: int) -> None:
        self.number = number

    def counters(self) -> Counted:
        return Counted({self.number: {"nic": {"frames_in": 7}}})

    def closed(self) -> bool:
        return bool(self.number)


def test_counters_go_to_the_rank_that_reports_and_all_else_to_everybody() -> None:
    heard: dict[int, list[Any]] = {}

    def work(ranks: Ranks) -> None:
        own = OwnRank(cast(WorkerPart, _Part(ranks.number)), ranks)
        others = [OtherRank(number, ranks) for number in ranks.others]
        for method in ("counters", "closed"):
            own.give(method)
            answers = [own.answer(), *(one.answer() for one in others)]
            heard.setdefault(ranks.number, []).append(answers)

    threads = [threading.Thread(target=work, args=(one,)) for one in ranks_of(3, patience_s=20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = [Counted({number: {"nic": {"frames_in": 7}}}) for number in range(3)]
    nothing = Counted({})
    assert heard == {
        0: [counts, [False, True, True]],
        1: [[counts[1], nothing, nothing], [True, False, True]],
        2: [[counts[2], nothing, nothing], [True, False, True]],
    }
