"""Events in the order of virtual time, which is the same on every machine and for every run.

Times are picoseconds: an octet at 400 Gb/s lasts 20 of them.  Events of one instant are in the
order of ``order``. It follows from their source and the seed alone: from no memory address, no
dictionary and no other source.

1. what the run does (faults, samples), in the order of the requests;
2. frames that have left a port, whose room is free then, by port;
3. frames that arrive, or leave the pipeline of a switch, by a number drawn for port and time: a
   real switch has an arbiter that favours no port, and a fixed order would let one sender of an
   incast win every time;
4. what endpoints have to do, by endpoint, in the order of their requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from librt.vecs import append, vec
from mypy_extensions import i64

from emulator.words import word_of, wrapped

PS: Final = 1000  # in a nanosecond
#: The largest int that compiled code keeps in a register.
NEVER: Final = (1 << 62) - 1
#: Kinds of events in the high bits of their order.
_KIND_BITS: Final = 50
LEAVING: Final = 1 << _KIND_BITS
ARRIVING: Final = 2 << _KIND_BITS
WAKING: Final = 3 << _KIND_BITS
#: Orders of what the run does because of what ports and ranks have come to; each is there once in
#: an instant, before all else.
LOOK, PASS, STOP = -3, -2, -1
#: Numbers of ports and endpoints have so many bits, counters of endpoints those below.
_NUMBER_BITS: Final = 18
_COUNTER_BITS: Final = 32
#: Added to the number of a port for what leaves the pipeline behind it.
PIPELINE: Final = 1 << _NUMBER_BITS - 1
_DRAWN: Final = (1 << _KIND_BITS - _NUMBER_BITS) - 1
_NOT_DRAWN: Final = 64 - (_KIND_BITS - _NUMBER_BITS)
_FIRST: Final = word_of(0x9E37_79B9_7F4A_7C15)
_SECOND: Final = word_of(0xBF58_476D_1CE4_E5B9)

Act = Callable[[Any], object]


class Doer:
    """Does what is to be done with one argument: the cheapest callable of compiled code."""

    __slots__ = ()

    def do(self, argument: Any) -> None:
        """Do it."""
        raise NotImplementedError

    def __call__(self, argument: Any) -> None:
        """Do it, for who calls whatever acts."""
        self.do(argument)


class EventHeap:
    """What is to be done, by time (ps) and order; no two events have both in common.

    Keys are machine words side by side: what waits is compared without a look at its objects, which
    memory that is copied meanwhile has driven out of the caches.

    Of the event whose keys are at place ``p``, ``slots[p]`` is the place in ``acts`` and
    ``arguments``; slots from ``size`` on are free.
    """

    __slots__ = ("acts", "arguments", "orders", "size", "slots", "times")

    def __init__(self) -> None:
        self.size: i64 = 0
        self.times: vec[i64] = vec[i64]()
        self.orders: vec[i64] = vec[i64]()
        self.slots: vec[i64] = vec[i64]()
        self.acts: list[Act | None] = []
        self.arguments: list[Any] = []

    def __len__(self) -> int:
        return int(self.size)

    @property
    def following(self) -> int:
        """The time of the first event, :data:`NEVER` if there is none."""
        return int(self.times[0]) if self.size else NEVER

    def push(self, when: i64, order: i64, act: Act, argument: object) -> None:
        """Add ``act(argument)`` at ``when``."""
        place = self.size
        self.size = place + 1
        if place == len(self.times):
            self.times = append(self.times, when)
            self.orders = append(self.orders, order)
            self.slots = append(self.slots, place)
            slot: i64 = place
            self.acts.append(act)
            self.arguments.append(argument)
        else:
            slot = self.slots[place]
            self.acts[slot] = act
            self.arguments[slot] = argument
        times, orders, slots = self.times, self.orders, self.slots
        while place > 0:
            above = place - 1 >> 1
            time = times[above]
            if time < when or (time == when and orders[above] < order):
                break
            times[place], orders[place], slots[place] = time, orders[above], slots[above]
            place = above
        times[place], orders[place], slots[place] = when, order, slot

    def drop(self) -> i64:
        """Take the first event off; return its slot, which whoever asked has to clear."""
        times, orders, slots = self.times, self.orders, self.slots
        first = slots[0]
        last = self.size - 1
        self.size = last
        when, order, slot = times[last], orders[last], slots[last]
        slots[last] = first
        if not last:
            return first
        place: i64 = 0
        below: i64 = 1
        while below < last:
            time = times[below]
            other = below + 1
            if other < last and (
                times[other] < time or (times[other] == time and orders[other] < orders[below])
            ):
                below, time = other, times[other]
            if when < time or (when == time and order < orders[below]):
                break
            times[place], orders[place], slots[place] = time, orders[below], slots[below]
            place = below
            below = 2 * place + 1
        times[place], orders[place], slots[place] = when, order, slot
        return first

    def pop(self) -> tuple[int, int, Act, Any]:
        """Take the first event; there must be one."""
        if not self.size:
            raise IndexError("no event is to come")
        when, order = int(self.times[0]), int(self.orders[0])
        slot = self.drop()
        act, argument = self.acts[slot], self.arguments[slot]
        self.acts[slot] = self.arguments[slot] = None
        assert act is not None
        return when, order, act, argument


class TimedSampler(Protocol):
    """Looks at the fabric at times of its own (:class:`emulator.sim.line_telemetry.Sampling`)."""

    @property
    def due(self) -> int: ...

    def resume(self, now: int) -> None: ...

    def take(self, now: int, following: int) -> None: ...

    def sample(self, now: int) -> None: ...


class EventQueue:
    """The events to come; ``now`` is the time (ps) of the one that runs, or ran last.

    ``sampler`` looks before the events of the instant at which it is due, and when a run stops.
    """

    __slots__ = ("at_rest", "events", "heap", "now", "run_source", "sampler", "stopped")

    def __init__(self) -> None:
        self.now = 0
        self.heap = EventHeap()
        self.events = 0
        self.stopped = False
        self.sampler: TimedSampler | None = None
        #: called when a run has stopped, and before the sampler looks
        self.at_rest: Callable[[], None] | None = None
        #: of all that the run does itself
        self.run_source = Source()

    def at(self, when: int, order: int, act: Act, argument: Any) -> None:
        """Call ``act(argument)`` at ``when`` (ps), which is not over yet."""
        if when < self.now:
            raise ValueError(f"an event is asked for at {when} ps, and it is {self.now} ps already")
        self.heap.push(when, order, act, argument)

    def stop(self) -> None:
        """Have :meth:`run` return after the event that runs now."""
        self.stopped = True

    def run(self, until: int = NEVER) -> bool:
        """Run events up to and with ``until`` (ps); return whether :meth:`stop` ended that.

        Without :meth:`stop` the time is ``until`` afterwards, or that of the last event if no
        limit was given.
        """
        heap, sampler = self.heap, self.sampler
        self.stopped = False
        if sampler is not None:
            sampler.resume(self.now)
            while heap.size and sampler.due <= until and not self._run(sampler.due - 1):
                if heap.size:
                    self.now = sampler.due
                    sampler.take(self.now, heap.following)
        if not self.stopped:
            self._run(until)
        if self.stopped:
            if sampler is not None:
                sampler.sample(self.now)
            return True
        if until != NEVER:
            self.now = until
        return False

    def run_one(self) -> bool:
        """Run the next event; return whether that called :meth:`stop`."""
        self.stopped = False
        self.now, _, act, argument = self.heap.pop()
        self.events += 1
        act(argument)
        return self.stopped

    def run_before(self, limit: int) -> bool:
        """Run events before ``limit`` (ps); return whether :meth:`stop` ended that."""
        self.stopped = False
        return self._run(limit - 1)

    def _run(self, until: int) -> bool:
        """Run events up to and with ``until``; return whether that was stopped."""
        heap = self.heap
        acts, arguments = heap.acts, heap.arguments
        latest: i64 = until
        count = 0
        try:
            while heap.size:
                when = heap.times[0]
                if when > latest:
                    break
                self.now = int(when)
                slot = heap.drop()
                act, argument = acts[slot], arguments[slot]
                acts[slot] = arguments[slot] = None
                count += 1
                assert act is not None
                if isinstance(act, Doer):
                    act.do(argument)
                else:
                    act(argument)
                if self.stopped:
                    return True
        finally:
            self.events += count
            if self.at_rest is not None:
                self.at_rest()
        return False


class Source:
    """Orders of the events of one endpoint, or of the run (number None), in a growing sequence."""

    __slots__ = ("order",)

    def __init__(self, number: int | None = None) -> None:
        self.order = 0 if number is None else WAKING | number << _COUNTER_BITS

    def next(self) -> int:
        """The order of the source's next event."""
        self.order += 1
        return self.order


def salt_of(seed: int, number: i64) -> i64:
    """The number that draws of port ``number`` begin with."""
    of_seed = wrapped(word_of(seed + 1) * _FIRST)
    return (of_seed ^ wrapped((number + 1) * _SECOND)) & (1 << 62) - 1


def arriving(salt: i64, number: i64, when: i64) -> i64:
    """The order of a frame's arrival by port ``number`` at ``when``.

    The draw is the finalizer of SplitMix64: who came first before does not decide who does now.
    """
    mixed = wrapped((when ^ salt) * _FIRST)
    mixed = wrapped((mixed ^ mixed >> 32 & 0xFFFF_FFFF) * _SECOND)
    return ARRIVING | (mixed >> _NOT_DRAWN & _DRAWN) << _NUMBER_BITS | number


def number_of(order: int) -> int:
    """The number of the port whose frame arrives by the event of ``order``."""
    return order & (1 << _NUMBER_BITS) - 1
