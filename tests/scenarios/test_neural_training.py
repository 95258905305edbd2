"""The scenarios that train networks: their shapes, their numbers and what they refuse."""

from typing import Any

import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.run.measures.ideal import ideal_ns
from emulator.scenario import Outcome, Trial
from emulator.transports.wire_cost import WireCost
from scenarios.neural_training import links
from scenarios.workloads.network.tensors import Exchange
from topologies.catalogue import load
from topologies.model import TopologyError

WIRE = WireCost(around_bytes=122, payload_mtu=4096)


def trials(name: str, spec: str = "", **given: str) -> list[Trial]:
    module = scenario.load(name)
    parameters = module.parameters(given)
    topology = load(spec or str(module.topology(parameters)))
    return module.schedules(parameters, topology, 1)


def traffic(name: str, **given: str) -> dict[str, Any]:
    (trial,) = trials(name, **given)
    return dict(trial.facts)


@pytest.mark.parametrize("rate", ["0.02", "0.05"])
@pytest.mark.parametrize(
    "name",
    [
        *("fnn", "model_parallel", "tensor_parallel", "data_parallel"),
        *("convolutional", "recurrent", "attention"),
    ],
)
def test_the_loss_falls(name: str, rate: str) -> None:
    facts = traffic(name, rate=rate)
    assert 0 < facts["loss_last"] < facts["loss_first"]


def test_a_feed_forward_network_sends_outputs_and_deltas_between_its_layers() -> None:
    facts = traffic("fnn", widths="4,6,5,3,2", samples="7", epochs="3")
    both_ways, octets = 2 * 3, 4 * 7
    assert facts["nvlink_bytes"] == both_ways * octets * (6 + 3)
    assert facts["fabric_bytes_derived"] == both_ways * octets * 5
    assert facts["fabric_messages"] == both_ways


def test_shorter_gradients_send_fewer_octets_and_learn_about_as_much() -> None:
    given = {"gradients": "float32,bfloat16,fp8,topk", "widths": "16,32,8", "epochs": "12"}
    facts = {
        feedback: {
            one.facts["gradients"]: one.facts
            for one in trials("data_parallel", feedback=feedback, rate="0.02", **given)
        }
        for feedback in ("off", "on")
    }
    count, ranks = 16 * 32 + 32 * 8, 4
    octets = {
        name: one["fabric_bytes_derived"] + one["nvlink_bytes"] for name, one in facts["on"].items()
    }
    a_round = 2 * (ranks - 1) * count * 12
    chosen = 77  # a tenth
    assert octets == {
        "float32": 4 * a_round,
        "bfloat16": 2 * a_round,
        "fp8": a_round + ranks * (ranks - 1) * 4 * 12,
        "topk": ranks * (ranks - 1) * 8 * chosen * 12,
    }
    last = {
        on: {name: one["loss_last"] for name, one in rows.items()} for on, rows in facts.items()
    }
    assert last["off"]["bfloat16"] == pytest.approx(last["off"]["float32"], rel=0.01)
    assert last["off"]["fp8"] == pytest.approx(last["off"]["float32"], rel=0.2)
    assert last["on"]["topk"] < 0.7 * last["off"]["topk"]  # what is left out comes later


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"gradients": "topk", "top": "2"}, "top is a share of the gradient"),
        ({"gradients": "fp8", "feedback": "on", "resumed": "1"}, "a checkpoint does not have what"),
    ],
)
def test_compression_that_makes_no_sense_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        trials("data_parallel", **given)


def test_tensor_parallel_ranks_join_outputs_and_exchange_deltas() -> None:
    facts = traffic("tensor_parallel", widths="8,4,2", parts="2", samples="3", epochs="1")
    outputs = (4 + 2) * 3 * 4  # each GPU sends its half to the other
    deltas = 2 * 4 * 3 * 4  # each sends its part of the delta of the second layer's inputs
    assert facts["fabric_bytes_derived"] == outputs + deltas


def test_data_parallel_gpus_send_their_gradients_round_a_ring() -> None:
    facts = traffic("data_parallel", widths="4,8,2", epochs="5")
    weights = 4 * 8 + 8 * 2
    assert facts["gpus"] == 4
    assert facts["fabric_bytes_derived"] + facts["nvlink_bytes"] == 5 * 4 * weights * 2 * 3
    assert 0 < facts["apart"] <= facts["bound"]


def test_traffic_of_3d_parallelism_stays_in_its_group_but_for_gradients() -> None:
    facts = traffic("three_d", epochs="1")
    assert facts["crossing_bytes"] == 0
    samples, micros, groups = 4, 2, 2
    joined, next_stage = (8 + 2) * samples * 4, 2 * 8 * samples * 4
    assert facts["forward_bytes"] == groups * micros * (joined + next_stage)
    deltas, before = 2 * 8 * samples * 4, 2 * 8 * samples * 4
    assert facts["backward_bytes"] == groups * micros * (deltas + before)
    assert facts["gradient_bytes"] == groups * (4 * 8 + 8 * 2) * 4
    assert facts["fabric_bytes_derived"] == facts["gradient_bytes"]
    crossing = Exchange("outputs to the next stage", 3, 4, 64, nvlink=False)
    assert links({crossing: 1})["crossing_bytes"] == 64


def test_gradients_of_convolutions_and_recurrences_do_not_grow_with_the_samples() -> None:
    kernels = 4 * 9 + 4 * 4 * 9
    facts = traffic("convolutional", side="7", outputs="3", epochs="1")
    assert _sent(facts) == 2 * 3 * (kernels + 3 * 4 * 3 * 3) * 4
    short, long = (traffic("recurrent", length=length, epochs="2") for length in ("2", "7"))
    assert _sent(short) == _sent(long) == 2 * 2 * 3 * (6 * 4 + 6 * 6 + 2 * 6) * 4


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_attention_has_an_all_reduce_for_each_block_each_way_but_one(parts: int) -> None:
    facts = traffic("attention", parts=str(parts), blocks="3", epochs="2", rate="0.002")
    sequences = 2 * 8 * 6 * 4
    assert _sent(facts) == 2 * (3 + 2) * 2 * (parts - 1) * sequences
    assert facts["gpus"] == parts


def test_the_first_loss_does_not_depend_on_how_heads_are_divided() -> None:
    one, two = (traffic("attention", parts=parts)["loss_first"] for parts in ("1", "4"))
    assert one == pytest.approx(two, rel=1e-5)


def _sent(facts: dict[str, Any]) -> int:
    return facts["fabric_bytes_derived"] + facts["nvlink_bytes"]


@pytest.mark.parametrize("micro_batches", [1, 4, 6])
def test_the_bubble_is_its_formula_and_the_messages(micro_batches: int) -> None:
    module = scenario.load("pipeline_parallel")
    parameters = module.parameters({"micro_batches": str(micro_batches), "epochs": "1"})
    topology = load(str(module.topology(parameters)))
    for trial in module.schedules(parameters, topology, 1):
        ideal = ideal_ns(topology, trial.compile(), WIRE)
        outcome = Outcome(times_ns=(round(ideal),), ideal_ns=ideal, wrong=0, counters={})
        row = module.measures(parameters, topology, trial, outcome)
        formula = 3 / (micro_batches + 3)
        assert trial.facts["bubble_formula"] == formula
        assert formula < row["bubble"] < formula + 0.01
    none = module.parameters({"micro_batches": "1", "layer_time": "0"})
    (trial, _) = module.schedules(none, topology, 1)
    assert module.measures(none, topology, trial, outcome)["bubble"] == 1


def test_the_numbers_of_the_first_epoch_are_shown_on_request() -> None:
    assert "steps" not in traffic("model_parallel")
    steps = traffic("model_parallel", show="steps")["steps"]
    assert isinstance(steps, list)
    text = "\n".join(steps)
    for line in (
        "micro-batch 1: inputs (4x4)",
        "layer 1: outputs (3x4)",
        "layer 3: delta (1x4)",
        "layer 2: gradient = delta x input (2x3)",
        "layer 1: weights - rate x sum of gradients (3x4)",
    ):
        assert line in text
    (trial,) = trials("model_parallel", show="steps")
    assert len(trial.facts["first_exchanges"]) == 4  # of 32


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("fnn", {"rate": "5"}, "take a smaller rate"),
        ("fnn", {"widths": "4,8,8,8,8,8"}, r"needs 5 GPUs and topology .* has 4"),
        ("pipeline_parallel", {"stages": "3"}, "4 layers do not make 3 equal stages"),
        ("three_d", {"widths": "4,2"}, "1 layers cannot be divided over 2 stages"),
        ("attention", {"parts": "3"}, "4 heads cannot be divided alike over 3 GPUs; give heads=6"),
        ("attention", {"hidden": "9"}, "9 cannot be divided over 4 heads; give hidden=12"),
        ("convolutional", {"side": "4"}, "side is 4; it must lie in 5"),
        ("tensor_parallel", {"parts": "3"}, "2 neurons cannot be divided over 3 GPUs"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises((UserError, TopologyError), match=message):
        trials(name, **given)


def test_a_rate_that_is_no_number_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"'fast' is not a number; write for example 0\.05"):
        trials("fnn", rate="fast")
