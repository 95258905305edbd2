"""Ctrl-C and SIGTERM as one exception that unwinds the run and can happen only once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The run was told to end by ``number``.  No :class:`Exception`: nothing shall swallow it."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"interrupted by {signal.Signals(number).name}")

    @property
    def exit_status(self) -> int:
        """What a shell reports for a process ended by this signal."""
        return 128 + self.number


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise :class:`Interrupted` in the block at the first of SIGINT, SIGTERM and SIGHUP.

    Those that follow are ignored until the block is left, so that an impatient second Ctrl-C does
    not keep the fabric from being removed.
    """

    def interrupt(number: int, _: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
