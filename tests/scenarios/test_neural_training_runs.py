"""Trainings over real fabrics, over either transport and by either clock: right to the bit."""

from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.pytest_plugin.runs import RunProcess
from tests.harness.runs.processes import ended

EPOCHS = ("--param", "epochs=3", "--capture", "none")
TRAININGS = {
    "fnn": (),
    "model_parallel": (),
    "tensor_parallel": (),
    "data_parallel": (),
    "pipeline_parallel": ("--param", "layer_time=10us", "--param", "micro_batches=3"),
    "three_d": ("--param", "groups=3"),
    "convolutional": (),
    "recurrent": (),
    "attention": (),
}
#: Operations are the same over either transport: RoCEv2's runs are nightly, but for one.
RUNS = [(scenario, "uet") for scenario in TRAININGS] + [
    pytest.param(
        scenario, "rocev2", marks=[pytest.mark.nightly] if scenario != "data_parallel" else []
    )
    for scenario in TRAININGS
]


@pytest.mark.parametrize(("scenario", "transport"), RUNS)
def test_weights_and_losses_are_those_of_one_gpu(
    start: Callable[..., RunProcess], scenario: str, transport: str
) -> None:
    arguments = (*EPOCHS, *TRAININGS[scenario], "--transport", transport)
    run = start(*arguments, scenario=scenario)
    output = ended(run)
    assert "# Out of bounds values : 0 OK" in output
    assert run.result["fidelity"]["verdict"] == "exact"
    for row in run.result["rows"]:
        assert row["wrong"] == 0
        assert row["loss_last"] < row["loss_first"]
        assert row["time_us"] >= row["ideal_us"] > 0
        assert row["fabric_bytes"] == row["fabric_bytes_derived"] > 0
        if "crossing_bytes" in row:  # nothing but gradients leaves a data-parallel group
            assert (row["crossing_bytes"], row["fabric_bytes"]) == (0, row["gradient_bytes"])
        if "bubble" in row:
            assert row["bubble"] > row["bubble_formula"] > 0


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_models_have_the_gpus_and_the_traffic_that_they_need(
    start: Callable[..., RunProcess], transport: str
) -> None:
    run = start(
        *("--param", "scale=16384", "--transport", transport, "--capture", "none"),
        scenario="model_fit",
    )
    ended(run)
    rows = run.result["rows"]
    assert [(row["gpus"], row["servers"]) for row in rows] == [(1, 1), (2, 1), (11, 2)]
    assert [row["wrong"] for row in rows] == [0, 0, 0]
    assert [row["fabric_bytes"] > 0 for row in rows] == [False, False, True]
    assert [row["fabric_bytes"] for row in rows] == [row["fabric_bytes_derived"] for row in rows]
    assert rows[0]["exposed"] == 0
    assert 0 < rows[1]["exposed"] < rows[2]["exposed"] < 1


def test_the_numbers_of_an_epoch_stand_below_the_table(start: Callable[..., RunProcess]) -> None:
    run = start(*EPOCHS, "--param", "show=steps", scenario="model_parallel")
    output = ended(run)
    assert "# mini-batch 1, micro-batch 1: layer 1: outputs (3x4)\n" in output
    assert " h0g0    h1g0    h2g0   (us; = NVLink, - fabric)\n" in output
    drawn = [line for line in output.splitlines() if " to the " in line]
    pictures = [line.split(maxsplit=3)[3] for line in drawn]
    assert [picture.split()[0] for picture in pictures] == ["o------->"] * 2 + ["<-------o"] * 2
    starts = [float(line.split()[1]) for line in drawn]
    assert starts == sorted(starts)
    assert "48 B outputs to the next stage" in pictures[0]


OWN = '''"""Doubling: GPU 1 doubles what GPU 0 sends."""

from dataclasses import dataclass

import numpy as np

from emulator.sim.endpoint.operations.gpu_functions import gpu_function, name_of
from emulator.sim.endpoint.operations.schedule import Apply
from emulator.scenario import Trial, parameter
from scenarios.collectives.program import Program
from topologies.parts.design_parameters import SIZE


@gpu_function
def doubled(inputs, outputs):
    outputs[0].view("float32")[:] = 2 * inputs[0].view("float32")


@dataclass(frozen=True, kw_only=True)
class Parameters:
    size: int = parameter(4096, SIZE, help="octets")


def topology(parameters):
    return "rail_clos:hosts=2,gpus_per_host=1,spines=1"


def schedules(parameters, topology, seed):
    program, size = Program.on(topology), parameters.size
    here, there = program.allocate(0, "a", size), program.allocate(1, "a", size)
    into = program.allocate(1, "b", size)
    _, arrived = program.transfer(0, 1, here, there)
    twice = Apply(function=name_of(doubled), inputs=(there,), outputs=(into,), after=(arrived,))
    program.append(1, twice)
    values = np.arange(size // 4, dtype=np.float32)
    return [
        Trial(
            collective="doubling",
            size_bytes=size,
            compile=program.schedules,
            inputs=lambda rank: {"a": values} if rank == 0 else {},
            expected=lambda rank: {"b": 2 * values} if rank == 1 else {},
        )
    ]


def measures(parameters, topology, trial, outcome):
    return {}
'''


def test_a_users_file_may_have_functions_of_its_own(
    start: Callable[..., RunProcess], tmp_path: Path
) -> None:
    file = tmp_path / "doubling.py"
    file.write_text(OWN)
    run = start("--capture", "none", scenario=str(file))
    ended(run)
    assert [row["wrong"] for row in run.result["rows"]] == [0]
