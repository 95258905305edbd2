"""Traces of PyTorch scripts, from the notes that ``uetemu torchrun --record`` takes of each rank.

Notes are those of :mod:`emulator.torch_backend.recorder`: collectives and messages with their
octets, FLOPs between them, and what waits for what.  A computation takes its FLOPs at a given rate.

Ranks whose tensors are fake have one rank's notes: all ranks do the same, each in its own groups.
The groups of another rank are among those that the script has made (``families``) next to each
other, of as many ranks and with none in two of them, as the rows or the columns of a mesh are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator.errors import UserError
from emulator.whole_file import write_whole
from scenarios.traces.format_registry import writer_of
from scenarios.traces.replay import in_order
from scenarios.traces.trace_model import (
    Collective,
    Trace,
    TraceCollective,
    TraceCompute,
    TraceOperation,
    TraceReceive,
    TraceRun,
    TraceSend,
)

Notes = Mapping[str, Any]
#: Suffixes of formats that have collectives, groups and computations.
_SUFFIXES = (".csv", ".yaml", ".yml", ".et")
#: Chakra's tags are numbers of 32 bits, with a sign.
_MOST_TAG = 2**31 - 1


def check_destination(path: str) -> None:
    """Raise UserError unless a recording can be written into ``path``."""
    if not path.endswith(_SUFFIXES):
        raise UserError(
            f"{path} cannot be written: a recording is a file of {', '.join(_SUFFIXES)}, of which "
            "uetemu run trace FILE --param write=PATH makes others"
        )
    if not Path(path).parent.is_dir():
        raise UserError(f"{path} cannot be written: there is no folder {Path(path).parent}")


def chosen_steps(text: str | None) -> range | None:
    """Return the steps that ``text`` names, from 1 on; UserError if it names none."""
    if text is None:
        return None
    first, _, last = text.partition("-")
    last = last or first
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) < 10**9):
        raise UserError(f"--record-steps is {text!r}; write a step or a range, such as 3 or 2-4")
    return range(int(first), int(last) + 1)


def write_recording(folder: str, path: str, tflops: float, steps: range | None = None) -> list[str]:
    """Write the notes in ``folder`` as the trace ``path``, in the format of its suffix.

    Computing takes its FLOPs at ``tflops`` (10^12 FLOPs a second).  Of ``steps`` alone, if given.
    Returns the files written.
    """
    notes = read_notes(Path(folder))
    if steps is not None:
        notes = [_within(one, steps) for one in notes]
    trace = trace_of(notes, Path(path).name, tflops)
    in_order(trace)
    suffix, write = writer_of(Path(path))
    stem = Path(path).name.removesuffix(suffix)
    run = TraceRun(trace=trace, messages=trace, collectives=(), servers=(), origin_us=0)
    written = []
    for part, content in write(run).items():
        file = Path(path).with_name(f"{stem}{part}{suffix}")
        write_whole(file, content)
        written.append(str(file))
    return written


def read_notes(folder: Path) -> list[Notes]:
    """Return the notes of each rank, in their order; UserError if a rank has left none."""
    found = {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}
    ranks = max((one["ranks"] for one in found.values()), default=1)
    if found and found[min(found)]["families"] is not None:
        return [found[min(found)]]
    missing = [rank for rank in range(ranks) if rank not in found]
    if missing:
        raise UserError(
            f"rank {missing[0]} has left no notes of what it did; let each rank end by itself, not "
            "by os._exit"
        )
    return [found[rank] for rank in range(ranks)]


def _within(notes: Notes, steps: range) -> Notes:
    """Return ``notes`` of ``steps`` alone; nothing waits for what was before."""
    kept: dict[int, int] = {}
    operations: list[Notes] = []
    for number, one in enumerate(notes["operations"]):
        if one["step"] + 1 in steps:
            kept[number] = len(operations)
            after = [kept[earlier] for earlier in one["after"] if earlier in kept]
            operations.append({**one, "after": after})
    if not operations:
        last = max((one["step"] + 1 for one in notes["operations"]), default=1)
        raise UserError(
            f"rank {notes['rank']} did nothing in steps {steps[0]} to {steps[-1]}; it has steps 1 "
            f"to {last}"
        )
    return {**notes, "operations": operations}


def trace_of(notes: Sequence[Notes], name: str, tflops: float) -> Trace:
    """Return what the ranks with ``notes`` have done, with FLOPs at ``tflops``, as a trace."""
    if notes[0]["families"] is not None:
        notes = [_as_rank(notes[0], rank) for rank in range(notes[0]["ranks"])]
    groups: dict[str, tuple[int, ...]] = {}
    for one in notes:
        for group, ranks in one["groups"].items():
            if groups.setdefault(group, tuple(ranks)) != tuple(ranks):
                raise UserError(
                    f"rank {one['rank']} has other ranks in its group {group!r} than a rank before "
                    "it; let all ranks make their groups in the same order"
                )
    return Trace(name, tuple(_operations(one, tflops) for one in notes), groups)


def _operations(notes: Notes, tflops: float) -> list[TraceOperation]:
    found: list[TraceOperation] = []
    for number, note in enumerate(notes["operations"]):
        common: dict[str, Any] = {
            "where": note.get("name") or f"operation {number}",
            "name": note.get("name", ""),
            "after": tuple(note["after"]),
        }
        kind = note["kind"]
        if kind == "compute":
            duration_ns = round(note["flops"] / (tflops * 1000))
            found.append(TraceCompute(**common, duration_ns=duration_ns))
        elif kind in ("send", "recv"):
            message = TraceSend if kind == "send" else TraceReceive
            tag = note["tag"] & _MOST_TAG
            found.append(message(**common, peer=note["peer"], octets=note["octets"], tag=tag))
        else:
            one = Collective(kind)
            found.append(
                TraceCollective(
                    **common,
                    kind=one,
                    octets=note["octets"],
                    group=note["group"],
                    root=note.get("root") if one.rooted else None,
                    splits=tuple(note.get("splits", ())),
                )
            )
    return found


def _as_rank(notes: Notes, rank: int) -> Notes:
    """Return ``notes`` of one rank as those of another, in the groups of that one."""
    names, groups, own = {}, {}, notes["rank"]
    for name, ranks in notes["groups"].items():
        theirs = _counterpart(notes["families"], ranks, own, rank, notes["ranks"])
        names[name] = name if theirs == ranks else f"{name}@{theirs[0]}"
        groups[names[name]] = theirs
    operations = []
    for note in notes["operations"]:
        changed = dict(note)
        if "group" in note:
            ranks, theirs = notes["groups"][note["group"]], groups[names[note["group"]]]
            changed["group"] = names[note["group"]]
            if "peer" in note:
                raise UserError(
                    f"{note['name']} has a message to one rank, and --fake takes all ranks for "
                    "equal; record it without --fake"
                )
            if "root" in note:
                changed["root"] = theirs[ranks.index(note["root"])]
        operations.append(changed)
    return {**notes, "rank": rank, "groups": groups, "operations": operations, "families": None}


def _counterpart(
    families: Sequence[Sequence[int]], ranks: list[int], own: int, rank: int, world: int
) -> list[int]:
    """Return the group in which ``rank`` is what ``own`` is in that of ``ranks``."""
    if rank in ranks and len(ranks) == world:
        return ranks
    after_own: list[list[int]] = []
    for place, members in enumerate(families):
        if list(members) == ranks:
            # A family is made at one place of the script: groups of one size that share no rank.
            after_own = [list(one) for one in _family(families, place)]
    for one in after_own:
        if rank in one:
            return one
    raise UserError(
        f"nothing says in which group rank {rank} does what rank {own} does in {ranks[:8]}; make "
        "the groups of all ranks, as init_device_mesh does, or record without --fake"
    )


def _family(families: Sequence[Sequence[int]], place: int) -> list[Sequence[int]]:
    """Return the groups around ``place`` that have as many ranks and share none."""
    found = [families[place]]
    taken = set(families[place])
    for step in (-1, 1):
        at = place + step
        while 0 <= at < len(families):
            one = families[at]
            if len(one) != len(families[place]) or taken & set(one):
                break
            found.append(one)
            taken |= set(one)
            at += step
    return found
