"""Models that a GPU differentiates at once: right gradients, and the same bits on many GPUs."""

import random
from dataclasses import replace

import numpy as np
import pytest

from scenarios.workloads.network.layers import (
    ConvolutionalModel,
    Matrix,
    RecurrentModel,
    added_back,
    convolved,
    under_kernel,
)
from scenarios.workloads.network.replica_training import Model, ReplicaTraining
from scenarios.workloads.network.training_trial import LearningParameters
from tests.harness.runs.schedule_executor import Executor, hazards
from topologies.catalogue import load

MODELS = {
    "convolutional": ConvolutionalModel(side=6, channels=2, outputs=3),
    "recurrent": RecurrentModel(width=3, hidden=4, length=3, outputs=2),
}


def normal(key: int, *shape: int) -> Matrix:
    return np.random.default_rng((key, *shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_gradients_are_derivatives_of_the_loss(model: Model) -> None:
    weights = [normal(key, *shape) / np.float32(2) for key, shape in enumerate(model.shapes())]
    x, target = normal(10, model.inputs, 3), normal(11, model.outputs, 3)
    _, gradients = model.backward(weights, x, target)
    small = np.float32(2**-7)
    for number, gradient in enumerate(gradients):
        assert gradient.shape == weights[number].shape
        for place in np.ndindex(gradient.shape):
            losses = []
            for sign in (1, -1):
                moved = [w.copy() for w in weights]
                moved[number][place] += sign * small
                losses.append(float(model.backward(moved, x, target)[0]))
            slope = (losses[0] - losses[1]) / (2 * small)
            assert gradient[place] == pytest.approx(slope, abs=0.02, rel=0.02)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_loss_is_that_of_the_outputs(model: Model) -> None:
    weights = [normal(key, *shape) for key, shape in enumerate(model.shapes())]
    x, target = normal(10, model.inputs, 3), normal(11, model.outputs, 3)
    loss, _ = model.backward(weights, x, target)
    away = model.forward(weights, x) - target
    assert loss == pytest.approx(np.sum(away.astype(np.float64) ** 2) / 2, rel=1e-5)


def test_a_convolution_is_a_sum_over_what_lies_under_the_kernel() -> None:
    images, kernels = normal(1, 2, 3, 5, 6), normal(2, 4, 2 * 9)
    y = convolved(kernels, images)
    assert y.shape == (4, 3, 3, 4)
    by_hand = np.sum(kernels[1].reshape(2, 3, 3) * images[:, 2, 1:4, 3:6])
    assert y[1, 2, 1, 3] == pytest.approx(np.tanh(by_hand), abs=1e-5)
    columns = normal(3, 18, 3 * 3 * 4)
    inner = np.sum(under_kernel(images) * columns)
    assert np.sum(images * added_back(columns, images.shape)) == pytest.approx(inner, rel=1e-4)


@pytest.mark.parametrize("gpus", [2, 3, 4])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_weights_and_losses_are_those_of_one_gpu_to_the_bit(
    model: ConvolutionalModel | RecurrentModel, gpus: int
) -> None:
    training = ReplicaTraining(
        name="test",
        model=model,
        topology=load(f"rail_clos:hosts={gpus},gpus_per_host=1,spines=1"),
        samples=3,
        epochs=3,
        rate=0.02,
        gradient_ns=1000,
        seed=gpus,
    )
    trial = training.trial(LearningParameters())
    assert trial.facts["gpus"] == gpus
    executor = Executor(trial.compile(), random.Random(gpus))
    for rank in range(gpus):
        for name, content in trial.inputs(rank).items():
            executor.memory[rank][name][:] = content.view(np.uint8)
    executor.run()
    for rank in range(gpus):
        for name, content in trial.expected(rank).items():
            assert executor.memory[rank][name].tobytes() == content.tobytes()
    assert hazards(training.work.compile()) == []
    other = replace(training, seed=99)
    assert other.expected(0)["weights"].tobytes() != trial.expected(0)["weights"].tobytes()
