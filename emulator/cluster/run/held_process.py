"""Clients that wait until all of them may begin: the conductor's side of ``released``."""

from __future__ import annotations

import select
import subprocess
from contextlib import suppress

from emulator.errors import UserError


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
