"""One dispatch of tokens to experts: which rows each member sends to which, hop by hop.

Direct: a token is sent to the GPU of each of its experts, once for each expert.

Once for each node: a token is sent once to each node with its experts, to the GPU with the sender's
number there (its rail). From there NVLink takes it to the GPUs of its experts.  Inside its own node
it goes straight to these.  The combine takes the same way back. Rows of one token are added up
where ways meet, so that one result for each node and token crosses the fabric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scenarios.workloads.experts.expert_routing import Numbers


@dataclass(frozen=True, eq=False)
class RowHop:
    """Rows that members send to each other.

    ``taken[p]`` are the rows of member p's source that it sends, ordered by receiver.
    ``counts[p, q]`` is how many of them go from p to q.
    """

    taken: Sequence[Numbers]
    counts: Numbers

    def sent_before(self, sender: int, receiver: int) -> int:
        """Return how many rows ``sender`` has for receivers before this one."""
        return int(self.counts[sender, :receiver].sum())

    def received_before(self, sender: int, receiver: int) -> int:
        """Return how many rows ``receiver`` gets of senders before this one."""
        return int(self.counts[:sender, receiver].sum())

    @property
    def sources(self) -> list[int]:
        """Return how many rows each member sends, those to itself included."""
        return [int(rows) for rows in self.counts.sum(axis=1)]

    @property
    def arrivals(self) -> list[int]:
        """Return how many rows each member gets, those of itself included."""
        return [int(rows) for rows in self.counts.sum(axis=0)]


@dataclass(frozen=True, eq=False)
class ExpertExchange:
    """The exchange of ``choices[p, t, j]``, the experts of token t of member p.

    ``nodes[p]`` is the node of member p.  Member p has the experts from p * ``per_member`` on.
    ``once``: a token crosses to each node once.
    """

    choices: Numbers
    nodes: Sequence[int]
    per_member: int
    once: bool

    @property
    def members(self) -> int:
        """Return the number of members."""
        return len(self.nodes)

    @property
    def tokens(self) -> int:
        """Return the tokens of each member."""
        return int(self.choices.shape[1])

    @cached_property
    def hops(self) -> tuple[RowHop, ...]:
        """Return the hops that rows take from tokens to experts."""
        source, token, expert = self._copies
        target = expert // self.per_member
        if not self.once:
            order = np.lexsort((expert, token, target, source))
            return (self._hop(source[order], target[order], token[order]),)
        via = self._via(source, target)
        first = self._unique(source, via, token)
        held = self._unique(via, source, token)  # in the order in which it arrives
        second = self._unique(via, target, source, token)
        rows = self._row_of(held, second[:, 0], second[:, 2], second[:, 3])
        return (
            self._hop(first[:, 0], first[:, 1], first[:, 2]),
            self._hop(second[:, 0], second[:, 1], rows),
        )

    @cached_property
    def work(self) -> list[Numbers]:
        """Return for each member the pairs of an arrived row and an expert that takes it."""
        source, token, expert = self._copies
        target = expert // self.per_member
        if not self.once:
            order = np.lexsort((expert, token, source, target))
            target, expert = target[order], expert[order]
            row = np.arange(len(target)) - np.searchsorted(target, target)
        else:
            via = self._via(source, target)
            # rows arrive in the order of the GPUs that pass them on, then as these hold them
            arrived = self._unique(target, via, source, token)
            key = self._key(arrived)
            at = np.searchsorted(key, self._key(np.stack([target, via, source, token], axis=1)))
            row = at - np.searchsorted(arrived[:, 0], target)
        pairs = np.stack([target, row, expert], axis=1)
        pairs = pairs[np.lexsort((pairs[:, 2], pairs[:, 1], pairs[:, 0]))]
        return [pairs[pairs[:, 0] == member, 1:] for member in range(self.members)]

    @cached_property
    def arrived(self) -> list[Numbers]:
        """Return for each member the pairs of source and token of the rows at its experts."""
        source, token, expert = self._copies
        target = expert // self.per_member
        if not self.once:
            order = np.lexsort((expert, token, source, target))
            rows = np.stack([target, source, token], axis=1)[order]
        else:
            rows = self._unique(target, self._via(source, target), source, token)[:, [0, 2, 3]]
        return [rows[rows[:, 0] == member, 1:] for member in range(self.members)]

    @property
    def nodes_per_token(self) -> float:
        """Return to how many nodes a token goes, on average."""
        source, token, expert = self._copies
        node = np.asarray(self.nodes)[expert // self.per_member]
        return len(self._unique(source, token, node)) / (self.members * self.tokens)

    @property
    def load(self) -> Numbers:
        """Return how many pairs of token and expert each member works on."""
        targets = (self.choices // self.per_member).ravel()
        return np.bincount(targets, minlength=self.members)

    @cached_property
    def _copies(self) -> tuple[Numbers, Numbers, Numbers]:
        """Return source, token and expert of each choice."""
        source, token, _ = np.indices(self.choices.shape)
        return source.ravel(), token.ravel(), self.choices.ravel()

    def _via(self, source: Numbers, target: Numbers) -> Numbers:
        """Return which member passes a row on: the source's own number in the target's node."""
        members = np.asarray(self.nodes)
        inside: dict[int, list[int]] = {}
        for member, node in enumerate(self.nodes):
            inside.setdefault(node, []).append(member)
        table = np.empty((self.members, len(inside)), np.int64)
        for there in inside.values():
            for number, member in enumerate(there):
                for node, others in inside.items():
                    table[member, node] = (
                        member if self.nodes[member] == node else others[number % len(others)]
                    )
        chosen: Numbers = table[source, members[target]]
        return chosen

    def _hop(self, sender: Numbers, receiver: Numbers, row: Numbers) -> RowHop:
        counts = np.zeros((self.members, self.members), np.int64)
        np.add.at(counts, (sender, receiver), 1)
        return RowHop([row[sender == member] for member in range(self.members)], counts)

    def _row_of(self, held: Numbers, via: Numbers, source: Numbers, token: Numbers) -> Numbers:
        """Return the place of rows among those that ``via`` holds, which are ordered."""
        at = np.searchsorted(self._key(held), self._key(np.stack([via, source, token], axis=1)))
        place: Numbers = at - np.searchsorted(held[:, 0], via)
        return place

    def _key(self, rows: Numbers) -> Numbers:
        """Return rows as one number each, in the same order."""
        key = np.zeros(len(rows), np.int64)
        for column in rows.T:
            key = key * max(self.members, self.tokens) + column
        return key

    @staticmethod
    def _unique(*columns: Numbers) -> Numbers:
        return np.unique(np.stack(columns, axis=1), axis=0)
