"""Domains joined in one process, in virtual time: for tests and for trying things out.

Time moves from one event to the next, so waiting takes none; one seed and the same calls give the
same packets.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from uet.api.address_vector import AddressVector
from uet.api.completion_queue import CompletionQueue
from uet.api.domain import Domain
from uet.api.driver import Beginning
from uet.api.endpoint import Endpoint
from uet.api.flags import ApiError, EndpointType, Flag, Order
from uet.config import FepConfig

#: Frames that one domain may send before the others' turn comes.
_TURN = 64
_MAC = slice(0, 6)
#: What a domain may count until the counters of the next one begin.
_COUNTER_BITS = 32


class Loopback:
    """A wire between domains: every frame arrives ``delay`` ns after it was sent.

    ``tap`` sees each frame and the time, and gives back the frames to deliver in its place: none
    to lose it, two to duplicate it.  ``seed`` decides what is random in the domains.

    >>> from uet.api.loopback import Loopback, pair
    >>> frames = []
    >>> wire = Loopback(tap=lambda frame, now: frames.append((now, len(frame))) or [frame])
    >>> a, b = pair(wire=wire)
    >>> region = b.domain.mr_reg(bytearray(10_000))
    >>> a.endpoint.write(bytes(10_000), a.peer, 0, region.key)
    >>> entry = a.cq.wait()[0]
    >>> wire.now
    2000
    >>> [length for _, length in frames if length > 1_000]
    [4194, 4194, 1906]
    """

    def __init__(
        self,
        *,
        delay: int = 1_000,
        tap: Callable[[bytes, int], Sequence[bytes]] | None = None,
        seed: int = 1,
    ) -> None:
        if delay < 0:
            raise ApiError(f"delay is {delay} ns; it cannot be negative")
        self._delay = delay
        self._tap = tap
        self._now = 0
        self._rng = random.Random(f"loopback {seed}")
        self._begun = 0
        self._domains: dict[bytes, Domain] = {}
        self._events: list[tuple[int, int, bytes]] = []
        self._sent = 0

    @property
    def now(self) -> int:
        """Virtual time in ns."""
        return self._now

    def beginning(self) -> Beginning:
        """Return start values from the wire's seed, never the same twice on one wire."""
        self._begun += 1
        return Beginning(seed=self._rng.getrandbits(63), first_counter=self._begun << _COUNTER_BITS)

    def attach(self, domain: Domain) -> None:
        """Join a domain; :class:`ApiError` if its MAC address is taken."""
        mac = bytes.fromhex(domain.config.mac.replace(":", ""))
        if mac in self._domains:
            raise ApiError(f"the MAC address {domain.config.mac} is there already; give another")
        self._domains[mac] = domain

    def detach(self, domain: Domain) -> None:
        """Detach ``domain``; frames sent to it from now on are lost."""
        self._domains = {mac: other for mac, other in self._domains.items() if other is not domain}

    def interrupt(self) -> None:
        """Nothing here waits."""

    def poll(self) -> bool:
        """One step: whoever polls in a loop makes time go on."""
        return self.progress(None)

    def progress(self, timeout: int | None) -> bool:
        """Send what may be sent, or else go on to the next event, at most ``timeout`` ns away.

        False if there is none: nothing will ever happen unless something is posted.
        """
        if self._transmit():
            return True
        due = self._next_event()
        end = None if timeout is None else self._now + timeout
        if due is None or (end is not None and due > end):
            if end is not None:
                self._now = end
            return False
        self._now = max(self._now, due)
        self._deliver()
        self._transmit()
        return True

    def _transmit(self) -> bool:
        """Every domain's turn; whether a frame left or an operation ended."""
        busy = False
        for domain in list(self._domains.values()):
            for header, payload in domain.fep.transmit(self._now, _TURN):
                busy = True
                self._carry(bytes(header) + bytes(payload))
            busy = domain.dispatch() or busy
        return busy

    def _carry(self, frame: bytes) -> None:
        for each in [frame] if self._tap is None else self._tap(frame, self._now):
            self._sent += 1  # keeps frames of one moment in their order
            heapq.heappush(self._events, (self._now + self._delay, self._sent, each))

    def _next_event(self) -> int | None:
        due = [self._events[0][0]] if self._events else []
        for domain in self._domains.values():
            deadline = domain.fep.next_deadline()
            if deadline is not None:
                due.append(deadline)
        return min(due, default=None)

    def _deliver(self) -> None:
        while self._events and self._events[0][0] <= self._now:
            frame = heapq.heappop(self._events)[2]
            domain = self._domains.get(frame[_MAC])
            if domain is not None:
                domain.fep.receive([memoryview(frame)], self._now)


@dataclass(frozen=True, slots=True)
class LoopbackEnd:
    """One side of a pair: ``peer`` is the other's handle in ``av``."""

    domain: Domain
    endpoint: Endpoint
    av: AddressVector
    cq: CompletionQueue
    peer: int


def pair(
    type: EndpointType = EndpointType.RDM,
    *,
    msg_order: Order = Order.NONE,
    wire: Loopback | None = None,
    **parameters: object,
) -> tuple[LoopbackEnd, LoopbackEnd]:
    """Make two enabled endpoints, 10.0.0.1 and 10.0.0.2, each in the other's address vector.

    ``parameters`` are those of :class:`uet.config.FepConfig`, for both.
    """
    driver = Loopback() if wire is None else wire
    addresses = {f"10.0.0.{number}": f"02:00:00:00:00:{number:02x}" for number in (1, 2)}
    opened = []
    for address, mac in addresses.items():
        others = {peer: other for peer, other in addresses.items() if peer != address}
        config = FepConfig(address=address, mac=mac, neighbours=others, **parameters)  # type: ignore[arg-type]
        domain = Domain(config, driver)
        endpoint = domain.endpoint(type, msg_order=msg_order)
        av, cq = domain.av_open(), domain.cq_open()
        endpoint.bind(av)
        endpoint.bind(cq, Flag.TRANSMIT | Flag.RECV)
        endpoint.enable()
        opened.append((domain, endpoint, av, cq))
    (_, first, _, _), (_, second, _, _) = opened
    return (
        LoopbackEnd(*opened[0], opened[0][2].insert(second.getname())),
        LoopbackEnd(*opened[1], opened[1][2].insert(first.getname())),
    )
