"""GOAL as text and binary: what is read, what is written, and what is refused in one sentence."""

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenarios.traces.format_registry import FORMATS, ReadOptions
from scenarios.traces.formats.goal import ANY
from scenarios.traces.replay import Replay, ReplayChoice, in_order
from scenarios.traces.trace_loading import load_traces
from scenarios.traces.trace_model import (
    Trace,
    TraceCompute,
    TraceReceive,
    TraceRefusal,
    TraceRun,
    TraceSend,
)
from scenarios.traces.trace_report import as_operations
from tests.harness.traces import outcome
from topologies.catalogue import load

TEXT = """\
// two ranks
num_ranks 2
rank 0 {
  work: calc 2000 cpu 1 /* GPU
     work */
  out: send 65536b to 1 tag 7 nic 0
  side: calc 5
  out requires work
  side irequires out
}
rank 1 { recv 65536b from 0 tag 7 }
"""


def read(folder: Path, text: str) -> Trace:
    file = folder / "job.goal"
    file.write_text(text)
    (trace,) = load_traces([str(file)], "", ReadOptions())
    return trace


def test_every_statement_is_read(tmp_path: Path) -> None:
    trace = read(tmp_path, TEXT)
    work, out, side = trace.operations[0]
    (got,) = trace.operations[1]
    assert work == TraceCompute(where="line 4", name="work", duration_ns=2000, stream=1)
    assert out == TraceSend(where="line 6", name="out", after=(0,), peer=1, octets=65536, tag=7)
    assert side == TraceCompute(where="line 7", name="side", after=(0,), duration_ns=5)
    assert got == TraceReceive(where="line 11", peer=0, octets=65536, tag=7)


def test_what_is_written_is_read_as_the_same(tmp_path: Path) -> None:
    fabric = load("rail_clos:hosts=2,gpus_per_host=2")
    file = tmp_path / "list.csv"
    file.write_text("operation,size,ranks\nranks,,4\nall_reduce,4KiB,\nsend,100,0 3\n")
    (trace,) = load_traces([str(file)], "", ReadOptions())
    replay = Replay(trace, fabric, ReplayChoice(compute_scale=1, slice_bytes=512, seed=1))
    messages = Trace("list", tuple(map(as_operations, replay.compile())))
    run = TraceRun(trace=trace, messages=messages, collectives=(), servers=(), origin_us=0)
    assert FORMATS["goal"].write is not None
    from_writer = FORMATS["goal"].write(run)[""].decode()
    again = read(tmp_path, from_writer)
    assert [len(one) for one in again.operations] == [len(one) for one in messages.operations]
    for ours, theirs in zip(messages.operations, again.operations, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert type(one) is type(other)
            assert sorted(one.after) == sorted(other.after)
            for name in ("peer", "octets", "tag", "duration_ns"):
                assert getattr(one, name, None) == getattr(other, name, None)
    in_order(again)


def wrong(body: str) -> str:
    return f"num_ranks 2\nrank 0 {{\n{body}\n}}\nrank 1 {{ }}\n"


REFUSED = {
    wrong("send 5 to 1"): "line 3: the size '5' has no unit; write octets as 4096b",
    wrong("recv 5b from -1"): "line 3: a receive from any rank",
    wrong("recv 5b from 1 tag -1"): "line 3: any tag",
    wrong("calc -4"): "line 3: '-4' is not a duration in ns",
    wrong("calc " + "9" * 30): "line 3: '9{30}' is not a duration",
    wrong("a: calc 1\na: calc 2"): "line 4: label 'a' is given twice",
    wrong("a: calc 1\na requires b"): "line 4: there is no label 'b'",
    wrong(
        "a: calc 1\nb: calc 1\na irequires b\nb irequires a"
    ): "start after each other in a circle",
    wrong("jump 5"): "line 3: 'jump' is none of send, recv, calc",
    wrong("calc 5 cpu 1 cpu 2"): "cpu is given twice",
    "num_ranks 2\nrank 0 { }": "rank 1 has no block, though num_ranks is 2",
    "num_ranks 2\nrank 0 { calc 1": "the block of a rank does not end",
    "num_ranks 2\nrank 0 { /* ": "line 2: a comment begins",
    "num_ranks 4000000000\n": "give a number from 1 to",
    "num_ranks 1\nrank 0 { }\nrank 0 { }": "rank 0 has a block already",
    "num_ranks 1\nrank 3 { }": "there is no rank 3",
    "": "job.goal does not begin as its name says: GOAL",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: REFUSED[text][:30])
def test_what_is_open_or_wrong_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceRefusal, match=REFUSED[text]):
        read(tmp_path, text)


WORDS = st.sampled_from(
    [
        *("num_ranks", "rank", "2", "0", "1", "{", "}", "a:", "b:", "a", "b", "8b", "-1", "\n"),
        *("send", "recv", "to", "from", "tag", "cpu", "calc", "requires", "irequires"),
        *("//", "/*", "*/"),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(WORDS, max_size=40))
def test_any_words_are_a_trace_or_one_sentence(tmp_path: Path, words: list[str]) -> None:
    assert "\n" not in outcome(lambda: in_order(read(tmp_path, "num_ranks " + " ".join(words))))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "job.goal"
    file.write_bytes(b"num_ranks 1\n\xff\xfe")
    with pytest.raises(TraceRefusal, match=r"job\.goal, line 2: not UTF-8 text"):
        load_traces([str(file)], "", ReadOptions())


#: (type, peer, size, tag, cpu), operations that wait for its end, those that wait for its start
Node = tuple[tuple[int, int, int, int, int], list[int], list[int]]
FIRST: list[Node] = [
    ((3, 0, 2000, 0, 1), [1], []),
    ((1, 1, 65536, 7, 0), [], [2]),
    ((3, 0, 5, 0, 0), [], []),
]
SECOND: list[Node] = [((2, 0, 65536, 7, 0), [], [])]


def part(nodes: list[Node]) -> bytes:
    waits = [0] * len(nodes)
    for _, ends, starts in nodes:
        for one in (*ends, *starts):
            waits[one] += 1
    roots = [number for number, count in enumerate(waits) if not count]
    content = struct.pack(f"<2I{len(roots)}I", len(nodes), len(roots), *roots)
    names: list[int] = []
    for number, ((kind, peer, size, tag, cpu), ends, starts) in enumerate(nodes):
        first, then = len(names), len(names) + len(ends)
        content += struct.pack("<IBIQIBB", waits[number], kind, peer, size, tag, cpu, 0)
        content += struct.pack("<4I", len(ends), first, len(starts), then)
        names += [*ends, *starts]
    return content + struct.pack(f"<{len(names)}I", *names)


def whole(*ranks: list[Node]) -> bytes:
    parts = [part(nodes) for nodes in ranks]
    begin = 6 + 16 * len(parts)
    table = b""
    for one in parts:
        table += struct.pack("<2Q", begin, begin + len(one))
        begin += len(one)
    return struct.pack("<QIBB", 4223, len(parts), 1, 0) + table + b"".join(parts)


def read_binary(folder: Path, content: bytes) -> Trace:
    file = folder / "job.bin"
    file.write_bytes(content)
    (trace,) = load_traces([str(file)], "", ReadOptions())
    return trace


def test_every_field_is_read(tmp_path: Path) -> None:
    trace = read_binary(tmp_path, whole(FIRST, SECOND))
    assert trace.operations == (
        [
            TraceCompute(where="operation 0", duration_ns=2000, stream=1),
            TraceSend(where="operation 1", after=(0,), peer=1, octets=65536, tag=7),
            TraceCompute(where="operation 2", after=(0,), duration_ns=5, stream=0),
        ],
        [TraceReceive(where="operation 0", peer=0, octets=65536, tag=7)],
    )
    in_order(trace)


def test_a_name_of_the_text_is_recognised_by_its_octets(tmp_path: Path) -> None:
    file = tmp_path / "job.goal"
    file.write_bytes(whole(FIRST, SECOND))
    (trace,) = load_traces([str(file)], "", ReadOptions())
    assert trace.ranks == 2


def changed(at: int, form: str, value: int) -> bytes:
    content = bytearray(whole(FIRST, SECOND))
    struct.pack_into(form, content, at, value)
    return bytes(content)


PART = 8 + 6 + 32  # where the part of rank 0 begins
NODES = PART + 4 * (2 + 1)
REFUSED_BINARY = {
    "it has 0 ranks": changed(8, "<I", 0),
    "it has 4000000000 ranks": changed(8, "<I", 4_000_000_000),
    "the table of ranks claims 160000 octets": changed(8, "<I", 10_000),
    "rank 0 claims octets 38 to 9999": changed(22, "<Q", 9999),
    "rank 0 claims octets 99999 to": changed(14, "<Q", 99999),
    "rank 0 it has more than": changed(PART, "<I", 4_000_000_000),
    "rank 0 claims 195000 octets and": changed(PART, "<I", 5000),
    "rank 0 claims 117 octets and 0 are left": changed(PART + 4, "<I", 4_000_000),
    "operation 0: its type 9 is unknown": changed(NODES + 4, "<B", 9),
    "operation 1: any rank or any tag": changed(NODES + 39 + 5, "<I", ANY),
    "names 4000000000 dependencies and 2 are there": changed(NODES + 23, "<I", 4_000_000_000),
    "operation 0: its dependencies lie behind": changed(NODES + 27, "<I", 77),
    "operation 0: there is no operation 50": changed(NODES + 3 * 39, "<I", 50),
    "does not begin as its name says: GOAL binary": changed(0, "<Q", 4224),
    "it waits for 7 others, and 0 name it": whole(FIRST, SECOND).replace(
        struct.pack("<IBIQ", 0, 2, 0, 65536), struct.pack("<IBIQ", 7, 2, 0, 65536)
    ),
    "circle": whole([((3, 0, 1, 0, 0), [1], []), ((3, 0, 1, 0, 0), [0], [])]),
    "start after each other in a circle": whole(
        [((3, 0, 1, 0, 0), [], [1]), ((3, 0, 1, 0, 0), [], [0])]
    ),
}


@pytest.mark.parametrize("stated", REFUSED_BINARY)
def test_every_lie_is_refused(tmp_path: Path, stated: str) -> None:
    with pytest.raises(TraceRefusal, match=stated):
        in_order(read_binary(tmp_path, REFUSED_BINARY[stated]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(8, 260), st.binary(max_size=8), st.integers(0, 300))
def test_any_octets_are_a_trace_or_one_sentence(
    tmp_path: Path, at: int, octets: bytes, end: int
) -> None:
    content = whole(FIRST, SECOND)
    content = (content[:at] + octets + content[at + len(octets) :])[: max(14, end)]
    assert "\n" not in outcome(lambda: in_order(read_binary(tmp_path, content)))
