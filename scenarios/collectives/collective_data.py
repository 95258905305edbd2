"""Data that the members of a communicator put into a collective, and the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from scenarios.collectives.data_types import (
    DataType,
    Total,
    Values,
    factors,
    random_reals,
    whole_numbers,
)
from scenarios.collectives.exchange_matrix import Matrix

#: Octets of a member's buffer up to which the parts are kept: drawing them again would cost more
#: than the room, as for each a generator is made.
_KEPT = 2**16


@dataclass(frozen=True)
class CollectiveData:
    seed: int
    group: int
    members: int
    size: int
    datatype: DataType
    reduction: str
    exact: bool
    #: octets from each member to each other one; None: a part of the size
    matrix: Matrix | None = None
    #: the reduction of those operands that were drawn in order: each is drawn once for both ends
    _reduced: Total = field(init=False, repr=False, compare=False)
    #: parts of small buffers, by sender and receiver: each is drawn once for both ends
    _pieces: dict[tuple[int, int], Values] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "_reduced", Total(self.datatype, self.reduction, exact=self.exact))

    @property
    def part(self) -> int:
        return self.size // self.members

    def whole(self, position: int, *, ranks: int = 1) -> Values:
        """Return the buffer of a member; ``ranks`` of them are reduced."""
        key = (self.seed, *((self.group,) if self.group else ()), position, self.size)
        return self._values(key, self.size, ranks, position)

    def operand(self, position: int) -> Values:
        """Return what a member adds to a reduction over all."""
        values = self.whole(position, ranks=self.members)
        if position == self._reduced.ranks:
            self._reduced.add(values)
        return values

    def octets(self, sender: int, receiver: int) -> int:
        """Return how much one member has for another one."""
        return self.part if self.matrix is None else self.matrix[sender][receiver]

    def piece(self, sender: int, receiver: int) -> Values:
        """Return the part that one member has for another one; nobody may change it."""
        drawn = self._pieces.get((sender, receiver))
        if drawn is not None:
            return drawn
        octets = self.octets(sender, receiver)
        key = (self.seed, 1, self.group, sender, receiver, octets)
        values = self._values(key, octets, 1, sender)
        if self.size <= _KEPT:
            values.flags.writeable = False
            self._pieces[sender, receiver] = values
        return values

    def _values(self, key: Sequence[int], octets: int, ranks: int, position: int) -> Values:
        count = octets // self.datatype.octets
        if not self.exact:
            product = self.reduction == "prod"
            return random_reals(self.datatype, key, count, ranks=ranks, product=product)
        if self.reduction == "prod":
            return factors(self.datatype, key, count, ranks=ranks, position=position)
        return whole_numbers(self.datatype, key, count, ranks=ranks, position=position)

    @cached_property
    def total(self) -> Total:
        """Return the reduction of all members' buffers."""
        total = self._reduced
        while total.ranks < self.members:
            self.operand(total.ranks)
        return total

    @cached_property
    def total_value(self) -> Values:
        """Return the result of the reduction; nobody may change it."""
        value = self.total.value()
        value.flags.writeable = False
        return value

    @cached_property
    def total_bound(self) -> Values | None:
        """Return how far elements of the result may be from it, or None for not at all."""
        return self.total.bound()

    @cached_property
    def gathered(self) -> Values:
        """Return the parts of all members, one behind the other."""
        return np.concatenate([self.piece(position, position) for position in range(self.members)])
