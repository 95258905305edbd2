"""Training steps of layers of experts: their routing, their schedules, and what comes out.

A micro-batch goes through the layers one after the other, and back through them in the other order.
Gradients travel backward, in the same exchanges.  The next micro-batch follows. The elements that a
pass leaves are those that the next pass begins with.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emulator.scenario import Contents
from scenarios.collectives.communicators import Communicator
from scenarios.collectives.program import Program
from scenarios.workloads.experts.expert_exchange import ExpertExchange
from scenarios.workloads.experts.expert_functions import ELEMENTS, Elements, expert_output
from scenarios.workloads.experts.expert_program import (
    AT_EXPERTS,
    OUTPUTS,
    ROUTES,
    TOKENS,
    ExpertProgram,
    ExpertSizes,
    flattened,
)
from scenarios.workloads.experts.expert_routing import ExpertRouting, Numbers

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
    """One way of a micro-batch through a layer."""

    micro_batch: int
    layer: int
    forward: bool

    @property
    def name(self) -> str:
        """Return the name in the timeline."""
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
        """Return all passes in their order."""
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
        """Write the step into ``program``."""
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
