"""Which tests run at the same time: those marked ``alone`` run while no other does."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

#: Workers of xdist share these files; the turnstile lets a test that waits to be alone be next.
_FOLDER = Path(tempfile.gettempdir()) / f"uetemu-tests-{os.geteuid()}"
#: Set while a test runs, for tests of a pytest that it starts: these are part of it.
_WITHIN = "UETEMU_WITHIN_A_TEST"
#: The lock of tests that are alone, from one to the next.
_kept: IO[str] | None = None


@contextmanager
def beside_others(*, alone: bool, next_alone: bool = False) -> Iterator[None]:
    """Wait until no test of another worker is ``alone``, or, to be so, until none runs.

    Tests that are alone, one after the other, wait together: that leaves workers idle once.
    """
    global _kept
    if _WITHIN in os.environ:
        yield
        return
    running = _kept or _locked(fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    os.environ[_WITHIN] = "1"
    try:
        yield
    finally:
        del os.environ[_WITHIN]
        _kept = running if alone and next_alone else None
        if _kept is None:
            running.close()


def _locked(how: int) -> IO[str]:
    """Return the file whose lock this process has from now on."""
    _FOLDER.mkdir(exist_ok=True)
    running = (_FOLDER / "running").open("w")
    with (_FOLDER / "turnstile").open("w") as turnstile:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(running, how)
    return running
