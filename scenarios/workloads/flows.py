"""Flows: so many octets from one GPU to another, as several messages, checked octet for octet.

A flow is a chain of RDMA writes of ``message`` octets each, ``in_flight`` of them at a time. Write
k starts when write k - ``in_flight`` is acknowledged: a window beside the transport's own, which
the default keeps larger than most flows are.  The payload is random and follows from the seed, so
that a receiver's final memory is predictable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from emulator.errors import UserError
from emulator.scenario import Contents, FaultAt, Trial, parameter
from emulator.sim.endpoint.operations.schedule import (
    Compute,
    Operation,
    Receive,
    Region,
    Schedule,
    Write,
    has_operations,
)
from scenarios.workloads.places import scale_up_domains
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, SIZE

WARMUPS = replace(COUNT, minimum=0)
#: Writes of a trial: beyond, they take minutes to compile, and many more to run.
MOST_WRITES = 1_000_000
#: Of those that are shorter than a packet, which moves as little with each frame.
MOST_SHORT_WRITES, SHORT = 250_000, 4096


@dataclass(frozen=True, kw_only=True)
class MessageParameters:
    """The parameters of all scenarios whose flows are writes, whatever decides when they start."""

    message: int = parameter(64 * 2**10, SIZE, help="octets of each write")
    warmups: int = parameter(1, WARMUPS, help="iterations before those that count")
    iterations: int = parameter(1, COUNT, help="iterations that count, for each row")


@dataclass(frozen=True, kw_only=True)
class WriteParameters(MessageParameters):
    """The parameters of scenarios whose writes start when others are acknowledged."""

    in_flight: int = parameter(128, COUNT, help="writes of a flow that may be under way")


@dataclass(frozen=True, kw_only=True)
class TrafficParameters(WriteParameters):
    """The parameters of traffic scenarios; ``Parameters`` of a scenario adds its own."""

    size: int = parameter(512 * 2**10, SIZE, help="octets of each flow")


@dataclass(frozen=True, kw_only=True)
class Flow:
    """``length`` octets from rank ``source`` to rank ``destination``, from ``start_ns`` on.

    With ``every_ns`` a message leaves each time that is over, whatever became of those before it.
    The flow is a victim, which only sees what the others do to it, unless it is ``bulk``.
    """

    source: int
    destination: int
    length: int
    start_ns: int = 0
    every_ns: int = 0
    message: int = 0  # octets of each; 0: what all others have
    bulk: bool = False

    @property
    def is_paced(self) -> bool:
        """Return whether messages follow each other at a fixed interval."""
        return self.every_ns > 0

    @property
    def is_victim(self) -> bool:
        """Return whether the flow is paced, and counts apart from the others."""
        return self.is_paced and not self.bulk


@dataclass(frozen=True)
class Traffic:
    """All flows of one trial; no two join the same pair of ranks."""

    topology: Topology
    flows: tuple[Flow, ...]
    message: int
    in_flight: int
    seed: int

    def __post_init__(self) -> None:
        self._check_writes()
        pairs = {(flow.source, flow.destination) for flow in self.flows}
        if len(pairs) != len(self.flows):
            raise ValueError("two flows join the same ranks")
        gpus, domains = self.topology.gpus, scale_up_domains(self.topology)
        for source, destination in pairs:
            if domains[source] == domains[destination]:
                names = gpus[source].name, gpus[destination].name
                raise ValueError(f"{' and '.join(names)} share a scale-up network")

    def _check_writes(self) -> None:
        """Raise UserError, with what would do, for more writes than can be compiled soon."""
        writes, most = self._writes(self.message), _most_writes(self.message)
        if writes <= most:
            return
        longest, enough = max(flow.length for flow in self.flows), self.message
        while self._writes(enough) > _most_writes(enough) and enough < longest:
            enough *= 2
        way_out = "shorter flows, or fewer GPUs"
        if self._writes(enough) <= _most_writes(enough):
            way_out = f"--param message={enough}, {way_out}"
        raise UserError(
            f"the flows are {writes} writes of {self.message} B, and more than {most} such writes "
            f"take many minutes: take {way_out}"
        )

    def _writes(self, message: int) -> int:
        return sum(-(-flow.length // (flow.message or message)) for flow in self.flows)

    @property
    def octets(self) -> int:
        """Return what all flows carry together."""
        return sum(flow.length for flow in self.flows)

    @property
    def held_writes(self) -> int:
        """Return how many writes wait for the acknowledgement of an earlier one (``in_flight``)."""
        bulk = [flow for flow in self.flows if not flow.is_paced]
        return sum(max(0, -(-flow.length // self._message(flow)) - self.in_flight) for flow in bulk)

    def _message(self, flow: Flow) -> int:
        return flow.message or self.message

    @property
    def memory_octets(self) -> int:
        """About what the busiest GPU's buffers take."""
        held: dict[int, int] = {}
        for flow in self.flows:
            held[flow.source] = held.get(flow.source, 0) + flow.length
            held[flow.destination] = held.get(flow.destination, 0) + flow.length
        return max(held.values(), default=0)

    def schedules(self) -> Sequence[Schedule]:
        """One for each rank of the fabric, also for those that take no part.

        Only ranks that are compiled have operations.
        """
        ranks = range(len(self.topology.gpus))
        operations: list[list[Operation]] = [[] for _ in ranks]
        buffers: list[dict[str, int]] = [{} for _ in ranks]
        for flow in self.flows:
            buffers[flow.source][_to(flow)] = flow.length
            buffers[flow.destination][_from(flow)] = flow.length
            if has_operations(flow.source):
                self._write(flow, operations[flow.source])
            if has_operations(flow.destination):
                operations[flow.destination] += [
                    Receive(peer=flow.source, tag=tag, into=Region(_from(flow), offset, length))
                    for tag, (offset, length) in enumerate(self._messages(flow))
                ]
        return [
            Schedule(rank=rank, buffers=buffers[rank], operations=tuple(operations[rank]))
            for rank in ranks
        ]

    def _messages(self, flow: Flow) -> Iterator[tuple[int, int]]:
        """Yield the offset and the length of each message of ``flow``."""
        message = self._message(flow)
        for offset in range(0, flow.length, message):
            yield offset, min(message, flow.length - offset)

    def _write(self, flow: Flow, source: list[Operation]) -> None:
        """Append what the source of ``flow`` does to its operations ``source``."""
        first: tuple[int, ...] = ()
        if flow.start_ns:
            first = (len(source),)
            source.append(Compute(duration_ns=flow.start_ns))
        writes: list[int] = []
        for tag, (offset, length) in enumerate(self._messages(flow)):
            before = first
            if flow.is_paced:
                first = (len(source),)
                source.append(Compute(duration_ns=flow.every_ns, after=before))
                before = first
            elif tag >= self.in_flight:
                before = (writes[tag - self.in_flight],)
            writes.append(len(source))
            source.append(
                Write(
                    peer=flow.destination,
                    tag=tag,
                    local=Region(_to(flow), offset, length),
                    remote=Region(_from(flow), offset, length),
                    after=before,
                )
            )

    def inputs(self, rank: int) -> Contents:
        """Return what ``rank`` sends, by the region that holds it."""
        return {_to(flow): self._payload(flow) for flow in self.flows if flow.source == rank}

    def expected(self, rank: int) -> Contents:
        """Return what ``rank`` must have received, by region."""
        return {_from(flow): self._payload(flow) for flow in self.flows if flow.destination == rank}

    def trial(
        self,
        pattern: str,
        parameters: MessageParameters,
        *,
        size_bytes: int | None = None,
        facts: Mapping[str, object] | None = None,
        transport: str = "",
        switch: str = "",
        faults: Sequence[FaultAt] = (),
    ) -> Trial:
        """Return this traffic as a row of the table.

        ``size_bytes`` defaults to the octets of the longest flow.
        """
        return Trial(
            collective=pattern,
            size_bytes=size_bytes or max(flow.length for flow in self.flows),
            compile=self.schedules,
            inputs=self.inputs,
            expected=self.expected,
            memory_bytes=self.memory_octets,
            warmups=parameters.warmups,
            iterations=parameters.iterations,
            facts={
                "flows": sum(not flow.is_victim for flow in self.flows),
                "total_bytes": self.octets,
                "held_writes": self.held_writes,
                **(facts or {}),
            },
            transport=transport,
            switch=switch,
            faults=faults,
            fresh=True,
            victims=frozenset(
                (flow.source, flow.destination) for flow in self.flows if flow.is_victim
            ),
        )

    def _payload(self, flow: Flow) -> np.ndarray:
        rng = np.random.default_rng((self.seed, flow.source, flow.destination))
        return np.frombuffer(rng.bytes(flow.length), np.uint8)


def _most_writes(message: int) -> int:
    return MOST_SHORT_WRITES if message < SHORT else MOST_WRITES


def _to(flow: Flow) -> str:
    return f"to{flow.destination}"


def _from(flow: Flow) -> str:
    return f"from{flow.source}"
