"""Search of a capture for one packet, its attempts and what answers it, in two readings.

The first reading finds who sent a packet of that number or message.  The second follows the chosen
packets and their acknowledgements.  Only frames that hold the number's octets are decoded, unless
the packets are encrypted.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from emulator.report.follow.capture import CaptureStream, PauseTimes, PortFrame
from emulator.report.follow.packet_view import (
    CE,
    UUD,
    FlowKey,
    PacketKind,
    PacketView,
    is_secure,
    view,
)
from topologies.model import CableEnd, Topology
from uet.wire.envelope import open_frame
from uet.wire.frame import OpenSecure

#: Sightings and attempts of one packet that are kept, at most.
MOST_SIGHTINGS, MOST_ATTEMPTS = 512, 32


@dataclass(frozen=True, slots=True)
class Sighting:
    """A packet at a port: the time (ns of the file's clock), the way, and the frame's octets."""

    at_ns: int
    end: CableEnd
    leaves: bool
    length: int
    seen: PacketView


@dataclass
class SendAttempt:
    """One transmission of a packet: its sightings in order of time."""

    sightings: list[Sighting] = field(default_factory=list)

    @property
    def first(self) -> Sighting:
        return self.sightings[0]

    @property
    def last(self) -> Sighting:
        return self.sightings[-1]

    def reached(self, node: str) -> Sighting | None:
        """Return the sighting of its arrival at ``node``."""
        found = (one for one in self.sightings if one.end.node == node and not one.leaves)
        return next(found, None)


@dataclass
class PacketTrail:
    """A packet by its flow and PSN, and its attempts.

    ``left_out`` counts sightings beyond those that are kept.
    """

    flow: FlowKey
    psn: int
    attempts: list[SendAttempt] = field(default_factory=list)
    left_out: int = 0
    kept: int = 0

    def add(self, sighting: Sighting, follows: Callable[[Sighting, Sighting], bool]) -> None:
        """Append a sighting to the attempt that it continues, or begin another one.

        ``follows`` says of two sightings whether the second is the next place after the first.
        Frames of attempts can be equal in every octet: then the newest that is one place behind has
        it, else the newest that has not been at this place.
        """
        if self.kept >= MOST_SIGHTINGS:
            self.left_out += 1
            return
        attempt = self._continued(sighting, follows)
        if attempt is None:
            if len(self.attempts) >= MOST_ATTEMPTS:
                self.left_out += 1
                return
            attempt = SendAttempt()
            self.attempts.append(attempt)
        self.kept += 1
        attempt.sightings.append(sighting)

    def _continued(
        self, sighting: Sighting, follows: Callable[[Sighting, Sighting], bool]
    ) -> SendAttempt | None:
        place = (sighting.end, sighting.leaves)
        open_ones = [
            attempt
            for attempt in reversed(self.attempts)
            if _alike(attempt.last.seen, sighting.seen)
            and all((one.end, one.leaves) != place for one in attempt.sightings)
        ]
        adjacent = [one for one in open_ones if follows(one.last, sighting)]
        return next(iter(adjacent or open_ones), None)


def _alike(one: PacketView, other: PacketView) -> bool:
    """Return whether two sightings can be of one transmission: switches change neither."""
    return (one.port, one.retransmission) == (other.port, other.retransmission)


#: Octets of a frame in which the headers are sought: the largest that a capture keeps of them by
#: default, and a tunnel around.
HEADERS = 256
#: Flows, packets of a message, and answers of either kind to a packet that are kept, at most.
MOST_FLOWS, MOST_PACKETS, MOST_ANSWERS = 64, 16, 16
#: Frames that are looked at to see whether a capture is encrypted.
LOOKED_AT = 2000


@dataclass(frozen=True, kw_only=True)
class PacketWish:
    """The packet that a user asks for: by PSN, by SES message ID, or both.

    ``source`` and ``destination`` are sets of addresses, empty for any; ``context`` is a PDC or QP.
    """

    psn: int | None = None
    message: int | None = None
    source: frozenset[str] = frozenset()
    destination: frozenset[str] = frozenset()
    context: int | None = None

    def fits(self, seen: PacketView) -> bool:
        flow = seen.flow
        return (
            seen.kind in (PacketKind.DATA, PacketKind.CONTROL)
            and self.psn in (None, seen.psn)
            and (self.psn is None or flow.context != UUD)
            and self.message in (None, seen.message)
            and (not self.source or flow.source in self.source)
            and (not self.destination or flow.destination in self.destination)
            and self.context in (None, flow.context, seen.peer)
        )

    @property
    def marks(self) -> tuple[bytes, ...]:
        """Octets of which a frame that holds the packet has one."""
        if self.psn is not None:
            return (self.psn.to_bytes(4 if self.psn >> 24 else 3, "big"),)
        return () if self.message is None else (self.message.to_bytes(2, "big"),)


@dataclass
class FoundFlow:
    """A flow that sent what was asked for, and the PSNs in the order of their first sighting.

    ``psns`` have the SES message ID that each packet carried, where it was seen.  ``signals`` are
    those that no packet of data had so far, but a control packet.
    """

    flow: FlowKey
    begun_ns: int
    psns: dict[int, int | None] = field(default_factory=dict)
    signals: set[int] = field(default_factory=set)
    more: int = 0

    def followed_kind(self, psn: int) -> PacketKind:
        """Return the kind of the packets of that number which are followed."""
        return PacketKind.CONTROL if psn in self.signals else PacketKind.DATA


@dataclass
class Followed:
    """A packet, and what answered it in order of time: acknowledgements, and refusals.

    ``answered`` counts both, refusals by the key True.
    """

    packet: PacketTrail
    answers: list[PacketTrail] = field(default_factory=list)
    answered: Counter[bool] = field(default_factory=Counter)


#: The number of the iteration in which a time (ns of the file's clock) lies.
Period = Callable[[int], int]


def find_flows(
    stream: CaptureStream, wish: PacketWish, period: Period, open_secure: OpenSecure | None
) -> dict[tuple[FlowKey, int], FoundFlow]:
    """Return the flows that sent such a packet, by flow and period, as the capture has them."""
    found: dict[tuple[FlowKey, int], FoundFlow] = {}
    marks = wish.marks
    for frame in stream.frames():
        head = frame.octets[:HEADERS]
        if open_secure is None and not any(mark in head for mark in marks):
            continue
        seen = view(frame.octets, frame.length, open_secure)
        if seen is None or not wish.fits(seen):
            continue
        key = _occurrence(seen, frame, period(frame.at_ns), found)
        if key not in found:
            if len(found) >= MOST_FLOWS:
                del found[next(iter(found))]  # the last iteration is what is shown by default
            found[key] = FoundFlow(seen.flow, frame.at_ns)
        psns, signals = found[key].psns, found[key].signals
        if seen.kind is PacketKind.DATA:
            signals.discard(seen.psn)
        elif seen.psn not in psns:
            signals.add(seen.psn)
        if seen.psn in psns:
            psns[seen.psn] = psns[seen.psn] if seen.message is None else seen.message
        elif len(psns) < MOST_PACKETS:
            psns[seen.psn] = seen.message
        else:
            found[key].more += 1
    return found


def _occurrence(
    seen: PacketView, frame: PortFrame, period: int, found: Mapping[tuple[FlowKey, int], FoundFlow]
) -> tuple[FlowKey, int]:
    """Return the flow and the period that a sighting belongs to.

    What is under way when an iteration ends, and what is repeated then, belongs to it.
    """
    key, before = (seen.flow, period), (seen.flow, period - 1)
    late = seen.retransmission or not frame.leaves
    return before if late and key not in found and before in found else key


def holds_secure(stream: CaptureStream) -> bool:
    """Return whether the first frames of the capture are encrypted."""
    for number, frame in enumerate(stream.frames()):
        if number >= LOOKED_AT:
            break
        if is_secure(frame.octets, frame.length):
            return True
    return False


class _Search:
    """Gathers the sightings of chosen packets and of their answers."""

    def __init__(
        self, chosen: FoundFlow, topology: Topology, open_secure: OpenSecure | None
    ) -> None:
        self.flow, self._topology, self._open = chosen.flow, topology, open_secure
        self.followed = {psn: Followed(PacketTrail(chosen.flow, psn)) for psn in chosen.psns}
        self._answers: dict[tuple[int, bytes], PacketTrail] = {}
        self._ports: dict[int, int] = {}
        self._kinds = {psn: chosen.followed_kind(psn) for psn in chosen.psns}
        self._marked: set[int] = set()
        self._secure: dict[bytes, PacketView] = {}
        self._addresses = _wire_pairs(chosen.flow)

    def take(self, frame: PortFrame) -> None:
        octets = frame.octets[:HEADERS]
        if not any(pair in octets for pair in self._addresses):
            return
        seen = view(frame.octets, frame.length, self._open)
        if seen is None:
            seen = self._trimmed_secure(octets)
        if seen is None:
            return
        sighting = Sighting(frame.at_ns, frame.end, frame.leaves, frame.length, seen)
        own = seen.flow == self.flow and seen.psn in self.followed
        if own and seen.kind is self._kinds[seen.psn]:
            self.followed[seen.psn].packet.add(sighting, self._follows)
            self._ports[seen.psn] = seen.port
            if seen.ecn == CE and not sighting.leaves and self._is_endpoint(sighting.end):
                self._marked.add(seen.psn)
            if seen.secure and len(self._secure) < MOST_PACKETS * MOST_ANSWERS:
                self._secure[seen.secure] = seen
            return
        if own and seen.kind is PacketKind.CONTROL and seen.psn in self._ports:
            self._answer(seen.psn, self.followed[seen.psn], sighting)
            return
        if seen.kind is PacketKind.CNP:
            self._notice(sighting)
            return
        for psn, followed in self.followed.items():
            if self._kinds[psn] is PacketKind.CONTROL and seen.psn != psn:
                continue  # many have PSN 0, which a cumulative acknowledgement does not mean
            if psn in self._ports and seen.settles(self.flow, psn, self._ports[psn]):
                self._answer(psn, followed, sighting)

    def _answer(self, psn: int, followed: Followed, sighting: Sighting) -> None:
        key = (psn, sighting.seen.identity)
        trail = self._answers.get(key)
        if trail is None:
            refuses = sighting.seen.kind is PacketKind.NACK
            if followed.answered[refuses] >= MOST_ANSWERS:
                return
            followed.answered[refuses] += 1
            trail = self._answers[key] = PacketTrail(sighting.seen.flow, sighting.seen.psn)
            followed.answers.append(trail)
        trail.add(sighting, self._follows)

    def _notice(self, sighting: Sighting) -> None:
        """Take the first CNP that the connection sends after a packet has arrived marked.

        CNPs are alike: only one that goes on where this one was last is the same.
        """
        seen = sighting.seen
        back = (seen.flow.source, seen.flow.destination)
        if back != (self.flow.destination, self.flow.source):
            return
        for psn in self._marked:
            trail = self._answers.get((psn, seen.identity))
            if trail is None:
                wanted = sighting.leaves and self._is_endpoint(sighting.end)
            else:
                wanted = any(self._follows(one.last, sighting) for one in trail.attempts)
            if wanted and seen.port == self._ports[psn]:
                self._answer(psn, self.followed[psn], sighting)

    def _is_endpoint(self, end: CableEnd) -> bool:
        node = self._topology.by_name.get(end.node)
        return node is not None and not node.forwards

    def _trimmed_secure(self, octets: bytes) -> PacketView | None:
        """Return a trimmed packet that cannot be decrypted any more, by its TSS header."""
        for header, before in self._secure.items():
            if header in octets:
                return _as_trimmed(before, octets)
        return None

    def _follows(self, one: Sighting, other: Sighting) -> bool:
        """Return whether ``other`` is the next place of a frame after ``one``."""
        if one.leaves:
            return not other.leaves and self._far_end(one.end) == other.end
        return other.leaves and one.end.node == other.end.node

    def _far_end(self, end: CableEnd) -> CableEnd | None:
        try:
            return self._topology.far_end(end)
        except KeyError:
            return None


def _as_trimmed(before: PacketView, octets: bytes) -> PacketView:
    envelope = open_frame(octets)
    return PacketView(
        kind=before.kind,
        flow=before.flow,
        psn=before.psn,
        words=before.words,
        dscp=envelope.dscp,
        ecn=envelope.ecn,
        port=before.port,
        identity=before.identity,
        retransmission=before.retransmission,
        trimmed=True,
        secure=before.secure,
    )


def _wire_pairs(flow: FlowKey) -> tuple[bytes, bytes]:
    """Source and destination as they stand in an IP header, both ways."""
    one = ipaddress.ip_address(flow.source).packed
    other = ipaddress.ip_address(flow.destination).packed
    return one + other, other + one


def follow(
    stream: CaptureStream,
    chosen: FoundFlow,
    pauses: PauseTimes,
    end_ns: float,
    open_secure: OpenSecure | None,
) -> list[Followed]:
    """Return the packets of ``chosen`` with their answers, from frames before ``end_ns``.

    ``pauses`` gets the PAUSE frames of all ports.
    """
    search = _Search(chosen, pauses.topology, open_secure)
    for frame in stream.frames():
        if frame.at_ns < end_ns and not pauses.take(frame) and chosen.begun_ns <= frame.at_ns:
            search.take(frame)
    return list(search.followed.values())


def addresses_of(topology: Topology, name: str) -> frozenset[str]:
    """Return the addresses of the node ``name``, or the address that ``name`` is."""
    node = topology.by_name.get(name)
    if node is None:
        try:
            return frozenset({str(ipaddress.ip_address(name))})
        except ValueError:
            return frozenset()
    found = [str(port.address.ip) for port in node.ports if port.address is not None]
    return frozenset([*found, *([str(node.loopback)] if node.loopback is not None else [])])


def owners(topology: Topology) -> Mapping[str, str]:
    """Return the names of GPUs by their addresses."""
    return {
        address: node.name
        for node in topology.gpus
        for address in addresses_of(topology, node.name)
    }
