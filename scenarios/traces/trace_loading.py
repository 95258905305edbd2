"""Files named by a user, as traces."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

from emulator.errors import UserError
from scenarios.traces.format_registry import (
    FACTS,
    FORMATS,
    Reader,
    ReadOptions,
    TraceFormat,
    format_of,
    named,
)
from scenarios.traces.trace_file import TraceFile
from scenarios.traces.trace_model import Trace, TraceRefusal
from topologies.garbage import uncollected
from topologies.parts.design_parameters import TextKind


def load_traces(paths: Sequence[str], form: str, options: ReadOptions) -> list[Trace]:
    """Return the trace of each file, or one of all that are one rank's each.

    ``form`` names their format, if their names do not.
    """
    if not paths:
        raise TraceRefusal(
            "no trace is given; write for example uetemu run trace step.goal, or trace.*.et"
        )
    stamps = tuple(_stamp(Path(path)) for path in paths)
    return _load(tuple(paths), stamps, form, options)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise TraceRefusal(
            f"{path} cannot be read ({error.strerror}); give the path of a trace"
        ) from None
    if not path.is_file():
        raise TraceRefusal(f"{path} is no file; name the files in it")
    return found.st_size, found.st_mtime_ns


@lru_cache(maxsize=4)
def _load(
    paths: tuple[str, ...], stamps: tuple[tuple[int, int], ...], form: str, options: ReadOptions
) -> list[Trace]:
    files = [TraceFile(Path(path)) for path in paths]
    chosen = [named(form) if form else format_of(file) for file in files]
    files = [
        TraceFile(file.path, one.weight, options.unpacked)
        for file, one in zip(files, chosen, strict=True)
    ]
    readers: list[Reader] = []
    for file, one in zip(files, chosen, strict=True):
        if one.read is None:
            raise TraceRefusal(f"{file.name}: {one.name} is written only; give another file")
        readers.append(one.read)
    for name in FACTS:
        stated = getattr(options, name) != getattr(ReadOptions, name)
        if stated and all(name not in one.facts for one in chosen):
            takers = ", ".join(one.name for one in FORMATS.values() if name in one.facts)
            raise TraceRefusal(
                f"{name} changes nothing for {files[0].name}, whose format is {chosen[0].name}; "
                f"leave it out (it is for {takers})"
            )
    with uncollected():
        return _read(files, chosen, readers, options)


def _read(
    files: Sequence[TraceFile],
    chosen: Sequence[TraceFormat],
    readers: Sequence[Reader],
    options: ReadOptions,
) -> list[Trace]:
    traces: list[Trace] = []
    together: dict[Reader, list[TraceFile]] = defaultdict(list)
    for file, one, read in zip(files, chosen, readers, strict=True):
        if one.per_rank:
            together[read].append(file)
        else:
            traces.append(read([file], options))
    return traces + [read(parts, options) for read, parts in together.items()]


_FACTOR = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?(/[1-9][0-9]{0,8})?")


@dataclass(frozen=True)
class FactorKind:
    """A kind of parameter by which something is multiplied."""

    name: str

    def read(self, field: str, value: str) -> float:
        """Return ``value`` as a number.  UserError if it is none."""
        if _FACTOR.fullmatch(value) is None:
            raise UserError(f"{field} is {value!r}; write a factor such as 0.5, 1/8 or 2")
        number, _, divisor = value.partition("/")
        return float(Fraction(number) / int(divisor or 1))


PATH, WORD, FACTOR = TextKind("path"), TextKind("word"), FactorKind("factor")
