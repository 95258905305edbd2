"""Notes of a script's ranks as a trace."""

import json
from pathlib import Path
from typing import Any

import pytest

from emulator.errors import UserError
from scenarios.traces.format_registry import ReadOptions
from scenarios.traces.recording import chosen_steps, read_notes, trace_of, write_recording
from scenarios.traces.trace_loading import load_traces
from scenarios.traces.trace_model import (
    Collective,
    TraceCollective,
    TraceCompute,
    TraceReceive,
    TraceRefusal,
    TraceSend,
)


def note(kind: str, octets: int = 8, *after: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "octets": octets, "after": list(after), "name": "train.py:3", **more}


def notes(rank: int, *operations: dict[str, Any], ranks: int = 2, **groups: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "ranks": ranks,
        "groups": {"world": list(range(ranks)), **groups},
        "operations": list(operations),
        "families": None,
    }


COMPUTE = {"kind": "compute", "flops": 6_000_000, "after": []}
WORLD: dict[str, Any] = {"group": "world"}


def test_notes_become_operations_and_flops_become_time() -> None:
    lists = [
        [
            COMPUTE,
            note("all_to_all", 12, 0, splits=[4, 8], **WORLD),
            note("broadcast", 8, 0, root=1, **WORLD),
            note("send" if rank == 0 else "recv", 8, 1, peer=1 - rank, tag=2**31 + 5, **WORLD),
        ]
        for rank in range(2)
    ]
    trace = trace_of([notes(rank, *one) for rank, one in enumerate(lists)], "step.csv", 400)
    compute, parts, root, message = trace.operations[0]
    assert compute == TraceCompute(where="operation 0", duration_ns=15)
    assert isinstance(parts, TraceCollective)
    assert (parts.kind, parts.splits, parts.after) == (Collective.ALL_TO_ALL, (4, 8), (0,))
    assert isinstance(root, TraceCollective)
    assert (root.root, root.where, root.name) == (1, "train.py:3", "train.py:3")
    assert isinstance(message, TraceSend)
    assert (message.peer, message.tag) == (1, 5)
    assert isinstance(trace.operations[1][3], TraceReceive)
    assert trace.groups == {"world": (0, 1)}


def test_steps_are_chosen_and_nothing_waits_for_what_was_before(tmp_path: Path) -> None:
    steps = [note("barrier", 0, *after, step=step, **WORLD)
             for step, after in ((0, ()), (1, (0,)), (1, (0, 1)), (2, (2,)))]  # fmt: skip
    for rank in range(2):
        (tmp_path / f"{rank}.json").write_text(json.dumps(notes(rank, *steps)))
    path = tmp_path / "step.csv"
    write_recording(str(tmp_path), str(path), 400, chosen_steps("2-3"))
    (trace,) = load_traces([str(path)], "", ReadOptions())
    assert [one.after for one in trace.operations[1]] == [(), (0,), (1,)]
    write_recording(str(tmp_path), str(path), 400, chosen_steps("1"))
    assert path.read_text().count("barrier") == 1
    with pytest.raises(UserError, match="rank 0 did nothing in steps 4 to 4; it has steps 1 to 3"):
        write_recording(str(tmp_path), str(path), 400, chosen_steps("4"))


@pytest.mark.parametrize("text", ["", "0", "2-1", "x", "1-2-3", "-1"])
def test_steps_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--record-steps is .*; write a step or a range"):
        chosen_steps(text)


def fake(*operations: dict[str, Any], families: list[list[int]], **groups: Any) -> dict[str, Any]:
    return notes(0, *operations, ranks=8, **groups) | {"families": families}


ROWS = [[0, 1, 2, 3], [4, 5, 6, 7]]
COLUMNS = [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_one_rank_stands_for_all_in_the_groups_of_each() -> None:
    one = fake(
        COMPUTE,
        note("all_gather", 16, group="rows"),
        note("broadcast", 16, root=4, group="columns"),
        note("barrier", 0, group="world"),
        families=[*ROWS, *COLUMNS],
        rows=[0, 1, 2, 3],
        columns=[0, 4],
    )
    trace = trace_of([one], "step.csv", 400)
    assert trace.ranks == 8
    _, row, column, world = trace.operations[6]
    assert isinstance(row, TraceCollective)
    assert isinstance(column, TraceCollective)
    assert isinstance(world, TraceCollective)
    assert trace.groups[row.group] == (4, 5, 6, 7)
    assert (trace.groups[column.group], column.root) == ((2, 6), 6)
    assert world.group == "world"


def test_what_one_rank_does_not_tell_of_others_is_refused() -> None:
    alone = fake(note("barrier", 0, group="own"), families=[[0, 1]], own=[0, 1])
    with pytest.raises(UserError, match="nothing says in which group rank 2 does what rank 0 does"):
        trace_of([alone], "step.csv", 400)
    with pytest.raises(UserError, match=r"train\.py:3 has a message to one rank"):
        trace_of([fake(note("send", peer=1, tag=0, **WORLD), families=[])], "step.csv", 400)


def test_ranks_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    pair = [notes(0, note("barrier", g=0, **WORLD)), notes(1, g=[1])]
    pair[0]["groups"]["g"] = [0]
    with pytest.raises(UserError, match="rank 1 has other ranks in its group 'g'"):
        trace_of(pair, "step.csv", 400)
    for rank, operations in enumerate(([note("barrier", 0, **WORLD)], [])):
        (tmp_path / f"{rank}.json").write_text(json.dumps(notes(rank, *operations)))
    with pytest.raises(TraceRefusal, match=r"train\.py:3 \(rank 0\): rank 1 of group 'world'"):
        write_recording(str(tmp_path), str(tmp_path / "step.csv"), 400)


def test_a_rank_without_notes_is_named(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(json.dumps(notes(1)))
    with pytest.raises(UserError, match="rank 0 has left no notes"):
        read_notes(tmp_path)
    with pytest.raises(UserError, match="rank 0 has left no notes"):
        read_notes(tmp_path / "empty")


def test_a_file_for_each_rank_is_written(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"{rank}.json").write_text(json.dumps(notes(rank, note("barrier", **WORLD))))
    written = write_recording(str(tmp_path), str(tmp_path / "step.et"), 400)
    assert [Path(one).name for one in written] == ["step.0.et", "step.1.et"]
