"""Every registered design and scenario is alike on a model and in the kernel, frame by frame."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator import scenario as scenarios
from tests.harness.runs.model_comparisons import (
    APART,
    DESIGNS,
    ROCEV2,
    SCENARIOS,
    WITHOUT_ROCEV2,
    outcomes,
)
from topologies import catalogue


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


@pytest.mark.root
@pytest.mark.parametrize("name", ["shared_nic", "dragonfly_plus"])
def test_a_few_designs_have_the_kernels_frames(name: str, tmp_path: Path) -> None:
    same_on(tmp_path, name, "uet")


@pytest.mark.root
@pytest.mark.parametrize("name", ["trace", "storage_rdma"])
def test_a_few_scenarios_have_the_kernels_frames(name: str, tmp_path: Path) -> None:
    same_of(tmp_path, name)


@pytest.mark.root
@pytest.mark.lengthy
@pytest.mark.parametrize("name", DESIGNS)
def test_a_design_has_the_kernels_frames(name: str, tmp_path: Path) -> None:
    same_on(tmp_path, name, "uet")


@pytest.mark.root
@pytest.mark.lengthy
@pytest.mark.parametrize("name", [name for name in DESIGNS if name not in WITHOUT_ROCEV2])
def test_a_design_has_the_kernels_frames_of_rocev2(name: str, tmp_path: Path) -> None:
    same_on(tmp_path, name, ROCEV2.get(name, "rocev2"))


@pytest.mark.root
@pytest.mark.lengthy
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_has_the_kernels_frames(name: str, tmp_path: Path) -> None:
    same_of(tmp_path, name)


def same_on(folder: Path, design: str, transport: str) -> None:
    """Assert that an AlltoAll on ``design`` is the same on a model."""
    run = ("--sizes", "16KiB", "--iterations", "1", "--transport", transport)
    same(folder, "alltoall", "--topology", DESIGNS[design], *run)


def same_of(folder: Path, scenario: str) -> None:
    """Assert that ``scenario`` is the same on a model."""
    same(folder, scenario, *SCENARIOS[scenario])


def same(folder: Path, scenario: str, *arguments: str) -> None:
    kernel, model = outcomes(folder, scenario, *arguments)
    assert kernel["digest"] == model["digest"]
    assert kernel == model
