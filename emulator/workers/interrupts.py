"""Ctrl-C, SIGTERM and SIGHUP as one exception that unwinds the run, once and surely."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: After so long (s) an exception that nobody is handling has been swallowed, and is raised again.
AGAIN_S = 0.1
#: What :func:`held` has asked to stop gets so long (s), then the exception is raised in its midst.
STOP_S = 1.0

#: What a signal does instead while the block of :func:`held` runs, and the one that has come there.
_stop: Callable[[], object] | None = None
_came: int | None = None


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
        global _came
        nonlocal first, rest
        if unwinding() or _came is not None:
            return
        first = first or number
        signal.signal(signal.SIGALRM, again)
        before_ours = signal.setitimer(signal.ITIMER_REAL, AGAIN_S if _stop is None else STOP_S)
        rest = rest or before_ours
        if _stop is None:
            raise Interrupted(first)
        _came = first
        _stop()

    def again(_: int, __: FrameType | None) -> None:
        global _stop, _came
        _stop = _came = None
        if not unwinding():
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


@contextmanager
def held(stop: Callable[[], object]) -> Iterator[None]:
    """Have a signal call ``stop`` in the block, and interrupt the run where the block ends.

    Compiled code does not bear an exception everywhere: where Python looks for signals within the
    arithmetic of long integers, mypyc's runtime takes it for a lack of memory and aborts.  A block
    that does not end for :data:`STOP_S` after ``stop`` is interrupted in its midst: what hangs is a
    plug-in, and that is no compiled code.
    """
    global _stop, _came
    _stop = stop
    try:
        yield
    finally:
        came, _stop, _came = _came, None, None
        if came is not None:
            signal.raise_signal(came)


def unwinding() -> bool:
    """Return whether the interrupted code runs because of an :class:`Interrupted` (``finally``)."""
    error = sys.exception()
    while error is not None:
        if isinstance(error, Interrupted):
            return True
        error = error.__context__
    return False
