"""Layers of experts as schedules: each pass dispatches tokens, lets experts work, and combines.

Everything that a GPU does to its memory is an operation on what has arrived there.  A GPU sends
when its rows are gathered. Its experts work when all their rows are there, and sums are made when
all results are there.  Gathering and summing take no time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from emulator.sim.endpoint.operations.gpu_functions import name_of
from emulator.sim.endpoint.operations.schedule import Apply, Region
from scenarios.collectives.program import Program
from scenarios.workloads.experts.expert_exchange import ExpertExchange, RowHop
from scenarios.workloads.experts.expert_functions import (
    INDEX,
    elements_narrowed,
    experts_applied,
    rows_gathered,
    rows_summed,
)
from scenarios.workloads.experts.expert_routing import Numbers

#: Buffers of each GPU that inputs fill or results are compared in.
TOKENS, ROUTES, AT_EXPERTS, OUTPUTS = "tokens", "routes", "at experts", "outputs"


@dataclass(frozen=True)
class TokenRows:
    """``count`` rows in the memory of a member, there when the operations ``ready`` are over."""

    region: Region
    count: int
    ready: tuple[int, ...] = ()

    def after(self, others: tuple[int, ...]) -> TokenRows:
        """Return the rows, which are there once the operations ``others`` are over, too."""
        return replace(self, ready=tuple(sorted({*self.ready, *others})))


@dataclass(frozen=True, kw_only=True)
class ExpertSizes:
    """Sizes of what travels, and the times of experts.

    ``dispatch_bytes`` and ``combine_bytes`` are the octets of an element on the way to experts and
    back.  ``pair_ns`` is what one expert takes for one token, forward.  ``peers`` other members are
    sent to at a time.
    """

    hidden: int
    dispatch_bytes: int
    combine_bytes: int
    pair_ns: float
    peers: int


class ExpertProgram:
    """Writes passes of the members ``ranks`` into ``program``."""

    def __init__(self, program: Program, ranks: Sequence[int], sizes: ExpertSizes) -> None:
        self.program, self.ranks, self.sizes = program, ranks, sizes
        #: What the buffer of routes of each member holds.
        self.routes: list[list[Numbers]] = [[] for _ in ranks]
        #: by identity, beside the indices themselves so that these stay alive
        self._kept: dict[int, tuple[Sequence[Numbers], list[Region | None]]] = {}

    def tokens(self, count: int) -> list[TokenRows]:
        """Return the tokens that each member begins with; inputs fill them in."""
        return self._new(TOKENS, [count] * len(self.ranks), self.sizes.dispatch_bytes)

    def layer(
        self, name: str, exchange: ExpertExchange, tokens: Sequence[TokenRows], work: float
    ) -> list[TokenRows]:
        """Write a pass of ``tokens``; return each member's next ones.

        Experts take ``work`` times as long as forward.
        """
        sizes = self.sizes
        rows = list(tokens)
        indices: list[list[Region | None]] = []
        with self.program.named(f"{name} dispatch"):
            for number, hop in enumerate(exchange.hops):
                last = number == len(exchange.hops) - 1
                indices.append(self._routes(hop.taken))
                sent = self._gathered(rows, hop, indices[-1])
                there = AT_EXPERTS if last else "passed on"
                rows = self._new(there, hop.arrivals, sizes.dispatch_bytes)
                rows = self._moved(hop, sent, rows, sizes.dispatch_bytes)
        with self.program.named(f"{name} experts"):
            rows = self._worked(exchange, rows, work)
        with self.program.named(f"{name} combine"):
            for number in range(len(exchange.hops))[::-1]:
                hop = exchange.hops[number]
                first = number == 0
                back = self._new("results back", hop.sources, sizes.combine_bytes)
                back = self._moved(_reversed(hop), rows, back, sizes.combine_bytes)
                counts = [exchange.tokens] * len(rows) if first else exchange.hops[0].arrivals
                sums = self._new(OUTPUTS if first else "sums", counts, sizes.combine_bytes)
                rows = self._summed(back, indices[number], sums)
            return self._narrowed(rows)

    def _new(self, buffer: str, counts: Sequence[int], octets: int) -> list[TokenRows]:
        width = self.sizes.hidden * octets
        return [
            TokenRows(self.program.allocate(rank, buffer, count * width), count)
            if count
            else TokenRows(Region(buffer, 0, 0), 0)
            for rank, count in zip(self.ranks, counts, strict=True)
        ]

    def _routes(self, taken: Sequence[Numbers]) -> list[Region | None]:
        """Put indices into each member's buffer of routes, once for each array."""
        if id(taken) in self._kept:
            return self._kept[id(taken)][1]
        made: list[Region | None] = []
        for member, indices in enumerate(taken):
            if not indices.size:
                made.append(None)
                continue
            octets = indices.size * INDEX.itemsize
            made.append(self.program.allocate(self.ranks[member], ROUTES, octets))
            self.routes[member].append(indices)
        self._kept[id(taken)] = taken, made
        return made

    def _apply(
        self,
        member: int,
        function: Callable[..., object],
        inputs: tuple[Region, ...],
        into: TokenRows,
        arguments: tuple[int, ...],
        ready: Sequence[int],
        duration_ns: int = 0,
    ) -> TokenRows:
        index = self.program.append(
            self.ranks[member],
            Apply(
                function=name_of(function),
                inputs=inputs,
                outputs=(into.region,),
                arguments=arguments,
                duration_ns=duration_ns,
                after=tuple(sorted(set(ready))),
            ),
        )
        return replace(into, ready=(index,))

    def _gathered(
        self, rows: Sequence[TokenRows], hop: RowHop, indices: Sequence[Region | None]
    ) -> list[TokenRows]:
        sizes = self.sizes
        sent = self._new("sent", hop.sources, sizes.dispatch_bytes)
        arguments = (sizes.hidden, sizes.dispatch_bytes)
        return [
            into
            if route is None
            else self._apply(
                member, rows_gathered, (source.region, route), into, arguments, source.ready
            )
            for member, (source, into, route) in enumerate(zip(rows, sent, indices, strict=True))
        ]

    def _worked(
        self, exchange: ExpertExchange, rows: Sequence[TokenRows], work: float
    ) -> list[TokenRows]:
        sizes = self.sizes
        routes = self._routes(exchange.work)
        made = self._new("results", [one.count for one in rows], sizes.combine_bytes)
        arguments = (sizes.hidden, sizes.dispatch_bytes, sizes.combine_bytes)
        return [
            into
            if route is None
            else self._apply(
                member,
                experts_applied,
                (source.region, route),
                into,
                arguments,
                source.ready,
                round(sizes.pair_ns * work * len(exchange.work[member])),
            )
            for member, (source, into, route) in enumerate(zip(rows, made, routes, strict=True))
        ]

    def _summed(
        self, back: Sequence[TokenRows], indices: Sequence[Region | None], sums: Sequence[TokenRows]
    ) -> list[TokenRows]:
        arguments = (self.sizes.hidden, self.sizes.combine_bytes)
        return [
            into
            if route is None
            else self._apply(member, rows_summed, (one.region, route), into, arguments, one.ready)
            for member, (one, into, route) in enumerate(zip(back, sums, indices, strict=True))
        ]

    def _narrowed(self, rows: Sequence[TokenRows]) -> list[TokenRows]:
        sizes = self.sizes
        next_ones = self._new("next tokens", [one.count for one in rows], sizes.dispatch_bytes)
        arguments = (sizes.combine_bytes, sizes.dispatch_bytes)
        return [
            self._apply(member, elements_narrowed, (one.region,), into, arguments, one.ready)
            for member, (one, into) in enumerate(zip(rows, next_ones, strict=True))
        ]

    def _moved(
        self, hop: RowHop, sent: Sequence[TokenRows], there: Sequence[TokenRows], octets: int
    ) -> list[TokenRows]:
        """Send rows in rounds: to the member k ahead in round k, ``peers`` rounds at a time."""
        members, width = len(self.ranks), self.sizes.hidden * octets
        ready: list[list[int]] = [list(one.ready) for one in there]
        rounds: list[list[tuple[int, ...]]] = [[] for _ in self.ranks]
        for step in range(members):
            waits = [
                own[-self.sizes.peers] if len(own) >= self.sizes.peers else () for own in rounds
            ]
            done: list[list[int]] = [[] for _ in self.ranks]
            for sender in range(members):
                receiver = (sender + step) % members
                count = int(hop.counts[sender, receiver])
                if not count:
                    continue
                local = _part(sent[sender], hop.sent_before(sender, receiver), count, width)
                remote = _part(there[receiver], hop.received_before(sender, receiver), count, width)
                after = tuple(sorted({*sent[sender].ready, *waits[sender]}))
                if not step:
                    ready[receiver].append(
                        self.program.reduce(
                            self.ranks[sender],
                            local,
                            remote,
                            dtype="uint8",
                            function="replace",
                            after=after,
                        )
                    )
                    continue
                sending, receiving = self.program.transfer(
                    self.ranks[sender], self.ranks[receiver], local, remote, after=after
                )
                ready[receiver].append(receiving)
                done[sender].append(sending)
                done[receiver].append(receiving)
            for own, operations in zip(rounds, done, strict=True):
                if operations:
                    own.append(tuple(operations))
        return [
            replace(one, ready=tuple(indices)) for one, indices in zip(there, ready, strict=True)
        ]


def _part(rows: TokenRows, first: int, count: int, width: int) -> Region:
    return Region(rows.region.buffer, rows.region.offset + first * width, count * width)


def _reversed(hop: RowHop) -> RowHop:
    """Return the way back of a hop."""
    return RowHop(hop.taken, hop.counts.T)


def flattened(routes: Sequence[Numbers]) -> np.ndarray:
    """Return the contents of a buffer of routes."""
    return np.concatenate([one.ravel() for one in routes]).astype(INDEX)
