"""A timer of asyncio that is moved to earlier times only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class WakeTimer:
    """One call of ``wake``, at the earliest of the times that were set since the last one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop, self._wake = loop, wake
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Wake at ``at`` of the loop's clock (s), unless that is to happen earlier anyway."""
        if self._handle is not None:
            if self._handle.when() <= at:
                return
            self._handle.cancel()
        self._handle = self._loop.call_at(at, self._expire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _expire(self) -> None:
        self._handle = None
        self._wake()
