"""Ranks that are threads of this process, each with a channel in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from emulator.engine.ranks.rank_exchange import Ranks


def outcomes(ranks: Sequence[Ranks], work: Callable[[Ranks], Any]) -> list[Any]:
    """Do ``work`` at all ``ranks`` at once; return by number what it returns or raises."""

    def outcome(one: Ranks) -> Any:
        try:
            return work(one)
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(outcome, ranks))
