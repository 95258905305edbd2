"""Whole endpoints on a fabric of links and queues, in virtual time.

    FEP -- NIC --delay--> [ egress port ] --delay--> [ egress port ] --delay--> FEP

A NIC asks its endpoint for a frame when its line is free.  A switch port serves control before
data, and marks, trims or drops by the octets of its data queue (UES 3.6.17, 4.1).  ``route`` of a
:class:`Fabric` says which ports a frame passes; everything random comes from the given seed.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.harness.uet.exchange import LASTHOP, TRIMMED, dscp_of, trimmed
from tests.harness.uet.network import joined
from topologies.ethernet import FRAMING_OCTETS
from uet.config import FepConfig
from uet.congestion.congestion_parameters import bandwidth_delay_product
from uet.fep import FabricEndpoint
from uet.transport import WriteRequest

GBIT = 10**9
US = 1_000
KEY = 9
CONTROL = 46  # DSCP
_ECN_OCTET, _ECN_MASK, _ECT_0 = 15, 3, 2
_CHECKSUM_AT = 24
_ENTROPY_AT = 34  # the UDP source port


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Thresholds of a port's data queue, in octets; ``trim`` is ``None`` without trimming."""

    kmin: int
    kmax: int
    trim: int | None
    limit: int
    last_hop: bool = False

    @classmethod
    def shallow(cls, bdp: int) -> Rules:
        """Trims at one bandwidth-delay product (UES 3.6.17)."""
        return cls(kmin=bdp // 5, kmax=bdp * 4 // 5, trim=bdp, limit=2 * bdp)

    @classmethod
    def deep(cls, bdp: int) -> Rules:
        """Drops at five bandwidth-delay products, and trims nothing."""
        return cls(kmin=bdp // 5, kmax=bdp * 4 // 5, trim=None, limit=5 * bdp)


class Port:
    """One direction of a link of ``rate`` bits/s behind a queue; ``delay`` ns to its other end.

    ``rules`` is ``None`` for a NIC, which queues without limit.  ``black``: what it sends arrives
    nowhere.
    """

    def __init__(
        self,
        fabric: Fabric,
        rate: float,
        delay: int,
        rules: Rules | None = None,
        *,
        black: bool = False,
    ) -> None:
        self.ns_per_octet = 8 * GBIT / rate
        self.delay = delay
        self.rules = rules
        self.black = black
        self.depth = 0  # octets of data that wait or leave
        self.deepest = 0
        self.dropped = self.trims = self.marks = 0
        self.idle: Callable[[], None] | None = None  # called when the line is free
        self.busy = False
        self._fabric = fabric
        self._queues: tuple[deque[Any], deque[Any]] = (deque(), deque())

    def __len__(self) -> int:
        return len(self._queues[0]) + len(self._queues[1])

    def take(self, frame: bytes, path: Sequence[Port], arrive: Callable[[bytes], None]) -> None:
        """Queue ``frame``, which passes the ports of ``path`` after this one."""
        rules, control = self.rules, dscp_of(frame) == CONTROL
        if rules is not None and not control and dscp_of(frame) == 0:
            octets = len(frame) + FRAMING_OCTETS
            if rules.trim is not None and self.depth + octets > rules.trim:
                frame = trimmed(frame, LASTHOP if rules.last_hop else TRIMMED)
                self.trims += 1
            elif self.depth + octets > rules.limit:
                self.dropped += 1
                return
            elif self._marks(rules):
                frame = _marked(frame)
                self.marks += 1
        data = dscp_of(frame) == 0
        if data:
            self.depth += len(frame) + FRAMING_OCTETS
            self.deepest = max(self.deepest, self.depth)
        self._queues[data].append((frame, path, arrive))
        if not self.busy:
            self._serve()

    def _marks(self, rules: Rules) -> bool:
        if self.depth <= rules.kmin:
            return False
        if self.depth >= rules.kmax:
            return True
        return self._fabric.rng.random() < (self.depth - rules.kmin) / (rules.kmax - rules.kmin)

    def _serve(self) -> None:
        queue = self._queues[0] or self._queues[1]
        if queue:
            frame, path, arrive = queue.popleft()
            self.busy = True
            octets = len(frame) + FRAMING_OCTETS
            time = octets * self.ns_per_octet
            self._fabric.after(time, lambda: self._sent(frame, octets, path, arrive))
            return
        self.busy = False
        if self.idle is not None:
            self.idle()

    def _sent(
        self, frame: bytes, octets: int, path: Sequence[Port], arrive: Callable[[bytes], None]
    ) -> None:
        if dscp_of(frame) == 0:
            self.depth -= octets
        if self.black:
            self.dropped += 1
        elif path:
            self._fabric.after(self.delay, lambda: path[0].take(frame, path[1:], arrive))
        else:
            self._fabric.after(self.delay, lambda: arrive(frame))
        self._serve()


def _marked(frame: bytes) -> bytes:
    """``frame`` with CE (RFC 3168), its IPv4 header checksum kept right (RFC 1624)."""
    if frame[_ECN_OCTET] & _ECN_MASK != _ECT_0:
        return frame
    octets = bytearray(frame)
    octets[_ECN_OCTET] |= _ECN_MASK
    checksum = int.from_bytes(octets[_CHECKSUM_AT : _CHECKSUM_AT + 2], "big") - 1
    octets[_CHECKSUM_AT : _CHECKSUM_AT + 2] = (checksum % 0xFFFF).to_bytes(2, "big")
    return bytes(octets)


def entropy_of(frame: bytes) -> int:
    """The entropy value of a frame in UDP over IPv4."""
    return int.from_bytes(frame[_ENTROPY_AT : _ENTROPY_AT + 2], "big")


@dataclass
class Node:
    """An endpoint, its NIC, and what it is waiting for."""

    fep: FabricEndpoint
    nic: Port
    index: int
    wake_at: float = -1.0
    completed: list[tuple[float, object]] = field(default_factory=list)


class Fabric:
    """``count`` endpoints whose parameters are those of :class:`FepConfig`.

    ``nic_delay(i)`` is that of the cable of endpoint ``i`` (ns).  ``nic_frames``: how many frames
    a NIC takes from its endpoint before its line is free.
    """

    def __init__(
        self,
        count: int,
        *,
        seed: int = 1,
        rate: int = 100 * GBIT,
        base_rtt: int = 12 * US,
        nic_delay: Callable[[int], int] = lambda index: 1 * US,
        nic_frames: int = 0,
        **parameters: Any,
    ) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.rate = rate
        self.bdp = bandwidth_delay_product(rate, base_rtt)
        self._nic_frames = nic_frames
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        addresses = [f"10.1.{index // 200}.{index % 200 + 1}" for index in range(count)]
        macs = [f"02:00:00:00:{index // 256:02x}:{index % 256:02x}" for index in range(count)]
        self.by_mac = {bytes.fromhex(mac.replace(":", "")): i for i, mac in enumerate(macs)}
        config = FepConfig(
            address=addresses[0],
            mac=macs[0],
            base_rtt=base_rtt,
            link_rate=rate,
            dscp_trimmed=TRIMMED,
            dscp_trimmed_lasthop=LASTHOP,
            **{
                "cc": "nscc",
                "spraying": "reps",
                "rto_init_time": 20 * base_rtt,
                "tail_loss_time": 3 * base_rtt,
                "reps_freeze_time": 20 * base_rtt,
                "window_bytes": self.bdp,
                **parameters,
            },
        )
        self.addresses = addresses
        self.nodes = []
        for index, (address, mac) in enumerate(zip(addresses, macs, strict=True)):
            others = {a: m for a, m in zip(addresses, macs, strict=True) if a != address}
            fep = FabricEndpoint(
                replace(config, address=address, mac=mac, neighbours=others),
                seed=self.rng.getrandbits(60),
            )
            node = Node(fep, Port(self, rate, nic_delay(index)), index)
            node.nic.idle = partial(self._pump, node)
            self.nodes.append(node)
        #: the ports that a frame passes after its NIC: (source, destination, entropy value)
        self.route: Callable[[int, int, int], Sequence[Port]] = lambda source, to, ev: ()

    def write(self, source: int, to: int, octets: int, *, offset: int = 0) -> None:
        """Post a write; endpoint ``to`` must have memory (:meth:`register`)."""
        self.nodes[source].fep.post(
            WriteRequest(
                peer=self.addresses[to],
                key=KEY,
                offset=offset,
                payload=memoryview(bytes(octets)),
                context=(source, to),
            )
        )

    def register(self, index: int, octets: int) -> None:
        """Let peers write to ``octets`` of memory of endpoint ``index``."""
        self.nodes[index].fep.register(memoryview(bytearray(octets)), key=KEY)

    def run(self, until: float) -> float:
        """Until nothing is left to do, or ``until`` (ns); when the last write was complete."""
        for node in self.nodes:
            self._pump(node)
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        return max((at for node in self.nodes for at, _ in node.completed), default=0.0)

    @property
    def completed(self) -> int:
        """How many writes are complete without an error."""
        return sum(len(node.completed) for node in self.nodes)

    def count(self, name: str) -> int:
        """A counter, of all endpoints together."""
        return sum(node.fep.counters().get(name, 0) for node in self.nodes)

    def after(self, delay: float, what: Callable[[], None]) -> None:
        """Do ``what`` in ``delay`` ns."""
        self._order += 1
        heapq.heappush(self._events, (self.now + delay, self._order, what))

    def _pump(self, node: Node) -> None:
        """Let an endpoint send what its NIC takes, and wake it when it has something to do."""
        now = int(self.now)
        nic = node.nic
        while True:
            room = self._nic_frames + 1 - len(nic) - nic.busy
            frames = node.fep.transmit(now, max(room, 0))
            for frame in frames:
                octets = joined(frame)
                to = self.by_mac[octets[:6]]
                path = self.route(node.index, to, entropy_of(octets))
                nic.take(octets, path, partial(self._arrived, to))
            if not frames or nic.busy:
                break
        for completion in node.fep.completions():
            assert completion.error is None, completion
            if completion.kind == "write":
                node.completed.append((self.now, completion.context))
        if nic.busy and len(nic) >= self._nic_frames:
            return  # called again when the line is free
        deadline = node.fep.next_deadline()
        if deadline is None or deadline <= now or self.now < node.wake_at <= deadline:
            return
        node.wake_at = deadline
        self.after(deadline - self.now, lambda: self._wake(node, deadline))

    def _wake(self, node: Node, at: int) -> None:
        if node.wake_at == at:
            node.wake_at = -1.0
            self._pump(node)

    def _arrived(self, to: int, frame: bytes) -> None:
        node = self.nodes[to]
        node.fep.receive([memoryview(frame)], int(self.now))
        self._pump(node)


def incast(
    senders: int,
    octets: int,
    *,
    far: Callable[[int], int] = lambda index: 1 * US,
    trimming: bool = True,
    base_rtt: int = 12 * US,
    **parameters: Any,
) -> Incast:
    """``senders`` write ``octets`` each to endpoint 0, through one switch."""
    fabric = Fabric(
        senders + 1, nic_delay=far, network_trims=trimming, base_rtt=base_rtt, **parameters
    )
    rules = Rules.shallow(fabric.bdp) if trimming else Rules.deep(fabric.bdp)
    down = [
        Port(fabric, fabric.rate, far(index), replace(rules, last_hop=True))
        for index in range(senders + 1)
    ]
    fabric.route = lambda source, to, ev: (down[to],)
    fabric.register(0, senders * octets)
    for index in range(senders):
        fabric.write(index + 1, 0, octets, offset=index * octets)
    return Incast(fabric, down[0], senders * octets)


@dataclass
class Incast:
    fabric: Fabric
    port: Port
    octets: int

    def run(self, until: float = 20_000 * US) -> float:
        """Until all is complete (us)."""
        return self.fabric.run(until) / US
