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

from emulator.endpoint.operations.operation_table import APPLY, COMPUTE
from emulator.endpoint.operations.schedule import Schedule
from emulator.endpoint.operations.schedule_program import describe
from emulator.engine.ranks.gpu_owners import GpuOwners
from emulator.measures.cuts import Change, Crossing, cut_bound_ns
from emulator.measures.matched_messages import Numbers
from emulator.measures.message_graph import MessageGraph
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
    owners: GpuOwners | None = None,
    graph: MessageGraph | None = None,
) -> float:
    """The bound described above, in ns of fabric time; ``changes`` are those of the links.

    ``owners`` have the operations of their GPUs, and all processes call it (None: this process has
    all). ``graph`` is that of ``schedules``, for whom has it.  Raises ValueError if the schedules
    wait for what never happens.
    """
    graph = MessageGraph(schedules, owners) if graph is None else graph
    bound = _Bound(topology, graph, wire, changes).value()
    if math.isinf(bound):
        raise ValueError("its faults leave a part of the fabric without any link; heal one of them")
    return bound


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Pairs:
    """What the writes of pairs of GPUs come to, an array element each.

    ``key`` is the pair as one number, and ``place`` that of its first message's receive.
    """

    key: Numbers
    place: Numbers
    octets: Numbers
    packets: Numbers
    begin: Floats
    rest: Floats


class _Bound:
    """The messages are those of ``graph.messages``, in that order.

    A process reckons the ports of its own GPUs, and of other GPUs what messages need.
    """

    def __init__(
        self, topology: Topology, graph: MessageGraph, wire: WireCost, changes: Sequence[Change]
    ) -> None:
        self.topology = topology
        self.changes = changes
        self.graph = graph
        self.wire = wire
        self.gpus = topology.gpus
        self.owners = graph.owners or GpuOwners.alone(len(self.gpus))
        self.scale_up = ScaleUpDomains(topology)
        self._check()
        messages = graph.messages
        self.source = messages.source.astype(np.int64)
        self.destination = messages.destination.astype(np.int64)
        self.writes = messages.writes
        self.length = messages.length.astype(np.int64)
        self.service, self.flight = self._messages()

    def _check(self) -> None:
        graph = self.graph
        peers = graph.column("peer")[graph.sends]
        lost = graph.sends[(peers < 0) | (peers >= len(self.gpus))]
        self._refuse(
            "checked schedules",
            self._wrong(lost, "goes to a rank that the fabric does not have", 0)
            or self._wrong(graph.messages.unmatched, "waits for something that no rank sends", 1),
        )

    def _wrong(self, numbers: Numbers, verdict: str, weight: int) -> tuple[object, str] | None:
        """Return the place and the sentence of the first of ``numbers``, if there is any."""
        if not len(numbers):
            return None
        rank, index, _ = self.graph.operation(numbers[0])
        return (weight, rank, index), f"{self._where(numbers[0])} {verdict}"

    def _refuse(self, what: str, failure: tuple[object, str] | None) -> None:
        """Raise ValueError in all processes if one of them has a ``failure``."""
        sentence = self.owners.first_failure(what, failure)
        if sentence is not None:
            raise ValueError(sentence)

    def _where(self, number: int) -> str:
        rank, index, operation = self.graph.operation(number)
        return f"rank {rank}'s {describe(index, operation)}"

    def value(self) -> float:
        begins, longest = self._earliest()
        rests = self._remaining()
        busiest = self._busiest(begins, rests)
        fabric = self._fabric(begins, rests)
        return max(self.owners.peers.gather("bound", max(longest, busiest, fabric)))

    def _busiest(self, begins: Floats, rests: Floats) -> float:
        """Return the bound of the own port that has the most to do."""
        out, into = self._places()
        sent = np.flatnonzero(self.graph.send >= 0)
        received = np.flatnonzero(self.graph.receive >= 0)
        place = np.concatenate([out[sent], into[received]])
        if not len(place):
            return 0.0
        which = np.concatenate([sent, received])
        # return_index makes numpy sort stably, which is right on emulated processors, too
        names, _, place = np.unique(place, return_index=True, return_inverse=True)
        load = np.bincount(place, self.service[which])
        first = np.full(len(names), math.inf)
        last = np.full(len(names), math.inf)
        there = begins + self.flight
        np.minimum.at(first, place, np.concatenate([begins[sent], there[received]]))
        left = self.flight + rests
        np.minimum.at(last, place, np.concatenate([left[sent], rests[received]]))
        return float((first + load + last).max())

    def _earliest(self) -> tuple[Floats, float]:
        """Return when each message is sent at the earliest, and when the last operation ends."""
        graph = self.graph
        head, end = np.zeros(len(graph)), np.zeros(len(graph))
        begins = np.zeros(len(graph.messages))
        sending = graph.messages.of_sends(len(graph))
        arrival = graph.messages.of_receives(len(graph))  # what an operation waits for
        whole = self.service + self.flight
        own = self._own()
        for wave in graph.waves:
            for level in wave.levels:
                graph.needs.largest(level, end, head)
                begin = head[level]
                sends, sent = graph.sent_in(level, sending)
                begins[sent] = head[sends]
                message = arrival[level]
                waits = message >= 0
                message = message[waits]
                begin[waits] = np.maximum(begin[waits], begins[message] + whole[message])
                end[level] = begin + own[level]
            graph.send_on(wave, begins)
        return begins, float(end.max(initial=0.0))

    def _remaining(self) -> Floats:
        """The least time from the end of each message's receive to the end of the program."""
        graph = self.graph
        tail = np.zeros(len(graph))
        # What is left from the end of all that an operation waits for: itself and its tail.  A
        # receive ends `service + flight` after its send has started, which is when the operations
        # before the send have ended.
        left = np.zeros(len(graph))
        rests = np.zeros(len(graph.messages))
        sending = graph.messages.of_sends(len(graph))
        arrival = graph.messages.of_receives(len(graph))
        whole = self.service + self.flight
        own = self._own()
        for wave in reversed(graph.waves):
            graph.send_back(wave, rests)
            for level in reversed(wave.levels):
                graph.followers.largest(level, left, tail)
                left[level] = own[level] + tail[level]
                receives = level[arrival[level] >= 0]
                rests[arrival[receives]] = tail[receives]
                sends, carried = graph.sent_in(level, sending)
                left[sends] = np.maximum(left[sends], whole[carried] + rests[carried])
        return rests

    def _own(self) -> Floats:
        """Return how long each operation takes by itself."""
        number = self.graph.column("number")
        return np.where(np.isin(self.graph.kind, (COMPUTE, APPLY)), number, 0).astype(np.float64)

    def _fabric(self, begins: Floats, rests: Floats) -> float:
        """Return the bound of the fabric's borders, from the pairs that all processes have.

        The first process alone reckons it, and the others take it from there.
        """
        peers = self.owners.peers
        nothing: list[_Pairs | None] = [None] * peers.count
        parts = peers.trade("pairs", [self._crossing(begins, rests), *nothing[1:]])
        bound = 0.0 if peers.number else self._cut(parts)
        return max(peers.gather("bound of the fabric", bound))

    def _crossing(self, begins: Floats, rests: Floats) -> _Pairs:
        """Return the pairs whose destinations this process has.

        All messages of a pair are one to a cut: only sums and least values count.
        """
        which = self.writes & (self.graph.receive >= 0)
        pairs, first, pair = self._pairs(which)
        length = self.length[which]
        packets = np.maximum(1, -(-length // self.wire.payload_mtu))
        begin = np.full(len(pairs), math.inf)
        rest = np.full(len(pairs), math.inf)
        np.minimum.at(begin, pair, begins[which])
        np.minimum.at(rest, pair, rests[which])
        octets = np.zeros(len(pairs), np.int64)
        number = np.zeros(len(pairs), np.int64)
        np.add.at(octets, pair, length + packets * self.wire.around_bytes)
        np.add.at(number, pair, packets)
        place = self.graph.messages.receive_place[which][first]
        return _Pairs(pairs, place, octets, number, begin, rest)

    def _cut(self, parts: Sequence[_Pairs]) -> float:
        """Return the bound of the borders that the pairs of all ``parts`` cross."""
        count = len(self.gpus)
        crossings = [
            (
                (key % count, place),
                Crossing(
                    source=self.gpus[key // count].name,
                    destination=self.gpus[key % count].name,
                    octets=octets,
                    head_ns=begin,
                    tail_ns=rest,
                    packets=packets,
                ),
            )
            for part in parts
            for key, place, octets, packets, begin, rest in zip(
                part.key.tolist(),
                part.place.tolist(),
                part.octets.tolist(),
                part.packets.tolist(),
                part.begin.tolist(),
                part.rest.tolist(),
                strict=True,
            )
        ]
        crossings.sort(key=lambda one: one[0])
        return cut_bound_ns(self.topology, [one for _, one in crossings], self.changes)

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
        failure: tuple[object, str] | None = None
        for writes in (True, False):
            which = self.writes == writes
            chosen = np.flatnonzero(which)
            pairs, first, pair = self._pairs(which)
            rate = np.empty(len(pairs))
            delay = np.empty(len(pairs))
            for place, key in enumerate(pairs.tolist()):
                source, destination = divmod(key, count)
                speed = (self._write if writes else self._copy)(source, destination)
                if speed is None:
                    speed = math.inf, 0.0
                    send = int(self.graph.send[chosen[first[place]]])
                    if failure is None and send >= 0:  # or its sender's process states it
                        reach = "goes to a rank that its scale-up network does not reach"
                        failure = key, f"{self._where(send)} {reach}"
                rate[place], delay[place] = speed
            service[chosen] = octets[chosen] * 8e9 / rate[pair]
            flight[chosen] = delay[pair]
        self._refuse("checked scale-up networks", failure)
        return service, flight

    def _write(self, source: int, destination: int) -> tuple[float, float]:
        """Rate (bit/s) and delay (ns) of the fabric between two ranks."""
        here, there = self.gpus[source].name, self.gpus[destination].name
        slower = min(nic_rate_bps(self.topology, here), nic_rate_bps(self.topology, there))
        return slower, spans_from(self.topology, here).get(there, NOWHERE).delay_ns

    def _copy(self, source: int, destination: int) -> tuple[float, float] | None:
        """Rate and latency of the scale-up network between two ranks; None: it joins them not."""
        here, there = self.gpus[source].name, self.gpus[destination].name
        rate_bps = self.scale_up.peers(here).get(there)
        return None if rate_bps is None else (rate_bps, self.scale_up.network(here).latency_ns)
