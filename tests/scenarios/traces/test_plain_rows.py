"""Traces as plain lists: what is written is read as the same."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given

from scenarios.traces.format_registry import FORMATS, ReadOptions
from scenarios.traces.plain_rows import text_rows
from scenarios.traces.replay import in_order
from scenarios.traces.trace_loading import load_traces
from scenarios.traces.trace_model import (
    Collective,
    Trace,
    TraceCollective,
    TraceCompute,
    TraceOperation,
    TraceReceive,
    TraceRefusal,
    TraceSend,
)
from tests.harness.examples import examples
from tests.harness.traces import jobs, ran


def again(trace: Trace, suffix: str) -> Trace:
    """Return ``trace`` as it is read from what is written of it."""
    write = FORMATS[suffix].write
    assert write is not None
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"again.{suffix}"
        path.write_bytes(write(ran(trace))[""])
        (found,) = load_traces([str(path)], "", ReadOptions())
    return found


def facts(trace: Trace, rank: int) -> dict[str, tuple[object, set[str]]]:
    """Return what each named operation of ``rank`` is, and all that it waits for.

    A receive may be two rows, the message and what it waits for.
    """
    found: dict[str, tuple[object, set[str]]] = {}
    behind: dict[int, set[str]] = {}
    operations = trace.operations[rank]

    def waits(index: int) -> set[str]:
        if index not in behind:
            behind[index] = set()
            for one in operations[index].after:
                behind[index] |= waits(one) | {operations[one].name.split("#")[0]}
        return behind[index]

    for index, one in enumerate(operations):
        name = one.name.split("#")[0]
        if name and not name.startswith("row"):
            kind, others = found.get(name, (None, set()))
            found[name] = kind or what(trace, one), others | waits(index)
    return {
        name: (kind, {one for one in others if one and not one.startswith("row")} - {name})
        for name, (kind, others) in found.items()
    }


def what(trace: Trace, one: TraceOperation) -> object:
    match one:
        case TraceCompute():
            return "compute", one.duration_ns, one.stream
        case TraceSend() | TraceReceive():
            return type(one), one.peer, one.octets
        case TraceCollective():
            members = len(trace.groups[one.group])
            splits = one.splits
            if one.kind is Collective.ALL_TO_ALL and not splits:
                splits = (one.octets // members,) * members
            octets = 0 if one.kind is Collective.BARRIER else one.octets
            return one.kind, octets, trace.groups[one.group], one.root, splits
    raise TypeError(one)


@examples(100)
@given(jobs())
def test_any_job_is_read_as_it_was_written(trace: Trace) -> None:
    for suffix in ("csv", "yaml"):
        found = again(trace, suffix)
        in_order(found)
        assert found.ranks == trace.ranks
        for rank in range(trace.ranks):
            assert facts(found, rank) == facts(trace, rank)


def reduced(**more: Any) -> TraceCollective:
    given: dict[str, Any] = {"kind": Collective.ALL_REDUCE, "octets": 64, "group": "all"} | more
    return TraceCollective(where="a", **given)


def test_a_job_of_equal_ranks_is_a_row_for_each_step() -> None:
    lists = [
        [
            TraceCompute(where="a", duration_ns=5, name="forward"),
            reduced(after=(0,)),
            reduced(after=(0, 1), group="dp", name="train.py:3"),
            reduced(after=(1,), group="dp", name="train.py:3"),
        ]
        for _ in range(4)
    ]
    trace = Trace("t", tuple(lists), {"all": (0, 1, 2, 3), "dp": (0, 1, 2, 3)})
    assert text_rows(trace) == [
        {"operation": "compute", "duration": "5ns", "name": "forward"},
        {"operation": "all_reduce", "size": "64", "name": "row1"},
        {
            "operation": "all_reduce",
            "size": "64",
            "name": "train.py:3",
            "after": "forward row1",
            "group": "dp",
        },
        {
            "operation": "all_reduce",
            "size": "64",
            "name": "train.py:3#2",
            "after": "row1",
            "group": "dp",
        },
    ]


def test_ranks_that_exchange_messages_wait_for_their_own_alone() -> None:
    lists = [
        [TraceSend(where="a", peer=1 - rank, octets=8), TraceReceive(where="b", peer=1 - rank,
                                                                     octets=8, after=(0,))]
        for rank in range(2)
    ]  # fmt: skip
    rows = text_rows(Trace("t", tuple(lists)))
    assert [row["operation"] for row in rows] == ["send", "delay", "send", "delay"]
    assert [row["ranks"] for row in rows] == ["0 1", "0", "1 0", "1"]


def test_a_group_whose_name_a_reader_would_make_up_has_another() -> None:
    trace = Trace("t", ([reduced(group="1")], [reduced(group="1")]), {"1": (0, 1)})
    assert text_rows(trace)[0]["group"] == "group 1"
    assert again(trace, "csv").groups == {"group 1": (0, 1)}


def test_yaml_that_would_be_too_long_is_refused() -> None:
    trace = Trace("t", ([reduced()] * 2000, [reduced()] * 2000), {"all": (0, 1)})
    with pytest.raises(TraceRefusal, match=r"as YAML, and 65536 can be read; write it as \.csv"):
        again(trace, "yaml")
