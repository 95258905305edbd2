"""Files of results: whole or not at all."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from emulator.errors import UserError

MEND = "make room there, or choose another place"


def write_whole(
    path: Path, content: str | bytes | memoryview, mend: str = MEND, *, parents: bool = False
) -> None:
    """Have ``content`` in ``path``, a text in UTF-8: as :func:`whole_file`."""
    octets = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    with whole_file(path, mend, parents=parents) as fresh:
        fresh.write_bytes(octets)


@contextmanager
def whole_file(path: Path, mend: str = MEND, *, parents: bool = False) -> Iterator[Path]:
    """Yield where to write what ``path`` is to hold; a reader sees the old contents or the new.

    That is a file beside it, which takes its place at the end.  If something is raised before, it
    is removed, and ``path`` stays as it was.  A pipe or a device, such as /dev/stdout, is itself
    written.  ``parents``: missing folders are made.  Raises UserError, whose end is ``mend``, where
    the file cannot be written.
    """
    try:
        # A symbolic link stays one.  What leads to a relative path may be closed to this user.
        place = path.resolve() if path.is_symlink() else path
        if place.exists() and not place.is_file():
            yield path
            return
        if parents:
            place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name(f".new-{os.getpid()}-{threading.get_native_id()}")
        try:
            yield fresh
            if place.exists():
                shutil.copymode(place, fresh)
            fresh.replace(place)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; {mend}") from error
