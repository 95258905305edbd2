"""Checkpoint: rows for each kind of loss, their faults, and what is refused beforehand."""

import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.run.faults.grammar import timeline
from emulator.scenario import Trial
from scenarios.training_jobs.checkpoint import check_size
from topologies.catalogue import load

FABRIC = "rail_clos:hosts=4,gpus_per_host=2,spines=1"


def trials(spec: str = FABRIC, **given: str) -> list[Trial]:
    module = scenario.load("checkpoint")
    return module.schedules(module.parameters(given), load(spec), 1)


def test_a_row_for_each_kind_of_loss_names_its_fault() -> None:
    found = trials(fail="none,gpu,nic,server", fail_at="2us", victim="3")
    assert [one.fault_clauses for one in found] == [
        (),
        ("t=2000ns gpu h1g1 dead",),
        ("t=2000ns nic h1g1 down",),
        ("t=2000ns server h1 dead",),
    ]
    for one in found[1:]:
        (moment,) = timeline(one.fault_clauses, load(FABRIC))
        assert moment.at_ns == 2000
    assert all(one.recover is not None for one in found)
    assert 0 < found[0].facts["loss_last"] < found[0].facts["loss_first"]


def test_states_and_gradients_make_up_the_traffic() -> None:
    (one,) = trials(fail="none", hidden="8", epochs="4", every="2")
    weights = 8 * 4 + 8 * 8 + 2 * 8
    state = 4 * (weights + 4)
    assert one.facts["state_bytes"] == state
    assert one.facts["checkpoints"] == 2
    rings = 4 * 2 * 3 * 4 * weights
    assert one.size_bytes == rings + 2 * 4 * state


@pytest.mark.parametrize(("replicas", "hint"), [(124, "epochs=4"), (400, "fewer GPUs")])
def test_job_that_would_take_many_minutes_is_refused(replicas: int, hint: str) -> None:
    parts = 2 * replicas * (replicas - 1) * 6
    with pytest.raises(UserError, match=f"{replicas} replicas send {parts} parts.*take {hint}, or"):
        check_size(replicas, 6)
    check_size(replicas // 4, 6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"victim": "4"}, "victim is replica 4 and there are 4; take 0 to 3"),
        ({"spares": "5"}, r"5 spares and 2 stores leave 1 of the 8 GPUs .* to train"),
        ({"stores": "9"}, "leave 0 of the 8 GPUs"),
        ({"rate": "5"}, "take a smaller rate"),
        ({"fail": "rack"}, "fail is 'rack'.*choose one of none, gpu, nic, server"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(given: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        trials(**given)
    assert "\n" not in str(refusal.value)
