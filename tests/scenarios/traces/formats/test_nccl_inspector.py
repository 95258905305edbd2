"""Records of the NCCL Inspector: what is read, what is written, what is refused with its line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenarios.traces.format_registry import FORMATS, ReadOptions
from scenarios.traces.replay import in_order
from scenarios.traces.trace_loading import load_traces
from scenarios.traces.trace_model import (
    Collective,
    CollectiveRun,
    Trace,
    TraceCollective,
    TraceRefusal,
    TraceRun,
)
from tests.harness.traces import outcome


def record(
    rank: int = 0,
    *,
    pid: int | None = None,
    ranks: int = 4,
    name: str = "0xa",
    number: int = 1,
    coll: str = "AllReduce",
    size: int = 64,
    **changed: Any,
) -> dict[str, Any]:
    content: dict[str, Any] = {
        "header": {"id": name, "rank": rank, "n_ranks": ranks, "nnodes": 2},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "hostname": f"node{(rank if pid is None else pid) // 2}",
            "pid": rank if pid is None else pid,
        },
        "coll_perf": {
            "coll": coll,
            "coll_sn": number,
            "coll_msg_size_bytes": size,
            "coll_exec_time_us": 7 + rank,
        },
    }
    for path, value in changed.items():
        part, _, key = path.partition("__")
        if key:
            content[part][key] = value
        else:
            content.pop(part)
    return content


def read(folder: Path, *files: list[Any], **options: Any) -> Trace:
    paths = []
    for number, records in enumerate(files):
        path = folder / f"job.{number}.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in records))
        paths.append(str(path))
    (trace,) = load_traces(paths, "", ReadOptions(**options))
    return trace


def test_one_file_is_enough_for_the_communicator_of_all(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [record(2, number=9, coll="ReduceScatter"), record(2, number=4), record(2, number=4)],
    )
    assert trace.groups == {"0xa": (0, 1, 2, 3)}
    for operations in trace.operations:
        assert operations == [
            TraceCollective(
                where="job.0.jsonl, line 2",
                kind=Collective.ALL_REDUCE,
                octets=64,
                group="0xa",
                recorded_ns=9000,
            ),
            TraceCollective(
                where="job.0.jsonl, line 1",
                after=(0,),
                kind=Collective.REDUCE_SCATTER,
                octets=256,
                group="0xa",
                recorded_ns=9000,
            ),
        ]


def test_smaller_communicators_are_mapped_by_their_processes(tmp_path: Path) -> None:
    files = [[record(rank)] for rank in range(4)]
    for rank in (1, 3):
        files[rank].append(record(1 - rank // 2, pid=rank, ranks=2, name="0xb", coll="AllGather"))
    trace = read(tmp_path, *files)
    assert trace.groups == {"0xa": (0, 1, 2, 3), "0xb": (3, 1)}
    assert [len(one) for one in trace.operations] == [1, 2, 1, 2]
    in_order(trace)


def test_the_root_is_the_users_to_state(tmp_path: Path) -> None:
    records = [record(coll="Broadcast")]
    with pytest.raises(TraceRefusal, match=r"job\.0\.jsonl, line 1: .* do not say its root"):
        read(tmp_path, records)
    (first, *_) = read(tmp_path, records, root=2).operations[0]
    assert isinstance(first, TraceCollective)
    assert first.root == 2


REFUSED: dict[str, list[Any]] = {
    "line 1: not a JSON object; write": [["coll_perf"]],
    "line 1: the record has no header": [record(header=0)],
    "line 1: the record has no metadata": [record(metadata=0)],
    "line 1: format version 'v3.0' is unknown": [
        record(metadata__inspector_output_format_version="v3.0")
    ],
    "line 2: there is no rank 9 of 4": [record(), record(9)],
    "line 1: n_ranks is 0; it lies": [record(ranks=0)],
    "line 1: coll_sn is 'x', which is no number": [record(number="x")],  # type: ignore[arg-type]
    "line 1: coll_msg_size_bytes is '-4'": [record(size=-4)],
    "line 1: coll_msg_size_bytes is '1.5'": [record(size=1.5)],  # type: ignore[arg-type]
    "line 1: the size of a 'AlltoAll' is not one": [record(coll="AlltoAll")],
    "line 2: communicator 0xa has 8 ranks here and 4 before": [record(), record(ranks=8)],
    "line 2: collective 1 of communicator 0xa is another one": [record(), record(size=8)],
    "line 2: rank 0 of communicator 0xa is process 5": [record(), record(pid=5)],
    "line 1: the header has no id": [record(name="")],
    "line 2: a point-to-point record": [record(), record(coll_perf=0) | {"p2p_perf": {}}],
    "nothing says which process is rank 1 of communicator 0xb": [
        record(),
        record(ranks=2, name="0xb"),
    ],
}


@pytest.mark.parametrize("stated", REFUSED)
def test_what_is_open_or_wrong_is_refused_with_its_line(tmp_path: Path, stated: str) -> None:
    with pytest.raises(TraceRefusal, match=stated):
        read(tmp_path, REFUSED[stated])


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(json.dumps(record()) + "\n" + json.dumps(record())[:-20])
    with pytest.raises(TraceRefusal, match=r"a\.log, line 2: not a JSON object; is the file whole"):
        load_traces([str(path)], "", ReadOptions())
    path.write_text('{"coll_perf": ' + "[" * 100_000)
    with pytest.raises(TraceRefusal, match=r"a\.log, line 1: not a JSON object"):
        load_traces([str(path)], "", ReadOptions())


def collective(kind: Collective) -> TraceRun:
    one = TraceCollective(where="line 1", kind=kind, octets=64_000, group="g")
    run = CollectiveRun(
        collective=one,
        ranks=(1, 0),
        number=4,
        begins_ns={0: 1000, 1: 3000},
        ends_ns={0: 9000, 1: 17_000},
    )
    trace = Trace("t", ([one], [one]), {"g": (1, 0)})
    return TraceRun(
        trace=trace, messages=trace, collectives=[run], servers=("h0", "h1"), origin_us=50
    )


def test_records_are_written_as_the_inspector_has_them(tmp_path: Path) -> None:
    assert FORMATS["inspector"].write is not None
    written = FORMATS["inspector"].write(collective(Collective.ALL_GATHER))
    assert json.loads(written[".1"]) == {
        "header": {"id": "0x0000000000000001", "rank": 0, "n_ranks": 2, "nnodes": 2},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "uetemu",
            "dump_timestamp_us": 67,
            "hostname": "h1",
            "pid": 1,
        },
        "coll_perf": {
            "coll": "AllGather",
            "coll_sn": 5,
            "coll_msg_size_bytes": 32_000,
            "coll_exec_time_us": 16,
            "coll_timing_source": "uetemu_fabric_time",
            "coll_algobw_gbs": 4.0,
            "coll_busbw_gbs": 2.0,
        },
    }
    again = read(tmp_path, [json.loads(written[".0"])], [json.loads(written[".1"])])
    (one,) = again.operations[0]
    assert isinstance(one, TraceCollective)
    assert (one.octets, one.recorded_ns) == (64_000, 16_000)


def test_what_records_do_not_settle_is_not_written() -> None:
    assert FORMATS["inspector"].write is not None
    with pytest.raises(TraceRefusal, match=r"size of a all_to_all; write Chakra"):
        FORMATS["inspector"].write(collective(Collective.ALL_TO_ALL))


PARTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
KEYS = st.sampled_from(
    [(part, key) for part, values in record().items() for key in values]
    + [("header", ""), ("metadata", ""), ("coll_perf", "")]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(KEYS, PARTS), min_size=1, max_size=3))
def test_any_values_are_a_trace_or_one_sentence(
    tmp_path: Path, changes: list[tuple[tuple[str, str], Any]]
) -> None:
    content = record(2)
    for (part, key), value in changes:
        if not key:
            content[part] = value
        elif isinstance(content[part], dict):
            content[part][key] = value
    assert "\n" not in outcome(lambda: in_order(read(tmp_path, [record(), content])))
