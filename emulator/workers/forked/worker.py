"""The exchange between whoever drives a run and its workers, wherever these are.

A call is given (:meth:`Worker.give`) to all workers before the first answer is awaited
(:meth:`Worker.answer`), so that they work at the same time.  Arguments and answers of workers of
other processes are pickled.  Workers also share what one machine has. These are the memories of
GPUs, into which copies over the scale-up network write, and the tables of the switch program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from emulator.workers.forked.window_report import Crossing
from emulator.workers.forked.worker_part import WorkerPart

#: Arguments of the call that calls another one at a time.
_At = tuple[int, Sequence[Crossing], str, Sequence[object]]


class Worker(Protocol):
    """One worker, which carries out calls of :class:`WorkerPart`'s methods in order."""

    @property
    def number(self) -> int: ...

    def give(self, method: str, *arguments: object) -> None:
        """Have ``method`` called there."""

    def answer(self, time_limit_s: float | None = None) -> Any:
        """Return the answer to the oldest call that has none yet.  Raises its exception.

        Whoever does not answer for ``time_limit_s`` of the host's time is ended: AgentError.
        """

    def close(self) -> None:
        """End the worker; safe to call again."""


class LocalWorker:
    """A worker of this process, which carries out a call when its answer is awaited."""

    def __init__(self, part: WorkerPart) -> None:
        self.part = part
        self._given: list[tuple[str, tuple[object, ...]]] = []

    @property
    def number(self) -> int:
        """The worker's number."""
        return self.part.number

    def give(self, method: str, *arguments: object) -> None:
        """Have ``method`` called as soon as the answer is awaited."""
        self._given.append((method, arguments))

    def answer(self, time_limit_s: float | None = None) -> Any:
        """Carry out the oldest call, which takes as long as it does."""
        method, arguments = self._given.pop(0)
        return call(self.part, method, arguments)

    def close(self) -> None:
        """Give up the part."""
        self.part.close()


def call(part: WorkerPart, method: str, arguments: Sequence[object]) -> Any:
    """Call ``method``, which is the part's own or, with a dot before it, its network's.

    ``at`` calls another one at a time (ps), after what other workers have sent has been taken.
    """
    if method == "at":
        now, crossings, method, arguments = cast(_At, arguments)
        part.accept(crossings)
        part.events.now = max(part.events.now, now)
    if method.startswith("."):
        return getattr(part.network, method[1:])(*arguments)
    return getattr(part, method)(*arguments)
