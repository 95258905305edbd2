"""One direction of a cable: queues at its port, the serialiser, the way to the other end.

::

    enqueue --> queues by class --> [rate] --- delay ---> [pipeline of the switch] ---> far
                                       |
                                       +--> the last octet has left: `leaves`

Frames are served in strict priority of their queues, but for the share of the link that the last
one owns.  A frame is in its queue until its last octet has left (store and forward).  Octets are
those on the wire: preamble, FCS and inter-packet gap included (IEEE 802.3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from google_crc32c import extend
from librt.vecs import append, vec
from mypy_extensions import i64

from emulator.sim.event_queue import (
    LEAVING,
    PIPELINE,
    PS,
    Act,
    Doer,
    EventHeap,
    EventQueue,
    arriving,
    salt_of,
)
from topologies.ethernet import FRAMING_OCTETS, SHORTEST_OCTETS
from topologies.model import CableEnd

#: Queues of a port: MAC control before all, then those of the switch model (high, medium, low).
MAC_CONTROL: Final = 0
HIGH: Final = 1
MEDIUM: Final = 2
LOW: Final = 3
QUEUES: Final = 4
_BITS_PS: Final = 8 * 10**12
_TYPE_AT: Final = 12
_CONTROL_AT: Final = 14
_MAC_CONTROL_TYPE: Final = b"\x88\x08"
_WORD: Final = 0xFFFF_FFFF
#: The polynomial of CRC32C, lowest power first.
_CASTAGNOLI: Final = 0x82F6_3B78
#: Compiled code looks names of other modules up in a dictionary.
_crc32c: Final = extend

#: A frame that waits: itself, octets on the wire, index of the port that it came in by (0: none),
#: and whether it was put ahead of others.
Waiting = tuple[bytes, int, int, bool]


def _crc_tables() -> vec[i64]:
    """Return four tables: what an octet does to a CRC32C, with 0 to 3 octets of zeros behind it."""
    tables: vec[i64] = vec[i64]()
    for octet in range(256):
        crc: i64 = octet
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
        tables = append(tables, crc)
    for place in range(3 * 256):
        crc = tables[place]
        tables = append(tables, crc >> 8 ^ tables[crc & 0xFF])
    return tables


#: Of all lines.
_TABLES: Final = _crc_tables()


def _with_word(tables: vec[i64], crc: i64, word: i64) -> i64:
    """Return ``crc``, which is not complemented, after four octets, lowest first."""
    crc ^= word
    return (
        tables[768 + (crc & 0xFF)]
        ^ tables[512 + (crc >> 8 & 0xFF)]
        ^ tables[256 + (crc >> 16 & 0xFF)]
        ^ tables[crc >> 24]
    )


class FrameCrc:
    """The CRC32C of frames, before each of which stands when it began, and its length.

    These are eight and four octets, lowest first: too few to call a library for.
    """

    __slots__ = ("_tables", "value")

    def __init__(self) -> None:
        self._tables: vec[i64] = _TABLES
        self.value = 0

    def add(self, began: i64, frame: bytes) -> None:
        """Go on with ``frame``, which began at ``began`` (ps of the row)."""
        tables = self._tables
        crc = self.value ^ _WORD
        octets: i64 = len(frame)
        stamped = _with_word(tables, crc, began & _WORD)
        stamped = _with_word(tables, stamped, began >> 32 & _WORD)
        stamped = _with_word(tables, stamped, octets)
        self.value = _crc32c(int(stamped ^ _WORD), frame)


class Departures:
    """Is told of each frame that has left its queue at the port of a line."""

    def left(self, queue: int, octets: int, origin: int) -> None:
        """A frame of ``octets`` on the wire, which came in by port ``origin`` (0: none), is out."""
        raise NotImplementedError


class DeparturesTold(Departures):
    """Passes each departure on to ``tell``."""

    def __init__(self, tell: Callable[[int, int, int], object]) -> None:
        self._tell = tell

    def left(self, queue: int, octets: int, origin: int) -> None:
        """See :class:`Departures`."""
        self._tell(queue, octets, origin)


class PortWatch(Protocol):
    """Whoever sees the frames of a port go by, both ways."""

    def frame(self, when_ps: int, frame: bytes) -> None: ...


class LineTally(NamedTuple):
    """Numbers of :class:`LineCounts`."""

    frames: int
    octets: int
    arrived: int
    in_queue: int
    in_flight: int
    no_room: int


@dataclass(slots=True)
class LineCounts:
    """Counters of a line.  Frames in ``in_queue`` and ``in_flight`` were lost with its carrier.

    ``by_queue`` has frames and octets (from the Ethernet header on) of each queue.
    """

    by_queue: tuple[list[int], ...] = field(
        default_factory=lambda: tuple([0, 0] for _ in range(QUEUES))
    )
    arrived: int = 0
    arrived_octets: int = 0
    in_queue: int = 0
    in_queue_octets: int = 0
    in_flight: int = 0
    no_room: int = 0
    #: frames of a line that another worker serves, which has sent them here
    of_other: int = 0

    @property
    def frames(self) -> int:
        """Frames of all queues."""
        return sum(frames for frames, _ in self.by_queue) + self.of_other

    def tally(self) -> LineTally:
        """The numbers that stand in a digest."""
        return LineTally(
            self.frames, self.octets, self.arrived, self.in_queue, self.in_flight, self.no_room
        )

    @property
    def octets(self) -> int:
        """Octets of all frames, from the Ethernet header on."""
        return sum(octets for _, octets in self.by_queue)


def _overtake(queue: deque[Waiting], one: Waiting) -> None:
    """Put ``one`` ahead of all of ``queue`` that was not put ahead itself."""
    place = next(
        (place for place, (*_, ahead) in enumerate(queue) if not ahead),
        len(queue),
    )
    queue.insert(place, one)


def octets_on_wire(frame: bytes) -> int:
    """Return what ``frame``, without its FCS, takes of a link."""
    return max(SHORTEST_OCTETS, len(frame) + FRAMING_OCTETS)


class Line:
    """The line from port ``end``, whose frames ``far`` takes at their arrival.

    At a switch with a pipeline that is one latency later; MAC control never waits for it (IEEE
    802.3 clause 31).

    ``idle`` is called when nothing waits any more, ``leaves`` is told of each frame that is out of
    its queue.  ``crc`` is the CRC32C of the row's frames so far, with length and time.
    ``low_share`` of the link belongs to the last queue whatever waits above.
    """

    __slots__ = (
        "_counts",
        "_crc",
        "_doomed",
        "_events",
        "_far",
        "_heap",
        "_item",
        "_item_octets",
        "_item_origin",
        "_item_queue",
        "_leaving",
        "_low_credit",
        "_low_frames",
        "_low_octets",
        "_number",
        "_on_arrival",
        "_on_left",
        "_onward",
        "_origin",
        "_pipeline_ps",
        "_rows",
        "_salt",
        "_time",
        "_time_octets",
        "_waiting",
        "arrivals",
        "arriving",
        "before",
        "busy",
        "cut",
        "delay_ps",
        "departing",
        "end",
        "idle",
        "in_pipeline",
        "leaves",
        "limit",
        "low_share",
        "low_stopped",
        "marks",
        "past",
        "queued",
        "queues",
        "rate_bps",
    )

    def __init__(
        self,
        events: EventQueue,
        number: int,
        end: CableEnd,
        *,
        rate_bps: int,
        delay_ns: float,
        seed: int = 0,
    ) -> None:
        self._events = events
        self._number, self._leaving = number, LEAVING | number
        self._salt: i64 = salt_of(seed, number)
        #: when the row began, from which draws and the CRC count time
        self._origin = self._rows = 0
        #: CRCs of the rows that are over
        self.past: list[int] = []
        self._on_left: Act = _Leaving(self)
        self._on_arrival: Act = _Arriving(self)
        self._heap = events.heap
        #: where arrivals go: another heap than that of the events if the far end is not ours
        self.arrivals = events.heap
        self.end = end
        self.rate_bps = rate_bps
        self.delay_ps = round(delay_ns * 1000)
        self._pipeline_ps = 0
        #: frames that have arrived, and are in the pipeline of the switch there
        self.in_pipeline = 0
        self.idle: Callable[[], None] | None = None
        self.leaves: Departures | None = None
        #: marks a frame whose transmission begins
        self.marks: Callable[[bytes], bytes] | None = None
        self.queues: tuple[deque[Waiting], ...] = tuple(deque() for _ in range(QUEUES))
        self.low_share = 0.0
        self._low_credit = 0.0
        self.busy = self.cut = self.low_stopped = False
        self.queued = 0
        #: octets that may wait, None without limit (switches without ASIC)
        self.limit: int | None = None
        self._waiting = 0
        self._doomed = 0  # frames on the cable that were there when it was pulled
        #: the last time that was asked for, and of how many octets
        self._time, self._time_octets = 0, -1
        #: what ``leaves`` was told, or will be, of the last frame
        self._item: object = None
        self._item_queue = self._item_octets = self._item_origin = -1
        self._counts = LineCounts()
        #: frames of the last queue, and their octets, that its counts do not have yet
        self._low_frames = self._low_octets = 0
        #: the counts when the row began
        self.before = self._counts.tally()
        self.departing: PortWatch | None = None
        self.arriving: PortWatch | None = None
        self._crc = FrameCrc()

    @property
    def crc(self) -> int:
        """The CRC of the row's frames so far."""
        return self._crc.value

    @property
    def counts(self) -> LineCounts:
        """The line's counters."""
        of_low = self._counts.by_queue[LOW]
        of_low[0] += self._low_frames
        of_low[1] += self._low_octets
        self._low_frames = self._low_octets = 0
        return self._counts

    def time_of(self, octets: int) -> int:
        """Return how long the line takes for ``octets`` (ps, rounded up)."""
        if octets != self._time_octets:
            bits: i64 = octets
            bits *= _BITS_PS  # less than 2^63, for IP has no longer packets than 2^16
            rate: i64 = self.rate_bps
            self._time, self._time_octets = int(-(-bits // rate)), octets
        return self._time

    @property
    def far(self) -> Callable[[bytes], None]:
        """Takes what comes over the cable."""
        return self._far

    @far.setter
    def far(self, take: Callable[[bytes], None]) -> None:
        self._far = take
        self._onward = self._pass if self._pipeline_ps else take

    def lead_into_pipeline(self, latency_ns: int) -> None:
        """Let frames that arrive from now on take ``latency_ns`` more before they are there."""
        self._pipeline_ps = latency_ns * PS
        self.far = self._far

    def lead_through(
        self, left: Act, arrive: Act, arrivals: EventHeap
    ) -> tuple[Act, Act, EventHeap]:
        """Have others act when a frame has left and when it arrives, and take its arrivals.

        Returns who did before.
        """
        before = self._on_left, self._on_arrival, self.arrivals
        self._on_left, self._on_arrival, self.arrivals = left, arrive, arrivals
        return before

    def occupy_with(self, octets: int, then: Act, unit: object, arrivals: EventHeap) -> None:
        """Send what is no frame of a queue, and have ``then`` called as soon as it has left."""
        self.busy = True
        end = self._events.now + self.time_of(octets)
        self._heap.push(end, self._leaving, then, None)
        end += self.delay_ps
        order = arriving(self._salt, self._number, end - self._origin)
        arrivals.push(end, order, self._on_arrival, unit)

    def lose_flying(self) -> None:
        """Count a frame that was on the cable, and will not arrive, as lost there."""
        self._doomed = max(0, self._doomed - 1)
        self.counts.in_flight += 1

    def reseed(self, seed: int) -> None:
        """Draw by ``seed`` who of several frames that arrive at one instant is first."""
        self._salt = salt_of(seed, self._number)

    def begin_row(self) -> None:
        """Let nothing that comes depend on what was: the line is empty, and ``crc`` begins anew.

        Draws and the CRC go by the time that has passed since now.
        """
        if self._rows or self.counts.frames:
            self.past.append(self.crc)
        self._rows += 1
        self._crc.value = 0
        self.before = self.counts.tally()
        now = self._events.now
        self._origin = now - now % PS
        self._low_credit = 0.0

    def change_rate(self, rate_bps: int) -> None:
        """Serve at ``rate_bps`` from the next frame on."""
        self.rate_bps = rate_bps
        self._time_octets = -1

    def enqueue(self, frame: bytes, queue: int, origin: int = 0, *, ahead: bool = False) -> None:
        """Enqueue ``frame`` in ``queue``; with ``ahead`` before what waits there.

        It stays behind frames that were put ahead earlier.
        """
        octets = len(frame) + FRAMING_OCTETS
        if octets < SHORTEST_OCTETS:
            octets = SHORTEST_OCTETS
        if self.cut:
            self.counts.in_queue_octets += len(frame)
            self.discard(octets, queue, origin)
            return
        if self.busy or (queue == LOW and self.low_stopped):
            if self.limit is not None and self._waiting + octets > self.limit:
                self.counts.no_room += 1
                return
            if ahead:
                _overtake(self.queues[queue], (frame, octets, origin, True))
            else:
                self.queues[queue].append((frame, octets, origin, False))
            self.queued += 1
            self._waiting += octets
            return
        self._begin(frame, octets, queue, origin)

    def discard(self, octets: int, queue: int, origin: int = 0) -> None:
        """Drop a frame without carrier; a NIC takes as long for it as for any other."""
        self.counts.in_queue += 1
        if self.idle is None:
            if self.leaves is not None:
                self.leaves.left(queue, octets, origin)
        else:
            self.occupy(octets)

    def occupy(self, octets: int) -> None:
        """Be busy for as long as ``octets`` take, if the line is idle, and send nothing."""
        if not self.busy:
            self.busy = True
            when = self._events.now + self.time_of(octets)
            self._events.at(when, self._leaving, _Leaving(self), (MAC_CONTROL, octets, 0))

    def _begin(self, frame: bytes, octets: int, queue: int, origin: int) -> None:
        if self.marks is not None:
            frame = self.marks(frame)
        events = self._events
        now = events.now
        self.busy = True
        end = now + self.time_of(octets)
        length = len(frame)
        if queue == LOW:
            self._low_frames += 1
            self._low_octets += length
        else:
            of_queue = self._counts.by_queue[queue]
            of_queue[0] += 1
            of_queue[1] += length
        self._crc.add(now - self._origin, frame)
        if self.departing is not None:
            self.departing.frame(now, frame)
        if origin != self._item_origin or octets != self._item_octets or queue != self._item_queue:
            self._item = queue, octets, origin
            self._item_queue, self._item_octets, self._item_origin = queue, octets, origin
        self._heap.push(end, self._leaving, self._on_left, self._item)
        end += self.delay_ps
        order = arriving(self._salt, self._number, end - self._origin)
        self.arrivals.push(end, order, self._on_arrival, frame)

    def expect(self, when: int, order: int, frame: object, *, counts: bool = True) -> None:
        """Let ``frame``, which the line of another worker has begun to send, arrive at ``when``.

        It ``counts`` unless it is none, or was counted before.
        """
        self.counts.of_other += counts
        self._heap.push(when, order, self._on_arrival, frame)

    @property
    def number(self) -> int:
        """The number of the port, which the order of its events has."""
        return self._number

    def leave(self, item: tuple[int, int, int]) -> None:
        """Let the frame that was being sent be out: queue, octets on the wire, port of arrival."""
        self.busy = False
        if self.leaves is not None:
            queue, octets, origin = item
            self.leaves.left(queue, octets, origin)
        if self.queued:
            self.serve()
        if not self.busy and self.idle is not None:
            self.idle()

    def serve(self) -> None:
        """Begin with the next frame that may leave, if the line is idle."""
        if self.busy or self.cut:
            return
        queue = self._next()
        if queue is None:
            return
        frame, octets, origin, _ = self.queues[queue].popleft()
        self.queued -= 1
        self._waiting -= octets
        self._begin(frame, octets, queue, origin)

    def _next(self) -> int | None:
        queues = self.queues
        low = bool(queues[LOW]) and not self.low_stopped
        if len(queues[LOW]) == self.queued:
            return LOW if low else None
        for queue in (MAC_CONTROL, HIGH, MEDIUM):
            if queues[queue]:
                if low and queue != MAC_CONTROL and self._owed(queues[queue][0][1]):
                    return LOW
                return queue
        return LOW if low else None

    def _owed(self, octets: int) -> bool:
        """Return whether the low queue's share is due before ``octets`` of a queue above it."""
        needed = self.queues[LOW][0][1] * (1.0 - self.low_share)
        if self.low_share and self._low_credit >= needed:
            self._low_credit -= needed
            return True
        self._low_credit += octets * self.low_share
        return False

    def accept(self, frame: bytes) -> None:
        """Let ``frame`` have arrived now."""
        if self._doomed:  # frames arrive in the order in which they left
            self._doomed -= 1
            self.counts.in_flight += 1
            return
        counts = self._counts
        counts.arrived += 1
        counts.arrived_octets += len(frame)
        if self.arriving is not None:
            self.arriving.frame(self._events.now, frame)
        onward = self._onward
        if isinstance(onward, Doer):
            onward.do(frame)
        else:
            onward(frame)

    def _pass(self, frame: bytes) -> None:
        """Let ``frame`` go through the pipeline of the switch it has come to."""
        if frame[_TYPE_AT:_CONTROL_AT] == _MAC_CONTROL_TYPE:
            self._far(frame)
            return
        self.in_pipeline += 1
        when = self._events.now + self._pipeline_ps
        order = arriving(self._salt, self._number | PIPELINE, when - self._origin)
        self._events.at(when, order, self._out_of_pipeline, frame)

    def _out_of_pipeline(self, frame: bytes) -> None:
        self.in_pipeline -= 1
        if self.cut:  # the kernel takes nothing in by a port without carrier
            counts = self.counts
            counts.arrived -= 1
            counts.arrived_octets -= len(frame)
            counts.in_flight += 1
            return
        self._far(frame)

    def waiting(self, queue: int) -> tuple[int, int]:
        """Frames that wait in ``queue``, and their octets from the Ethernet header on."""
        frames = self.queues[queue]
        return len(frames), sum(len(frame) for frame, *_ in frames)

    def pull(self) -> int:
        """Take the carrier away: what waits and what is on its way is lost.

        Returns how many octets waited, on the wire.
        """
        self.cut = True
        counts = self.counts
        self._doomed = counts.frames - counts.arrived - counts.in_flight
        octets = self._waiting
        counts.in_queue += self.queued
        for number, queue in enumerate(self.queues):
            while queue:
                frame, length, origin, _ = queue.popleft()
                counts.in_queue_octets += len(frame)
                if self.leaves is not None:
                    self.leaves.left(number, length, origin)
        self.queued = self._waiting = 0
        return octets

    def plug(self) -> None:
        """Give the carrier back."""
        self.cut = False

    @property
    def under_way(self) -> int:
        """Frames that wait here, are on the cable, or in the pipeline that it leads to."""
        return self.queued + self.flying

    @property
    def flying(self) -> int:
        """Frames on the cable, or in the pipeline that it leads to."""
        counts = self.counts
        return counts.frames - counts.arrived - counts.in_flight + self.in_pipeline


class _Leaving(Doer):
    """Has the frame that ``line`` sends leave it."""

    __slots__ = ("_line",)

    def __init__(self, line: Line) -> None:
        self._line = line

    def do(self, argument: Any) -> None:
        self._line.leave(argument)


class _Arriving(Doer):
    """Has a frame arrive over ``line``."""

    __slots__ = ("_line",)

    def __init__(self, line: Line) -> None:
        self._line = line

    def do(self, argument: Any) -> None:
        self._line.accept(argument)
