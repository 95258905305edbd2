"""The two sides of priority flow control at a port, without a socket or a clock.

* :class:`Pauser`: the port's lossless buffer is filling, so it pauses the other end, again
  before the time in the last frame is over, and in the end to go on;
* :class:`Gate`: a frame of the other end stops this port's lossless class until its time runs out
  or another frame replaces it. A watchdog ends a pause that does not end.

Both count into the same :class:`~emulator.dataplane.switch.cable_counters.PauseCounters`.
Times are ns of fabric time; a call's ``now`` never runs backwards.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from emulator.dataplane.switch.cable_counters import PauseCounters

DESTINATION = bytes.fromhex("0180c2000001")
ETHERTYPE = 0x8808
OPCODE = 0x0101
CLASSES = 8
QUANTUM_BITS = 512
LONGEST = 0xFFFF
#: Without its frame check sequence.
FRAME_OCTETS = 60
#: With it, preamble and gap.
WIRE_OCTETS = FRAME_OCTETS + 24
_CONTROL = struct.Struct("!HH8H")
_HEAD = struct.Struct("!6s6sH")


def frame(source: bytes, quanta: Mapping[int, int]) -> bytes:
    """The frame by which port ``source`` (its MAC address) pauses classes for so many quanta."""
    vector, times = 0, [0] * CLASSES
    for number, time in quanta.items():
        vector |= 1 << number
        times[number] = time
    octets = _HEAD.pack(DESTINATION, source, ETHERTYPE) + _CONTROL.pack(OPCODE, vector, *times)
    return octets.ljust(FRAME_OCTETS, b"\0")


def quanta(destination: bytes, control: bytes) -> dict[int, int] | None:
    """The quanta of each class that is meant; None if this is no PAUSE frame by priority.

    ``control`` is what comes behind the EtherType, 20 octets or more.
    """
    if destination != DESTINATION:
        return None
    opcode, vector, *times = _CONTROL.unpack_from(control)
    if opcode != OPCODE:
        return None
    return {number: times[number] for number in range(CLASSES) if vector >> number & 1}


def duration_ns(quanta: int, rate_bps: int) -> int:
    """Return how long ``quanta`` last on a link of ``rate_bps``; ns of the link's own time."""
    return -(-quanta * QUANTUM_BITS * 10**9 // rate_bps)


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRules:
    """PFC at one cable, in fabric terms.  Octets are those on the wire.

    A port requests a pause when more than ``xoff_bytes`` of frames that came in by it wait in the
    switch. It ends the pause at ``xon_bytes``; ``headroom_bytes`` beyond XOFF are there for what
    comes until then, ``needed_bytes`` is what that should be.  With ``alpha`` (2^-16) both XOFF and
    XON are higher by ``alpha`` times what is free in the switch's pool, and XON alone may be below
    0.  A pause takes effect ``reaction_ns`` after its request.  ``watchdog_ns`` is how long a queue
    may be paused on end, 0 for ever; ``drops``: the watchdog's action is to drop what is to leave,
    not to send it.
    """

    priority: int
    rate_bps: int
    xoff_bytes: int
    xon_bytes: int
    headroom_bytes: int
    needed_bytes: int
    reaction_ns: int
    watchdog_ns: int = 0
    drops: bool = True
    alpha: int = 0

    @property
    def ceiling_bytes(self) -> int:
        return self.xoff_bytes + self.headroom_bytes


class Pauser:
    """Pauses the other end of a cable."""

    def __init__(self, rate_bps: int, counters: PauseCounters) -> None:
        self._refresh_ns = duration_ns(LONGEST, rate_bps) // 2
        self._counters = counters
        self._next: int | None = None

    @property
    def asserted(self) -> bool:
        return self._next is not None

    def next_deadline(self) -> int | None:
        """Return when the request has to be made again."""
        return self._next

    def ask(self, now: int) -> int | None:
        """The buffer is above XOFF: the quanta to send now, None if the last ones still hold."""
        if self._next is not None and now < self._next:
            return None
        self._next = now + self._refresh_ns
        self._counters.xoff_sent += 1
        return LONGEST

    def forget(self) -> None:
        """Request no more pauses; the last one runs out by itself."""
        self._next = None

    def let_go(self) -> int | None:
        """The buffer is down to XON: the quanta to send now, None if nobody waits."""
        if self._next is None:
            return None
        self._next = None
        self._counters.xon_sent += 1
        return 0


class Gate:
    """The effect of the other end's pause frames on this end's transmission."""

    def __init__(self, rules: PauseRules, counters: PauseCounters) -> None:
        self._rules = rules
        self._counters = counters
        self._coming: deque[tuple[int, int]] = deque()  # frames that take effect later
        self._open_at: int | None = None  # when the pause in force runs out
        self._closed_at = self._counted_to = self._measured_from = 0
        self._ignoring_from: int | None = None  # the watchdog has stepped in
        self._last_xoff = 0

    @property
    def closed(self) -> bool:
        """The lossless class may not send now."""
        return self._open_at is not None

    @property
    def closed_at(self) -> int:
        """Return when the last pause took effect, or should have."""
        return self._closed_at

    @property
    def ignoring(self) -> bool:
        """Report whether the watchdog ignores the other end's pauses, after a storm."""
        return self._ignoring_from is not None

    def on_frame(self, quanta: int, now: int) -> None:
        """A frame for the lossless class came at ``now``."""
        if quanta:
            self._counters.xoff_received += 1
            self._last_xoff = now
        else:
            self._counters.xon_received += 1
        if not self.ignoring:
            self._coming.append((now + self._rules.reaction_ns, quanta))

    def next_deadline(self) -> int | None:
        """Return when :attr:`closed` or :attr:`ignoring` may change by itself."""
        times = [self._coming[0][0]] if self._coming else []
        if self._open_at is not None:
            times.append(self._open_at)
            if self._rules.watchdog_ns:
                times.append(self._closed_at + self._rules.watchdog_ns)
        if self._ignoring_from is not None:
            times.append(self._last_xoff + 2 * self._rules.watchdog_ns)
        return min(times, default=None)

    def advance(self, now: int) -> bool:
        """Do what is due up to and with ``now``, in the order in which it was.

        Whether a pause began, which may be over by now and never have stopped anything.
        """
        pauses = self._counters.pauses
        while (due := self.next_deadline()) is not None and due <= now:
            if self._ignoring_from is not None:
                # no pause for twice the detection time: the storm is over (as in SONiC)
                self._counters.watchdog_ns += due - self._ignoring_from
                self._ignoring_from = None
            elif self._coming and self._coming[0][0] == due:
                self._take_effect(*self._coming.popleft())
            elif self._open_at == due:
                self._open(due)
            else:
                self._open(due)
                self._counters.watchdog_storms += 1
                self._ignoring_from = due
                self._coming.clear()
        return self._counters.pauses > pauses

    def restart(self) -> None:
        """A pause that goes on is as long as from here on, for the longest one."""
        self._measured_from = self._counted_to

    def settle(self, now: int) -> None:
        """Count what has passed of a pause, or of a storm, that goes on."""
        if self._open_at is not None and now > self._counted_to:
            self._count_pause(now)
            self._counted_to = now
        if self._ignoring_from is not None:
            self._counters.watchdog_ns += now - self._ignoring_from
            self._ignoring_from = now

    def _take_effect(self, at: int, quanta: int) -> None:
        if not quanta:
            if self._open_at is not None:
                self._open(at)
            return
        if self._open_at is None:
            self._closed_at = self._counted_to = at
            self._counters.pauses += 1
        self._open_at = at + duration_ns(quanta, self._rules.rate_bps)

    def _open(self, now: int) -> None:
        self._count_pause(now)
        self._open_at = None

    def _count_pause(self, now: int) -> None:
        counters = self._counters
        counters.paused_ns += now - self._counted_to
        since = max(self._closed_at, self._measured_from)
        counters.longest_pause_ns = max(counters.longest_pause_ns, now - since)
