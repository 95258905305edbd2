"""Attention heads: right gradients, and the same bits when they are divided over GPUs."""

import random

import numpy as np
import pytest

from emulator.errors import UserError
from scenarios.workloads.network.attention_training import AttentionTraining
from scenarios.workloads.network.layers import AttentionHead, Matrix, heads_backward, heads_of
from scenarios.workloads.network.training_trial import LearningParameters, learning_trial
from tests.harness.runs.schedule_executor import Executor, hazards
from topologies.catalogue import load

HIDDEN, SIZE, TOKENS = 6, 3, 4


def normal(key: int, *shape: int) -> Matrix:
    return np.random.default_rng((key, *shape)).normal(size=shape).astype(np.float32)


def test_a_head_is_the_softmax_of_its_scores() -> None:
    head = AttentionHead.of(normal(1, 4 * HIDDEN * SIZE), HIDDEN)
    x = normal(2, HIDDEN, TOKENS)
    q, k, v = (weight.astype(np.float64) @ x for weight in (head.q, head.k, head.v))
    power = np.exp(k.T @ q / np.sqrt(SIZE))
    exact = head.o @ v @ (power / power.sum(axis=0))
    np.testing.assert_allclose(head.forward(x), exact, rtol=1e-4, atol=1e-5)


def test_gradients_are_derivatives() -> None:
    flat, x = normal(1, 2 * 4 * HIDDEN * SIZE) / np.float32(2), normal(2, HIDDEN, TOKENS)
    delta = normal(3, HIDDEN, TOKENS)

    def value(flat: np.ndarray, x: np.ndarray) -> float:
        heads = heads_of(flat, HIDDEN, 2)
        return float(np.sum(delta * sum(head.forward(x).astype(np.float64) for head in heads)))

    gradient, (before,) = heads_backward(heads_of(flat, HIDDEN, 2), [x], [delta])
    small = np.float32(2**-7)
    for given, found in ((flat, gradient), (x, before)):
        for place in np.ndindex(given.shape):
            more, less = given.copy(), given.copy()
            more[place] += small
            less[place] -= small
            first, second = (
                ((more, x), (less, x)) if given is flat else ((flat, more), (flat, less))
            )
            slope = (value(*first) - value(*second)) / (2 * small)
            assert found[place] == pytest.approx(slope, abs=0.02, rel=0.02)


def training(parts: int, hosts: int = 4) -> AttentionTraining:
    return AttentionTraining(
        topology=load(f"rail_clos:hosts={hosts},gpus_per_host=1,spines=1"),
        hidden=8,
        heads=4,
        blocks=3,
        length=5,
        sequences=2,
        parts=parts,
        epochs=3,
        rate=0.005,
        block_ns=1000,
        seed=parts,
    )


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_weights_and_losses_are_those_of_one_gpu_to_the_bit(parts: int) -> None:
    trial = learning_trial("test", training(parts), LearningParameters())
    executor = Executor(trial.compile(), random.Random(parts))
    for rank in range(4):
        for name, content in trial.inputs(rank).items():
            executor.memory[rank][name][:] = content.view(np.uint8)
    executor.run()
    for rank in range(4):
        for name, content in trial.expected(rank).items():
            assert executor.memory[rank][name].tobytes() == content.tobytes()
    assert hazards(executor.schedules) == []


def test_too_few_gpus_are_refused() -> None:
    with pytest.raises(UserError, match=r"needs 4 GPUs and topology .* has 2; add hosts or GPUs"):
        training(4, hosts=2)
