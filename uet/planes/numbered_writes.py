"""Writes that their target reports, numbered so that each of them is reported once.

A write with header data gives its target a completion, and a fabric interface may have to deliver
one in several stripes. It may also have to issue it again over another plane, when the first one
has died with the acknowledgement.  The target must recognise the stripes of one write, and a write
that it has reported already.  Neither may such a write be placed again: its target may use the
memory for something else by then. So may its source, as it can have learned that from what the
target sent next.  All that stands in the memory key, as keys between fabric interfaces are assigned
by the interfaces themselves (UES Table 2-13: 63..56 flags, 55..48 vendor bits, 47..0 RKEY)::

    63    56 55     52 51     48 47                   24 23                    0
    [ flags ][stripes-1][ stripe ][  number of the write ][  what was registered  ]

A write without header data, a read and an atomic operation carry the registered key alone.

Numbers of the writes to one peer count up from a random start.  A sender has none open that is
:data:`WINDOW` or more behind the newest. So a target that remembers twice as many forgets none that
may come again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from uet.fep import FabricEndpoint
from uet.ses.memory.registered_memory import KEY_BITS
from uet.transport import Completion, ReadRequest, Request, SendRequest, WriteRequest

#: Low bits of a memory key that name what is registered.
REGION_BITS = 24
NUMBER_BITS = 24
MOST_STRIPES = 16
WINDOW = 4096
_REGION = (1 << REGION_BITS) - 1
_NUMBER = (1 << NUMBER_BITS) - 1
_STRIPE_AT = REGION_BITS + NUMBER_BITS
_COUNT_AT = _STRIPE_AT + 4
_FLAGS = (1 << KEY_BITS) - (1 << 56)
_OURS = (1 << 56) - (1 << REGION_BITS)


def is_plain(key: int) -> bool:
    """Return whether the bits are free that number a write."""
    return not key & _OURS


@dataclass(frozen=True, slots=True)
class Label:
    """Stripe ``stripe`` (from 0) of ``stripes`` of the write ``number``."""

    number: int
    stripe: int = 0
    stripes: int = 1

    def on(self, key: int) -> int:
        """The memory key that carries it to the region ``key``."""
        return (
            key
            | (self.stripes - 1) << _COUNT_AT
            | self.stripe << _STRIPE_AT
            | self.number << REGION_BITS
        )


def split_key(key: int) -> tuple[int, Label]:
    """The registered key and the label of a write that has arrived with ``key``."""
    label = Label(
        number=key >> REGION_BITS & _NUMBER,
        stripe=key >> _STRIPE_AT & 0xF,
        stripes=(key >> _COUNT_AT & 0xF) + 1,
    )
    return key & (_FLAGS | _REGION), label


class Numbers:
    """The numbers of the writes to one peer: at the sender."""

    __slots__ = ("_next", "_open")

    def __init__(self, first: int) -> None:
        self._next = first & _NUMBER
        self._open: dict[int, None] = {}

    def take(self) -> int | None:
        """The next number; ``None`` while the oldest that is open is too far behind."""
        number = self._next
        oldest = next(iter(self._open), number)
        if (number - oldest) & _NUMBER >= WINDOW:
            return None
        self._next = number + 1 & _NUMBER
        self._open[number] = None
        return number

    def give_back(self, number: int) -> None:
        """Give back the number of a write that has ended, well or not."""
        del self._open[number]


@dataclass(slots=True)
class _Stripes:
    arrived: int = 0  # a bit for each
    offset: int = 0
    length: int = 0


class Reported:
    """The writes of one peer, at the target."""

    __slots__ = ("_attempts", "_done", "_partial")

    def __init__(self) -> None:
        self._attempts: OrderedDict[tuple[int, int], list[int]] = OrderedDict()
        self._done: OrderedDict[int, None] = OrderedDict()
        self._partial: OrderedDict[int, _Stripes] = OrderedDict()

    def take(self, label: Label, offset: int, length: int) -> tuple[int, int] | None:
        """A stripe of ``length`` octets at ``offset`` has been placed.

        Offset and length of the whole write, if that is complete now and to be reported; else
        ``None``.
        """
        number = label.number
        if number in self._done:
            return None
        if label.stripes > 1:
            write = self._partial.get(number)
            if write is None:
                write = self._partial[number] = _Stripes(offset=offset)
                if len(self._partial) > 2 * WINDOW:  # of writes that their sender has given up
                    self._partial.popitem(last=False)
            if write.arrived >> label.stripe & 1:
                return None
            write.arrived |= 1 << label.stripe
            write.offset = min(write.offset, offset)
            write.length += length
            if write.arrived != (1 << label.stripes) - 1:
                return None
            del self._partial[number]
            offset, length = write.offset, write.length
        self._done[number] = None
        if len(self._done) > 2 * WINDOW:
            self._done.popitem(last=False)
        return offset, length

    def begin(self, label: Label, plane: int) -> bool:
        """A stripe begins to arrive by ``plane``; whether it is to be placed."""
        if self.has(label):
            return False
        place = label.number, label.stripe
        self._attempts.setdefault(place, []).append(plane)
        if len(self._attempts) > 2 * WINDOW * MOST_STRIPES:  # of writes that were given up
            self._attempts.popitem(last=False)
        return True

    def attempts(self, label: Label) -> Sequence[int]:
        """The planes by which a stripe that has been placed had begun to arrive."""
        return self._attempts.pop((label.number, label.stripe), ())

    def has(self, label: Label) -> bool:
        """Return whether the stripe has been placed before."""
        write = self._partial.get(label.number)
        return label.number in self._done or (
            write is not None and bool(write.arrived >> label.stripe & 1)
        )


COUNTERS = ("rx_writes_repeated",)


class ArrivedWrites:
    """The numbered writes of all peers: each is placed and reported once, by whichever plane.

    ``routes`` has each peer's addresses, one a plane.
    """

    def __init__(
        self,
        feps: Sequence[FabricEndpoint],
        routes: Mapping[str, Sequence[str]],
        counts: Counter[str],
    ) -> None:
        self._feps = feps
        self._routes = routes
        self._names = {address: peer for peer, route in routes.items() for address in route}
        self._counts = counts
        self._reported = {peer: Reported() for peer in routes}
        for plane, fep in enumerate(feps):
            fep.guard_writes(partial(self._begin, plane))

    def _begin(self, plane: int, address: str, key: int, memory: memoryview) -> memoryview:
        """Return where a write goes that begins to arrive.

        Nowhere, if it has been placed before.
        """
        peer = self._names.get(address)
        if peer is None or is_plain(key):
            return memory
        if self._reported[peer].begin(split_key(key)[1], plane):
            return memory
        self._counts["rx_writes_repeated"] += 1
        return memoryview(bytearray(len(memory)))

    def placed(self, completion: Completion) -> list[Completion]:
        """Return the application's completion of a placed write with header data."""
        peer = self._names.get(completion.peer)
        key, offset = completion.key, completion.offset
        if peer is None or key is None or offset is None or is_plain(key):
            return [completion._replace(peer=completion.peer if peer is None else peer)]
        key, label = split_key(key)
        reported = self._reported[peer]
        attempts = reported.attempts(label)
        if len(attempts) > 1:  # what is still coming of the others must not be placed any more
            for plane in set(attempts):
                self._feps[plane].divert(self._routes[peer][plane], label.on(key))
        whole = reported.take(label, offset, completion.length)
        if whole is None:
            return []
        return [completion._replace(peer=peer, key=key, offset=whole[0], length=whole[1])]


@dataclass(slots=True, eq=False)
class DividedWork:
    """One request.  ``left`` of its parts have not ended; ``moved`` octets have arrived."""

    request: Request
    serial: int
    number: int | None = None  # of a write that the target reports
    left: int = 0
    moved: int = 0
    kind: str = ""
    error: str | None = None


@dataclass(slots=True, eq=False)
class WorkPart:
    """``length`` octets of ``work`` from ``start`` on; the whole, or one of several stripes.

    ``plane`` is the plane that carries it now, ``failures`` how often nobody answered;
    ``is_again``: it has been issued before.
    """

    work: DividedWork
    start: int
    length: int
    label: Label | None
    is_whole: bool
    plane: int = -1
    failures: int = 0
    is_again: bool = False

    def request(self, peer: str) -> Request:
        """Return the request for the endpoint that carries it to ``peer``."""
        whole = self.work.request
        key = getattr(whole, "key", 0)
        if self.label is not None:
            key = self.label.on(key)
        if isinstance(whole, WriteRequest):
            payload = whole.payload
            if not self.is_whole:
                payload = payload[self.start : self.start + self.length]
            return WriteRequest(
                peer=peer,
                key=key,
                offset=whole.offset + self.start,
                payload=payload,
                header_data=whole.header_data,
                delivery_complete=whole.delivery_complete,
                synchronise=whole.synchronise,
                delivery=whole.delivery,
                destination=whole.destination,
                context=self,
            )
        if isinstance(whole, ReadRequest) and not self.is_whole:
            return ReadRequest(
                peer=peer,
                key=key,
                offset=whole.offset + self.start,
                memory=whole.memory[self.start : self.start + self.length],
                delivery=whole.delivery,
                destination=whole.destination,
                context=self,
            )
        return replace(whole, peer=peer, context=self)


def size_of(request: Request) -> int:
    """Octets of payload, there or back."""
    if isinstance(request, WriteRequest | SendRequest):
        return request.payload.nbytes
    return request.memory.nbytes if isinstance(request, ReadRequest) else 0


def stripes(length: int, count: int, unit: int) -> Iterator[tuple[int, int]]:
    """Start and length of at most ``count`` contiguous parts of whole packets of ``unit`` octets.

    They differ by one packet at most, so that no more packets leave than for the whole.
    """
    packets = -(-length // unit)
    count = min(count, packets)
    start = 0
    for number in range(count):
        own = packets // count + (number < packets % count)
        end = min(length, start + own * unit)
        yield start, end - start
        start = end
