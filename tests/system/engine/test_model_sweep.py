"""Every registered design and scenario is alike on a model and in the kernel, frame by frame."""

from dataclasses import fields
from pathlib import Path

import pytest

from emulator import scenario as scenarios
from tests.harness.nightly import nightly
from tests.harness.runs.model_comparisons import (
    APART,
    DESIGNS,
    ROCEV2,
    SCENARIOS,
    STRETCHED,
    SYSTEMS,
    TUNNELLED,
    UNSTRETCHED,
    WITHOUT_BFD,
    WITHOUT_ROCEV2,
    outcomes,
)
from topologies import catalogue
from topologies.stretch import stretch_of

#: Scenarios that take long, and whose frames are of kinds that others have.
LONG = ("ccsweep", "checkpoint", "inference", "jobs", "lbsweep", "llm", "moe")

#: Systems that stand for the others where time is short.
SHORT = ("scale-up fault", "16 planes", "no GPUDirect")


@pytest.mark.parametrize(
    ("registered", "compared"),
    [(list(catalogue.DESIGNS), DESIGNS), (scenarios.names(), SCENARIOS)],
    ids=["designs", "scenarios"],
)
def test_each_registered_name_is_compared_or_has_a_reason_not_to_be(
    registered: list[str], compared: dict[str, object]
) -> None:
    assert set(compared) | {name for name in registered if APART.get(name)} == set(registered)
    assert not set(compared) & set(APART)


def test_a_reason_is_of_a_registered_name() -> None:
    assert set(APART) <= {*catalogue.DESIGNS, *scenarios.names()}
    assert {*ROCEV2, *WITHOUT_ROCEV2} <= set(DESIGNS)
    assert all(WITHOUT_ROCEV2.values())


@pytest.mark.parametrize("name", DESIGNS)
def test_a_specification_is_one_of_its_design(name: str) -> None:
    assert DESIGNS[name].partition(":")[0] == name
    assert len(catalogue.load(DESIGNS[name]).gpus) >= 4


def test_each_design_that_can_be_stretched_is_compared_so() -> None:
    able = {
        name
        for name, design in catalogue.DESIGNS.items()
        if "subnets" in {one.name for one in fields(design.parameters)}
    }
    assert set(STRETCHED) | {name for name in UNSTRETCHED if UNSTRETCHED[name]} == able
    for name, specification in STRETCHED.items():
        assert specification.partition(":")[0] == name
        assert stretch_of(catalogue.load(f"{specification},subnets=stretched")) is not None


@pytest.mark.root
def test_tunnels_have_the_kernels_frames(tmp_path: Path) -> None:
    same_through_tunnels(tmp_path, "clos", "uet")


@pytest.mark.root
def test_changed_packets_of_tunnels_have_the_kernels_fate(tmp_path: Path) -> None:
    """Some have headers that the end of the tunnel refuses."""
    shape = (*WITHOUT_BFD, "--topology", f"{STRETCHED['clos']},subnets=stretched")
    fault = ("--transport", "uet:crc=on", "--fault", "t=0ms link rail0:up0 corrupt=30%")
    same(tmp_path, "alltoall", *shape, *fault, "--sizes", "64KiB", "--iterations", "1")


@pytest.mark.root
@pytest.mark.parametrize("name", DESIGNS)
def test_a_design_has_the_kernels_frames(name: str, tmp_path: Path) -> None:
    same_on(tmp_path, name, "uet")


@pytest.mark.root
@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in DESIGNS if name not in WITHOUT_ROCEV2])
def test_a_design_has_the_kernels_frames_of_rocev2(name: str, tmp_path: Path) -> None:
    same_on(tmp_path, name, ROCEV2.get(name, "rocev2"))


@pytest.mark.root
@pytest.mark.parametrize("name", [nightly(name) if name in LONG else name for name in SCENARIOS])
def test_a_scenario_has_the_kernels_frames(name: str, tmp_path: Path) -> None:
    same_of(tmp_path, name)


@pytest.mark.root
@pytest.mark.nightly
@pytest.mark.parametrize("transport", ["uet", "rocev2:pfc=off"])
@pytest.mark.parametrize("name", STRETCHED)
def test_a_stretched_design_has_the_kernels_frames(
    name: str, transport: str, tmp_path: Path
) -> None:
    same_through_tunnels(tmp_path, name, transport)


@pytest.mark.root
@pytest.mark.nightly
@pytest.mark.parametrize("name", TUNNELLED)
def test_a_run_over_tunnels_has_the_kernels_frames(name: str, tmp_path: Path) -> None:
    same(tmp_path, *TUNNELLED[name])


@pytest.mark.root
@pytest.mark.parametrize("name", [name if name in SHORT else nightly(name) for name in SYSTEMS])
def test_a_system_has_the_kernels_frames(name: str, tmp_path: Path) -> None:
    same(tmp_path, *SYSTEMS[name])


def same_through_tunnels(folder: Path, design: str, transport: str) -> None:
    """Assert that an AlltoAll on ``design``, its subnets stretched, is the same on a model."""
    run = (*WITHOUT_BFD, "--sizes", "16KiB", "--iterations", "1", "--transport", transport)
    same(folder, "alltoall", "--topology", f"{STRETCHED[design]},subnets=stretched", *run)


def same_on(folder: Path, design: str, transport: str) -> None:
    """Assert that an AlltoAll on ``design`` is the same on a model."""
    run = ("--sizes", "16KiB", "--iterations", "1", "--transport", transport)
    same(folder, "alltoall", "--topology", DESIGNS[design], *run)


def same_of(folder: Path, scenario: str) -> None:
    """Assert that ``scenario`` is the same on a model."""
    same(folder, scenario, *SCENARIOS[scenario])


def same(folder: Path, scenario: str, *arguments: str) -> None:
    kernel, model = outcomes(folder, scenario, *arguments)
    fidelity = kernel["fidelity"]
    assert isinstance(fidelity, dict)
    assert fidelity["account"]["injected"], "no frame leaves its server: nothing is compared"
    assert kernel["digest"] == model["digest"]
    assert kernel == model
