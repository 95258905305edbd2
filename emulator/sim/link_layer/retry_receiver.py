"""The receiving half of link layer retry (UES 5.1): order, duplicates, and what to answer.

Only the frame that is expected is taken.  A frame with an error, or one that shows that another is
missing, is refused by a NACK, once: what was on the cable meanwhile is not refused again.  If
numbers go back without the expected one, its replay was lost too, and it is refused anew.  A replay
that was lost with nothing behind it, only the sender's timer finds.
"""

from __future__ import annotations

from enum import Enum


class RetryAnswer(Enum):
    """The answer that a receiver owes."""

    NONE = 0
    ACK = 1
    NACK = 2


class RetryReceiver:
    """The numbers of the frames that come over one line; ``expected`` is the next to be taken."""

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
