"""Processes of a cluster: clients held until all may begin, their ends, the machine's load."""

from __future__ import annotations

import select
import subprocess
from contextlib import suppress
from dataclasses import dataclass

import psutil

from emulator.errors import UserError


def printed(
    what: str, process: subprocess.Popen[str], timeout_s: float, *, waited_s: float = 0.0
) -> str:
    """Wait for the end of ``process`` and return its standard output.

    ``waited_s`` of ``timeout_s`` have gone by already.  Raises UserError, which calls it ``what``,
    if it fails, or has not ended by then; in that case it still runs.
    """
    try:
        out, err = process.communicate(timeout=max(0.0, timeout_s - waited_s))
    except subprocess.TimeoutExpired:
        raise UserError(f"{what} has not ended after {timeout_s:g} s") from None
    if process.returncode:
        raise UserError(f"{what} failed: {last_words(err)}")
    return out


def last_words(err: str | None) -> str:
    """Return the last line of what a process printed on standard error."""
    lines = (err or "").strip().splitlines()
    return lines[-1] if lines else "it gave no reason"


def await_ready(what: str, process: subprocess.Popen[str], timeout_s: float) -> None:
    """Wait until ``process`` has printed that it is ready, or has ended.

    Raises UserError, which calls it ``what``, if neither has happened after ``timeout_s``.
    """
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], timeout_s)
    if not readable:
        raise UserError(f"{what} is not ready after {timeout_s:g} s")
    process.stdout.readline()


def release(process: subprocess.Popen[str]) -> None:
    """Let ``process`` begin.  One that has ended is reported by those who await its end."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write("\n")
        process.stdin.flush()


@dataclass(frozen=True, kw_only=True)
class ProcessorTimes:
    """Processor time since the machine began (s): busy, whoever it was for, and total."""

    busy_s: float
    total_s: float

    @classmethod
    def now(cls) -> ProcessorTimes:
        """Return the times until now (proc_stat(5))."""
        times = psutil.cpu_times()
        busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
        return cls(busy_s=busy, total_s=busy + times.idle + times.iowait)

    def busy_share_since(self, before: ProcessorTimes) -> float:
        """Return the busy part of the time of all processors since ``before``, 0 to 1."""
        total_s = self.total_s - before.total_s
        return (self.busy_s - before.busy_s) / total_s if total_s > 0 else 0.0
