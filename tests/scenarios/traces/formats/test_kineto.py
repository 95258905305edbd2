"""Kineto traces: collectives of kernels, and what is refused with its event."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenarios.traces.format_registry import ReadOptions
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


def kernel(name: str = "allreduce", ts: object = 100, dur: object = 10, **more: Any) -> Any:
    arguments: dict[str, Any] = {
        "Collective name": name,
        "In msg nelems": 8,
        "Out msg nelems": 16,
        "dtype": "BFloat16",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "stream": 7,
    }
    arguments.update({key.replace("_", " "): value for key, value in more.items()})
    named = "ncclDevKernel_X(ncclDevKernelArgsStorage<4096ul>)"
    return {"ph": "X", "cat": "kernel", "name": named, "ts": ts, "dur": dur, "args": arguments}


def content(rank: int, *events: Any, world: int = 2) -> dict[str, Any]:
    return {
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "traceEvents": [{"ph": "M", "name": "process_name"}, *events],
    }


def read(folder: Path, *files: object, **options: Any) -> Trace:
    paths = []
    for number, one in enumerate(files):
        path = folder / f"rank{number}.json"
        path.write_text(json.dumps(one))
        paths.append(str(path))
    (trace,) = load_traces(paths, "", ReadOptions(**options))
    return trace


def both(folder: Path, *events: Any, **options: Any) -> Trace:
    return read(folder, content(1, *events), content(0, *events), **options)


def test_collectives_of_a_stream_follow_each_other(tmp_path: Path) -> None:
    work = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 90.5, "dur": 5, "args": {}}
    later = kernel("_allgather_base", ts=125.25, dur=4)
    beside = kernel("_reduce_scatter_base", ts=120, dur=4, stream=8)
    trace = both(tmp_path, work, later, kernel(), beside)
    group = "0:0,1"
    assert trace.groups == {group: (0, 1)}
    assert trace.operations[0] == [
        TraceCompute(where="event 3", duration_ns=9500, stream=7),
        TraceCollective(
            where="event 3",
            name="allreduce",
            after=(0,),
            kind=Collective.ALL_REDUCE,
            octets=16,
            group=group,
            recorded_ns=10_000,
        ),
        TraceCompute(where="event 4", duration_ns=29_500, stream=8),
        TraceCollective(
            where="event 4",
            name="_reduce_scatter_base",
            after=(2,),
            kind=Collective.REDUCE_SCATTER,
            octets=16,
            group=group,
            recorded_ns=4000,
        ),
        TraceCompute(where="event 2", after=(1,), duration_ns=15_250, stream=7),
        TraceCollective(
            where="event 2",
            name="_allgather_base",
            after=(4,),
            kind=Collective.ALL_GATHER,
            octets=32,
            group=group,
            recorded_ns=4000,
        ),
    ]
    in_order(trace)


def test_peers_are_ranks_of_their_group(tmp_path: Path) -> None:
    group = {"Process_Group_Name": "5", "Process_Group_Ranks": "[3, 1]"}
    files = [content(rank, world=4) for rank in range(4)]
    files[1]["traceEvents"].append(kernel("send", **group, Dst_Rank=0))
    files[3]["traceEvents"].append(kernel("recv", **group, Src_Rank=1, Out_msg_nelems=8))
    trace = read(tmp_path, *files)
    assert trace.operations[1][1] == TraceSend(
        where="event 1", name="send", after=(0,), peer=3, octets=16
    )
    assert trace.operations[3][1] == TraceReceive(
        where="event 1", name="recv", after=(0,), peer=1, octets=16
    )
    in_order(trace)


def test_ranks_that_are_cut_off_come_from_a_file(tmp_path: Path) -> None:
    cut = kernel(Process_Group_Name="9", Group_size=3, Process_Group_Ranks="[0, 2, ...]")
    files = [content(rank, *([cut] if rank != 1 else []), world=4) for rank in range(4)]
    with pytest.raises(TraceRefusal, match="event 1: the ranks of group '9' are cut off"):
        read(tmp_path, *files)
    groups = tmp_path / "groups.txt"
    groups.write_text('{"9": [0, 2, 3]}')
    assert read(tmp_path, *files, groups=str(groups)).groups == {"9:0,2,3": (0, 2, 3)}


def test_rows_of_a_kernel_are_parts_of_its_tensor(tmp_path: Path) -> None:
    (_, one), _ = both(tmp_path, kernel("all_to_allv", In_split_size="[1, 3]")).operations
    assert isinstance(one, TraceCollective)
    assert one.octets == 16
    assert one.splits == (4, 12)
    for text in ("[]", ""):
        (_, one), _ = both(tmp_path, kernel("all_to_all", In_split_size=text)).operations
        assert isinstance(one, TraceCollective)
        assert one.splits == ()


REFUSED: dict[str, Any] = {
    "event 1: collective 'wobble' is unknown": kernel("wobble"),
    "event 1: the size of dtype 'Quad' is unknown": kernel(dtype="Quad"),
    "event 1: In msg nelems is '1.5', no whole number": kernel(In_msg_nelems=1.5),
    r"event 1: In split size '\[3, 5, 1\]' does not divide": kernel(
        "all_to_allv", In_split_size="[3, 5, 1]"
    ),
    r"event 1: In split size '\[3, ...\]' does not divide": kernel(
        "all_to_allv", In_split_size="[3, ...]"
    ),
    "event 1: the trace does not say the root": kernel("broadcast"),
    "event 1: ts is 'x', no time in us": kernel(ts="x"),
    "event 1: dur is '-1', no time in us": kernel(dur=-1),
    "event 1: Dst Rank is 2, and the group has 2 ranks": kernel("send", Dst_Rank=2),
    "event 1: kernel ncclDevKernel_X": kernel() | {"args": {}},
}


@pytest.mark.parametrize("stated", REFUSED)
def test_what_is_open_or_wrong_is_refused_with_its_event(tmp_path: Path, stated: str) -> None:
    with pytest.raises(TraceRefusal, match=rf"rank0\.json, {stated}"):
        both(tmp_path, REFUSED[stated])


FILES: dict[str, tuple[object, ...]] = {
    "rank0.json: distributedInfo has no rank": ({"traceEvents": []},),
    "rank0.json: it has no traceEvents": ([],),
    "world_size is 2, and rank 1 has no file": (content(0),),
    "world_size is 2, and rank 2 has a file": (content(0), content(1), content(2)),
    "are both rank 0": (content(0), content(0)),
    "world_size is 3, and 2 in the files before": (content(0), content(1, world=3)),
}


@pytest.mark.parametrize("stated", FILES)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, stated: str) -> None:
    with pytest.raises(TraceRefusal, match=stated):
        read(tmp_path, *FILES[stated])


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text in (json.dumps(content(0), indent=1)[:-9], "[" * 100_000):
        path.write_text(text)
        with pytest.raises(TraceRefusal, match=r"a\.json, line \d+: not JSON; is the file whole"):
            load_traces([str(path)], "", ReadOptions())


KEYS = st.sampled_from([*kernel()["args"], "In split size", "Dst Rank"])
VALUES = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.sampled_from(["send", "recv", "all_to_all", "barrier", "[1]", "[0, 1, ...]", "Long", ""]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=3), VALUES, VALUES)
def test_any_values_are_a_trace_or_one_sentence(
    tmp_path: Path, changed: dict[str, Any], ts: Any, dur: Any
) -> None:
    event = kernel(ts=ts, dur=dur)
    event["args"].update(changed)

    def ordered(one: dict[str, Any]) -> None:
        in_order(both(tmp_path, kernel(), one))

    assert "\n" not in outcome(lambda: ordered(event))
    assert "\n" not in outcome(lambda: ordered({**event, "ts": 5, "dur": 1}))


@pytest.mark.parametrize(
    ("content", "stated"),
    [
        ({"workload_graph": []}, "this is Chakra's trace as JSON; give its .et"),
        ({"schema": "1.1.0-chakra.0.0.4", "nodes": []}, "this is an execution trace of PyTorch"),
    ],
)
def test_json_of_others_is_named(tmp_path: Path, content: object, stated: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with pytest.raises(TraceRefusal, match=stated):
        load_traces([str(path)], "", ReadOptions())
