"""Builds of the compiled modules, and whether one fits the sources.

A build is a folder below :data:`BUILDS`, beside the sources that it was made from, and complete
once it has its name.  It is in use as long as these are what they were: all that mypy has read of
the packages, since compiled code relies on the types in them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

from emulator.installed_packages import version_of

#: The folder of the packages, and that of builds.
ROOT = Path(__file__).parents[2]
BUILDS = Path(__file__).with_name("build")
#: How the names of compiled modules end: with Python's version and the machine.
SUFFIX = EXTENSION_SUFFIXES[0]
#: mypyc's name of all modules, and the library that they share.
GROUP = "uetemu"
LIBRARY = f"{GROUP}__mypyc"
#: The file in a build's folder that says what it was made of.
RECORD = "record.json"


class Source(NamedTuple):
    """What tells whether a source has changed: a digest, which is asked if the others differ."""

    size: int
    mtime_ns: int
    sha256: str


class Build(NamedTuple):
    """A build: its ``folder``, the ``modules`` in it, and mypy's version that compiled them."""

    folder: Path
    modules: tuple[str, ...]
    mypy: str

    def file_of(self, module: str) -> str:
        """Return where ``module``, or the library, lies."""
        return f"{self.folder}/{module.replace('.', '/')}{SUFFIX}"


def module_of(source: str) -> str:
    """Return the name of the module of ``source``, a path from :data:`ROOT`."""
    return source.removesuffix(".py").replace("/", ".")


def digest_of(source: str) -> str:
    """Return the SHA-256 of ``source``, a path from :data:`ROOT`."""
    return hashlib.sha256((ROOT / source).read_bytes()).hexdigest()


def described(source: str) -> Source:
    """Return what ``source``, a path from :data:`ROOT`, is now."""
    found = (ROOT / source).stat()
    return Source(found.st_size, found.st_mtime_ns, digest_of(source))


def folder_of(key: str) -> Path:
    """Return the folder of this Python's build with ``key``."""
    return BUILDS / f"{SUFFIX.removesuffix('.so').strip('.')}-{key}"


def builds() -> list[Path]:
    """Return the folders of this Python's builds, the latest first."""
    found = BUILDS.glob(f"{folder_of('*').name}/{RECORD}")
    return [path.parent for path in sorted(found, key=os.path.getmtime, reverse=True)]


def fitting() -> Build | str:
    """Return the build of the sources as they are, or say why there is none."""
    reason = "nothing is compiled"
    if any(BUILDS.glob(f"*/{RECORD}")):
        reason = "modules are compiled for another Python"
    for number, folder in enumerate(builds()):
        found = _checked(folder)
        if isinstance(found, Build):
            return found
        if number == 0:
            reason = found
    return reason


def current() -> Build | None:
    """Return the build that fits, unless another version of mypy is here now."""
    build = fitting()
    if isinstance(build, str) or build.mypy != (mypy_version() or build.mypy):
        return None
    return build


def mypy_version() -> str | None:
    """Return the version of mypy that is installed."""
    return version_of("mypy")


def remove() -> None:
    """Remove all builds; everything runs from the sources then."""
    shutil.rmtree(BUILDS, ignore_errors=True)


def _checked(folder: Path) -> Build | str:
    try:
        record = json.loads((folder / RECORD).read_text())
        build = Build(folder, tuple(record["modules"]), record["mypy"])
        sources = [(name, Source(*known)) for name, known in record["sources"].items()]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{folder} is not whole"
    for module in (LIBRARY, *build.modules):
        if not os.path.exists(build.file_of(module)):
            return f"{folder} is not whole"
    for name, known in sources:
        try:
            found = os.stat(f"{ROOT}/{name}")
            same = found.st_mtime_ns == known.mtime_ns or digest_of(name) == known.sha256
        except OSError:
            return f"{name} has gone since modules were compiled"
        if found.st_size != known.size or not same:
            return f"{name} has changed since modules were compiled"
    return build
