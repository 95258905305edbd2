"""AllGather, ReduceScatter and AlltoAll: schedules proven in memory, sizes, and columns."""

from __future__ import annotations

import random

import numpy as np
import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.scenario import Outcome
from tests.harness.runs.schedule_executor import Executor
from topologies.catalogue import load

NAMES = ("allgather", "reducescatter", "alltoall")
FABRICS = (
    "rail_clos:hosts=2,gpus_per_host=1",
    "rail_clos:hosts=3,gpus_per_host=1",
    "rail_clos:hosts=2,gpus_per_host=2",
    "rail_clos:hosts=5,gpus_per_host=1",
    "rail_clos:hosts=3,gpus_per_host=2",
    "rail_clos:hosts=7,gpus_per_host=1",
    "rail_clos:hosts=2,gpus_per_host=4",
    "rail_clos:hosts=3,gpus_per_host=3",
    "rail_clos:hosts=1,gpus_per_host=4",
)


def trials(name: str, spec: str, seed: int = 1, **given: str) -> list:
    chosen = scenario.load(name)
    return chosen.schedules(chosen.parameters(given), load(spec), seed)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spec", FABRICS)
@pytest.mark.parametrize("size", ["40", "1000", "4KiB"])
def test_inputs_become_expected(name: str, spec: str, size: str) -> None:
    more = {"peers": "2"} if name == "alltoall" else {"slice_bytes": "64"}
    (trial,) = trials(name, spec, sizes=size, **more)
    schedules = trial.compile()
    executor = Executor(schedules, random.Random(5))
    for rank in range(len(schedules)):
        for buffer, content in trial.inputs(rank).items():
            executor.memory[rank][buffer][:] = content.view(np.uint8)
    executor.run()
    for rank in range(len(schedules)):
        for buffer, content in trial.expected(rank).items():
            there = executor.memory[rank][buffer].view(content.dtype)
            np.testing.assert_array_equal(there, content)


@pytest.mark.parametrize("name", NAMES)
def test_the_result_is_not_there_before(name: str) -> None:
    (trial,) = trials(name, "rail_clos:hosts=2,gpus_per_host=2", sizes="4KiB")
    for rank in range(4):
        before, after = trial.inputs(rank)["output"], trial.expected(rank)["output"]
        own = len(after) // 4
        others = [part for part in range(4) if part != rank or name == "reducescatter"]
        changed = [
            part
            for part in others
            if not np.array_equal(
                before[part * own : (part + 1) * own], after[part * own : (part + 1) * own]
            )
        ]
        assert changed == ([rank] if name == "reducescatter" else others)


def test_alltoall_is_a_transposition() -> None:
    (trial,) = trials("alltoall", "rail_clos:hosts=3,gpus_per_host=1", sizes="48")
    sent = np.array([trial.inputs(rank)["input"].reshape(3, -1) for rank in range(3)])
    for rank in range(3):
        np.testing.assert_array_equal(trial.expected(rank)["output"].reshape(3, -1), sent[:, rank])


@pytest.mark.parametrize("peers", [1, 2, 3, 100])
def test_alltoall_has_so_many_rounds_under_way(peers: int) -> None:
    (trial,) = trials(
        "alltoall", "rail_clos:hosts=8,gpus_per_host=1", sizes="1KiB", peers=str(peers)
    )
    for schedule in trial.compile():
        sends = [index for index, one in enumerate(schedule.operations) if hasattr(one, "local")]
        free = [index for index in sends if not schedule.operations[index].after]
        assert len(free) == min(peers, 7)


@pytest.mark.parametrize("name", NAMES)
def test_a_size_is_rounded_down_to_an_element_for_each_rank(name: str) -> None:
    (trial,) = trials(name, "rail_clos:hosts=3,gpus_per_host=1", sizes="100")
    assert trial.size_bytes == 96


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="has no 4-octet element for each of 4 ranks; take 16 B"):
        trials(name, "rail_clos:hosts=2,gpus_per_host=2", sizes="8")
    with pytest.raises(UserError, match="needs at least two GPUs"):
        trials(name, "rail_clos:hosts=1,gpus_per_host=1")


@pytest.mark.parametrize("name", NAMES)
def test_busbw_follows_the_nccl_tests(name: str) -> None:
    """Check value: 8 ranks, 1 GB in 10 ms are 100 GB/s algbw and 87.5 GB/s busbw."""
    chosen, topology = scenario.load(name), load("rail_clos:hosts=2,gpus_per_host=4")
    parameters = chosen.parameters({"sizes": "1GB"})
    (trial,) = chosen.schedules(parameters, topology, 1)
    outcome = Outcome(times_ns=(9_000_000, 11_000_000), ideal_ns=1, wrong=0, counters={})
    row = chosen.measures(parameters, topology, trial, outcome)
    assert (row["algbw_gbps"], row["busbw_gbps"]) == (100.0, 87.5)
    assert (row["count"], row["root"]) == (31_250_000, -1)
    assert row["redop"] == ("sum" if name == "reducescatter" else "none")
