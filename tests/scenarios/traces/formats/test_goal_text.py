"""FORMATS["goal"] text: what is read, what is written, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenarios.traces.format_registry import FORMATS, ReadOptions
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
