"""How many GPUs a model needs, and what its first layers send."""

import random
from typing import Any

import numpy as np
import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.scenario import Trial
from scenarios.model_fit import MODELS
from tests.harness.runs.schedule_executor import Executor, hazards
from topologies.catalogue import load


def trials(spec: str = "", **given: str) -> list[Trial]:
    module = scenario.load("model_fit")
    parameters = module.parameters(given)
    return module.schedules(parameters, load(spec or str(module.topology(parameters))), 1)


def test_models_in_16_bits_fit_one_two_and_eleven_gpus() -> None:
    facts = [trial.facts for trial in trials()]
    assert [one["gpus"] for one in facts] == [1, 2, 11]
    assert [one["servers"] for one in facts] == [1, 1, 2]
    assert [one["model_bytes"] for one in facts] == [16 * 10**9, 140 * 10**9, 810 * 10**9]
    assert [one["nvlink_bytes"] > 0 for one in facts] == [False, True, True]
    assert [one["fabric_bytes_derived"] > 0 for one in facts] == [False, False, True]


def test_a_cluster_holds_so_many_replicas_of_models_with_experts() -> None:
    facts = [one.facts for one in trials(models="grok-1,qwen3-235b,deepseek-v3", cluster="100000")]
    found = [(one["gpus"], one["replicas"]) for one in facts]
    assert found == [(8, 12_500), (6, 16_666), (17, 5882)]
    # 2 FLOPs for 2 of 8 experts, 8 router weights for each element, and 400 TFLOPS of 8 GPUs
    active = 2 * 6144 * (6144 + 1024) + 2 * 3 * 6144 * 32768 + 8 * 6144
    assert facts[0]["compute_ns"] == pytest.approx(2 * active * 8192 / (8 * 400e3 * 1024), abs=2)


def test_states_and_activations_count() -> None:
    model = MODELS["70b"]
    assert model.gpus(80 * 10**9, 14) == 14  # 1120 GB
    assert model.gpus(80 * 10**9, 14, 10 * 10**9) == 16
    assert model.gpus(140 * 10**9) == 1


def test_shapes_have_about_the_weights_of_the_models_names() -> None:
    for model in MODELS.values():
        assert model.shape.weights == pytest.approx(model.parameters, rel=0.01)


def test_a_ring_crosses_the_fabric_once_to_each_server() -> None:
    """Each crossing carries 2(n-1)/n of every AllReduce."""
    (trial,) = trials(models="405b", layers="3", scale="1024")
    octets = 8192 * 16384 * 2 // 1024
    assert trial.size_bytes == octets
    crossing = 3 * 2 * 2 * 10 / 11 * octets
    assert trial.facts["fabric_bytes_derived"] == pytest.approx(2 * crossing, rel=1e-4)
    assert trial.facts["nvlink_bytes"] == pytest.approx(9 * crossing, rel=1e-4)
    flops = 2 * (3_187_703_808 - 2 * 16384) * 8192
    assert trial.facts["compute_ns"] == pytest.approx(3 * flops / (11 * 400e3 * 1024), abs=3)


def test_sums_are_right_in_any_order_and_again() -> None:
    (trial,) = trials(models="405b", scale="262144", layers="2")
    executor = Executor(trial.compile(), random.Random(3))
    for rank in range(11):
        for name, content in trial.inputs(rank).items():
            executor.memory[rank][name][:] = content.view(np.uint8)
    for _ in range(2):
        executor.run()
        for rank in range(11):
            for name, content in trial.expected(rank).items():
                assert executor.memory[rank][name].tobytes() == content.tobytes()
                executor.memory[rank][name][:] = 0xFF
    assert hazards(executor.schedules) == []
    assert trial.inputs(11) == trial.expected(11) == {}


@pytest.mark.parametrize(
    ("spec", "given", "message"),
    [
        ("", {"activation_memory": "80GB"}, "leave some for the weights"),
        ("rail_clos:hosts=2,gpus_per_host=4", {}, r"405b model needs 11 GPUs and .* has 8"),
        ("", {"models": "405b", "tokens": "1", "scale": "1048576"}, "has 0 numbers for 11 GPUs"),
    ],
)
def test_what_does_not_fit_is_refused(spec: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        trials(spec, **given)
