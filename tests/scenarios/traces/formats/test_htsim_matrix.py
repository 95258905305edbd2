"""Connection matrices of htsim: flows, triggers, and what is refused with its line."""

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

DATA = Path(__file__).parents[3] / "data" / "traces"
TEXT = """\
# flows that start each other
Nodes 3
Connections 5
Triggers 3
0->1 id 1 start 1500.0 size 100 send_done_trigger 1 recv_done_trigger 2
0->2 id 2 trigger 1 size 200 send_done_trigger 3
0->2 id 3 start 0 size 300 send_done_trigger 3
1->2 id 4 trigger 2 size 400 prio 5
2->0 id 5 trigger 3 size 500
trigger id 1 oneshot
trigger id 2 multishot
trigger id 3 barrier count 2
"""


def read(folder: Path, text: str) -> Trace:
    file = folder / "job.cm"
    file.write_text(text)
    (trace,) = load_traces([str(file)], "", ReadOptions())
    return trace


def test_flows_and_triggers_are_read(tmp_path: Path) -> None:
    trace = read(tmp_path, TEXT)
    in_order(trace)
    first, second, third = trace.operations
    assert first == [
        TraceCompute(where="line 5", duration_ns=2, stream=None),  # 1.5 ns
        TraceSend(where="line 5", name="1", after=(0,), peer=1, octets=100),
        TraceSend(where="line 6", name="2", after=(1,), peer=2, octets=200),
        TraceSend(where="line 7", name="3", peer=2, octets=300),
        TraceReceive(where="line 9", name="5", peer=2, octets=500),
    ]
    assert second == [
        TraceReceive(where="line 5", name="1", peer=0, octets=100),
        TraceSend(where="line 8", name="4", after=(0,), peer=2, octets=400),
    ]
    # A sender's trigger for what the receiver sends on fires with the arrival.
    assert third[3] == TraceSend(where="line 9", name="5", after=(0, 1), peer=0, octets=500)


def test_messages_of_one_flow_are_read(tmp_path: Path) -> None:
    text = (DATA / "messages_of_one_flow.cm").read_text()
    trace = read(tmp_path, text)
    in_order(trace)
    assert [one.octets for one in trace.operations[0]] == [40000] * 3  # type: ignore[attr-defined]
    assert trace.operations == read(tmp_path, text.replace("msg", "msg 7")).operations
    with pytest.raises(TraceRefusal, match="line 5: messages of one id have the same ends"):
        read(tmp_path, text.replace("0->1", "1->0", 1))


def wrong(*lines: str, nodes: int = 2, triggers: int | None = None) -> str:
    flows = sum("->" in line for line in lines)
    count = sum(line.startswith("trigger") for line in lines)
    head = f"Nodes {nodes}\nConnections {flows}\nTriggers {count if triggers is None else triggers}"
    return "\n".join((head, *lines))


ONE = "0->1 id 1 start 0 size 5 send_done_trigger 1"
REFUSED = {
    wrong("0->1 size 5"): "line 4: a flow has either a start",
    wrong("0->1 start 0 trigger 1 size 5"): "line 4: a flow has either a start",
    wrong("0->1 start 0"): "line 4: without a size",
    wrong("0->1 start 0 size 0"): "line 4: without a size, or with size 0",
    wrong("0->1 start 0.5 size 5"): "line 4: start '0.5' is not a whole number of ps",
    wrong("0->1 start 0 size 5 addon"): "line 4: 'addon' is none of start",
    wrong("0->1 start 0 size 5 size 6"): "line 4: size is given twice",
    wrong("0->2 start 0 size 5"): "line 4: there is no node 2: Nodes is 2",
    wrong("1->1 start 0 size 5"): "line 4: the flow goes to its own node",
    wrong("a->1 start 0 size 5"): "line 4: source 'a' is not a whole number",
    wrong(ONE): "line 4: there is no trigger with id 1",
    wrong("flow 0 1"): "line 4: 'flow' is neither a flow",
    wrong(ONE, "trigger id 1 oneshot", "trigger id 1 oneshot"): "line 6: trigger 1 is given twice",
    wrong(ONE, "trigger oneshot"): "line 5: a trigger has an id above 0",
    wrong(ONE, "trigger id 1 once"): "line 5: 'once' is none of id, count",
    wrong(
        ONE, "0->1 id 2 trigger 1 size 5", "trigger id 1 barrier count 2"
    ): "line 6: barrier 1 counts 2 and 1 flows fire it",
    wrong(
        ONE, ONE, "0->1 id 2 trigger 1 size 5", "trigger id 1 oneshot"
    ): "line 7: 2 flows fire trigger 1",
    wrong(
        ONE,
        "0->1 id 2 trigger 1 size 5",
        "0->1 id 3 trigger 1 size 5",
        "trigger id 1 multishot",
    ): "line 7: multishot 1 fires once and has 2 flows",
    wrong(
        ONE, "2->1 id 2 trigger 1 size 5", "trigger id 1 oneshot", nodes=3
    ): "line 5: trigger 1 starts it at node 2 .* nothing carries that",
    wrong("0->1 id 1 trigger 1 size 5 send_done_trigger 1", "trigger id 1 oneshot"): "circle",
    wrong(ONE, triggers=3): "header announces 3 triggers and the file has 0",
    "Nodes 2\nConnections 3600\n0->1 start 0 size 5": "announces 3600 connections",
    "Nodes 2\nNodes 2\n": "line 2: Nodes is given twice",
    "Nodes 900000\nConnections 0\n": "Nodes is missing, or not from 1 to",
    "Nodes 2\nFailures 1\nConnections 0\n": "use --fault",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: REFUSED[text][:30])
def test_what_is_open_or_wrong_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceRefusal, match=REFUSED[text]):
        in_order(read(tmp_path, text))


def written(folder: Path, listed: str, ranks: int = 4) -> bytes:
    file = folder / "list.csv"
    file.write_text(f"operation,size,ranks,duration\nranks,,{ranks}\n{listed}\n")
    (trace,) = load_traces([str(file)], "", ReadOptions())
    fabric = load("rail_clos:hosts=4,gpus_per_host=1")
    replay = Replay(trace, fabric, ReplayChoice(compute_scale=1, slice_bytes=64, seed=1))
    run = TraceRun(
        trace=trace,
        messages=Trace("list", tuple(map(as_operations, replay.compile()))),
        collectives=(),
        servers=(),
        origin_us=0,
    )
    assert FORMATS["htsim"].write is not None
    return FORMATS["htsim"].write(run)[""]


@pytest.mark.parametrize(
    "listed",
    [
        "all_reduce,2000",
        "all_gather,2000",
        "reduce_scatter,2000",
        "compute,,,3us\nsend,5,0 1\nsend,6,1 2\nsend,7,2 3",
        "send,5,0 2\nsend,6,1 2\nsend,7,2 3",
    ],
)
def test_what_is_written_is_read_as_the_same_messages(tmp_path: Path, listed: str) -> None:
    text = written(tmp_path, listed).decode()
    again = read(tmp_path, text)
    order = in_order(again)
    sends = [again.operations[rank][at] for rank, at in order.receive_of]
    assert len(sends) == text.count("->")
    # Whoever waits in the list waits in the matrix: the chain of its messages is as long.
    depth: dict[tuple[int, int], int] = {}
    for rank, at in order.starts:
        before = [depth.get((rank, one), 0) for one in again.operations[rank][at].after]
        depth[rank, at] = max([depth.get((rank, at), 0), *before])
        if (rank, at) in order.receive_of:
            depth[order.receive_of[rank, at]] = depth[rank, at] + 1
    longest = {"all_reduce": 6, "all_gather": 3, "reduce_scatter": 3, "compute": 3, "send": 2}
    assert max(depth.values()) == longest[listed.split(",")[0]]


def test_computing_between_messages_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(TraceRefusal, match="it computes after a message, which a matrix"):
        written(tmp_path, "send,5,0 1\ncompute,,,3us\nsend,5,1 2")


WORDS = st.sampled_from(
    [
        *("0->1", "1->0", "id", "1", "2", "start", "0", "size", "5", "trigger", "\n", "oneshot"),
        *("send_done_trigger", "recv_done_trigger", "barrier", "count", "multishot", "Triggers"),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(WORDS, max_size=40))
def test_any_words_are_a_trace_or_one_sentence(tmp_path: Path, words: list[str]) -> None:
    text = "Nodes 2\nConnections 1\n" + " ".join(words)
    assert "\n" not in outcome(lambda: in_order(read(tmp_path, text)))
