"""Link layer retry (UES 5.1): units on their way, what is sent again, and what is answered.

::

    a frame leaves --> keep --> outstanding --ACK--> gone
                                    |  ^
                         NACK, timer|  |replayed, in order
                                    v  |
                                  cursor

ACK and NACK name the number that the receiver expects: all before have arrived.  A NACK, or the
replay timer, moves the cursor to the oldest outstanding frame. From there all are sent again,
before any new one.  So the order is kept, and the receiver needs no buffer.

Numbers do not wrap here: the specification's field widths are not public, and no more than
:data:`~emulator.dataplane.switch.parameters.MOST_OUTSTANDING` frames are ever outstanding.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from emulator.dataplane.switch.cable_fitting import LlrRules
from emulator.sim.event_queue import NEVER, PS

#: Kinds of units.  ``CREDITS`` and ``CONSUMED`` are CF_Update and CC_Update of UES 5.2; by ``QUIT``
#: a sender announces that frames come without sequence numbers from now on.
FRAME, ACK, NACK, CREDITS, CONSUMED, QUIT = range(6)
#: The number of a frame that the link does not retry.
UNNUMBERED = -1


class LinkUnit(NamedTuple):
    """A unit on its way.

    ``number`` is a frame's sequence number, the one that an ACK or NACK expects next, or a cyclic
    count of cells.  ``first`` is whether the frame is sent for the first time.  ``cells`` are those
    that a frame takes of the receiver's buffer, 0 without credits.  ``errored`` units have a bit
    error.  A unit of an earlier ``era`` of the cable, such as before it was pulled, means nothing.
    """

    kind: int
    number: int
    era: int
    errored: bool
    frame: bytes = b""
    first: bool = False
    cells: int = 0
    left_ps: int = 0


class ReplayBuffer:
    """The frames of one line that have no ACK; ``deadline`` (ps) is when the replay timer expires.

    ``failed``: the limit of replays was exceeded, and the link retries nothing any more.
    """

    __slots__ = (
        "_cursor",
        "_frames",
        "_in_row",
        "_next",
        "_oldest",
        "_timer_ps",
        "deadline",
        "failed",
        "held",
        "rules",
    )

    def __init__(self, rules: LlrRules) -> None:
        self.rules = rules
        self._timer_ps = rules.timer_ns * PS
        self.reset()

    def reset(self) -> None:
        """Begin anew, with nothing outstanding."""
        self._frames: deque[tuple[bytes, int, int]] = deque()
        self._oldest = self._next = self._in_row = 0
        self._cursor: int | None = None
        self.held = 0
        self.deadline = NEVER
        self.failed = False

    @property
    def outstanding(self) -> int:
        """Return how many frames have no ACK."""
        return len(self._frames)

    def full(self, octets: int) -> bool:
        """Return whether no frame of ``octets`` may leave before an ACK comes."""
        frames, rules = self._frames, self.rules
        return bool(frames) and (
            self.held + octets > rules.buffer_bytes or len(frames) >= rules.frames
        )

    def keep(self, frame: bytes, octets: int, cells: int, now: int) -> int:
        """Keep ``frame``, which has just left; return its sequence number."""
        if not self._frames:
            self.deadline = now + self._timer_ps
        self._frames.append((frame, octets, cells))
        self.held += octets
        self._next += 1
        return self._next - 1

    def acknowledge(self, expected: int, now: int) -> bool:
        """Forget all frames before number ``expected``; return whether there were any."""
        if not self._oldest < expected <= self._next:
            return False
        for _ in range(expected - self._oldest):
            self.held -= self._frames.popleft()[1]
        self._oldest = expected
        self._in_row = 0
        if self._cursor is not None and self._cursor < expected:
            self._cursor = expected if expected < self._next else None
        self._restart_timer(now)
        return True

    def refuse(self, expected: int, now: int) -> bool:
        """Take a NACK for number ``expected``; return whether a replay begins."""
        self.acknowledge(expected, now)
        return expected == self._oldest and self._replay()

    def expire(self) -> bool:
        """Take the expiry of the replay timer; return whether a replay begins."""
        self.deadline = NEVER
        return self._replay()

    def replay(self) -> tuple[int, bytes, int, int] | None:
        """Return the next frame to be sent again: number, itself, octets, cells; None: none is."""
        number = self._cursor
        if number is None:
            return None
        frame, octets, cells = self._frames[number - self._oldest]
        self._cursor = number + 1 if number + 1 < self._next else None
        return number, frame, octets, cells

    def replayed(self, now: int) -> None:
        """Start the timer if the last frame that was to be sent again has left at ``now``."""
        self._restart_timer(now)

    def _replay(self) -> bool:
        """Move the cursor to the oldest frame; False if nothing is outstanding or it failed."""
        if not self._frames:
            return False
        self._in_row += 1
        limit = self.rules.replays
        if limit is not None and self._in_row > limit:
            self.failed = True
            return False
        self._cursor = self._oldest
        self.deadline = NEVER
        return True

    def _restart_timer(self, now: int) -> None:
        waiting = self._frames and self._cursor is None
        self.deadline = now + self._timer_ps if waiting else NEVER


class RetryAnswer(Enum):
    """The answer that a receiver owes."""

    NONE = 0
    ACK = 1
    NACK = 2


class RetryReceiver:
    """The numbers of the frames that come over one line; ``expected`` is the next to be taken.

    No other one is.  A frame with an error, or one that shows that another is missing, is refused
    by a NACK, once: what was on the cable meanwhile is not refused again.  If numbers go back
    without the expected one, its replay was lost too, and it is refused anew.  A replay that was
    lost with nothing behind it, only the sender's timer finds.
    """

    __slots__ = ("_latest", "_refused", "expected")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Expect the first frame of a link that begins anew."""
        self.expected = 0
        self._refused = False
        self._latest = -1

    def take(self, number: int) -> tuple[bool, RetryAnswer]:
        """Return whether frame ``number``, which came whole, is taken, and what to answer."""
        latest, self._latest = self._latest, number
        if number == self.expected:
            self.expected += 1
            self._refused = False
            return True, RetryAnswer.ACK
        if number < self.expected:
            return False, RetryAnswer.ACK
        if self._refused and number > latest:
            return False, RetryAnswer.NONE
        self._refused = True
        return False, RetryAnswer.NACK

    def error(self) -> RetryAnswer:
        """Return what to answer to a frame that came with an error."""
        if self._refused:
            return RetryAnswer.NONE
        self._refused = True
        return RetryAnswer.NACK


class StopClock:
    """How often something has stopped a port, and for how long (ns); times are given in ps."""

    __slots__ = ("_since", "duration_ns", "stops")

    def __init__(self) -> None:
        self.stops = self.duration_ns = 0
        self._since: int | None = None

    def begin(self, now: int) -> None:
        """Count a stop from ``now`` on, unless one is counted already."""
        if self._since is None:
            self._since = now
            self.stops += 1

    def end(self, now: int) -> None:
        """Let the port go on at ``now``, if it is stopped."""
        if self._since is not None:
            self.duration_ns += (now - self._since) // PS
            self._since = None

    def settle(self, now: int) -> None:
        """Count what has passed of a stop that goes on."""
        if self._since is not None:
            self.duration_ns += (now - self._since) // PS
            self._since = now
