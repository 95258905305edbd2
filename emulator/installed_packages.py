"""Installed packages by the folders of their metadata, which takes less than to import a reader.

``importlib.metadata`` reads more, such as archives and what other finders know.  Where there are
such, it is asked.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder

#: How a folder of metadata ends, and its file with the version.
_FOLDERS = {".dist-info": "METADATA", ".egg-info": "PKG-INFO"}


def version_of(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    return versions_of([package])[package]


def versions_of(packages: Sequence[str]) -> dict[str, str | None]:
    """Return the version of each of ``packages``, None for those that are not installed."""
    found: dict[str, str | None] = {}
    wanted = {_normal(package): package for package in packages}
    for name, folder in _folders():
        package = wanted.get(name)
        if package is not None and package not in found:
            found[package] = _version_in(folder)
    return {one: found[one] if found.get(one) else _asked(one) for one in packages}


def may_have_entry_points(group: str) -> bool:
    """Return whether an installed package can have entry points of ``group``."""
    if _others_know():
        return True
    return any(group.encode() in _read(f"{folder}/entry_points.txt") for _, folder in _folders())


def _others_know() -> bool:
    """Return whether there are packages that have no folder here."""
    finders = (one for one in sys.meta_path if one is not PathFinder)
    return any(hasattr(one, "find_distributions") for one in finders) or any(
        os.path.isfile(path) for path in sys.path
    )


def _asked(package: str) -> str | None:
    if not _others_know():
        return None
    from importlib.metadata import PackageNotFoundError, version  # seldom needed

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _folders() -> Iterator[tuple[str, str]]:
    """Yield the name of each package, as :func:`_normal` has it, and its folder of metadata."""
    for path in sys.path:
        try:
            entries = sorted(os.listdir(path or "."))
        except OSError:  # as an import passes over it
            continue
        for entry in entries:
            stem, ending = os.path.splitext(entry)
            if ending in _FOLDERS:
                yield _normal(stem.partition("-")[0]), f"{path or '.'}/{entry}"


def _version_in(folder: str) -> str | None:
    file = f"{folder}/{_FOLDERS[os.path.splitext(folder)[1]]}"
    content = _read(file) or _read(folder)  # old ones are a file themselves
    for line in content.partition(b"\n\n")[0].splitlines():
        if line.lower().startswith(b"version:"):
            return line.partition(b":")[2].strip().decode()
    return None


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()
