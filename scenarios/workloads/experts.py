"""Layers of experts: routing, exchanges, schedules and trainings.

Routing: which experts a token is sent to.

The r-th most popular expert has a popularity of 1 / r^``skew`` (Zipf's law), and the seed draws
which expert that is.  The affinity of a token to an expert is its popularity over a random number
of the exponential distribution. So the ``top_k`` experts of the highest affinity are a sample
without replacement by popularity (Efraimidis and Spirakis, 2006).

With a ``node_limit`` of M a token goes to experts of M nodes at most. These are the nodes whose
top_k / M highest affinities have the largest sum (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).

One dispatch of tokens to experts: which rows each member sends to which, hop by hop.

Direct: a token is sent to the GPU of each of its experts, once for each expert.

Once for each node: a token is sent once to each node with its experts, to the GPU with the sender's
number there (its rail). From there NVLink takes it to the GPUs of its experts.  Inside its own node
it goes straight to these.  The combine takes the same way back. Rows of one token are added up
where ways meet, so that one result for each node and token crosses the fabric.

The functions that GPUs apply to tokens on their way to experts and back.

Elements are whole numbers without sign of the given octets, and all arithmetic wraps around.  So
sums are the same in every order, and results are compared to the bit.  Expert e multiplies each
element by 2e + 3 and adds e + 1. So a token at another expert than its own comes back as another
one.

Layers of experts as schedules: each pass dispatches tokens, lets experts work, and combines.

Everything that a GPU does to its memory is an operation on what has arrived there.  A GPU sends
when its rows are gathered. Its experts work when all their rows are there, and sums are made when
all results are there.  Gathering and summing take no time.

Training steps of layers of experts: their routing, their schedules, and what comes out.

A micro-batch goes through the layers one after the other, and back through them in the other order.
Gradients travel backward, in the same exchanges.  The next micro-batch follows. The elements that a
pass leaves are those that the next pass begins with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.scenario import Contents
from emulator.sim.endpoint.operations.gpu_functions import Octets, gpu_function, name_of
from emulator.sim.endpoint.operations.schedule import Apply, Region
from scenarios.collectives.communicators import Communicator
from scenarios.collectives.program import Program

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ExpertRouting:
    """The routing of one layer; ``nodes[e]`` is the node of expert e, from 0 on."""

    nodes: Sequence[int]
    top_k: int
    skew: float
    node_limit: int = 0

    @property
    def experts(self) -> int:
        return len(self.nodes)

    def popularity(self, seed: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return the share of each expert in all choices of a token's first expert."""
        shares = 1 / np.arange(1, self.experts + 1) ** self.skew
        order = np.random.default_rng(seed).permutation(self.experts)
        popular = np.empty(self.experts)
        popular[order] = shares / shares.sum()
        return popular

    def choices(
        self, tokens: int, seed: Sequence[int], popular: npt.NDArray[np.float64]
    ) -> Numbers:
        """Return the experts of each token, ``tokens`` x ``top_k``, in ascending order."""
        rng = np.random.default_rng(seed)
        affinity = popular / rng.exponential(size=(tokens, self.experts))
        if self.node_limit:
            affinity = np.where(self._allowed(affinity), affinity, 0)
        best = np.argsort(-affinity, axis=1, kind="stable")[:, : self.top_k]
        return np.sort(best, axis=1).astype(np.int64)

    def _allowed(self, affinity: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Return for each token and expert whether the expert's node is among the chosen ones."""
        node_of = np.asarray(self.nodes)
        count = int(node_of.max()) + 1
        summed = -(-self.top_k // self.node_limit)
        score = np.stack(
            [
                np.sort(affinity[:, node_of == node], axis=1)[:, -summed:].sum(axis=1)
                for node in range(count)
            ],
            axis=1,
        )
        chosen = np.argsort(-score, axis=1, kind="stable")[:, : self.node_limit]
        allowed = np.zeros((len(affinity), count), bool)
        np.put_along_axis(allowed, chosen, True, axis=1)
        return allowed[:, node_of]


@dataclass(frozen=True, eq=False)
class RowHop:
    """Rows that members send to each other.

    ``taken[p]`` are the rows of member p's source that it sends, ordered by receiver.
    ``counts[p, q]`` is how many of them go from p to q.
    """

    taken: Sequence[Numbers]
    counts: Numbers

    def sent_before(self, sender: int, receiver: int) -> int:
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
        return len(self.nodes)

    @property
    def tokens(self) -> int:
        return int(self.choices.shape[1])

    @cached_property
    def hops(self) -> tuple[RowHop, ...]:
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


Elements = npt.NDArray[np.unsignedinteger]
#: Octets of an element, and its type.
ELEMENTS: Mapping[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
}
#: Indices of rows in the memory of a GPU.
INDEX = np.dtype(np.int32)


def expert_output(tokens: Elements, experts: npt.NDArray[np.integer], octets: int) -> Elements:
    """Return what ``experts`` make of ``tokens``, a row each, in elements of ``octets``."""
    dtype = ELEMENTS[octets]
    factor = (2 * experts + 3).astype(dtype)[:, None]
    made: Elements = tokens.astype(dtype) * factor + (experts + 1).astype(dtype)[:, None]
    return made


@gpu_function
def rows_gathered(
    inputs: Sequence[Octets], outputs: Sequence[Octets], hidden: int, octets: int
) -> None:
    """Copy rows of the first input, in the order of the indices in the second."""
    rows = inputs[0].reshape(-1, hidden * octets)
    outputs[0].reshape(-1, hidden * octets)[:] = rows[inputs[1].view(INDEX)]


@gpu_function
def experts_applied(
    inputs: Sequence[Octets], outputs: Sequence[Octets], hidden: int, octets: int, made: int
) -> None:
    """Add what the experts make of each row: of rows to results, ``made`` octets an element.

    The second input holds pairs of row and expert.
    """
    rows = inputs[0].view(ELEMENTS[octets]).reshape(-1, hidden)
    pairs = inputs[1].view(INDEX).reshape(-1, 2)
    results = outputs[0].view(ELEMENTS[made]).reshape(-1, hidden)
    results[:] = 0
    np.add.at(results, pairs[:, 0], expert_output(rows[pairs[:, 0]], pairs[:, 1], made))


@gpu_function
def rows_summed(
    inputs: Sequence[Octets], outputs: Sequence[Octets], hidden: int, octets: int
) -> None:
    """Add each row of the first input to that row of the output which the second one names."""
    rows = inputs[0].view(ELEMENTS[octets]).reshape(-1, hidden)
    sums = outputs[0].view(ELEMENTS[octets]).reshape(-1, hidden)
    sums[:] = 0
    np.add.at(sums, inputs[1].view(INDEX), rows)


@gpu_function
def elements_narrowed(
    inputs: Sequence[Octets], outputs: Sequence[Octets], before: int, after: int
) -> None:
    """Convert elements of ``before`` octets to ``after`` octets: the low ones stay."""
    outputs[0].view(ELEMENTS[after])[:] = inputs[0].view(ELEMENTS[before]).astype(ELEMENTS[after])


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
                back = self._moved(RowHop(hop.taken, hop.counts.T), rows, back, sizes.combine_bytes)
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


def flattened(routes: Sequence[Numbers]) -> np.ndarray:
    return np.concatenate([one.ravel() for one in routes]).astype(INDEX)


#: Times of experts: gradients of inputs and of weights take one forward each.
FORWARD, BACKWARD = 1.0, 2.0


@dataclass(frozen=True, kw_only=True)
class TrainingShape:
    """The shape of a step; each GPU has ``tokens`` in a micro-batch.

    ``backward``: a training, else forward only.  ``once``: a token crosses to each node once.
    """

    tokens: int
    experts: int
    top_k: int
    skew: float
    node_limit: int
    once: bool
    layers: int
    micro_batches: int
    backward: bool


@dataclass(frozen=True)
class LayerPass:
    micro_batch: int
    layer: int
    forward: bool

    @property
    def name(self) -> str:
        way = "forward" if self.forward else "backward"
        return f"micro-batch {self.micro_batch + 1}, layer {self.layer + 1} {way}"


class ExpertTraining:
    """The step of one expert-parallel group, number ``number`` of the run."""

    def __init__(
        self,
        group: Communicator,
        number: int,
        shape: TrainingShape,
        sizes: ExpertSizes,
        seed: int,
    ) -> None:
        self.group, self.shape, self.sizes = group, shape, sizes
        self._seed = seed, number
        self.nodes = [0] * len(group)
        for node, host in enumerate(group.hosts):
            for position in host:
                self.nodes[position] = node

    @property
    def passes(self) -> list[LayerPass]:
        shape = self.shape
        found = []
        for batch in range(shape.micro_batches):
            found += [LayerPass(batch, layer, True) for layer in range(shape.layers)]
            if shape.backward:
                found += [LayerPass(batch, layer, False) for layer in range(shape.layers)[::-1]]
        return found

    @cached_property
    def exchanges(self) -> dict[tuple[int, int], ExpertExchange]:
        """Return the exchange of each micro-batch in each layer."""
        shape, members = self.shape, len(self.group)
        per_member = shape.experts // members
        routing = ExpertRouting(
            nodes=[self.nodes[expert // per_member] for expert in range(shape.experts)],
            top_k=shape.top_k,
            skew=shape.skew,
            node_limit=shape.node_limit,
        )
        found = {}
        for layer in range(shape.layers):
            popular = routing.popularity((*self._seed, 1, layer))
            for batch in range(shape.micro_batches):
                choices = [
                    routing.choices(shape.tokens, (*self._seed, 2, layer, batch, one), popular)
                    for one in range(members)
                ]
                found[batch, layer] = ExpertExchange(
                    choices=np.stack(choices),
                    nodes=self.nodes,
                    per_member=per_member,
                    once=shape.once,
                )
        return found

    def write(self, program: Program) -> ExpertProgram:
        made = ExpertProgram(program, self.group.ranks, self.sizes)
        batches = [made.tokens(self.shape.tokens) for _ in range(self.shape.micro_batches)]
        before: list[tuple[int, ...]] = [() for _ in self.group.ranks]
        for one in self.passes:
            rows = [
                row.after(ready)
                for row, ready in zip(batches[one.micro_batch], before, strict=True)
            ]
            exchange = self.exchanges[one.micro_batch, one.layer]
            work = FORWARD if one.forward else BACKWARD
            rows = made.layer(one.name, exchange, rows, work)
            batches[one.micro_batch] = rows
            before = [row.ready for row in rows]
        return made

    @cached_property
    def _routes(self) -> list[np.ndarray]:
        """Return the routes of each member; where they lie does not depend on the fabric."""
        made = self.write(Program(range(max(self.group.ranks) + 1)))
        return [flattened(routes) for routes in made.routes]

    # -- data ------------------------------------------------------------------------------------

    def inputs(self, position: int) -> Contents:
        """Return what the buffers of a member hold at the start."""
        tokens = [self._tokens(position, batch) for batch in range(self.shape.micro_batches)]
        return {TOKENS: np.concatenate(tokens).ravel(), ROUTES: self._routes[position]}

    def expected(self, position: int) -> Contents:
        """Return what a member's buffers hold at the end: rows at its experts, and all outputs."""
        passed = self._passed(position)
        outputs = [output for _, output in passed]
        found = {OUTPUTS: np.concatenate(outputs).ravel()}
        arrived = [
            self._begun[number][source, token]
            for number, one in enumerate(self.passes)
            for source, token in [self.exchanges[one.micro_batch, one.layer].arrived[position].T]
            if len(source)
        ]
        if arrived:
            found[AT_EXPERTS] = np.concatenate(arrived).ravel()
        return found

    @cached_property
    def _begun(self) -> list[Elements]:
        """Return the elements that each pass begins with: members x tokens x hidden."""
        members = [self._passed(position) for position in range(len(self.group))]
        return [
            np.stack([passed[number][0] for passed in members])
            for number in range(len(self.passes))
        ]

    def _tokens(self, position: int, batch: int) -> Elements:
        rng = np.random.default_rng((*self._seed, 3, position, batch))
        dtype = ELEMENTS[self.sizes.dispatch_bytes]
        size = self.shape.tokens, self.sizes.hidden
        drawn: Elements = rng.integers(0, np.iinfo(dtype).max, size, dtype, endpoint=True)
        return drawn

    def _passed(self, position: int) -> list[tuple[Elements, Elements]]:
        """Return tokens and outputs of each pass of a member, computed without any exchange."""
        narrow = ELEMENTS[self.sizes.dispatch_bytes]
        current = [self._tokens(position, batch) for batch in range(self.shape.micro_batches)]
        found = []
        for one in self.passes:
            tokens = current[one.micro_batch]
            chosen: Numbers = self.exchanges[one.micro_batch, one.layer].choices[position]
            output = np.zeros(tokens.shape, ELEMENTS[self.sizes.combine_bytes])
            for experts in chosen.T:
                output += expert_output(tokens, experts, self.sizes.combine_bytes)
            found.append((tokens, output))
            current[one.micro_batch] = output.astype(narrow)
        return found

    @property
    def memory_bytes(self) -> int:
        """Return about what the buffers of the busiest member take."""
        busiest = max(
            max(sum(hop.sources[one] + hop.arrivals[one] for hop in exchange.hops) for one in
                range(len(self.group)))
            for exchange in self.exchanges.values()
        )  # fmt: skip
        octets = self.sizes.dispatch_bytes + self.sizes.combine_bytes
        return len(self.passes) * (busiest + self.shape.tokens) * self.sizes.hidden * octets
