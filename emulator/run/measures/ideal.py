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
   program.  Of copies that a scale-up switch sums or makes a port carries one;
3. for each border between tiers of the fabric and each direction, the time that the links have
   which the trial's faults leave (:mod:`emulator.run.measures.cuts`).

The octets around a payload are the headers of an uncongested data packet from the Ethernet header
on. To these come the preamble, frame check sequence and inter-packet gap that a link spends on each
frame (IEEE 802.3).  On borders that packets can cross only in a tunnel (VXLAN), what that adds
counts, too.  Acknowledgements, queueing in switches, GPU time for summing and store-and-forward are
left out: a bound from below, not a prediction.  Barriers are free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.run.measures.cuts import Change, Crossing, cut_bound_ns
from emulator.run.measures.matched_messages import Messages, Numbers
from emulator.run.measures.message_graph import MessageGraph
from emulator.sim.endpoint.operations.operation_table import APPLY, COMPUTE, fans, of_kinds
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.sim.endpoint.operations.schedule_program import describe
from emulator.transports.wire_cost import WireCost
from topologies.model import SWITCH, Topology
from topologies.parts.attachment import nic_rate_bps
from topologies.parts.scale_up import ScaleUpDomains
from topologies.routing.paths import spans_from
from topologies.wiring import NOWHERE


def ideal_ns(
    topology: Topology,
    schedules: Sequence[Schedule],
    wire: WireCost,
    changes: Sequence[Change] = (),
    *,
    graph: MessageGraph | None = None,
) -> float:
    """The bound described above, in ns of fabric time; ``changes`` are those of the links.

    All processes of a division call it.  ``graph`` is that of ``schedules``, for whom has it.
    Raises ValueError if the schedules wait for what never happens.
    """
    graph = MessageGraph(schedules) if graph is None else graph
    bound = _Bound(topology, graph, wire, changes).value()
    if math.isinf(bound):
        raise ValueError("its faults leave a part of the fabric without any link; heal one of them")
    return bound


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Crossings:
    """The sums and least times of what pairs of GPUs write, an array element for each pair.

    ``pair`` is source and destination as one number, and ``place`` that of its first message's
    receive.
    """

    pair: Numbers
    place: Numbers
    octets: Numbers
    packets: Numbers
    begin: Floats
    rest: Floats


class _Pairs:
    """The pairs of source and destination that messages have, by write and by copy.

    ``first`` is the first message of each, ``of`` the pair of each message, and ``count`` the
    number of GPUs.
    """

    def __init__(self, messages: Messages, count: int) -> None:
        self.count = count
        key = messages.source.astype(np.int64)
        key *= count
        key += messages.destination
        key += np.where(messages.writes, 0, count * count)
        self.key, self.first, of = np.unique(key, return_index=True, return_inverse=True)
        self.of = of.astype(np.int32)
        self.writes = self.key < count * count

    def __len__(self) -> int:
        return len(self.key)

    def ends(self) -> Iterator[tuple[int, int, bool]]:
        """Yield source, destination and whether it is by write, for each."""
        for key, writes in zip(self.key.tolist(), self.writes.tolist(), strict=True):
            yield *divmod(key % (self.count * self.count), self.count), writes


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
        self.division = graph.division
        self.scale_up = ScaleUpDomains(topology)
        self._check()
        self.messages = graph.messages
        self.pairs = _Pairs(graph.messages, len(self.gpus))
        self.service, self.delay = self._times()

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
        sentence = self.division.first_failure(what, failure)
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
        bounds: list[float] = self.division.processes.gather("bound", max(longest, busiest, fabric))
        return max(bounds)

    def _flight(self, which: Numbers | slice = slice(None)) -> Floats:
        """Return how long what ``which`` messages carry is on its way (ns)."""
        return self.delay[self.pairs.of[which]]

    def _whole(self, which: Numbers) -> Floats:
        """Return how long it takes from the start of ``which`` messages until all is there."""
        return self.service[which] + self._flight(which)

    def _busiest(self, begins: Floats, rests: Floats) -> float:
        """Return the bound of the own port that has the most to do."""
        sent = np.flatnonzero(self.graph.send >= 0).astype(np.int32)
        received = np.flatnonzero(self.graph.receive >= 0).astype(np.int32)
        out, into, ports = self._ports()
        place = np.concatenate([out[self.pairs.of[sent]], into[self.pairs.of[received]]])
        service = np.concatenate([self.service[sent], self.service[received]])
        if self.messages.fans.any():
            fan_in, fan_out = fans(self.messages.fans)
            service /= np.concatenate([fan_out[sent], fan_in[received]])
        load = np.bincount(place, service, ports)
        first, last = np.full(ports, math.inf), np.full(ports, math.inf)
        np.minimum.at(first, out[self.pairs.of[sent]], begins[sent])
        there = begins[received] + self._flight(received)
        np.minimum.at(first, into[self.pairs.of[received]], there)
        np.minimum.at(last, out[self.pairs.of[sent]], self._flight(sent) + rests[sent])
        np.minimum.at(last, into[self.pairs.of[received]], rests[received])
        used = np.isfinite(first)
        return float((first + load + last)[used].max(initial=0.0))

    def _earliest(self) -> tuple[Floats, float]:
        """Return when each message is sent at the earliest, and when the last operation ends."""
        graph = self.graph
        end = np.zeros(len(graph) + 1)
        begins = np.zeros(len(graph.messages))
        sending = graph.messages.of_sends(len(graph))
        arrival = graph.messages.of_receives(len(graph))  # what an operation waits for
        own = self._own()
        for wave in graph.waves:
            for level in wave.levels:
                begin = graph.needs.largest(level, end)
                message = sending[level]
                sends = message >= 0
                begins[message[sends]] = begin[sends]
                message = arrival[level]
                waits = message >= 0
                message = message[waits]
                begin[waits] = np.maximum(begin[waits], begins[message] + self._whole(message))
                end[level] = begin + own[level]
            graph.send_on(wave, begins)
        return begins, float(end.max(initial=0.0))

    def _remaining(self) -> Floats:
        """The least time from the end of each message's receive to the end of the program."""
        graph = self.graph
        # What is left from the end of all that an operation waits for: itself and its tail.  A
        # receive ends `service + flight` after its send has started, which is when the operations
        # before the send have ended.
        left = np.zeros(len(graph) + 1)
        rests = np.zeros(len(graph.messages))
        sending = graph.messages.of_sends(len(graph))
        arrival = graph.messages.of_receives(len(graph))
        own = self._own()
        for wave in reversed(graph.waves):
            graph.send_back(wave, rests)
            for level in reversed(wave.levels):
                tail = graph.followers.largest(level, left)
                message = arrival[level]
                receives = message >= 0
                rests[message[receives]] = tail[receives]
                all_left = own[level] + tail
                message = sending[level]
                sends = message >= 0
                message = message[sends]
                arrives = self._whole(message) + rests[message]
                all_left[sends] = np.maximum(all_left[sends], arrives)
                left[level] = all_left
        return rests

    def _own(self) -> Numbers:
        """Return how long each operation takes by itself (ns)."""
        number = self.graph.column("number")
        number[~of_kinds(self.graph.kind, COMPUTE, APPLY)] = 0
        return number

    def _fabric(self, begins: Floats, rests: Floats) -> float:
        """Return the bound of the fabric's borders, from the pairs that all processes have.

        The first process alone reckons it, and the others take it from there.
        """
        processes = self.division.processes
        parts = processes.to_first("pairs", self._crossings(begins, rests))
        bound = self._cut(parts) if processes.reports else 0.0
        bounds: list[float] = processes.gather("bound of the fabric", bound)
        return max(bounds)

    def _crossings(self, begins: Floats, rests: Floats) -> _Crossings:
        """Return the pairs that write to destinations which this process has.

        All messages of a pair are one to a cut: only sums and least values count.
        """
        pairs, messages = self.pairs, self.messages
        begin, rest = np.full(len(pairs), math.inf), np.full(len(pairs), math.inf)
        np.minimum.at(begin, pairs.of, begins)
        np.minimum.at(rest, pairs.of, rests)
        octets, number = np.zeros(len(pairs), np.int64), np.zeros(len(pairs), np.int64)
        packets = self._packets()
        np.add.at(number, pairs.of, packets)
        np.add.at(octets, pairs.of, messages.length)
        octets += number * self.wire.around_bytes
        chosen = np.flatnonzero(pairs.writes & (self.graph.receive[pairs.first] >= 0))
        place = self.graph.index(self.graph.receive[pairs.first[chosen]])
        return _Crossings(
            pairs.key[chosen], place, octets[chosen], number[chosen], begin[chosen], rest[chosen]
        )

    def _packets(self) -> Numbers:
        """Return the packets of each message, if it is written."""
        packets: Numbers = np.maximum(1, -(-self.messages.length // self.wire.payload_mtu))
        return packets

    def _cut(self, parts: Sequence[_Crossings]) -> float:
        """Return the bound of the borders that the pairs of all ``parts`` cross."""
        count = len(self.gpus)
        crossings = [
            (
                (pair % count, place),
                Crossing(
                    source=self.gpus[pair // count].name,
                    destination=self.gpus[pair % count].name,
                    octets=octets,
                    head_ns=begin,
                    tail_ns=rest,
                    packets=packets,
                ),
            )
            for part in parts
            for pair, place, octets, packets, begin, rest in zip(
                part.pair.tolist(),
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

    def _ports(self) -> tuple[Numbers, Numbers, int]:
        """The ports, as numbers, by which each pair's messages leave, and arrive; their count.

        They are the ports of NICs, to scale-up switches, and of links from GPU to GPU.
        """
        count = len(self.gpus)
        out, into = np.zeros(len(self.pairs), np.int32), np.zeros(len(self.pairs), np.int32)
        ports = 4 * count
        for place, (source, destination, writes) in enumerate(self.pairs.ends()):
            if writes:
                out[place], into[place] = source, count + destination
            elif self.scale_up.network(self.gpus[source].name).shape == SWITCH:
                out[place], into[place] = 2 * count + source, 3 * count + destination
            else:
                out[place], into[place] = ports, ports + 1
                ports += 2
        return out, into, ports

    def _times(self) -> tuple[Floats, Floats]:
        """Service time of each message, and the flight time of each pair's, in ns."""
        rate, delay = np.empty(len(self.pairs)), np.empty(len(self.pairs))
        failure: tuple[object, str] | None = None
        for place, (source, destination, writes) in enumerate(self.pairs.ends()):
            speed = speed_between(self.topology, self.scale_up, source, destination, writes=writes)
            if speed is None:
                speed = math.inf, 0.0
                send = int(self.graph.send[self.pairs.first[place]])
                if failure is None and send >= 0:  # or its sender's process states it
                    reach = "goes to a rank that its scale-up network does not reach"
                    failure = (source, destination), f"{self._where(send)} {reach}"
            rate[place], delay[place] = speed
        self._refuse("checked scale-up networks", failure)
        octets = self.messages.length.astype(np.int64)
        octets += np.where(self.messages.writes, self._packets() * self.wire.around_bytes, 0)
        return octets * 8e9 / rate[self.pairs.of], delay


def speed_between(
    topology: Topology, scale_up: ScaleUpDomains, source: int, destination: int, *, writes: bool
) -> tuple[float, float] | None:
    """Return the rate (bit/s) and the delay (ns) that a message between two ranks has at best.

    It goes over the fabric if it is one of ``writes``, else over the scale-up network; None: that
    joins them not.
    """
    here, there = topology.gpus[source].name, topology.gpus[destination].name
    if not writes:
        rate_bps = scale_up.peers(here).get(there)
        return None if rate_bps is None else (rate_bps, scale_up.network(here).latency_ns)
    slower = min(nic_rate_bps(topology, here), nic_rate_bps(topology, there))
    return slower, spans_from(topology, here).get(there, NOWHERE).delay_ns


CLOCK_NS = 1
#: Of the bound: delays of packets are whole nanoseconds.
ROUNDING = 1e-4


def rounding_ns(ideal_ns: float) -> float:
    """Return how far a time may fall short of its bound by rounding (ns of fabric time)."""
    return CLOCK_NS + ROUNDING * ideal_ns


def violation(times_ns: Sequence[int], ideal_ns: float) -> str | None:
    """A sentence about the fastest of ``times_ns`` if it is below ``ideal_ns``: that is a defect.

    A time may fall short by rounding: that of the clock and of each packet's delay.
    """
    fastest = min(times_ns, default=0)
    if not times_ns or fastest >= ideal_ns - rounding_ns(ideal_ns):
        return None
    return (
        f"internal error: an iteration took {fastest / 1000:.3f} us, less than the ideal time of "
        f"{ideal_ns / 1000:.3f} us, which nothing can beat: please report it with the run folder"
    )
