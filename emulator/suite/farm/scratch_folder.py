"""Folders in which ranks run trials before their files travel; what a killed rank left is found.

A folder belongs to the processes that hold its lock: the rank, and the trial that it runs.  If the
rank is killed, a keeper removes the folder when the trial has ended.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from emulator.dataplane.kernel.keeper import kept
from emulator.dataplane.kernel.locked_folders import locked_folder, remove_unlocked

#: Where these folders are: on a disk, for captures may be larger than memory.
PLACE = Path("/var/tmp")
_PREFIX = "uetemu-farm-"
_REMOVE = f"import sys; from {__name__} import remove_ended; remove_ended(sys.argv[1])"


@contextmanager
def scratch_folder() -> Iterator[tuple[Path, int]]:
    """Make a folder for this rank; yield it, with the descriptor that holds its lock."""
    stem = f"{_PREFIX}{secrets.token_hex(4)}-"
    with kept(_REMOVE, str(PLACE / stem)):
        made, lock = locked_folder(partial(tempfile.mkdtemp, prefix=stem, dir=PLACE))
        try:
            yield made, lock
        finally:
            shutil.rmtree(made, ignore_errors=True)
            os.close(lock)


def remove_ended(stem: str) -> None:
    """Remove the folders whose paths begin with ``stem`` when their ranks and trials have ended."""
    begin = Path(stem)
    remove_unlocked(begin.parent.glob(f"{begin.name}*"), wait=True)


def remove_abandoned() -> int:
    """Remove the folders whose ranks and trials have ended; return how many those were."""
    return remove_unlocked(PLACE.glob(f"{_PREFIX}*"))
