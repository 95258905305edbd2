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
2. for each NIC and each direction (and each GPU's port to a scale-up switch likewise, or without a
   switch each link): the earliest moment anything can start there, plus the service of everything
   that passes. To that comes the shortest way from the end of any such message to the end of the
   program;
3. for each border between tiers of the fabric and each direction, the time that the links have
   which the trial's faults leave (:mod:`emulator.measures.cuts`).

The octets around a payload are the headers of an uncongested data packet from the Ethernet header
on. To these come the preamble, frame check sequence and inter-packet gap that a link spends on each
frame (IEEE 802.3).  On borders that packets can cross only in a tunnel (VXLAN), what that adds
counts, too.  Acknowledgements, queueing in switches, GPU time for summing and store-and-forward are
left out: a bound from below, not a prediction.  Barriers are free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.endpoint.operations.operation_table import APPLY, COMPUTE, WRITE
from emulator.endpoint.operations.schedule import Schedule
from emulator.endpoint.operations.schedule_program import describe
from emulator.measures.cuts import Change, Crossing, cut_bound_ns
from emulator.measures.message_graph import MessageGraph, Numbers
from topologies.model import SWITCH, Topology
from topologies.parts.attachment import nic_rate_bps
from topologies.parts.scale_up import ScaleUpDomains
from topologies.routing.fabric_paths import spans_from
from topologies.spans import NOWHERE


@dataclass(frozen=True)
class WireCost:
    """Octets around the payload of every data packet, and the payload it carries at most."""

    around_bytes: int
    payload_mtu: int

    def octets(self, length: int) -> int:
        """Return what a message of ``length`` octets puts on the wire."""
        return length + self.packets(length) * self.around_bytes

    @property
    def full_octets(self) -> int:
        """Return what a full packet takes on the wire."""
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
    *,
    graph: MessageGraph | None = None,
) -> float:
    """The bound described above, in ns of fabric time; ``changes`` are those of the links.

    ``graph`` is that of ``schedules``, for whom has it.  Raises ValueError if the schedules wait
    for what never happens.
    """
    graph = graph or MessageGraph(schedules)
    bound = _Bound(topology, graph, wire, changes).value()
    if math.isinf(bound):
        raise ValueError("its faults leave a part of the fabric without any link; heal one of them")
    return bound


Floats = npt.NDArray[np.float64]


class _Bound:
    """The messages are those of ``graph.receive``, in that order."""

    def __init__(
        self, topology: Topology, graph: MessageGraph, wire: WireCost, changes: Sequence[Change]
    ) -> None:
        self.topology = topology
        self.changes = changes
        self.graph = graph
        self.wire = wire
        self.gpus = topology.gpus
        self.scale_up = ScaleUpDomains(topology)
        self._check()
        self.source = graph.rank(graph.send).astype(np.int64)
        self.destination = graph.rank(graph.receive).astype(np.int64)
        self.writes = graph.kind[graph.send] == WRITE
        self.length = graph.column("near_octets")[graph.send].astype(np.int64)
        self.service, self.flight = self._messages()

    def _check(self) -> None:
        graph = self.graph
        peers = graph.column("peer")[graph.sends]
        lost = np.flatnonzero((peers < 0) | (peers >= len(self.gpus)))
        if len(lost):
            where = self._where(graph.sends[lost[0]])
            raise ValueError(f"{where} goes to a rank that the fabric does not have")
        if len(graph.unmatched):
            where = self._where(graph.unmatched[0])
            raise ValueError(f"{where} waits for something that no rank sends")

    def _where(self, number: int) -> str:
        rank, index, operation = self.graph.operation(number)
        return f"rank {rank}'s {describe(index, operation)}"

    def value(self) -> float:
        begins, longest = self._earliest()
        rests = self._remaining()[self.graph.receive]
        busiest = self._busiest(begins, rests) if len(begins) else 0.0
        return max(longest, busiest, self._fabric(begins, rests))

    def _busiest(self, begins: Floats, rests: Floats) -> float:
        """Return the bound of the port that has the most to do."""
        place = np.concatenate(self._places())
        # return_index makes numpy sort stably, which is right on emulated processors, too
        names, _, place = np.unique(place, return_index=True, return_inverse=True)
        load = np.bincount(place, np.concatenate([self.service, self.service]))
        first = np.full(len(names), math.inf)
        last = np.full(len(names), math.inf)
        np.minimum.at(first, place, np.concatenate([begins, begins + self.flight]))
        np.minimum.at(last, place, np.concatenate([self.flight + rests, rests]))
        return float((first + load + last).max())

    def _earliest(self) -> tuple[Floats, float]:
        """Return when each message is sent at the earliest, and when the last operation ends."""
        graph = self.graph
        head, end = np.zeros(len(graph)), np.zeros(len(graph))
        arrival = np.full(len(graph), -1, np.int32)  # the message that an operation waits for
        arrival[graph.receive] = np.arange(len(graph.receive))
        whole = self.service + self.flight
        own = self._own()
        for level in graph.levels:
            graph.needs.largest(level, end, head)
            begin = head[level]
            message = arrival[level]
            waits = message >= 0
            message = message[waits]
            begin[waits] = np.maximum(begin[waits], head[graph.send[message]] + whole[message])
            end[level] = begin + own[level]
        return head[graph.send], float(end.max(initial=0.0))

    def _remaining(self) -> Floats:
        """The least time from each operation's end to the end of the program."""
        graph = self.graph
        tail = np.zeros(len(graph))
        # What is left from the end of all that an operation waits for: itself and its tail.  A
        # receive ends `service + flight` after its send has started, which is when the operations
        # before the send have ended.
        left = np.zeros(len(graph))
        message = np.full(len(graph), -1, np.int32)
        message[graph.send] = np.arange(len(graph.send))
        whole = self.service + self.flight
        own = self._own()
        for level in reversed(graph.levels):
            graph.followers.largest(level, left, tail)
            left[level] = own[level] + tail[level]
            sends = level[message[level] >= 0]
            carried = message[sends]
            arrives = whole[carried] + tail[graph.receive[carried]]
            left[sends] = np.maximum(left[sends], arrives)
        return tail

    def _own(self) -> Floats:
        """Return how long each operation takes by itself."""
        number = self.graph.column("number")
        return np.where(np.isin(self.graph.kind, (COMPUTE, APPLY)), number, 0).astype(np.float64)

    def _fabric(self, begins: Floats, rests: Floats) -> float:
        # All messages of a pair are one to a cut: only sums and least values count.
        writes = self.writes
        pairs, first, pair = self._pairs(writes)
        if not len(pairs):
            return cut_bound_ns(self.topology, [], self.changes)
        length = self.length[writes]
        packets = np.maximum(1, -(-length // self.wire.payload_mtu))
        begin = np.full(len(pairs), math.inf)
        rest = np.full(len(pairs), math.inf)
        np.minimum.at(begin, pair, begins[writes])
        np.minimum.at(rest, pair, rests[writes])
        octets = np.zeros(len(pairs), np.int64)
        number = np.zeros(len(pairs), np.int64)
        np.add.at(octets, pair, length + packets * self.wire.around_bytes)
        np.add.at(number, pair, packets)
        crossings = [
            Crossing(
                source=self.gpus[pairs[one] // len(self.gpus)].name,
                destination=self.gpus[pairs[one] % len(self.gpus)].name,
                octets=int(octets[one]),
                head_ns=float(begin[one]),
                tail_ns=float(rest[one]),
                packets=int(number[one]),
            )
            for one in np.argsort(first, kind="stable").tolist()
        ]
        return cut_bound_ns(self.topology, crossings, self.changes)

    def _pairs(self, which: npt.NDArray[np.bool_]) -> tuple[Numbers, Numbers, Numbers]:
        """Return pairs of source and destination, each as one number.

        With them go the first message of each pair, and the place of each message's pair.
        """
        key = self.source[which] * len(self.gpus) + self.destination[which]
        return np.unique(key, return_index=True, return_inverse=True)

    def _places(self) -> tuple[Numbers, Numbers]:
        """The ports, as numbers, by which each message leaves, and arrives."""
        count = len(self.gpus)
        switched = np.array([self.scale_up.network(gpu.name).shape == SWITCH for gpu in self.gpus])
        out = np.where(self.writes, 0, 2 * count) + self.source
        into = np.where(self.writes, count, 3 * count) + self.destination
        own = ~self.writes & ~switched[self.source] if count else ~self.writes
        link = self.source * count + self.destination
        out = np.where(own, 4 * count + link, out)
        into = np.where(own, 4 * count + count * count + link, into)
        return out, into

    def _messages(self) -> tuple[Floats, Floats]:
        """Service and flight time of each message, in ns."""
        service = np.zeros(len(self.source))
        flight = np.zeros(len(self.source))
        count = len(self.gpus)
        wire = self.wire
        packets = np.maximum(1, -(-self.length // wire.payload_mtu))
        octets = np.where(self.writes, self.length + packets * wire.around_bytes, self.length)
        for writes in (True, False):
            which = self.writes == writes
            chosen = np.flatnonzero(which)
            pairs, first, pair = self._pairs(which)
            rate = np.empty(len(pairs))
            delay = np.empty(len(pairs))
            for place, key in enumerate(pairs.tolist()):
                source, destination = divmod(key, count)
                if writes:
                    rate[place], delay[place] = self._write(source, destination)
                else:
                    message = int(chosen[first[place]])
                    rate[place], delay[place] = self._copy(source, destination, message)
            service[chosen] = octets[chosen] * 8e9 / rate[pair]
            flight[chosen] = delay[pair]
        return service, flight

    def _write(self, source: int, destination: int) -> tuple[float, float]:
        """Rate (bit/s) and delay (ns) of the fabric between two ranks."""
        here, there = self.gpus[source].name, self.gpus[destination].name
        slower = min(nic_rate_bps(self.topology, here), nic_rate_bps(self.topology, there))
        return slower, spans_from(self.topology, here).get(there, NOWHERE).delay_ns

    def _copy(self, source: int, destination: int, message: int) -> tuple[float, float]:
        """Rate and latency of the scale-up network between two ranks."""
        here, there = self.gpus[source].name, self.gpus[destination].name
        rate_bps = self.scale_up.peers(here).get(there)
        if rate_bps is None:
            where = self._where(self.graph.send[message])
            raise ValueError(f"{where} goes to a rank that its scale-up network does not reach")
        return rate_bps, self.scale_up.network(here).latency_ns
