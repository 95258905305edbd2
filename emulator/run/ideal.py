"""The lower bound of a schedule's time: what an ideal fabric could do.

Only what no implementation can avoid is counted.  A message of L octets from one GPU to another
needs at least

    service = (L + ceil(L / payload MTU) * octets around the payload) / NIC rate   (fabric)
    service = L / rate of the scale-up links between the two                       (NVLink)
    flight  = sum of the delays of cables and switches on a shortest path of those that the
              fabric's routing takes, or the NVLink latency

(the NIC rate being that of all ports of a NIC together, and of a shared one what a GPU has of it
alone: the slower of PCIe and the NIC's own cable)

and its receive cannot be over before ``service + flight`` after its start.  The bound is the
larger of

1. the longest chain of dependent operations, every message alone on its path;
2. for each NIC and each direction (and each GPU's port to a scale-up switch likewise, or without
   a switch each link): the earliest moment anything can start there, plus the service of everything
   that passes, plus the shortest way from the end of any such message to the end of the program;
3. for each border between tiers of the fabric and each direction, the time that the links have
   which the trial's faults leave (:mod:`emulator.run.cuts`).

The octets around a payload are the headers of an uncongested data packet from the Ethernet header
on, and the preamble, frame check sequence and inter-packet gap that a link spends on each frame
(IEEE 802.3).  On borders that packets can cross only in a tunnel (VXLAN), what that adds counts,
too.  Acknowledgements, queueing in switches, GPU time for summing and store-and-forward are left
out: a bound from below, not a prediction.  Barriers are free.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emulator.endpoint.program import describe
from emulator.endpoint.schedule import Compute, Copy, Operation, Receive, Schedule, Write
from emulator.run.cuts import Change, Crossing, cut_bound_ns
from topologies.attachment import nic_rate_bps
from topologies.model import SWITCH, Topology
from topologies.scale_up import ScaleUpDomains
from topologies.spans import NOWHERE


@dataclass(frozen=True)
class WireCost:
    """Octets around the payload of every data packet, and the payload it carries at most."""

    around_bytes: int
    payload_mtu: int

    def octets(self, length: int) -> int:
        """What a message of ``length`` octets puts on the wire."""
        return length + self.packets(length) * self.around_bytes

    @property
    def full_octets(self) -> int:
        """What a full packet takes on the wire."""
        return self.payload_mtu + self.around_bytes

    @property
    def payload_share(self) -> float:
        """Payload over all octets of a full packet."""
        return self.payload_mtu / self.full_octets

    def packets(self, length: int) -> int:
        return max(1, math.ceil(length / self.payload_mtu))


def ideal_ns(
    topology: Topology,
    schedules: Sequence[Schedule],
    wire: WireCost,
    changes: Sequence[Change] = (),
) -> float:
    """The bound described above, in ns of fabric time; ``changes`` are those of the links.

    Raises ValueError if the schedules wait for what never happens.
    """
    bound = _Bound(topology, schedules, wire, changes).value()
    if math.isinf(bound):
        raise ValueError("its faults leave a part of the fabric without any link; heal one of them")
    return bound


Key = tuple[int, int]  # rank, index
Pair = tuple[int, int]  # ranks: source, destination
#: A port: network, direction, rank, and the rank at the other end of its link (-1: a switch).
Place = tuple[str, str, int, int]


def _where(rank: int, index: int, operation: Operation) -> str:
    return f"rank {rank}'s {describe(index, operation)}"


class _Bound:
    def __init__(
        self,
        topology: Topology,
        schedules: Sequence[Schedule],
        wire: WireCost,
        changes: Sequence[Change],
    ) -> None:
        self.topology = topology
        self.changes = changes
        self.schedules = schedules
        self.wire = wire
        self.gpus = topology.gpus
        self.scale_up = ScaleUpDomains(topology)
        self.nic_bps = {gpu.name: nic_rate_bps(topology, gpu.name) for gpu in self.gpus}
        self.delay: dict[tuple[int, int], int] = {}
        for rank, gpu in enumerate(self.gpus):
            reached = topology.spans(gpu.name)
            for peer, other in enumerate(self.gpus):
                self.delay[rank, peer] = reached.get(other.name, NOWHERE).delay_ns

    def value(self) -> float:
        order, partner = self._order()
        head: dict[Key, float] = {}  # earliest start
        end: dict[Key, float] = {}  # earliest end
        for key in order:
            operation = self._operation(key)
            begin: float = max((end[key[0], before] for before in operation.after), default=0.0)
            head[key] = begin
            if isinstance(operation, Receive):
                sender = partner[key]
                begin = max(begin, head[sender] + sum(self._message(sender)))
            end[key] = begin + (operation.duration_ns if isinstance(operation, Compute) else 0)
        # The least time from an operation's end to the end of the program.
        tail: dict[Key, float] = defaultdict(float)
        for key in reversed(order):
            operation = self._operation(key)
            rest = tail[key]
            own = float(operation.duration_ns) if isinstance(operation, Compute) else 0.0
            for before in operation.after:
                earlier = (key[0], before)
                tail[earlier] = max(tail[earlier], own + rest)
            if isinstance(operation, Receive):
                sender = partner[key]
                # A receive ends `service + flight` after its send has started, which is when the
                # operations before the send have ended.
                for before in self._operation(sender).after:
                    earlier = (sender[0], before)
                    tail[earlier] = max(tail[earlier], sum(self._message(sender)) + rest)
        longest = max(end.values(), default=0.0)

        load: dict[Place, float] = defaultdict(float)
        first: dict[Place, float] = {}
        last: dict[Place, float] = {}
        for key, sender in partner.items():
            out, into = self._places(sender, key[0])
            service, flight = self._message(sender)
            for place, starts, remains in (
                (out, head[sender], flight + tail[key]),
                (into, head[sender] + flight, tail[key]),
            ):
                load[place] += service
                first[place] = min(first.get(place, math.inf), starts)
                last[place] = min(last.get(place, math.inf), remains)
        busiest = max((first[p] + load[p] + last[p] for p in load), default=0.0)
        return max(longest, busiest, self._fabric(partner, head, tail))

    def _fabric(
        self, partner: Mapping[Key, Key], head: Mapping[Key, float], tail: Mapping[Key, float]
    ) -> float:
        # All messages of a pair are one to a cut: only sums and least values count.
        octets: dict[Pair, int] = defaultdict(int)
        packets: dict[Pair, int] = defaultdict(int)
        begin: dict[Pair, float] = {}
        rest: dict[Pair, float] = {}
        for receive, sender in partner.items():
            operation = self._operation(sender)
            if isinstance(operation, Write):
                pair = sender[0], receive[0]
                octets[pair] += self.wire.octets(operation.local.length)
                packets[pair] += self.wire.packets(operation.local.length)
                begin[pair] = min(begin.get(pair, math.inf), head[sender])
                rest[pair] = min(rest.get(pair, math.inf), tail.get(receive, 0.0))
        crossings = [
            Crossing(
                source=self.gpus[source].name,
                destination=self.gpus[destination].name,
                octets=octets[source, destination],
                head_ns=begin[source, destination],
                tail_ns=rest[source, destination],
                packets=packets[source, destination],
            )
            for source, destination in octets
        ]
        return cut_bound_ns(self.topology, crossings, self.changes)

    def _operation(self, key: Key) -> Operation:
        return self.schedules[key[0]].operations[key[1]]

    def _places(self, sender: Key, receiver: int) -> tuple[Place, Place]:
        """The ports by which the message ``sender`` leaves, and comes to the rank ``receiver``."""
        here = sender[0]
        if isinstance(self._operation(sender), Write):
            return ("fabric", "out", here, -1), ("fabric", "in", receiver, -1)
        if self.scale_up.network(self.gpus[here].name).shape == SWITCH:
            return ("scale-up", "out", here, -1), ("scale-up", "in", receiver, -1)
        return ("scale-up", "out", here, receiver), ("scale-up", "in", receiver, here)

    def _message(self, key: Key) -> tuple[float, float]:
        """Service and flight time of the send ``key``, in ns."""
        operation = self._operation(key)
        assert isinstance(operation, Write | Copy)
        source = self.gpus[key[0]]
        if isinstance(operation, Copy):
            rate_bps = self.scale_up.peers(source.name).get(self.gpus[operation.peer].name)
            if rate_bps is None:
                where = _where(key[0], key[1], operation)
                raise ValueError(f"{where} goes to a rank that its scale-up network does not reach")
            latency_ns = self.scale_up.network(source.name).latency_ns
            return operation.local.length * 8e9 / rate_bps, latency_ns
        slower = min(self.nic_bps[source.name], self.nic_bps[self.gpus[operation.peer].name])
        octets = self.wire.octets(operation.local.length)
        return octets * 8e9 / slower, self.delay[key[0], operation.peer]

    def _order(self) -> tuple[list[Key], dict[Key, Key]]:
        """All operations so that whatever one waits for stands before it; receive -> its send."""
        senders: dict[tuple[int, int, int], Key] = {}
        for schedule in self.schedules:
            for index, operation in enumerate(schedule.operations):
                if isinstance(operation, Write | Copy):
                    if not 0 <= operation.peer < len(self.gpus):
                        where = _where(schedule.rank, index, operation)
                        raise ValueError(f"{where} goes to a rank that the fabric does not have")
                    senders[schedule.rank, operation.peer, operation.tag] = (schedule.rank, index)
        partner: dict[Key, Key] = {}
        waits: dict[Key, int] = {}
        releases: dict[Key, list[Key]] = defaultdict(list)
        for schedule in self.schedules:
            for index, operation in enumerate(schedule.operations):
                key = (schedule.rank, index)
                needs = {(schedule.rank, before) for before in operation.after}
                if isinstance(operation, Receive):
                    sender = senders.get((operation.peer, schedule.rank, operation.tag))
                    if sender is None:
                        where = _where(schedule.rank, index, operation)
                        raise ValueError(f"{where} waits for something that no rank sends")
                    partner[key] = sender
                    needs.add(sender)
                waits[key] = len(needs)
                for need in needs:
                    releases[need].append(key)
        ready = [key for key, count in waits.items() if not count]
        order: list[Key] = []
        while ready:
            key = ready.pop()
            order.append(key)
            for released in releases[key]:
                waits[released] -= 1
                if not waits[released]:
                    ready.append(released)
        if len(order) != len(waits):
            raise ValueError("the schedules wait for each other in a circle")
        return order, partner
