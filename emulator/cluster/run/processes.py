"""Processes of a cluster: clients held until all may begin, commands on several machines, load."""

from __future__ import annotations

import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from emulator.errors import UserError

if TYPE_CHECKING:
    from emulator.cluster.run.cluster_context import ClusterContext


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


LIMIT_S = 300.0
POLL_S = 0.001


def run_together(
    run: ClusterContext, commands: Mapping[str, Sequence[str]], purpose: str
) -> dict[str, float]:
    """Start a command on each machine and return when each has ended (s, of time.monotonic).

    Raises UserError, which says ``purpose``, for the first that fails or takes more than
    :data:`LIMIT_S`; none runs afterwards.
    """
    begun = {machine: run.started(machine, argv) for machine, argv in commands.items()}
    ends: dict[str, float] = {}
    deadline = time.monotonic() + LIMIT_S
    try:
        while len(ends) < len(begun):
            for machine, process in begun.items():
                if machine not in ends and process.poll() is not None:
                    ends[machine] = time.monotonic()
            if time.monotonic() > deadline:
                late = ", ".join(machine for machine in begun if machine not in ends)
                raise UserError(f"{late} did not {purpose} in {LIMIT_S:g} s")
            time.sleep(POLL_S)
    finally:
        for process in begun.values():
            process.kill()
    for machine, process in begun.items():
        _, err = process.communicate()
        if process.returncode:
            raise UserError(f"{machine} did not {purpose}: {last_words(err)}")
    return ends
