"""Folders that belong to the processes that hold their locks; what a killed one left is found."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path


def lock_of(folder: Path, *, wait: bool = False) -> int:
    """Return the descriptor that holds the lock of ``folder`` as long as it is open.

    While another one holds it, this raises BlockingIOError, or with ``wait`` waits.  Raises OSError
    unless it is a folder itself, and no link to one.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(lock)
        raise
    return lock


def locked_folder(make: Callable[[], str]) -> tuple[Path, int]:
    """Return a folder that ``make`` has made, and the descriptor that holds its lock."""
    while True:
        made = Path(make())
        # one that was taken for abandoned before it had its lock is gone, or about to be
        with suppress(FileNotFoundError, BlockingIOError):
            lock = lock_of(made)
            if made.exists():
                return made, lock
            os.close(lock)


def remove_unlocked(folders: Iterable[Path], *, wait: bool = False) -> int:
    """Remove those of ``folders`` whose processes have ended; return how many those were.

    With ``wait`` these are all of them, each as soon as its processes have ended.
    """
    count = 0
    for folder in folders:
        with suppress(OSError):  # in use, gone meanwhile, or somebody else's
            lock = lock_of(folder, wait=wait)
            try:
                shutil.rmtree(folder)
                count += 1
            finally:
                os.close(lock)
    return count
