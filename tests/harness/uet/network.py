"""Endpoints in one process, a seeded network between them, and time that jumps.

``Network`` carries frames between any number of transports with a delay, and loses, duplicates,
reorders and corrupts them as asked.  Time advances to the next event only, so a test of timers
takes no time and is exact.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from uet.config import FepConfig
from uet.fep import FabricEndpoint
from uet.transport import Completion, Frame

MACS = {f"10.0.1.{i}": f"02:00:00:00:00:{i:02x}" for i in range(1, 10)}
MACS6 = {f"fd00::{i}": f"02:00:00:00:00:{i:02x}" for i in range(1, 10)}


def endpoint(
    address: str, *, seed: int = 1, first_counter: int | None = None, **parameters: Any
) -> FabricEndpoint:
    """A FEP at ``address`` that knows all addresses of :data:`MACS`, or of :data:`MACS6`.

    ``seed`` names its life: packet counters of one do not come again in another.
    """
    macs = MACS if address in MACS else MACS6
    neighbours = {peer: mac for peer, mac in macs.items() if peer != address}
    config = FepConfig(address=address, mac=macs[address], neighbours=neighbours, **parameters)
    if first_counter is None:
        first_counter = (seed << 24) % (1 << 47)
    return FabricEndpoint(config, seed=seed, first_counter=first_counter)


def joined(frame: Frame) -> bytes:
    return bytes(frame[0]) + bytes(frame[1])


@dataclass
class Impairment:
    """Probabilities per frame; ``jitter_ns`` is added uniformly, and reorders."""

    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    jitter_ns: int = 0


@dataclass
class Network:
    """Frames find their way by destination address."""

    endpoints: dict[str, FabricEndpoint]
    rng: random.Random
    impairment: Impairment = field(default_factory=Impairment)
    delay_ns: int = 1_000
    #: what the link to each endpoint needs for an octet; 0 carries everything at once
    ns_per_octet: float = 0.0
    #: sees every frame sent, and may answer with the frames to deliver in its place
    tap: Callable[[bytes, int], Sequence[bytes]] | None = None
    #: is called whenever no endpoint has anything to send, before time goes on
    watch: Callable[[int], None] | None = None

    #: frames that an endpoint may send at a time, beside its answers
    limit: int = 16

    now: int = 0
    sent: list[bytes] = field(default_factory=list)
    keep: bool = False
    completions: dict[str, list[Completion]] = field(default_factory=dict)
    #: when the newest completion came
    ended_at: int = 0
    _events: list[tuple[int, int, bytes]] = field(default_factory=list)
    _order: int = 0
    _busy_until: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.completions = {address: [] for address in self.endpoints}

    def run(self, until: Callable[[], bool], *, horizon_ns: int = 60_000_000_000) -> bool:
        """Advance until ``until()``; false if nothing happens before the horizon."""
        while not until():
            if self._pump():
                continue
            if self.watch is not None:
                self.watch(self.now)
            times = [event[0] for event in self._events[:1]]
            for fep in self.endpoints.values():
                deadline = fep.next_deadline()
                if deadline is not None:
                    times.append(deadline)
            if not times or min(times) > horizon_ns:
                return until()  # the pump may have brought it about without a frame
            self.now = max(self.now, min(times))
            self._deliver()
        return True

    def settle(self) -> None:
        """Run until nothing is left to happen."""
        self.run(lambda: False)

    def _pump(self) -> bool:
        """Let every endpoint send what it may; whether anything left."""
        busy = False
        for address, fep in self.endpoints.items():
            for frame in fep.transmit(self.now, self.limit):
                busy = True
                self.carry(joined(frame))
            completed = fep.completions()
            if completed:
                busy = True
                self.ended_at = self.now
            self.completions[address].extend(completed)
        return busy

    def carry(self, frame: bytes) -> None:
        """Put a frame on the wire."""
        if self.keep:
            self.sent.append(frame)
        frames: Sequence[bytes] = [frame] if self.tap is None else self.tap(frame, self.now)
        rng, impairment = self.rng, self.impairment
        for each in frames:
            if rng.random() < impairment.loss:
                continue
            copies = 2 if rng.random() < impairment.duplicate else 1
            for _ in range(copies):
                octets = each
                if rng.random() < impairment.corrupt:
                    octets = flip(each, rng.randrange(len(each) * 8))
                jitter = rng.randrange(impairment.jitter_ns + 1)
                self._order += 1
                event = (self._sent(octets) + self.delay_ns + jitter, self._order, octets)
                heapq.heappush(self._events, event)

    def _sent(self, frame: bytes) -> int:
        """Return when the link has sent the last bit of a frame that is ready now."""
        if not self.ns_per_octet:
            return self.now
        link = destination(frame)
        start = max(float(self.now), self._busy_until.get(link, 0.0))
        self._busy_until[link] = end = start + len(frame) * self.ns_per_octet
        return int(end)

    def _deliver(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            _, _, frame = heapq.heappop(self._events)
            fep = self.endpoints.get(destination(frame))
            if fep is not None:
                fep.receive([memoryview(frame)], self.now)


def destination(frame: bytes) -> str:
    """The IP address that a frame without tags goes to."""
    if frame[12:14] == b"\x86\xdd":
        return str(IPv6Address(frame[38:54]))
    return str(IPv4Address(frame[30:34]))


def flip(frame: bytes, bit: int) -> bytes:
    """``frame`` with one bit turned over."""
    octets = bytearray(frame)
    octets[bit // 8] ^= 0x80 >> bit % 8
    return bytes(octets)
