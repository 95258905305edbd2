"""Folders in which ranks run trials before their files travel; what a killed rank left is found.

A folder belongs to the processes that hold its lock: the rank, and the trial that it runs.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Where these folders are: on a disk, for captures may be larger than memory.
PLACE = Path("/var/tmp")
_PREFIX = "uetemu-farm-"


@contextmanager
def scratch_folder() -> Iterator[tuple[Path, int]]:
    """Make a folder for this rank; yield it, with the descriptor that holds its lock."""
    made, lock = _locked()
    try:
        yield made, lock
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def _locked() -> tuple[Path, int]:
    """Return a new folder, and the descriptor that holds its lock."""
    while True:
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=PLACE))
        with suppress(FileNotFoundError):  # taken for abandoned before it had its lock
            lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if made.exists():
                return made, lock
            os.close(lock)


def remove_abandoned() -> int:
    """Remove the folders whose ranks and trials have ended; return how many those were."""
    count = 0
    for folder in PLACE.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # in use, gone meanwhile, or somebody else's
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                count += 1
            finally:
                os.close(lock)
    return count
