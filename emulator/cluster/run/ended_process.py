"""The end of a process that a scenario of a cluster has begun: its output, or why it failed."""

from __future__ import annotations

import subprocess

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
