"""The state of a request from its posting to its completion (UES 3.4).

In order: what it may wait for, reads under way, the operation, the stream of operations to a peer,
the numbers that a peer comes back with.
"""

from __future__ import annotations

import enum
import heapq
import random
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from uet.pds.semantics import Context
from uet.ses.address import Address
from uet.ses.initiator.outbound import OutboundMessage
from uet.ses.initiator.requests import MessagePlan
from uet.ses.memory.registered_memory import MemoryTable, RegisteredRegion
from uet.ses.octet_ranges import OctetRanges
from uet.timekeeper import Timekeeper
from uet.wire import headers


class Waits(enum.Enum):
    """The events that are awaited; the value names the error if one does not come."""

    NOTHING = ""
    #: the time of the next attempt
    RESTART = "restart"
    #: DEFERRABLE_RTR
    PERMISSION = "RESTART_TIMEOUT"
    #: return data
    DATA = "READ_TIMEOUT"
    #: the peer's reads of what a rendezvous send kept back
    FETCH = "RENDEZVOUS_TIMEOUT"


class Waiter(Protocol):
    """Whatever waits for one thing at a time."""

    waits: Waits
    #: number of the timer that counts, among all it ever had
    timer: int


W = TypeVar("W", bound=Waiter)


class Timers(Generic[W]):
    """Deadlines of operations without a message on its way, one for each waiter."""

    def __init__(self, time: Timekeeper) -> None:
        self._time = time
        self._heap: list[tuple[int, int, W]] = []
        self._number = 0
        self._enough = 64  # entries after which to throw out what nobody waits for

    def start(self, waiter: W, for_what: Waits, due: int) -> None:
        """Wait until ``due`` (ns), and for nothing else any more."""
        self._number += 1
        self.stop(waiter)
        waiter.waits, waiter.timer = for_what, self._number
        heapq.heappush(self._heap, (due, self._number, waiter))
        self._time.started(due)
        if len(self._heap) > self._enough:
            self._heap = [entry for entry in self._heap if _counts(entry)]
            heapq.heapify(self._heap)
            self._enough = max(64, 2 * len(self._heap))

    def stop(self, waiter: W) -> None:
        """``waiter`` waits for nothing any more."""
        if waiter.waits is not Waits.NOTHING:
            waiter.waits = Waits.NOTHING
            self._time.stopped()

    def next_deadline(self) -> int | None:
        """The earliest time that somebody still waits for (ns)."""
        heap = self._heap
        while heap:
            if _counts(heap[0]):
                return heap[0][0]
            heapq.heappop(heap)
        return None

    def pop(self, now: int) -> tuple[W, Waits] | None:
        """Somebody whose time has come, who waits for nothing any more."""
        due = self.next_deadline()
        if due is None or due > now:
            return None
        waiter = heapq.heappop(self._heap)[2]
        waited = waiter.waits
        self.stop(waiter)
        return waiter, waited


def _counts(entry: tuple[int, int, W]) -> bool:
    _, number, waiter = entry
    return waiter.timer == number and waiter.waits is not Waits.NOTHING


#: Packets of READs that may wait for their data.  As many keep any path busy: the return direction
#: has no more in flight.
READ_AHEAD: Final = 1_024


class OutstandingReads:
    """Packets and octets that are under way to one stream; ``most_octets`` bounds the latter.

    Were every READ sent as soon as it is posted, its target would have to remember more requests
    than it has room for. It would refuse the rest (NO_SES_MSG_AVAIL), and the PDC fails after many
    refusals.
    """

    __slots__ = ("_most_octets", "ahead", "octets", "packets")

    def __init__(self, most_octets: int, mtu: int) -> None:
        self._most_octets = most_octets
        #: packets that one message may have requested
        self.ahead = max(1, min(READ_AHEAD, most_octets // mtu))
        self.packets = 0
        self.octets = 0

    def fits(self, packets: int, unit: int) -> bool:
        """Return whether a message of ``packets`` may begin, each requesting ``unit`` octets.

        A large one does when half of the limit is free, so that the line does not fall idle.
        """
        packets = min(packets, self.ahead)
        return not self.packets or (
            self.packets + min(packets, READ_AHEAD // 2) <= READ_AHEAD
            and self.octets + min(packets * unit, self._most_octets // 2) <= self._most_octets
        )

    def change(self, before: int, after: int, unit: int) -> None:
        """A message waits for ``after`` packets of data instead of ``before``."""
        change = min(after, self.ahead) - min(before, self.ahead)
        self.packets += change
        self.octets += change * unit


#: Called with ``None``, or the error's name, when an operation of the endpoint itself ends.
Ended = Callable[[str | None], None]
#: Messages that are distinguished among those that read a rendezvous send; one is enough.
_MOST_READS: Final = 16


class PeerReads:
    """A peer's reads of the rest of a rendezvous send, by the message that requested them.

    A READ of which a packet was refused begins again as another message.  What had been read of
    it does not count, for it will be read once more, from memory that must still be there.
    """

    __slots__ = ("_older", "_read", "_refused")

    def __init__(self) -> None:
        self._read: dict[object, OctetRanges] = {}
        self._older = OctetRanges()  # of more messages than are distinguished
        self._refused: dict[object, None] = {}

    def add(self, by: object, start: int, end: int) -> None:
        """The message ``by`` has read the octets from ``start`` up to ``end``."""
        if by in self._refused:
            return
        coverage = self._read.get(by)
        if coverage is None:
            if len(self._read) >= _MOST_READS:
                self._older.include(self._read.pop(next(iter(self._read))))
            coverage = self._read[by] = OctetRanges()
        coverage.add(start, end)

    def refuse(self, by: object) -> None:
        """A packet of the message ``by`` has been refused."""
        self._read.pop(by, None)
        self._refused[by] = None
        if len(self._refused) > _MOST_READS:
            del self._refused[next(iter(self._refused))]

    def covers(self, start: int, end: int) -> bool:
        """Return whether all of ``start`` to ``end`` has been read."""
        union = OctetRanges()
        for coverage in (self._older, *self._read.values()):
            union.include(coverage)
        return union.covers(start, end)


class PostedOperation:
    """A posted request.  Each attempt to carry it out is an :class:`OutboundMessage`."""

    __slots__ = (
        "accepted",
        "attempts",
        "code",
        "deferred",
        "ended",
        "expects_data",
        "generations",
        "is_out",
        "key",
        "locked",
        "message",
        "missing",
        "pdc",
        "permitted",
        "placed",
        "plan",
        "read_by_peer",
        "refused",
        "reissues",
        "serial",
        "settled",
        "stream",
        "target_token",
        "timer",
        "token",
        "touched",
        "unit",
        "waits",
    )

    def __init__(
        self, plan: MessagePlan, serial: int, stream: OperationStream, ended: Ended | None
    ) -> None:
        self.plan = plan
        #: whether something comes back: a read, or a fetching atomic operation
        self.expects_data = plan.memory is not None
        self.serial = serial  # in the order of posting
        self.stream = stream
        self.ended = ended  # None: its end is a completion
        # The present attempt
        self.message: OutboundMessage | None = None
        self.is_out = False  # its message is with PDS
        self.pdc: Context | None = None
        self.locked: Context | None = None  # the PDC that return data keeps open
        # What the target answered
        self.attempts = 0  # restarts after a refusal
        self.generations = 0  # restarts with another generation
        self.reissues = 0  # PDCs that have refused it for good
        self.accepted: int | None = None  # octets, where the target took fewer than all
        self.code = 0  # a refusal that is worth another attempt
        self.refused: str | None = None  # one that is not
        # Return data: packets whose fate is known, and how many others there are
        self.settled = bytearray()
        self.missing = 0
        self.unit = 0  # octets that a packet requests
        self.placed = bytearray()  # packets whose data is in memory, whichever attempt brought it
        # Deferrable sends: both tokens, whether there was no buffer, and whether there is now
        self.token = 0
        self.target_token = 0
        self.deferred = False
        self.permitted = False
        # Rendezvous sends
        self.key: int | None = None
        self.read_by_peer: PeerReads | None = None
        # Time
        self.waits = Waits.NOTHING
        self.timer = 0
        self.touched = 0  # when something last came for it

    @property
    def rest_is_read(self) -> bool:
        """Rendezvous: whether the peer has all that it needs."""
        whole = self.plan.length if self.accepted is None else self.accepted
        reads = self.read_by_peer
        return reads is None or reads.covers(self.plan.span, whole)

    @property
    def has_its_data(self) -> bool:
        """Return whether all that was to come back has: the peer has carried it out."""
        return bool(self.placed) and 0 not in self.placed

    def expect(self, packets: int) -> None:
        """Set how many packets of data are still to come; the first of them count as requested."""
        self.stream.reads.change(self.missing, packets, self.unit)
        self.missing = packets

    def settle(self, index: int) -> None:
        """Note that nothing more comes for packet ``index`` of a request for data."""
        if self.missing and index < len(self.settled) and not self.settled[index]:
            self.settled[index] = 1
            self.expect(self.missing - 1)
            if self.message is not None:
                self.message.ready += 1


class OperationStream:
    """Operations to one peer in one delivery mode, in the order of posting.

    Without order, requests for data let others pass while as much as may be is under way.

    On an ordered stream a message that must be sent again may not be overtaken: while
    ``recovering``, nothing starts until everything sent before has ended and ``hold`` (ns) has
    passed. Then one message alone starts, the ``probe``, until the target takes it.
    """

    __slots__ = (
        "_asking",
        "_queue",
        "delivery",
        "flying",
        "hold",
        "mtu",
        "ordered",
        "peer",
        "probe",
        "reads",
        "recovering",
    )

    def __init__(self, peer: str, delivery: str, *, mtu: int, max_read_octets: int) -> None:
        self.mtu = mtu
        self.reads = OutstandingReads(max_read_octets, mtu)
        self.peer = peer
        self.delivery = delivery
        self.ordered = delivery == "rod"
        self.flying = 0  # messages with PDS
        self.recovering = False
        self.hold = 0
        self.probe: PostedOperation | None = None
        self._queue: list[tuple[int, PostedOperation]] = []
        # Where order does not count: what requests data, and may be passed by.
        self._asking: list[tuple[int, PostedOperation]] = []

    def __len__(self) -> int:
        return len(self._queue) + len(self._asking)

    @property
    def has_waiting(self) -> bool:
        """Return whether something has been posted and has not begun."""
        return bool(self._queue or self._asking)

    def push(self, operation: PostedOperation) -> None:
        heapq.heappush(self._heap(operation), (operation.serial, operation))

    def _heap(self, operation: PostedOperation) -> list[tuple[int, PostedOperation]]:
        return self._asking if operation.expects_data and not self.ordered else self._queue

    @property
    def head(self) -> PostedOperation:
        """The first in the order of posting."""
        queue, asking = self._queue, self._asking
        return (asking if not queue or (asking and asking[0] < queue[0]) else queue)[0][1]

    def next(self, now: int) -> PostedOperation | None:
        """Return what may start now, if anything: not what recovery holds back, or its data."""
        if self.recovering and (self.flying > 0 or now < self.hold):
            return None
        queue, asking = self._queue, self._asking
        if asking and (not queue or asking[0] < queue[0]):
            operation = asking[0][1]
            if self._may_ask(operation.plan.span):
                return operation
        if not queue:
            return None
        operation = queue[0][1]
        if self.ordered and operation.expects_data and not self._may_ask(operation.plan.span):
            return None
        return operation

    def _may_ask(self, octets: int) -> bool:
        packets = max(1, -(-octets // self.mtu))
        return self.delivery == "rudi" or self.reads.fits(packets, min(octets, self.mtu))

    @property
    def is_asking(self) -> bool:
        """Return whether something may wait for data that others have requested."""
        return bool(self._asking or (self.ordered and self._queue))

    def pop(self, operation: PostedOperation) -> None:
        """Take what :meth:`next` showed."""
        heapq.heappop(self._heap(operation))


_HIGHEST_ID: Final = 0xFFFF
_KEY_BITS: Final = 48  # of a memory key, beside its flags (UES Table 2-13)
_HIGHEST_TOKEN: Final = (1 << 32) - 1


class MessageIds:
    """Unique over all PDCs while their messages are open; id 0 is a datagram's (UES 3.4.1)."""

    def __init__(self, *, from_zero: bool) -> None:
        self._lowest = 0 if from_zero else 1
        self._next = self._lowest
        self._open: dict[int, PostedOperation] = {}

    def __len__(self) -> int:
        return len(self._open)

    def take(self, operation: PostedOperation) -> int | None:
        """The id longest unused, or ``None`` if all are in use."""
        if len(self._open) > _HIGHEST_ID - self._lowest:
            return None
        number = self._next
        while number in self._open:
            number = self._after(number)
        self._open[number] = operation
        self._next = self._after(number)
        return number

    def _after(self, number: int) -> int:
        return number + 1 if number < _HIGHEST_ID else self._lowest

    def give_back(self, number: int) -> None:
        del self._open[number]

    def find(self, number: int) -> PostedOperation | None:
        return self._open.get(number)


class PeerHandles:
    """Deferrable sends by restart token, rendezvous sends by memory key."""

    def __init__(self, memory: MemoryTable, home: Address, rng: random.Random) -> None:
        self._memory = memory
        self._home = home
        self._rng = rng
        self._by_token: dict[int, PostedOperation] = {}
        self._by_key: dict[int, PostedOperation] = {}
        self._next_token = 1

    def __len__(self) -> int:
        return len(self._by_token) + len(self._by_key)

    def give_token(self, operation: PostedOperation) -> None:
        """Return a restart token, unique while outstanding; 0 would mean none."""
        while self._next_token in self._by_token:
            self._next_token = self._next_token % _HIGHEST_TOKEN + 1
        operation.token = self._next_token
        self._by_token[operation.token] = operation
        self._next_token = operation.token % _HIGHEST_TOKEN + 1

    def expose(self, operation: PostedOperation) -> None:
        """Let the peer read what a rendezvous send keeps back, under a key of its own.

        The region is the whole message, so that an octet's place in it is its place in the message;
        ``read_offset`` is where the rest begins.  If this endpoint's resource has a later
        generation than 0, the first READ gets it in the response.
        """
        made = operation.plan
        key = 0
        if made.span < made.length:
            key = self._rng.getrandbits(_KEY_BITS)
            while self._memory.find(key) is not None:
                key = self._rng.getrandbits(_KEY_BITS)
            self._memory.register(
                RegisteredRegion(
                    memory=made.whole, key=key, writable=False, job_id=made.address.job_id
                )
            )
            operation.key = key
            operation.read_by_peer = PeerReads()
            self._by_key[key] = operation
        made.extension = headers.SES_RENDEZVOUS.encode(
            eager_length=made.span,
            read_ri_generation=0,
            read_pid_on_fep=self._home.pid_on_fep,
            read_resource_index=self._home.resource_index,
            read_offset=made.span,
            read_memory_key=key,
        )

    def of_token(self, token: int) -> PostedOperation | None:
        return self._by_token.get(token)

    def of_key(self, key: int) -> PostedOperation | None:
        return self._by_key.get(key)

    def withdraw(self, operation: PostedOperation) -> None:
        """The operation has ended: nobody may come back with its numbers."""
        if operation.token:
            del self._by_token[operation.token]
        if operation.key is not None:
            self._memory.unregister(operation.key)
            del self._by_key[operation.key]
