"""The trace formats by name, and the choice of one for a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scenarios.traces.trace_file import TraceFile
from scenarios.traces.trace_model import Trace, TraceRefusal, TraceRun
from topologies.advice import meant
from topologies.registry import Registry


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Facts that a user states about a file; ``ranks`` 0: the file states them.

    ``timeless``: computations take no time, so that a file need not state their durations.
    ``groups`` is the path of the file with the ranks of each group.  ``root`` is the position of
    the root in its group.  ``gathered`` is what sizes of all-gathers mean: ``whole`` or ``part``,
    if it is stated.  ``unpacked`` is the bound of a file's content (octets; 0: what memory and
    ratio allow).
    ``ctrl_deps``: operations wait for these, too.
    """

    ranks: int = 0
    groups: str = ""
    timeless: bool = False
    root: int | None = None
    gathered: str = "unstated"
    unpacked: int = 0
    ctrl_deps: bool = False


#: A reader makes one trace of the files of all ranks, or of the one file that has them all.
Reader = Callable[[Sequence[TraceFile], ReadOptions], Trace]
#: A writer makes the contents of files, by what is put before the suffix of the given name.
Writer = Callable[[TraceRun], Mapping[str, bytes]]


@dataclass(frozen=True, kw_only=True)
class TraceFormat:
    """A format by ``name``; ``suffixes`` of files choose it, and among several ``recognises``.

    ``recognises`` is given the first octets of a file; ``begins`` says what it looks for.
    ``facts`` are those of :class:`ReadOptions` that its files may leave to the user.  ``per_rank``:
    each rank has a file.  Its reader takes about ``weight`` octets of memory for
    each octet of a file.
    """

    name: str
    meaning: str
    suffixes: tuple[str, ...]
    recognises: Callable[[bytes], bool]
    begins: str = "is of any content"
    read: Reader | None = None
    write: Writer | None = None
    facts: tuple[str, ...] = ()
    per_rank: bool = False
    weight: int = 40


#: Facts that files of some formats leave to the user.
FACTS = ("ranks", "groups", "root", "gathered", "ctrl_deps")
FORMATS: Registry[TraceFormat] = Registry("trace format", "scenarios.traces.formats")


def named(name: str) -> TraceFormat:
    """Return the format called ``name``; TraceRefusal if there is none."""
    if name not in FORMATS:
        raise TraceRefusal(
            f"there is no trace format {name!r}{meant(name, FORMATS)}; known are "
            f"{', '.join(FORMATS)}"
        )
    return FORMATS[name]


def format_of(file: TraceFile) -> TraceFormat:
    """Return the format of ``file``, by its suffix and what it begins with."""
    readers = [one for one in FORMATS.values() if one.read is not None]
    named_so = [one for one in readers if file.has_suffix(one.suffixes)]
    chosen = [one for one in named_so if one.recognises(file.head)]
    if len(chosen) == 1:
        return chosen[0]
    if not named_so:
        suffixes = sorted({suffix for one in readers for suffix in one.suffixes})
        raise TraceRefusal(
            f"{file.name} has no suffix of a trace; known are {', '.join(suffixes)}: rename it, or "
            "say what it is with --param format=NAME"
        )
    if chosen:
        names = ", ".join(one.name for one in chosen)
        raise TraceRefusal(
            f"{file.name} could be any of {names}; say what it is with --param format=NAME"
        )
    due = ", or ".join(f"{one.meaning} ({one.begins})" for one in named_so)
    binary = "is binary and " if _is_binary(file.head) else ""
    raise TraceRefusal(
        f"{file.name} {binary}does not begin as its name says: {due}; say what it is with "
        "--param format=NAME, or give another file"
    )


def _is_binary(head: bytes) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # else the head ends within a character
            return True
    return b"\0" in head


def writer_of(path: Path) -> tuple[str, Writer]:
    """Return the suffix of ``path``, and the writer of the format that it names."""
    known = []
    for one in FORMATS.values():
        if one.write is not None:
            for suffix in one.suffixes:
                if path.name.endswith(suffix):
                    return suffix, one.write
            known.append(f"{one.name} ({', '.join(one.suffixes)})")
    raise TraceRefusal(f"{path} cannot be written: name a file of one of {', '.join(known)}")
