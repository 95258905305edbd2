"""Flows: so many octets from one GPU to another, as several messages, checked octet for octet.

A flow is a chain of RDMA writes of ``message`` octets each, ``in_flight`` of them at a time. Write
k starts when write k - ``in_flight`` is acknowledged: a window beside the transport's own, which
the default keeps larger than most flows are.  The payload is random and follows from the seed, so
that a receiver's final memory is predictable.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from emulator.arithmetic import max_min, payload_rate
from emulator.errors import UserError
from emulator.scenario import Contents, FaultAt, Trial, parameter
from emulator.sim.endpoint.operations import schedule
from emulator.transports.wire_cost import WireCost
from topologies.model import VXLAN_OVERHEAD, CableEnd, Topology
from topologies.parts.attachment import nic_rate_bps, switch_ends
from topologies.parts.design_parameters import COUNT, SIZE
from topologies.stretch import stretch_of


def switch_port(topology: Topology, rank: int) -> str:
    """The switch port (``node:port``) that the GPU of ``rank`` hangs on, by its first port."""
    return switch_ports(topology, rank)[0]


def switch_ports(topology: Topology, rank: int) -> list[str]:
    """The switch ports (``node:port``) that the GPU of ``rank`` hangs on, one for each of its."""
    return list(map(str, switch_ends(topology, topology.gpus[rank].name)))


def switch_of(topology: Topology, rank: int) -> str:
    """The rail switch of ``rank``."""
    return switch_port(topology, rank).partition(":")[0]


def uplinks(topology: Topology, switch: str) -> list[CableEnd]:
    """The ports of ``switch`` that lead to other switches."""
    return [
        ours
        for _, ours, theirs in topology.neighbours(switch)
        if topology.node(theirs.node).is_switch
    ]


def scale_up_domains(topology: Topology) -> list[str]:
    """The scale-up domain of each rank: a server, unless several share their network.

    Traffic between two GPUs of one domain is not the fabric's.
    """
    return list(topology.scale_up_domains.values())


def one_of_each_server(topology: Topology) -> dict[str, list[int]]:
    """The first rank of each server (or larger scale-up domain) on each rail switch."""
    domains = scale_up_domains(topology)
    found: dict[str, dict[str, int]] = {}
    for rank, domain in enumerate(domains):
        found.setdefault(switch_of(topology, rank), {}).setdefault(domain, rank)
    return {switch: list(ranks.values()) for switch, ranks in found.items()}


def require_joined(topology: Topology, switch: str) -> None:
    """Raise UserError if ``switch`` has no link to another one."""
    if not uplinks(topology, switch):
        raise UserError(f"the rail switches of {topology.name} are not joined; take spines")


def captured_ports(topology: Topology, *ranks: int) -> str:
    """All switch ports that ``ranks`` hang on, as ``--capture`` takes them."""
    names = (gpu.name for gpu in map(topology.gpus.__getitem__, ranks))
    return ",".join(str(end) for name in names for end in switch_ends(topology, name))


def captured_uplinks(topology: Topology, rank: int) -> str:
    """The uplinks of all switches that ``rank`` hangs on, likewise; empty if they have none."""
    switches = dict.fromkeys(end.node for end in switch_ends(topology, topology.gpus[rank].name))
    return ",".join(str(end) for switch in switches for end in uplinks(topology, switch))


def nic_payload_gbps(topology: Topology, rank: int, wire: WireCost) -> float:
    """Payload that the NIC of ``rank`` can receive at best."""
    rate = nic_rate_bps(topology, topology.gpus[rank].name)
    return payload_rate(rate, wire.payload_mtu, wire.around_bytes)


@dataclass(frozen=True)
class Shares:
    """Max-min fair rates (GB/s on the wire of NICs) of flows, by pair of ranks."""

    rates: Mapping[tuple[int, int], float]

    def payload_gbps(self, pair: tuple[int, int], wire: WireCost) -> float:
        """The fair rate of ``pair`` without headers."""
        return self.rates[pair] * wire.payload_mtu / (wire.payload_mtu + wire.around_bytes)


def fair_shares(
    topology: Topology, pairs: Sequence[tuple[int, int]], wire: WireCost | None = None
) -> Shares:
    """Return what is fair if load balancing were perfect.

    Flows share the NICs of their ends, and so does whoever shares these. Where they change the rail
    switch they share all uplinks of the one switch upwards and all of the other downwards. With
    several ports, they share those of all switches that the NIC hangs on.  With ``wire``, what
    tunnels put around its packets takes its part of the uplinks.
    """
    capacities: dict[str, float] = {}
    used = []
    for source, destination in pairs:
        path: dict[str, float] = {}
        for rank, way in ((source, "out"), (destination, "in")):
            gpu = topology.gpus[rank].name
            ends = switch_ends(topology, gpu)
            capacities[f"{gpu} {way}"] = nic_rate_bps(topology, gpu) / 8e9
            access = f"{' '.join(map(str, ends))} {way}"
            capacities[access] = sum(topology.link_at(end).rate_bps for end in ends) / 8e9
            path |= {f"{gpu} {way}": 1.0, access: 1.0}
        up, down = (
            sorted({end.node for end in switch_ends(topology, topology.gpus[rank].name)})
            for rank in (source, destination)
        )
        if up != down:
            tunnels = _in_tunnels(topology, source, destination)
            for switches, way, tunnelled in zip((up, down), ("up", "down"), tunnels, strict=True):
                border = f"{' '.join(switches)} {way}"
                ends = tuple(end for switch in switches for end in uplinks(topology, switch))
                capacities[border] = sum(topology.link_at(end).rate_bps for end in ends) / 8e9
                path[border] = 1 + tunnelled * VXLAN_OVERHEAD / wire.full_octets if wire else 1.0
        used.append(path)
    return Shares(dict(zip(pairs, max_min(used, capacities), strict=True)))


def _in_tunnels(topology: Topology, source: int, destination: int) -> tuple[float, float]:
    """Return the shares (0..1) of packets in a tunnel at their first and at their last switch.

    The packets go from one rank to another: where they leave their first switch, and where they
    come to their last one.
    """
    stretch = stretch_of(topology)
    if stretch is None:
        return 0.0, 0.0
    gpus = topology.gpus
    passages = stretch.passages(gpus[source].name, gpus[destination].name)
    if not passages:
        return 0.0, 0.0
    begun = sum(one.enters == one.joins != one.leaves for one in passages)
    ending = sum(one.joins != one.leaves for one in passages)
    return begun / len(passages), ending / len(passages)


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
        """About what the buffers of a GPU take, on average."""
        return 2 * sum(flow.length for flow in self.flows) // len(self.topology.gpus)

    def schedules(self) -> Sequence[schedule.Schedule]:
        """One for each rank of the fabric, also for those that take no part.

        Only ranks that are compiled have operations.
        """
        ranks = range(len(self.topology.gpus))
        operations: list[list[schedule.Operation]] = [[] for _ in ranks]
        buffers: list[dict[str, int]] = [{} for _ in ranks]
        for flow in self.flows:
            buffers[flow.source][_to(flow)] = flow.length
            buffers[flow.destination][_from(flow)] = flow.length
            if schedule.has_operations(flow.source):
                self._write(flow, operations[flow.source])
            if schedule.has_operations(flow.destination):
                operations[flow.destination] += [
                    schedule.Receive(
                        peer=flow.source, tag=tag, into=schedule.Region(_from(flow), offset, length)
                    )
                    for tag, (offset, length) in enumerate(self._messages(flow))
                ]
        return [
            schedule.Schedule(rank=rank, buffers=buffers[rank], operations=tuple(operations[rank]))
            for rank in ranks
        ]

    def _messages(self, flow: Flow) -> Iterator[tuple[int, int]]:
        """Yield the offset and the length of each message of ``flow``."""
        message = self._message(flow)
        for offset in range(0, flow.length, message):
            yield offset, min(message, flow.length - offset)

    def _write(self, flow: Flow, source: list[schedule.Operation]) -> None:
        """Append what the source of ``flow`` does to its operations ``source``."""
        first: tuple[int, ...] = ()
        if flow.start_ns:
            first = (len(source),)
            source.append(schedule.Compute(duration_ns=flow.start_ns))
        writes: list[int] = []
        for tag, (offset, length) in enumerate(self._messages(flow)):
            before = first
            if flow.is_paced:
                first = (len(source),)
                source.append(schedule.Compute(duration_ns=flow.every_ns, after=before))
                before = first
            elif tag >= self.in_flight:
                before = (writes[tag - self.in_flight],)
            writes.append(len(source))
            source.append(
                schedule.Write(
                    peer=flow.destination,
                    tag=tag,
                    local=schedule.Region(_to(flow), offset, length),
                    remote=schedule.Region(_from(flow), offset, length),
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


def across_rails(topology: Topology, seed: int) -> list[int]:
    """The destination of each rank: another server on another rail switch, each rank once.

    Where one switch has all rails and no uplinks, another server.  The seed decides which.
    :class:`UserError` if the fabric has no such permutation.
    """
    domains = scale_up_domains(topology)
    ranks = range(len(domains))
    switches = [switch_of(topology, rank) for rank in ranks]
    single = len(set(switches)) == 1 and not uplinks(topology, switches[0])
    allowed = [
        [
            to
            for to in ranks
            if (single or switches[to] != switches[rank]) and domains[to] != domains[rank]
        ]
        for rank in ranks
    ]
    rng = random.Random(f"permutation {seed}")
    for candidates in allowed:
        rng.shuffle(candidates)
    order = list(ranks)
    rng.shuffle(order)
    sender: dict[int, int] = {}
    for rank in order:
        if not _place(rank, allowed, sender, set()):
            raise UserError(
                f"in topology {topology.name} not every GPU can have a partner of its own on "
                "another rail switch and server; take at least two hosts and two GPUs per host, as "
                "many on each rail switch"
            )
    destination = {source: to for to, source in sender.items()}
    return [destination[rank] for rank in ranks]


def _place(
    rank: int, allowed: Sequence[Sequence[int]], sender: dict[int, int], seen: set[int]
) -> bool:
    """Find ``rank`` a destination, moving others if need be (augmenting paths, Kuhn 1955).

    A path may be as long as there are ranks, so it is a list and no recursion.
    """
    path = [(rank, iter(allowed[rank]))]
    wanted: list[int] = []  # by each but the last of the path
    while path:
        _, untried = path[-1]
        to = next((one for one in untried if one not in seen), None)
        if to is None:
            path.pop()
            if wanted:
                wanted.pop()
            continue
        seen.add(to)
        wanted.append(to)
        if to in sender:
            path.append((sender[to], iter(allowed[sender[to]])))
            continue
        for (mover, _), destination in zip(path, wanted, strict=True):
            sender[destination] = mover
        return True
    return False
