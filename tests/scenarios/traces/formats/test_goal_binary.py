"""Binary GOAL: the same as its text, and every lie of a file is one sentence."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenarios.traces.format_registry import ReadOptions
from scenarios.traces.formats.goal import ANY
from scenarios.traces.replay import in_order
from scenarios.traces.trace_loading import load_traces
from scenarios.traces.trace_model import (
    Trace,
    TraceCompute,
    TraceReceive,
    TraceRefusal,
    TraceSend,
)
from tests.harness.traces import outcome

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


def read(folder: Path, content: bytes) -> Trace:
    file = folder / "job.bin"
    file.write_bytes(content)
    (trace,) = load_traces([str(file)], "", ReadOptions())
    return trace


def test_every_field_is_read(tmp_path: Path) -> None:
    trace = read(tmp_path, whole(FIRST, SECOND))
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
REFUSED = {
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


@pytest.mark.parametrize("stated", REFUSED)
def test_every_lie_is_refused(tmp_path: Path, stated: str) -> None:
    with pytest.raises(TraceRefusal, match=stated):
        in_order(read(tmp_path, REFUSED[stated]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(8, 260), st.binary(max_size=8), st.integers(0, 300))
def test_any_octets_are_a_trace_or_one_sentence(
    tmp_path: Path, at: int, octets: bytes, end: int
) -> None:
    content = whole(FIRST, SECOND)
    content = (content[:at] + octets + content[at + len(octets) :])[: max(14, end)]
    assert "\n" not in outcome(lambda: in_order(read(tmp_path, content)))
