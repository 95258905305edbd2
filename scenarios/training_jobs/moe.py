"""Moe: tokens go to the experts that their routers chose, and come back, in a training step.

::

     node 0                        node 1
    +--------------+--------+     +--------------+--------+
    | GPU 0        | GPU 1  |     | GPU 2        | GPU 3  |
    | experts 0, 1 | 2, 3   |     | experts 4, 5 | 6, 7   |
    +--------------+--------+     +--------------+--------+
       |  a token for the experts 4, 6 and 7
       |  dedup=none:   GPU 0 --4--> GPU 2, --6--> GPU 3, --7--> GPU 3
       |  dedup=node:   GPU 0 -----> GPU 2 ==NVLink==> GPU 3

Traffic: every GPU of an expert-parallel group has ``tokens`` tokens in a micro-batch.  The router
sends each to ``top_k`` experts.  The r-th most popular expert has a popularity of 1 / r^``skew``;
the seed draws which one that is (``scenarios.workloads.experts``).  A layer
dispatches tokens, ``dispatch_bytes`` an element, lets experts work, and combines their results,
``combine_bytes`` an element.  The way back has the same two exchanges for gradients: four exchanges
for each layer and micro-batch.  ``node_limit`` M restricts a token to experts of M nodes
(DeepSeek-V3, arXiv 2412.19437, section 2.1.2; 0: no limit).  With ``dedup=node`` a token crosses to
each node once, on the sender's rail, and NVLink takes it on. Results are added up on the way back.

An expert takes 6 x hidden x ``feed_forward`` FLOPs for a token, and twice that backward.  Indices
and counts of rows are known to the GPUs; they do not travel.

Every element is compared: rows at their experts, and what each pass gives back to its tokens.  An
expert changes its rows in a way of its own, so that a token at a wrong expert comes back wrong.

Measured: the time of the step and its ideal, a lower bound from link rates, header octets and
delays (``emulator.run.measures.ideal``).  ``dispatch`` is the first exchange, beside the bound that
its busiest NIC sets: the larger of what it sends and receives, over its rate.  ``hot in`` and ``hot
out`` are octets of that exchange at the GPU that receives most over the fabric. ``max/mean`` is
what it receives over the mean of all.  ``load`` is likewise of the work of GPUs. ``NIC data`` are
the payload octets that crossed NICs in the step.

What should be seen: with ``skew`` the NIC of the most popular experts decides, and all others wait
for it, in both exchanges.  ``dedup=node`` sends less, and spreads what a hot node receives over all
of its NICs.  ``node_limit`` sends less still.  Neither changes the load.

Here, over UET, with ``skew=1``, the GPU of the most popular experts has 3.1 times the mean work.
3.08 times the mean arrives at it.  ``dedup=node`` brings that to 1.41, the first dispatch from 10.8
to 4.4 us, and the step from 90.0 to 61.6 us.  Without skew the step goes from 56.7 to 33.5 us.
RoCEv2 takes as long, within 2 %: neither transport loses a frame here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.scenario import Contents, Outcome, Trial, parameter
from emulator.sim.endpoint.operations.schedule import Schedule
from scenarios.collectives.collective_parameters import EXPONENT, FLAG, PEERS
from scenarios.collectives.communicators import ALL, Communicator, communicators
from scenarios.collectives.program import Program
from scenarios.collectives.size_sweep import WARMUPS
from scenarios.workloads.exchange_times import (
    ExchangeParts,
    fabric_octets_of,
    named_parts,
    spans_of,
)
from scenarios.workloads.experts import ELEMENTS, ExpertSizes, ExpertTraining, TrainingShape
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, NUMBER, TEXT

COLUMNS = (
    TableColumn("skew", "skew", "", 5),
    TableColumn("dedup", "dedup", "", 5),
    TableColumn("node_limit", "limit", "(nodes)", 7),
    TableColumn("nodes_per_token", "nodes", "/token", 6, rank=2),
    TableColumn("work_imbalance", "load", "max/mean", 8),
    TableColumn("hot_in_bytes", "hot in", "(KB)", 8, 1, divisor=1000),
    TableColumn("hot_out_bytes", "hot out", "(KB)", 8, 1, divisor=1000, rank=4),
    TableColumn("imbalance", "max/mean", "in", 8),
    TableColumn("dispatch_us", "dispatch", "(us)", 8, words="the first dispatch took {} us"),
    TableColumn("dispatch_bound_us", "bound", "(us)", 8),
    TableColumn("time_us", "time", "(us)", 8),
    TableColumn("ideal_us", "ideal", "(us)", 8, rank=3),
    TableColumn("efficiency", "of ideal", "(%)", 8, 1, percent=True),
    TableColumn("fabric_bytes", "NIC data", "(MB)", 8, divisor=1e6, rank=1),
    TableColumn("retransmitted_packets", "resent", "", 6),
    TableColumn("wrong", "#wrong", "", 6),
)
_ELEMENT = replace(COUNT, maximum=4)
_HIDDEN = replace(COUNT, maximum=2**16)
#: FLOPs of a token for each element of hidden x feed_forward: three matrices, multiply and add.
_FLOPS = 6
#: Rows of tokens in a step, beyond which a run would take hours.
MOST_ROWS = 2**22
#: Affinities of a GPU's tokens to experts, which take eight octets each.
MOST_AFFINITIES = 2**25


@dataclass(frozen=True, kw_only=True)
class Parameters:
    tokens: int = parameter(32, COUNT, help="tokens of a GPU in a micro-batch")
    top_k: int = parameter(4, COUNT, help="experts of a token")
    hidden: int = parameter(1024, _HIDDEN, help="elements of a token")
    experts: int = parameter(64, COUNT, help="experts of a layer")
    dispatch_bytes: int = parameter(1, _ELEMENT, help="octets of an element to experts: 1, 2 or 4")
    combine_bytes: int = parameter(2, _ELEMENT, help="octets of an element back: 1, 2 or 4")
    skew: tuple[int, ...] = parameter(
        (0, 1000), EXPONENT, many=True, help="exponents of Zipf's law, a row each; 0: balanced"
    )
    dedup: tuple[str, ...] = parameter(
        ("none", "node"),
        choices=("none", "node"),
        many=True,
        help="node: a token crosses to each node once",
    )
    node_limit: tuple[int, ...] = parameter(
        (0, 2), NUMBER, many=True, help="nodes that a token goes to at most; 0: no limit"
    )
    ranks: str = parameter(
        ALL, TEXT, help="expert-parallel groups: all, host, rail or /64 (side by side), or 0-3,8"
    )
    layers: int = parameter(1, COUNT, help="layers of experts")
    micro_batches: int = parameter(1, COUNT, help="micro-batches, one after the other")
    backward: int = parameter(1, FLAG, help="1: a training; 0: forward only")
    feed_forward: int = parameter(2048, _HIDDEN, help="inner width of an expert")
    tflops: int = parameter(400, COUNT, help="TFLOPS of a GPU")
    peers: int = parameter(PEERS, COUNT, help="rounds of an exchange that are under way at a time")
    warmups: int = parameter(0, WARMUPS, help="iterations before those that count")
    iterations: int = parameter(1, COUNT, help="steps that count, each of the same tokens")

    def __post_init__(self) -> None:
        for name in ("dispatch_bytes", "combine_bytes"):
            octets = getattr(self, name)
            if octets not in ELEMENTS:
                raise UserError(f"{name} is {octets}; an element has 1, 2 or 4 octets")
        if self.top_k > self.experts:
            raise UserError(
                f"top_k is {self.top_k}, and there are {self.experts} experts; take top_k="
                f"{self.experts} or less"
            )

        if self.tokens * self.experts > MOST_AFFINITIES:
            raise UserError(
                f"{self.tokens} tokens of a GPU and {self.experts} experts have more than "
                f"{MOST_AFFINITIES} affinities; take fewer of either"
            )

    @property
    def sizes(self) -> ExpertSizes:
        return ExpertSizes(
            hidden=self.hidden,
            dispatch_bytes=self.dispatch_bytes,
            combine_bytes=self.combine_bytes,
            pair_ns=_FLOPS * self.hidden * self.feed_forward / (self.tflops * 1000),
            peers=self.peers,
        )

    def shape(self, skew: int, dedup: str, node_limit: int) -> TrainingShape:
        return TrainingShape(
            tokens=self.tokens,
            experts=self.experts,
            top_k=self.top_k,
            skew=skew / 1000,
            node_limit=node_limit,
            once=dedup == "node",
            layers=self.layers,
            micro_batches=self.micro_batches,
            backward=bool(self.backward),
        )


def topology(parameters: Parameters) -> str:
    """Four nodes with four GPUs each, four rail switches, two spines."""
    return "rail_clos:hosts=4,gpus_per_host=4,spines=2"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    groups = communicators(topology, parameters.ranks, "a mixture of experts")
    for group in groups:
        _check(parameters, group)
    return [
        _Step(parameters, topology, groups, (skew, dedup, limit), seed).trial()
        for skew in parameters.skew
        for dedup in parameters.dedup
        for limit in parameters.node_limit
    ]


def _check(parameters: Parameters, group: Communicator) -> None:
    """Raise UserError if ``group`` cannot hold the experts, or would take hours."""
    members, experts = len(group), parameters.experts
    if experts % members:
        more = -(-experts // members) * members
        raise UserError(
            f"{experts} experts do not divide evenly over a group of {members} GPUs; take "
            f"experts={more}, or name other GPUs by ranks="
        )
    smallest = sorted(len(host) * (experts // members) for host in group.hosts)
    for limit in parameters.node_limit:
        held = sum(smallest[:limit])
        if limit and held < parameters.top_k:
            raise UserError(
                f"node_limit={limit} leaves a token {held} experts, and top_k is "
                f"{parameters.top_k}; allow more nodes, or take top_k={held}"
            )
    passes = parameters.layers * parameters.micro_batches * (2 if parameters.backward else 1)
    rows = members * parameters.tokens * parameters.top_k * passes
    if rows > MOST_ROWS:
        raise UserError(
            f"the step sends {rows} rows of tokens, beyond the {MOST_ROWS} that a run can have; "
            "take fewer tokens, layers or micro-batches"
        )


class _Step:
    """One row: a step of all groups side by side."""

    def __init__(
        self,
        parameters: Parameters,
        topology: Topology,
        groups: Sequence[Communicator],
        row: tuple[int, str, int],
        seed: int,
    ) -> None:
        self.parameters, self.topology = parameters, topology
        self.row = row
        self.trainings = [
            ExpertTraining(group, number, parameters.shape(*row), parameters.sizes, seed)
            for number, group in enumerate(groups)
        ]
        self.member = {
            rank: (training, position)
            for training in self.trainings
            for position, rank in enumerate(training.group.ranks)
        }

    def trial(self) -> Trial:
        given = self.parameters
        skew, dedup, limit = self.row
        width = given.hidden * given.dispatch_bytes
        return Trial(
            collective="moe",
            size_bytes=given.tokens * given.top_k * width,
            compile=self._compile,
            inputs=self._inputs,
            expected=self._expected,
            memory_bytes=max(one.memory_bytes for one in self.trainings),
            warmups=given.warmups,
            iterations=given.iterations,
            fresh=True,
            observe=named_parts,
            facts={
                "skew": skew / 1000,
                "dedup": dedup,
                "node_limit": limit,
                "members": len(self.trainings[0].group),
                "exchanges_per_step": 2 * len(self.trainings[0].passes),
                **self._facts(),
            },
        )

    def _facts(self) -> dict[str, object]:
        """Return what follows from the routing of the first micro-batch in the first layer."""
        width = self.parameters.hidden * self.parameters.dispatch_bytes
        program = Program.on(self.topology)
        loads, nodes = [], []
        into, out = np.zeros(program.ranks, np.int64), np.zeros(program.ranks, np.int64)
        for training in self.trainings:
            exchange = training.exchanges[0, 0]
            loads.append(exchange.load)
            nodes.append(exchange.nodes_per_token)
            ranks = training.group.ranks
            for hop in exchange.hops:
                for sender, receiver in zip(*np.nonzero(hop.counts), strict=True):
                    here, there = ranks[sender], ranks[receiver]
                    if here != there and not program.joins(here, there):
                        octets = int(hop.counts[sender, receiver]) * width
                        out[here] += octets
                        into[there] += octets
        hottest = int(np.argmax(into))
        members = sorted(self.member)
        load = np.concatenate(loads)
        return {
            "nodes_per_token": float(np.mean(nodes)),
            "work_imbalance": float(load.max() / load.mean()),
            "hot_gpu": self.topology.gpus[hottest].name,
            "hot_in_bytes": int(into[hottest]),
            "hot_out_bytes": int(out[hottest]),
            "imbalance": float(into.max() / into[members].mean()) if into.any() else None,
        }

    def _compile(self) -> Sequence[Schedule]:
        program = Program.on(self.topology)
        for training in self.trainings:
            training.write(program)
        return program.schedules()

    def _inputs(self, rank: int) -> Contents:
        if rank not in self.member:
            return {}
        training, position = self.member[rank]
        return training.inputs(position)

    def _expected(self, rank: int) -> Contents:
        if rank not in self.member:
            return {}
        training, position = self.member[rank]
        return training.expected(position)


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the times and bounds of the exchanges, and what crossed NICs."""
    assert outcome.wire is not None
    latest = outcome.iterations[-1]
    parts = ExchangeParts(topology, latest, spans_of(outcome), outcome.wire)
    steps = [parts.times(iteration) for iteration in outcome.iterations]
    first = [step[0] for step in steps]
    return {
        "dispatch_us": fmean(one.end_ns - one.start_ns for one in first) / 1000,
        "dispatch_bound_us": first[0].bound_ns / 1000,
        "exchanges": [one.as_dict() for one in steps[-1]],
        "fabric_bytes": outcome.received_bytes,
        "fabric_bytes_derived": fabric_octets_of(latest),
    }
