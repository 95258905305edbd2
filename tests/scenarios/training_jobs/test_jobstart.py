"""Jobstart: a row for each way of the weights, and what is refused."""

import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.scenario import Trial
from topologies.catalogue import load


def trials(spec: str, **given: str) -> list[Trial]:
    module = scenario.load("jobstart")
    return module.schedules(module.parameters(given), load(spec), 1)


def test_a_row_for_each_algorithm() -> None:
    found = trials("rail_clos:hosts=2,gpus_per_host=2,spines=1", hidden="8")
    assert [one.facts["algorithm"] for one in found] == ["ring", "binomial"]
    for one in found:
        assert one.facts["rendezvous"] == "in kernel"
        assert one.size_bytes == 4 * (8 * 4 + 8 * 8 + 2 * 8)


def test_slices_are_whole_elements() -> None:
    with pytest.raises(UserError, match=r"slice_bytes is 10, not a whole number .* take 12"):
        trials("rail_clos:hosts=2,gpus_per_host=2,spines=1", slice_bytes="10")


def test_a_job_has_two_gpus() -> None:
    with pytest.raises(UserError, match="has one GPU, and a job needs two"):
        trials("rail_clos:hosts=1,gpus_per_host=1,spines=1")
