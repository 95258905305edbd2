"""Real data of a replayed collective: what each member puts in, and what it must get.

Elements are whole numbers so small that float32 holds every sum exactly. Where the size is no
multiple of four they are octets, whose sums are taken modulo 256.  So the order of additions cannot
matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scenarios.traces.trace_model import Collective

Buffers = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class CollectivePayload:
    """The buffers ``input`` and ``output`` of each of ``ranks``; ``key`` chooses the numbers."""

    kind: Collective
    ranks: tuple[int, ...]
    octets: int
    root: int | None
    key: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:
        """Return the type of an element, of which each part has a whole number."""
        unit = len(self.ranks) * 4 if self.kind.divided else 4
        return np.dtype(np.uint8 if self.octets % unit else np.float32)

    @property
    def moves(self) -> bool:
        """Return whether there is anything to move."""
        return self.octets > 0 and len(self.ranks) > 1

    def buffers(self, rank: int) -> dict[str, int]:
        """Return the buffers of ``rank`` with their sizes in octets."""
        if not self.moves:
            return {}
        found = {}
        if self._input_parts(rank):
            found["input"] = self._input_parts(rank) * self._part
        if self._output_parts(rank):
            found["output"] = self._output_parts(rank) * self._part
        return found

    def inputs(self, rank: int) -> Buffers:
        """Return what the buffers of ``rank`` hold at the start."""
        if not self.moves:
            return {}
        found: dict[str, np.ndarray] = {}
        if self._input_parts(rank):
            found["input"] = self._own(rank)
        own = self._in_place(rank)
        if own is not None:
            found["output"] = own
        return found

    def expected(self, rank: int) -> Buffers:
        """Return what the result of ``rank`` must be."""
        if not self.moves or not self._output_parts(rank):
            return {}
        return {"output": self._result(rank)}

    @property
    def _part(self) -> int:
        """Return the octets of which buffers hold one, or one for each rank."""
        return self.octets // len(self.ranks) if self.kind.divided else self.octets

    def _input_parts(self, rank: int) -> int:
        match self.kind:
            case Collective.ALL_GATHER | Collective.BROADCAST:
                return 0
            case Collective.GATHER:
                return int(rank != self.root)
            case Collective.SCATTER:
                return len(self.ranks) if rank == self.root else 0
            case Collective.REDUCE_SCATTER | Collective.ALL_TO_ALL:
                return len(self.ranks)
        return 1

    def _output_parts(self, rank: int) -> int:
        match self.kind:
            case Collective.ALL_GATHER | Collective.ALL_TO_ALL:
                return len(self.ranks)
            case Collective.GATHER:
                return len(self.ranks) if rank == self.root else 0
            case Collective.REDUCE:
                return int(rank == self.root)
        return 1

    def _own(self, rank: int) -> np.ndarray:
        """Return what ``rank`` contributes."""
        at = self.ranks.index(rank)
        match self.kind:
            case Collective.ALL_TO_ALL | Collective.SCATTER:
                return np.concatenate(
                    [self._numbers(at, to, self._part) for to in range(len(self.ranks))]
                )
            case Collective.ALL_GATHER | Collective.GATHER:
                return self._numbers(at, 0, self._part)
        return self._numbers(at, 0, self.octets)

    def _in_place(self, rank: int) -> np.ndarray | None:
        """Return what the result of ``rank`` holds from the start, if it holds anything."""
        at = self.ranks.index(rank)
        parts = self._output_parts(rank)
        place = at
        match self.kind:
            case Collective.ALL_GATHER:
                own = self._own(rank)
            case Collective.ALL_TO_ALL:
                own = self._numbers(at, at, self._part)
            case Collective.BROADCAST if rank == self.root:
                own, place = self._own(rank), 0
            case Collective.GATHER if rank == self.root:
                own = self._own(rank)
            case Collective.SCATTER if rank == self.root:
                own, place = self._numbers(at, at, self._part), 0
            case _:
                return None
        result = np.zeros((parts, len(own)), own.dtype)
        result[place] = own
        return result.reshape(-1)

    def _result(self, rank: int) -> np.ndarray:
        at = self.ranks.index(rank)
        members = range(len(self.ranks))
        match self.kind:
            case Collective.ALL_GATHER | Collective.GATHER:
                return self._joined
            case Collective.ALL_TO_ALL:
                return np.concatenate([self._numbers(source, at, self._part) for source in members])
            case Collective.BROADCAST:
                assert self.root is not None
                return self._own(self.root)
            case Collective.SCATTER:
                assert self.root is not None
                return self._numbers(self.ranks.index(self.root), at, self._part)
            case Collective.REDUCE_SCATTER:
                part = self._part // self.dtype.itemsize
                return self._total[at * part : (at + 1) * part]
        return self._total

    @cached_property
    def _joined(self) -> np.ndarray:
        return np.concatenate([self._own(rank) for rank in self.ranks])

    @cached_property
    def _total(self) -> np.ndarray:
        total = self._numbers(0, 0, self.octets)
        for at in range(1, len(self.ranks)):
            total += self._numbers(at, 0, self.octets)
        return total

    def _numbers(self, at: int, to: int, octets: int) -> np.ndarray:
        rng = np.random.default_rng((*self.key, at, to))
        count = octets // self.dtype.itemsize
        if self.dtype == np.uint8:
            return np.frombuffer(rng.bytes(count), np.uint8).copy()
        bound = 2**24 // len(self.ranks)
        return rng.integers(-bound, bound, count, np.int32).astype(np.float32)
