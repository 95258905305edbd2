"""Compilation of the C sources in this package with clang, cached from lab to lab.

Objects are cached by what determines them: sources, flags, and the compiler's own version.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from emulator.dataplane.kernel.locked_folders import locked_folder, remove_unlocked
from emulator.errors import UserError
from emulator.logs import plain_logger

_log = plain_logger(__name__)

CACHE = Path(os.environ.get("UETEMU_CACHE", "/var/cache/uetemu"))
TIMEOUT_S = 120
#: What the names of directories begin with in which something is compiled.
_SCRATCH = "uetemu-compiled-"


@contextmanager
def compiled(
    main: Path,
    flags: Sequence[str],
    *,
    parts: Iterable[Path],
    suffix: str,
    cache: Path,
    subject: str,
    remedy: str,
) -> Iterator[Path]:
    """Yield what clang makes of ``main`` with ``flags``, from ``cache`` or made now and kept there.

    ``parts`` are all files that determine it, and ``suffix`` is that of its name.  Raises UserError
    with the compiler's first error, which names the ``subject`` and ends with the ``remedy``.
    """
    name = f"{_fingerprint(parts, flags)}{suffix}"
    kept = cache / name
    if kept.exists():
        yield kept
        return
    with scratch_folder(cache) as scratch:
        target = scratch / name
        command = ["clang", *flags, str(main), "-o", str(target)]
        _log.info("compile %s: %s is not in %s", subject, name, cache)
        _log.debug("%s", shlex.join(command))
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode:
            error = _first_error(done.stderr)
            raise UserError(f"clang cannot compile {subject} ({error}): {remedy}")
        if scratch.parent == cache:
            target.rename(kept)  # whole or not at all
            target = kept
        yield target


@contextmanager
def scratch_folder(cache: Path) -> Iterator[Path]:
    """Yield a directory in ``cache``, or elsewhere if that cannot be written, until the end.

    A lock on it marks it as in use; one that a killed process has left behind has none.
    """
    made, handle = locked_folder(partial(_made_near, cache))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(handle)
        with suppress(OSError):  # it is not empty, as a rule
            cache.rmdir()


def _made_near(cache: Path) -> str:
    """Return a new directory: in ``cache``, or elsewhere, so that the next lab compiles anew."""
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        return tempfile.mkdtemp(prefix=_SCRATCH, dir=cache)
    return tempfile.mkdtemp(prefix=_SCRATCH)


def remove_abandoned() -> int:
    """Remove what compilations have left behind that were killed; return how many those were."""
    places = (Path(tempfile.gettempdir()), *CACHE.glob("*"))
    return remove_unlocked(folder for place in places for folder in place.glob(f"{_SCRATCH}*"))


def _fingerprint(parts: Iterable[Path], flags: Sequence[str]) -> str:
    version = subprocess.run(
        ["clang", "--version"], capture_output=True, text=True, timeout=TIMEOUT_S
    ).stdout
    return digest_of(parts, *flags, version)


def digest_of(parts: Iterable[Path], *words: str) -> str:
    """Return a name for the content of the files ``parts`` and for ``words``."""
    digest = hashlib.sha256("\0".join(words).encode())
    for path in sorted(parts):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _first_error(complaints: str) -> str:
    lines = complaints.splitlines()
    return next((line for line in lines if "error:" in line), "no reason given").strip()
