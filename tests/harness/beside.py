"""Which tests run at the same time: those marked ``alone`` run while no other does."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Workers of xdist share these files; the turnstile lets a test that waits to be alone be next.
_FOLDER = Path(tempfile.gettempdir()) / f"uetemu-tests-{os.geteuid()}"
#: Set while a test runs, for tests of a pytest that it starts: these are part of it.
_WITHIN = "UETEMU_WITHIN_A_TEST"


@contextmanager
def beside_others(*, alone: bool) -> Iterator[None]:
    """Wait until no test of another worker is ``alone``, or, to be so, until none runs."""
    if _WITHIN in os.environ:
        yield
        return
    _FOLDER.mkdir(exist_ok=True)
    with (_FOLDER / "turnstile").open("w") as turnstile, (_FOLDER / "running").open("w") as running:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turnstile, fcntl.LOCK_UN)
        os.environ[_WITHIN] = "1"
        try:
            yield
        finally:
            del os.environ[_WITHIN]
