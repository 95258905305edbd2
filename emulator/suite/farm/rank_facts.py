"""Facts that ranks must share for equal results: the program, and the files that commands name."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import emulator
from emulator.installed_packages import version_of
from emulator.suite.farm.messages import Greeting

_ROOT = Path(emulator.__file__).parents[1]
_PACKAGES = ("scenarios", "emulator", "uet", "topologies")
_SUFFIXES = frozenset({".py", ".c", ".h", ".j2"})


def facts_of(words: Sequence[str]) -> Greeting:
    """Return this rank's greeting, given the words of its command."""
    return Greeting(
        machine=socket.gethostname(),
        program=program_digest(),
        files=named_files(words),
        processors=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
    )


def program_digest() -> str:
    """Return the SHA-256 of the version and of all sources of this program."""
    total = hashlib.sha256(f"{version_of('uetemu')}\n".encode())
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*")):
            if path.suffix in _SUFFIXES and path.is_file():
                total.update(f"{path.relative_to(_ROOT)}\n".encode())
                total.update(path.read_bytes())
    return total.hexdigest()


def named_files(words: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of each file that ``words`` name, alone or behind an equals sign."""
    found = {}
    for word in words:
        for name in (word, *word.partition("=")[2].split(",")):
            path = Path(name)
            if name and path.is_file():
                with path.open("rb") as stream:
                    found[name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def difference(own: Greeting, other: Greeting, rank: int) -> str | None:
    """Return why ``rank`` would not measure what rank 0 (``own``) measures; None if it would."""
    where = f"rank {rank} on {other.machine}"
    if other.trouble is not None:
        return f"{where}: {other.trouble}"
    if other.program != own.program:
        return (
            f"{where} has other sources of uetemu than rank 0 on {own.machine}; install the same "
            "version on all machines"
        )
    return _differing_file(own.files, other.files, where)


def _differing_file(own: Mapping[str, str], other: Mapping[str, str], where: str) -> str | None:
    for name, digest in own.items():
        if other.get(name) != digest:
            has = "another" if name in other else "no"
            return f"{where} has {has} file {name}; copy that of rank 0 to the same path there"
    return None
