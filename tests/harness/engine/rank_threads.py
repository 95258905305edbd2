"""Ranks that are threads of this process, each with a channel in memory."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from emulator.workers.ranks.exchange import Ranks
from tests.harness.engine.memory_channel import ranks_of

T = TypeVar("T")


def outcomes(ranks: Sequence[Ranks], work: Callable[[Ranks], Any]) -> list[Any]:
    """Do ``work`` at all ``ranks`` at once; return by number what it returns or raises."""

    def outcome(one: Ranks) -> Any:
        try:
            return work(one)
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(outcome, ranks))


def in_ranks(count: int, act: Callable[[Ranks], T]) -> list[T]:
    """Return by number what ``act`` returns in each of ``count`` ranks, all at once.

    What one of them raises ends the others.
    """

    def acted(ranks: Ranks) -> T:
        with ranks.warned():
            return act(ranks)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(acted, ranks_of(count, patience_s=60)))
