"""Groups of ranks that divide a model: tensor, context, expert, data and pipeline parallelism.

The order is Megatron's ``tp-cp-ep-dp-pp``: the tensor-parallel index of a rank varies fastest, the
pipeline stage slowest::

    rank = tp + TP * (cp + CP * (dp + DP * pp))

Experts are spread over the ranks that have the same weights of attention, cp and dp together, in
blocks of EP.  Those with the same experts are one group for their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from emulator.errors import UserError

#: Kinds of groups: tensor, context, expert and data parallel, and those with the same experts.
TP, CP, EP, DP, EXPERT_DP = "TP", "CP", "EP", "DP", "EDP"
#: Ranks of the job by their positions.
Group = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Place:
    """The indices of a rank in each dimension."""

    tp: int
    cp: int
    dp: int
    pp: int


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """How many ways each dimension has; EP divides CP x DP.  Raises UserError for what does not."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        if self.cp * self.dp % self.ep:
            raise UserError(
                f"ep={self.ep} does not divide the {self.cp * self.dp} ranks of cp={self.cp} and "
                f"dp={self.dp}, over which experts are spread; choose a divisor of it"
            )

    @property
    def ranks(self) -> int:
        """Return the number of GPUs."""
        return self.tp * self.cp * self.dp * self.pp

    def rank(self, place: Place) -> int:
        """Return the rank at ``place``."""
        return place.tp + self.tp * (place.cp + self.cp * (place.dp + self.dp * place.pp))

    def place(self, rank: int) -> Place:
        """Return where ``rank`` stands."""
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        pp, dp = divmod(rest, self.dp)
        return Place(tp=tp, cp=cp, dp=dp, pp=pp)

    def stage(self, pp: int) -> range:
        """Return the ranks of a pipeline stage."""
        width = self.tp * self.cp * self.dp
        return range(pp * width, (pp + 1) * width)

    def groups(self, kind: str) -> list[Group]:
        """Return all groups of ``kind``; each rank is in one of them."""
        return list(self._groups(kind))

    def _groups(self, kind: str) -> Iterator[Group]:
        for pp in range(self.pp):
            if kind == TP:
                stage = self.stage(pp)
                for first in stage[:: self.tp]:
                    yield tuple(range(first, first + self.tp))
                continue
            for tp in range(self.tp):
                # cp varies faster than dp
                same = tuple(self.stage(pp)[tp :: self.tp])
                if kind == CP:
                    yield from _blocks(same, self.cp)
                elif kind == DP:
                    yield same
                elif kind == EP:
                    yield from _blocks(same, self.ep)
                elif kind == EXPERT_DP:
                    for first in range(self.ep):
                        yield same[first :: self.ep]
                else:
                    raise ValueError(f"there is no kind of group {kind!r}")


def _blocks(ranks: Group, size: int) -> Iterator[Group]:
    for first in range(0, len(ranks), size):
        yield ranks[first : first + size]
