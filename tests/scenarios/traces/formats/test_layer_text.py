"""Layers of ASTRA-sim 1.0 and SimAI: the step that they are, and what is refused with its line."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenarios.traces.format_registry import ReadOptions
from scenarios.traces.replay import in_order
from scenarios.traces.trace_loading import load_traces
from scenarios.traces.trace_model import (
    Trace,
    TraceCollective,
    TraceCompute,
    TraceOperation,
    TraceRefusal,
)
from tests.harness.traces import outcome

SIMAI = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 all_gpus: 8"
LAYERS = """\
2
first\t-1\t10\tALLGATHER\t800\t20\tREDUCESCATTER\t800\t30\tALLREDUCE\t80\t5
second -1 11 ALLTOALL_EP 160 21 NONE 0 31 ALLREDUCE_DP_EP 84 5 words behind
"""


def read(folder: Path, text: str, **options: Any) -> Trace:
    file = folder / "job.txt"
    file.write_text(text)
    (trace,) = load_traces([str(file)], "", ReadOptions(**options))
    return trace


def told(operations: Any, trace: Trace) -> list[str]:
    """Return what a rank does, in short: times of computations, collectives with size and ranks."""
    return [short(one, trace) for one in operations]


def short(one: TraceOperation, trace: Trace) -> str:
    after = ",".join(map(str, one.after))
    if isinstance(one, TraceCompute):
        return f"{one.duration_ns}{'' if one.stream == 0 else '+'} [{after}]"
    assert isinstance(one, TraceCollective)
    ranks = "".join(map(str, trace.groups[one.group]))
    return f"{one.kind.value} {one.octets} {ranks} [{after}]"


def test_a_transformer_step_of_simai(tmp_path: Path) -> None:
    trace = read(tmp_path, f"{SIMAI}\n{LAYERS}")
    in_order(trace)
    assert told(trace.operations[5], trace) == [
        "10 []",
        "all_gather 800 45 [0]",
        "5+ [1]",
        "11 [2]",
        "all_to_all 160 57 [3]",
        "5+ [4]",
        "21 [5]",
        "31 [6]",
        "all_reduce 84 15 [7]",
        "5+ [8]",
        "20 [7]",
        "reduce_scatter 800 45 [10]",
        "5+ [11]",
        "30 [12]",
        "all_reduce 80 1357 [13]",
        "5+ [14]",
    ]


def test_other_policies(tmp_path: Path) -> None:
    layers = "2\na -1 10 NONE 0 20 NONE 0 30 ALLREDUCE 8 0\nb -1 1 NONE 0 2 NONE 0 3 ALLREDUCE 4 0"
    trace = read(tmp_path, f"DATA\n{layers}", ranks=2)
    assert told(trace.operations[0], trace) == [
        "10 []",
        "1 [0]",
        "3 [1]",
        "all_reduce 4 01 [2]",
        "0+ [3]",
        "2 [2]",
        "30 [5]",
        "all_reduce 8 01 [6]",
        "0+ [7]",
    ]
    trace = read(tmp_path, f"MICRO\n{layers}", ranks=2)
    assert told(trace.operations[1], trace) == [
        "all_reduce 8 01 []",
        "0+ [0]",
        "all_reduce 4 01 [1]",
        "0+ [2]",
    ]
    trace = read(tmp_path, "MODEL\n1\na -1 1 ALLREDUCE 8 2 ALLREDUCE 8 3 ALLREDUCE 4 0", ranks=2)
    assert told(trace.operations[1], trace) == [
        "1 []",
        "all_reduce 8 01 [0]",
        "0+ [1]",
        "2 [2]",
        "all_reduce 8 01 [3]",
        "0+ [4]",
        "3 [5]",
    ]


@pytest.mark.parametrize("header", ["HYBRID_DLRM\t1", "HYBRID_DLRM DLRM_LAST_BOTTOM_LAYER: 1"])
def test_embeddings_travel_while_bottom_layers_compute(tmp_path: Path, header: str) -> None:
    layers = (
        "3\na -1 10 ALLTOALL 8 20 ALLTOALL 16 30 NONE 0 5\n"
        "b -1 11 NONE 0 21 NONE 0 31 ALLREDUCE 8 5\nc -1 12 NONE 0 22 NONE 0 32 ALLREDUCE 4 5"
    )
    trace = read(tmp_path, f"{header}\n{layers}", ranks=2)
    in_order(trace)
    assert told(trace.operations[1], trace) == [
        "10 []",
        "all_to_all 8 01 [0]",
        "5+ [1]",
        "11 [0]",
        "12 [3,2]",  # the first layer above needs the embeddings
        "32 [4]",
        "all_reduce 4 01 [5]",
        "5+ [6]",
        "22 [5]",
        "all_to_all 16 01 [8]",
        "5+ [9]",
        "31 [8]",
        "all_reduce 8 01 [11]",
        "5+ [12]",
        "21 [11]",
        "30 [14]",
    ]


def test_an_initiating_layer_computes_forward_again_from_its_checkpoint(tmp_path: Path) -> None:
    header = (
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 "
        "checkpoints: 1 1 checkpoint_initiates: 1 3"
    )
    layers = "\n".join(f"l{n} -1 1{n} NONE 0 2{n} NONE 0 3{n} NONE 0 0" for n in range(3))
    last = "l3 -1 13 ALLREDUCE 8 23 NONE 0 33 NONE 0 0"
    layers = layers.replace("12 NONE", "12 ALLREDUCE", 1).replace("ALLREDUCE 0", "ALLREDUCE 8", 1)
    trace = read(tmp_path, f"{header}\n4\n{layers}\n{last}", ranks=2)
    in_order(trace)
    words = [one.split(" [")[0] for one in told(trace.operations[0], trace)]
    forward = ["10", "11", "12", "all_reduce 8 01", "0+", "13", "all_reduce 8 01", "0+"]
    again = ["11", "12", "all_reduce 8 01", "0+"]
    assert words == [*forward, *again, *["23", "33", "22", "32", "21", "31", "20", "30"]]


def test_sizes_of_all_gathers_are_the_users_to_state(tmp_path: Path) -> None:
    text = "MICRO\n1\na -1 1 NONE 0 1 NONE 0 1 ALLGATHER 4096 1\n"
    with pytest.raises(TraceRefusal, match="line 3: the size of an all-gather is the whole in"):
        read(tmp_path, text, ranks=4)
    for gathered, octets in (("whole", 4096), ("part", 4 * 4096)):
        trace = read(tmp_path, text, ranks=4, gathered=gathered)
        one = trace.operations[0][0]
        assert isinstance(one, TraceCollective)
        assert one.octets == octets


LINE = "a -1 1 NONE 0 1 NONE 0 1 NONE 0 1"
REFUSED = {
    "HYBRID_DATA_MODEL\n1\n" + LINE: "line 1: policy 'HYBRID_DATA_MODEL' is none of",
    "HYBRID_DLRM all_gpus: 2\n1\n" + LINE: "line 1: DLRM_LAST_BOTTOM_LAYER is missing",
    "DATA\n1\n" + LINE: "line 1: the number of ranks is missing",
    SIMAI.replace("pp: 1", "pp: 2") + "\n1\n" + LINE: "line 1: pp is 2",
    SIMAI + " checkpoints: 3\n1\n" + LINE: "line 1: checkpoints announces 3 layers and lists 0",
    SIMAI + " checkpoints: 1 1\n1\n" + LINE: "line 1: checkpoints has layer 1, and there are 0 to",
    SIMAI + " checkpoint_initiates: 1 0\n1\n" + LINE: "line 1: layer 0 of checkpoint_initiates has",
    "HYBRID_TRANSFORMER model_parallel_NPU_group: 1 all_gpus: 2 checkpoints: 1 0\n1\n" + LINE: (
        "line 1: policy HYBRID_TRANSFORMER has no checkpoints"
    ),
    "DATA all_gpus: 2 checkpoints: 1 0\n1\n" + LINE: "line 1: policy DATA has no checkpoints",
    SIMAI.replace("group: 2", "group: 3") + "\n1\n" + LINE: "which does not divide 8 ranks",
    SIMAI.replace("ep: 2", "ep: 3") + "\n1\n" + LINE: "ep is 3, which does not divide 4 replicas",
    SIMAI.replace("8", "99999999") + "\n1\n" + LINE: "the number of ranks is missing; state 1 to",
    SIMAI + "\n2\n" + LINE: "line 2: 2 layers are announced and 1 lines follow",
    SIMAI + "\n1\n" + LINE + "\n" + LINE: "line 4: 1 layers are announced and this is one more",
    SIMAI + "\nmany\n" + LINE: "line 2: the number of layers is 'many'",
    SIMAI + "\n1\na -1 1 NONE": "line 3: a layer has 12 columns and this one 4",
    SIMAI + "\n1\n" + LINE.replace("NONE", "ALLREDUCEALLTOALL"): "line 3: collective 'ALLREDUCEA",
    SIMAI + "\n1\n" + LINE.replace("NONE", "ALLREDUCE_X"): "line 3: collective 'ALLREDUCE_X' is",
    SIMAI + "\n1\n" + LINE.replace("-1 1", "-1 1.5"): "line 3: a computation's time is '1.5'",
    SIMAI: "line 2: the number of layers is ''",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: REFUSED[text][:30])
def test_what_is_open_or_wrong_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceRefusal, match=REFUSED[text]):
        read(tmp_path, text)


def test_too_many_layers_are_refused(tmp_path: Path) -> None:
    many = SIMAI.replace("all_gpus: 8", "all_gpus: 16384") + "\n9\n" + f"{LINE}\n" * 9
    with pytest.raises(TraceRefusal, match="9 layers at 16384 ranks are more than"):
        read(tmp_path, many)


WORDS = st.sampled_from(
    ["a", "-1", "1", "8", "NONE", "ALLREDUCE", "ALLGATHER_EP", "ALLTOALL", "\n", "\t", "all_gpus:"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(WORDS, max_size=40))
def test_any_words_are_a_trace_or_one_sentence(tmp_path: Path, words: list[str]) -> None:
    text = f"{SIMAI}\n1\na -1 1 ALLTOALL {' '.join(words)} 1 NONE 0 1 NONE 0 1"
    assert "\n" not in outcome(lambda: in_order(read(tmp_path, text)))
