"""New weights from trainers to rollout servers: what arrives, what is sent, what is refused."""

import random

import numpy as np
import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.scenario import Trial
from tests.harness.runs.schedule_executor import Executor, hazards
from topologies.catalogue import load

FABRIC = "rail_clos:hosts=6,gpus_per_host=2,spines=1"
SMALL = {"weights": "12000", "buckets": "3", "messages": "2", "message": "100"}


def trials(spec: str = FABRIC, **given: str) -> list[Trial]:
    module = scenario.load("weight_sync")
    parameters = module.parameters(SMALL | given)
    return module.schedules(parameters, load(spec), 1)


@pytest.mark.parametrize(
    ("spec", "given"),
    [
        (FABRIC, {}),
        (FABRIC, {"serve": "after", "swap": "5us", "fan_out": "2", "changed": "0.3"}),
        # parts of different sizes, and a GPU of several pieces
        ("rail_clos:hosts=5,gpus_per_host=3,spines=1", {"weights": "9998", "buckets": "4"}),
        (
            "rail_clos:hosts=4,gpus_per_host=1,spines=1",
            {"trainers": "1", "mode": "p2p"},
        ),
        # one weight of each bucket for each trainer
        (FABRIC, {"weights": "16", "buckets": "2", "changed": "1"}),
    ],
)
def test_each_gpu_gets_its_part_of_the_new_weights(spec: str, given: dict[str, str]) -> None:
    for trial in trials(spec, **given):
        compiled = trial.compile()
        executor = Executor(compiled, random.Random(3))
        for rank in range(len(compiled)):
            for name, content in trial.inputs(rank).items():
                executor.memory[rank][name][:] = content.view(np.uint8)
        executor.run()
        for rank in range(len(compiled)):
            for name, content in trial.expected(rank).items():
                assert executor.memory[rank][name].tobytes() == content.tobytes(), name
        assert hazards(compiled) == []


def test_what_the_busiest_gpu_sends_follows_from_the_way() -> None:
    sent = {row.facts["mode"]: row.facts["busiest_bytes"] for row in trials()}
    whole, trainers, servers = 12000, 4, 4
    assert sent == {
        "none": 0,
        "broadcast": whole,
        "p2p": whole // trainers * servers,
        "relay": whole // 2,  # a GPU of a server, which has half of it
        "delta": 6 * 5 * 3 * servers,  # of 500 weights of each bucket, five with their indices
    }


@pytest.mark.parametrize(
    ("spec", "given", "words"),
    [
        (FABRIC, {"trainers": "5"}, "6 servers, and 5 trainers and two rollout servers or more"),
        (FABRIC, {"weights": "3"}, "weights is 3 octets, no whole number .* take 4"),
        (FABRIC, {"weights": "22"}, "weights=22 octets in 3 buckets .* take 24 or more"),
        (FABRIC, {"load": "0", "message": "16KiB", "messages": "64"}, "mode=none with load=0"),
        (FABRIC, {"changed": "2"}, "changed is a share of the weights"),
        (FABRIC, {"mode": "p2p", "fan_out": "2"}, "fan_out changes nothing beside other modes"),
        (FABRIC, {"mode": "p2p", "changed": "0.1"}, "changed changes nothing beside other modes"),
    ],
)
def test_what_makes_no_sense_is_refused(spec: str, given: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        trials(spec, **given)
