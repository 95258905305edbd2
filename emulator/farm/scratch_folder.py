"""Folders in which ranks run trials before their files travel; what a killed rank left is found.

A folder belongs to the processes that hold its lock: the rank, and the trial that it runs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from emulator.kernel.locked_folders import locked_folder, remove_unlocked

#: Where these folders are: on a disk, for captures may be larger than memory.
PLACE = Path("/var/tmp")
_PREFIX = "uetemu-farm-"


@contextmanager
def scratch_folder() -> Iterator[tuple[Path, int]]:
    """Make a folder for this rank; yield it, with the descriptor that holds its lock."""
    made, lock = locked_folder(partial(tempfile.mkdtemp, prefix=_PREFIX, dir=PLACE))
    try:
        yield made, lock
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def remove_abandoned() -> int:
    """Remove the folders whose ranks and trials have ended; return how many those were."""
    return remove_unlocked(PLACE.glob(f"{_PREFIX}*"))
