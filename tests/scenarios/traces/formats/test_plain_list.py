"""Plain lists of collectives in YAML and CSV: what is read, and what is refused with its line."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenarios.traces.format_registry import ReadOptions
from scenarios.traces.formats import plain_list
from scenarios.traces.formats.plain_list import FIELDS
from scenarios.traces.replay import in_order
from scenarios.traces.trace_loading import load_traces
from scenarios.traces.trace_model import (
    Collective,
    Trace,
    TraceCollective,
    TraceCompute,
    TraceReceive,
    TraceRefusal,
    TraceSend,
)
from tests.harness.traces import outcome

YAML = """\
ranks: 4
operations:
- {operation: compute, duration: 20us, ranks: 0-1, stream: 3, name: work}
- {operation: all_reduce, size: 1MiB}
- {operation: broadcast, size: 5, ranks: [2, 0], root: 0, after: work}
- {operation: send, size: 4KiB, ranks: 3 0, after: "-"}
"""
CSV = """\
operation,size,ranks,root,duration,stream,name,after
ranks,,4
# a comment
compute,,0-1,,20us,3,work
all_reduce,1MiB
broadcast,5,2 0,0,,,,work
send,4KiB,3 0,,,,,-
"""


def read(folder: Path, name: str, text: str, **options: Any) -> Trace:
    file = folder / name
    file.write_text(text)
    (trace,) = load_traces([str(file)], "", ReadOptions(**options))
    return trace


@pytest.mark.parametrize(("name", "text", "first"), [("a.yaml", YAML, 3), ("a.csv", CSV, 4)])
def test_every_field_is_read(tmp_path: Path, name: str, text: str, first: int) -> None:
    trace = read(tmp_path, name, text)
    assert trace.groups == {"all": (0, 1, 2, 3), "2,0": (2, 0)}
    work, everyone, some, got = trace.operations[0]
    assert work == TraceCompute(where=f"line {first}", name="work", duration_ns=20_000, stream=3)
    assert everyone == TraceCollective(
        where=f"line {first + 1}",
        kind=Collective.ALL_REDUCE,
        octets=2**20,
        group="all",
        after=(0,),
    )
    assert some == TraceCollective(
        where=f"line {first + 2}",
        kind=Collective.BROADCAST,
        octets=5,
        group="2,0",
        root=0,
        after=(0,),
    )
    assert got == TraceReceive(where=f"line {first + 3}", peer=3, octets=4096)
    assert trace.operations[3][-1] == TraceSend(where=f"line {first + 3}", peer=0, octets=4096)
    assert trace.operations[2][-1].after == ()  # rank 2 has no operation that is called work
    in_order(trace)


def test_groups_streams_and_splits_are_read(tmp_path: Path) -> None:
    rows = """\
    operation,size,ranks,stream,name,after,group,splits
    ranks,,4
    all_reduce,64,0-1,1,,,tp
    all_reduce,128,1 0,1,,-,dp
    all_reduce,64,,,,-,tp
    all_to_all,,0-1,,,,,0 1KiB; 8 12
    all_to_all,,0-1,,,,,0 1KiB
    delay,,,,,
    """
    text = rows.replace("    ", "").replace("delay,,,,,", "")
    trace = read(tmp_path, "a.csv", text)
    assert trace.groups == {"tp": (0, 1), "dp": (1, 0), "0,1": (0, 1)}
    for rank, parts in ((0, (0, 1024)), (1, (8, 12))):
        first, second, third, uneven, same = trace.operations[rank]
        assert isinstance(first, TraceCollective)
        assert isinstance(uneven, TraceCollective)
        assert isinstance(same, TraceCollective)
        assert second.after == (0,)  # of the same stream
        assert third.after == ()
        assert (uneven.splits, uneven.octets) == (parts, sum(parts))
        assert same.splits == (0, 1024)
    in_order(trace)


def test_splits_may_be_lists_in_yaml(tmp_path: Path) -> None:
    text = """\
ranks: 2
operations:
- {operation: all_to_all, splits: [[4, 1KiB], [0, 8]]}
- {operation: all_to_all, splits: [4, 8]}
- {operation: delay, duration: 2us}
"""
    first, second, delay = read(tmp_path, "a.yaml", text).operations[1]
    assert isinstance(first, TraceCollective)
    assert isinstance(second, TraceCollective)
    assert (first.splits, second.splits) == ((0, 8), (4, 8))
    assert delay == TraceCompute(where="line 5", after=(1,), duration_ns=2000, stream=None)


def test_the_user_may_state_the_number_of_ranks(tmp_path: Path) -> None:
    assert read(tmp_path, "a.csv", "operation,size\nall_reduce,8\n", ranks=3).ranks == 3
    with pytest.raises(TraceRefusal, match=r"it has 4 ranks, but --param ranks=3"):
        read(tmp_path, "a.csv", CSV, ranks=3)


HEAD = "operation,size,ranks,root,duration,stream,name,after\nranks,,4\n"
GROUPS = "operation,size,ranks,group,splits\nranks,,4\n"
REFUSED = {
    HEAD + "all_reduse,8\n": r"line 3: operation 'all_reduse' \(did you mean all_reduce",
    HEAD + "all_reduce\n": "line 3: it has no size; give one, such as 1MiB",
    HEAD + "all_reduce,8Q\n": "line 3: size: '8Q' has the unknown unit",
    HEAD + "compute,8,,,1us\n": "line 3: a compute has no size; leave it out",
    HEAD + "compute,,,,20\n": "line 3: duration: '20' has no unit",
    HEAD + "all_reduce,8,0-4\n": "line 3: ranks 0-4 are not among 0 to 3",
    HEAD + "all_reduce,8,0 0\n": "line 3: ranks '0 0' name one twice",
    HEAD + "all_reduce,8,0-x\n": "line 3: ranks '0-x' are none",
    HEAD + "send,8,0 1 2\n": "line 3: ranks of a send are its source and destination",
    HEAD + "barrier,,,,,,,b\n": "line 3: no row before this one has the name 'b'",
    HEAD + "barrier,,,,,,a\nbarrier,,,,,,a\n": "line 4: the name 'a' is given twice",
    HEAD + "reduce,8,,9\n": "line 3: root is 9; it lies in 0 to 3",
    GROUPS + "all_reduce,8,0-1,dp\nall_reduce,8,1 0,dp\n": "line 4: group 'dp' has other ranks",
    GROUPS + "all_reduce,8,0-1,all\n": "line 3: 'all' is no name of a group; take a word",
    GROUPS + "send,8,0 1,dp\n": "line 3: a send has no group",
    GROUPS + "all_reduce,8,,,1\n": "line 3: a all_reduce has no splits",
    GROUPS + "all_to_all,8,,,1 2 3 4\n": "line 3: it has splits, which are its size",
    GROUPS + "all_to_all,,,,1 2 3\n": "line 3: splits are a list of 4 sizes for each of the 4",
    GROUPS + "all_to_all,,0-1,,1 2; 3\n": "line 3: splits are a list of 2 sizes",
    GROUPS + "all_to_all,,0-1,,1 2x\n": "line 3: splits: '2x' has the unknown unit",
    HEAD + "delay,,,,1us,3\n": "line 3: a delay has no stream",
    HEAD + "all_reduce,8,,,,x\n": "line 3: stream 'x' is not a whole number",
    HEAD + ",,,,,,,,,,\nall_reduce,8,,,,,,,9,9\n": "more than 8 columns",
    "operation,size\nall_reduce,8\n": "line 1: '' is not the number of ranks",
    "operation,size,ranks\nranks,,99999999\n": "there are 99999999 ranks",
    "operation,sizes\n": r"line 1: there is no field 'sizes' \(did you mean size",
    "operation,operation\n": "two columns have the same name",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: REFUSED[text][:30])
def test_csv_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceRefusal, match=REFUSED[text]):
        read(tmp_path, "a.csv", text)


YAML_REFUSED = {
    "operations: 5\n": "line 1: '' is not the number of ranks",
    "ranks: 2\noperations: 5\n": "line 2: operations is no list",
    "ranks: 2\noperations:\n- 7\n": "line 3: not a mapping",
    "ranks: 2\noperations:\n- {operation: {a: b}}\n": "line 3: operation is a mapping",
    "ranks: 2\noperation: 1\noperations: [1]\n": "line 2: there is no key 'operation'",
    "ranks: 2\noperations: [\n": "line 3: not YAML",
    "operations: " + "[" * 100: "line 1: more than 64 brackets",
    "operations:\n" + "# " + "x" * 70_000: "line 1: longer than 65536 characters; a longer list",
}


@pytest.mark.parametrize("text", YAML_REFUSED, ids=lambda text: YAML_REFUSED[text][:30])
def test_yaml_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceRefusal, match=YAML_REFUSED[text]):
        read(tmp_path, "a.yaml", text)


def test_a_list_that_is_too_long_is_refused_before_its_rows_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 20_000
    monkeypatch.setattr(plain_list, "MOST_OPERATIONS", rows)
    text = HEAD + "barrier\n" * (rows + 1)
    tracemalloc.start()
    try:
        with pytest.raises(TraceRefusal, match=f"line {rows + 3}: more than {rows} rows"):
            read(tmp_path, "a.csv", text)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 12 * len(text)  # the text in several forms, and no object for each row


CELLS = st.sampled_from(
    [
        *("", "send", "all_gather", "compute", "barrier", "reduce", "8", "1us", "0 1", "0-3"),
        *("a", '"', "all_to_all", "delay", "0 1; 2 3", "all", "1 2 3 4"),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.lists(CELLS, max_size=10), max_size=6))
def test_any_cells_are_a_trace_or_one_sentence(tmp_path: Path, rows: list[list[str]]) -> None:
    text = ",".join(FIELDS) + "\nranks,,4\n" + "\n".join(",".join(row) for row in rows)
    assert "\n" not in outcome(lambda: in_order(read(tmp_path, "a.csv", text)))


def test_a_csv_of_aicb_is_named() -> None:
    path = Path(__file__).parents[3] / "data" / "traces" / "aicb.csv"
    with pytest.raises(TraceRefusal, match=r"line 1: a CSV of AICB .* give the \.txt"):
        load_traces([str(path)], "", ReadOptions())
