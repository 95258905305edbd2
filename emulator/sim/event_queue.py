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
from heapq import heappop, heappush
from typing import Any, Final, Protocol

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
Event = tuple[int, int, Act, Any]


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
        self.heap: list[Event] = []
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
        heappush(self.heap, (when, order, act, argument))

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
            while heap and sampler.due <= until and not self._run(sampler.due - 1):
                if heap:
                    self.now = sampler.due
                    sampler.take(self.now, heap[0][0])
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
        self.now, _, act, argument = heappop(self.heap)
        self.events += 1
        act(argument)
        return self.stopped

    def run_before(self, limit: int) -> bool:
        """Run events before ``limit`` (ps); return whether :meth:`stop` ended that."""
        self.stopped = False
        return self._run(limit - 1)

    def _run(self, until: int) -> bool:
        """Run events up to and with ``until``; return whether that was stopped."""
        heap, pop = self.heap, heappop
        count = 0
        try:
            while heap and heap[0][0] <= until:
                self.now, _, act, argument = pop(heap)
                count += 1
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
