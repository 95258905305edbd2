"""A cable with a link layer between two ends, without a kernel: what waits, arrives and is lost."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from emulator.dataplane.switch.cable_fitting import CbfcRules, LinkRules, LlrRules
from emulator.dataplane.switch.virtual_state import HELD, PAUSE_WORDS, WORD_BYTES
from emulator.sim.event_queue import PS, EventQueue, Source
from emulator.sim.line import LOW, Line, octets_on_wire
from emulator.sim.link_layer.link_layer import LinkEnd
from topologies.model import CableEnd

#: On a link of 8 Gb/s an octet lasts 1 ns; the frame is 1000 octets on the wire.
RATE, DELAY_NS, FRAME_NS, SET_NS = 8 * 10**9, 500, 1000, 8
FRAME_OCTETS = FRAME_NS - 24
TIMER_NS = 10_000


def numbered(number: int, octets: int = FRAME_OCTETS) -> bytes:
    """A frame that is like no other."""
    return number.to_bytes(4, "big") + bytes(octets - 4)


def llr(*, buffer_bytes: int = 1 << 20, frames: int = 2047, replays: int | None = None) -> LlrRules:
    """Rules of link layer retry with the timer of :data:`TIMER_NS`."""
    return LlrRules(
        buffer_bytes=buffer_bytes,
        needed_bytes=buffer_bytes,
        frames=frames,
        timer_ns=TIMER_NS,
        replays=replays,
    )


def cbfc(cells: int) -> CbfcRules:
    """Rules of credits: cells of 64 octets, a frame of 976 octets takes 16 of them."""
    return CbfcRules(buffer_bytes=64 * cells, cells=cells, needed_cells=cells, timer_ns=TIMER_NS)


class Script:
    """Errors of the units that leave one end: those whose turn, from 0 on, is named."""

    def __init__(self, errored: Iterable[int] = ()) -> None:
        self._errored = set(errored)
        self.units = 0

    def strike(self, octets: int) -> bool:
        """Return whether the next unit has an error."""
        self.units += 1
        return self.units - 1 in self._errored

    def begin_row(self, seed: int | None = None) -> None:
        """Go on: a script has no rows."""


@dataclass
class LinkedCable:
    """Ends ``near`` and ``far``; frames come to ``arrived`` with their time (ns) at the far one."""

    rules: LinkRules
    losses: Iterable[int] = ()
    losses_back: Iterable[int] = ()
    #: what the far switch does with a frame: by default nothing holds it
    take: Callable[[bytes], None] | None = None
    events: EventQueue = field(default_factory=EventQueue)
    arrived: list[tuple[int, bytes]] = field(default_factory=list)
    returned: list[tuple[int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        ends = CableEnd("s0", "p0"), CableEnd("s1", "p0")
        out, back = (
            Line(self.events, number, end, rate_bps=RATE, delay_ns=DELAY_NS)
            for number, end in enumerate(ends, start=1)
        )
        self.words = memoryview(bytearray(PAUSE_WORDS * WORD_BYTES)).cast("q")
        idle = memoryview(bytearray(PAUSE_WORDS * WORD_BYTES)).cast("q"), 0
        self.near = LinkEnd(out, back, self.events, Source(11), idle)
        self.far = LinkEnd(back, out, self.events, Source(12), (self.words, 0))
        self.near.errors = Script(self.losses)  # type: ignore[assignment]
        self.far.errors = Script(self.losses_back)  # type: ignore[assignment]
        self.line, self.back = out, back
        out.far, back.far = self.far.guard, self.near.guard
        self.far.deliver = self._deliver
        self.near.deliver = lambda frame: self.returned.append((self.now, frame))
        self.near.attach(self.far, self.rules)
        self.far.attach(self.near, self.rules)
        self._asked = 0

    @property
    def now(self) -> int:
        """Fabric time in ns."""
        return self.events.now // PS

    def _deliver(self, frame: bytes) -> None:
        self.arrived.append((self.now, frame))
        if self.take is not None:
            self.take(frame)

    def at(self, ns: int, act: Callable[[], None]) -> None:
        """Have ``act`` called at ``ns``."""
        self._asked += 1
        self.events.at(ns * PS, self._asked, lambda _: act(), None)

    def send(self, count: int, queue: int = LOW) -> list[bytes]:
        """Enqueue frames 0 to ``count`` now."""
        frames = [numbered(number) for number in range(count)]
        for frame in frames:
            self.line.enqueue(frame, queue)
        return frames

    @property
    def numbers(self) -> list[int]:
        """The numbers of the frames that have arrived, in order."""
        return [int.from_bytes(frame[:4], "big") for _, frame in self.arrived]

    def pull(self) -> None:
        """Take the carrier from both directions."""
        for line in (self.line, self.back):
            line.pull()
        for end in (self.near, self.far):
            end.reset()

    def plug(self) -> None:
        """Give it back."""
        for line in (self.line, self.back):
            line.plug()


@dataclass
class SlowSwitch:
    """A switch behind the far end that holds each frame until it has left by a port of its own.

    A frame takes ``hold_ns`` there, one after the other.
    """

    hold_ns: int
    cable: LinkedCable | None = None
    #: the most cells that it has held, whatever the link layer counts
    most: int = 0
    _held: deque[int] = field(default_factory=deque)

    def take(self, frame: bytes) -> None:
        """Hold ``frame``."""
        assert self.cable is not None
        octets = octets_on_wire(frame)
        self.cable.words[HELD] += octets
        self._held.append(octets)
        cbfc = self.cable.rules.cbfc
        if cbfc is not None:
            self.most = max(self.most, sum(map(cbfc.cells_of, self._held)))
        if len(self._held) == 1:
            self._next()

    def _next(self) -> None:
        assert self.cable is not None
        self.cable.at(self.cable.now + self.hold_ns, self._out)

    def _out(self) -> None:
        assert self.cable is not None
        self.cable.far.give_back(self._held.popleft())
        if self._held:
            self._next()
