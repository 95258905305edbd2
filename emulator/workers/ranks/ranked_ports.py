"""Puts together at the first rank what the ranks of a run know of their own ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from emulator.workers.ranks.rank_exchange import Ranks

T = TypeVar("T")


class RankedPorts:
    """The ports of all ``ranks``; ``owner`` is the number of a node's rank, by its name.

    It is the :class:`emulator.dataplane.switch.joined_ports.JoinedPorts` of a run.
    """

    def __init__(self, ranks: Ranks, owner: Mapping[str, int]) -> None:
        self._ranks, self._owner = ranks, owner
        #: the ranks of lists of ports that are asked for again and again, by the list's identity
        self._ranks_of: dict[int, tuple[Sequence[str], NDArray[np.intp]]] = {}

    def mine(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` (``node:port``) whose node is this rank's; all at its end."""
        if self._ranks.ended:
            return list(names)
        return [name for name in names if self._rank(name) == self._ranks.number]

    def by_name(self, names: Sequence[str], own: Mapping[str, T]) -> dict[str, T]:
        """Return for each of ``names`` (``node:port``) what the rank of its node has in ``own``.

        Ranks that report nothing have nothing.
        """
        if self._ranks.ended:  # what the others have is out of reach
            return {name: own[name] for name in names if name in own}
        mine = {name: own[name] for name in self.mine(names) if name in own}
        parts = self._ranks.to_first("counters of ports", mine)
        if not parts:
            return {}
        found = ((name, parts[self._rank(name)]) for name in names)
        return {name: part[name] for name, part in found if name in part}

    def rows(self, names: Sequence[str], own: NDArray[Any]) -> NDArray[Any]:
        """Return for each of ``names`` the row that the rank of its node has in ``own``.

        Ranks that report nothing have their own.
        """
        if self._ranks.ended:
            return own
        if id(names) not in self._ranks_of:
            self._ranks_of[id(names)] = names, np.array([self._rank(name) for name in names])
        _, rank_of = self._ranks_of[id(names)]
        mine = own[rank_of == self._ranks.number]
        parts = self._ranks.to_first("samples of ports", mine)
        if not parts:
            return own
        joined = own.copy()
        for number, part in enumerate(parts):
            joined[rank_of == number] = part
        return joined

    def _rank(self, name: str) -> int:
        return self._owner[name.partition(":")[0]]
