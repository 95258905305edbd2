"""Waiting at a terminal: for a key, a signal, or the time; the terminal is restored."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Attention:
    """A context in which keys are read without echo, and signals are only noted.

    ``ended`` is the first of SIGINT, SIGTERM, SIGHUP and SIGQUIT, None as long as none came: it is
    for the user of this to leave then, with the screen put in order first.  ``keys``: whether to
    read keys; without a terminal on standard input there are none.  For the main thread.
    """

    def __init__(self, *, keys: bool) -> None:
        self._wants_keys = keys
        self.ended: signal.Signals | None = None
        self._keys: int | None = None
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup_before = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, self._note) for number in _SIGNALS}
        if self._wants_keys and sys.stdin.isatty():
            self._take_keys(sys.stdin.fileno())
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            try:
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSAFLUSH, self._before)
            except termios.error:  # the terminal is gone
                self.ended = self.ended or signal.SIGHUP
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._woken)
        os.close(self._waker)

    def wait(self, seconds: float) -> str:
        """Return a key as soon as one is pressed; "" after ``seconds``, or when ``ended``."""
        deadline = time.monotonic() + seconds
        while self.ended is None:
            watched = [self._woken] if self._keys is None else [self._woken, self._keys]
            left = deadline - time.monotonic()
            ready, _, _ = select.select(watched, [], [], max(0.0, left))
            if self._woken in ready:
                os.read(self._woken, 4096)
            if self._keys in ready and (key := self._key()):
                return key
            if left <= 0:
                break
        return ""

    def _take_keys(self, terminal: int) -> None:
        self._before = termios.tcgetattr(terminal)
        tty.setcbreak(terminal)
        ours = termios.tcgetattr(terminal)
        # To be stopped in the middle would leave the shell with our screen and without an echo.
        ours[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(terminal, termios.TCSADRAIN, ours)
        self._keys = terminal

    def _key(self) -> str:
        try:
            faulted = os.read(sys.stdin.fileno(), 64)
        except OSError:
            faulted = b""
        if not faulted:  # nobody will ever strike one again
            self._keys = None
        return faulted.decode("utf-8", "replace")

    def _note(self, number: int, _: FrameType | None) -> None:
        self.ended = self.ended or signal.Signals(number)
