"""Folders that belong to the processes that hold their locks; what a killed one left is found."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path


def locked_folder(make: Callable[[], str]) -> tuple[Path, int]:
    """Return a folder that ``make`` has made, and the descriptor that holds its lock."""
    while True:
        made = Path(make())
        with suppress(FileNotFoundError):  # taken for abandoned before it had its lock
            lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if made.exists():
                return made, lock
            os.close(lock)


def remove_unlocked(folders: Iterable[Path]) -> int:
    """Remove those of ``folders`` whose processes have ended; return how many those were."""
    count = 0
    for folder in folders:
        with suppress(OSError):  # in use, gone meanwhile, or somebody else's
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                count += 1
            finally:
                os.close(lock)
    return count
