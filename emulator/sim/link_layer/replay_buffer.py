"""The sending half of link layer retry (UES 5.1): a replay buffer, and what is outstanding.

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
:data:`~emulator.dataplane.switch.switch_choice.MOST_OUTSTANDING` frames are ever outstanding.
"""

from __future__ import annotations

from collections import deque

from emulator.dataplane.switch.link.link_fitting import LlrRules
from emulator.sim.event_queue import NEVER, PS


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

    @property
    def replaying(self) -> bool:
        """Return whether a frame is to be sent again before any new one."""
        return self._cursor is not None

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
