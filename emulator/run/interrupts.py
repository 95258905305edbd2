"""Ctrl-C, SIGTERM and SIGHUP as one exception that unwinds the run, once and surely."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: After so long (s) an exception that nobody is handling has been swallowed, and is raised again.
AGAIN_S = 0.1


class Interrupted(BaseException):
    """The run was interrupted by signal ``number``; no ``except Exception`` catches it."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"interrupted by {signal.Signals(number).name}")

    def explain(self, reason: str | None) -> None:
        """State ``reason`` from now on, if there is one."""
        if reason is not None:
            self.args = (reason,)

    @property
    def exit_status(self) -> int:
        """Return what a shell reports for a process ended by this signal."""
        return 128 + self.number


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise :class:`Interrupted` in the block at the first of SIGINT, SIGTERM and SIGHUP.

    Those that arrive while it unwinds the block are ignored, so that an impatient second Ctrl-C
    does not keep the fabric from being removed.  There is code that drops every exception: a
    finalizer, an extension module at its import (numpy.random).  Should the signal hit that, the
    exception is raised again a moment later.  For the main thread.

    SIGALRM is used once a signal has come.  Until then it is left to whoever had it before, who
    gets the rest of his time back in the end.
    """
    first = 0
    rest: tuple[float, float] | None = None

    def interrupt(number: int, _: FrameType | None) -> None:
        nonlocal first, rest
        if _unwinding():
            return
        first = first or number
        signal.signal(signal.SIGALRM, again)
        before_ours = signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        rest = rest or before_ours
        raise Interrupted(first)

    def again(_: int, __: FrameType | None) -> None:
        if not _unwinding():
            signal.raise_signal(first)  # to whoever handles it at this moment

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    before[signal.SIGALRM] = signal.getsignal(signal.SIGALRM)
    try:
        yield
    finally:
        if rest is not None:
            signal.setitimer(signal.ITIMER_REAL, *rest)
        for number, handler in before.items():
            signal.signal(number, handler)


def _unwinding() -> bool:
    """Return whether the interrupted code runs because of an :class:`Interrupted` (``finally``)."""
    error = sys.exception()
    while error is not None:
        if isinstance(error, Interrupted):
            return True
        error = error.__context__
    return False
