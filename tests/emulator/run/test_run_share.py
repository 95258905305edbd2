"""The shares of MPI ranks in a run: who has which schedules, and who weighs the trials."""

from __future__ import annotations

import dataclasses

import pytest

from emulator import scenario
from emulator.measures import message_graph
from emulator.run.plan import preflight
from emulator.run.plan.run_plan import RunPlan, RunRequest, drafted, weighed
from emulator.run.run_share import RunShare
from tests.harness.engine.memory_channel import ranks_of

SPEC = "rail_clos:hosts=2,gpus_per_host=4,spines=2"
#: Of which exchanges between rails need the GPUs of a server to relay them.
RAILS = "rail_only:hosts=2,gpus_per_host=4"
OWN = frozenset({0, 4})


#: Jobs on the GPUs of ``SPEC``.
JOBS = {
    "llm": {"tp": "2", "pp": "2", "dp": "1,2", "layers": "2", "batch": "2", "scale": "65536"},
    "jobs": {"dp": "4", "batch": "4", "scale": "65536", "placement": "packed,random"},
    "inference": {
        **{"prefill": "1", "requests": "3", "output": "2", "scale": "65536", "rate": "6"},
    },
}


def plan(spec: str = SPEC, name: str = "alltoall") -> RunPlan:
    chosen = scenario.load(name)
    return drafted(
        RunRequest(
            scenario=chosen,
            parameters=chosen.parameters(JOBS.get(name, {"sizes": "16KiB"})),
            topology=spec,
            fabric="model",
            lab="share",
            ranks=2,
        )
    )


def test_others_weigh_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ranks_of(2)
    whole = weighed(plan(), RunShare(first))
    monkeypatch.setattr(message_graph.MessageGraph, "__init__", None)  # nobody can make one
    part = weighed(plan(), RunShare(second))
    assert part.loads == whole.loads  # but for the traffic, which is not compared
    assert [load.traffic for load in part.loads] == [None]
    assert whole.loads[0].traffic is not None
    assert part.partition == whole.partition
    with pytest.raises(TypeError):
        weighed(plan(), RunShare())


@pytest.mark.parametrize("name", ["allreduce", "alltoall"])
@pytest.mark.parametrize("spec", [SPEC, RAILS])
def test_others_have_the_operations_of_their_own(name: str, spec: str) -> None:
    first, second = ranks_of(2)
    whole, part = weighed(plan(spec, name), RunShare(first)), plan(spec, name)
    relayed = whole.loads[0].relayed > 0
    assert relayed == (spec == RAILS and name == "alltoall")
    (trial,) = whole.trials
    _, everything = RunShare(first).schedules(trial, OWN, whole.pxn, relayed=relayed)
    assert all(len(one.operations) for one in everything)
    (trial,) = part.trials
    for some in RunShare(second).schedules(trial, OWN, part.pxn, relayed=relayed):
        assert [len(one.operations) > 0 for one in some] == [rank in OWN for rank in range(8)]
    for one, other in zip(some, everything, strict=True):
        assert one.buffers == other.buffers
        if one.rank in OWN:
            assert list(one.operations) == list(other.operations)


@pytest.mark.parametrize("name", JOBS)
def test_jobs_have_the_operations_of_their_own_in_each_row(name: str) -> None:
    first, second = ranks_of(2)
    whole, part = plan(name=name), plan(name=name)
    assert len(whole.trials) > 1
    kept = 0
    for trial, other in zip(whole.trials, part.trials, strict=True):
        everything, _ = RunShare(first).schedules(trial, OWN, whole.pxn, relayed=False)
        some, _ = RunShare(second).schedules(other, OWN, part.pxn, relayed=False)
        kept += sum(len(one.operations) for one in some)
        for one, of_all in zip(some, everything, strict=True):
            assert one.buffers == of_all.buffers
            assert list(one.operations) == (list(of_all.operations) if one.rank in OWN else [])
            for buffer, content in trial.expected(one.rank).items():
                assert other.expected(one.rank)[buffer].tobytes() == content.tobytes()
                assert content.nbytes == one.buffers[buffer]
    assert kept


def test_all_have_everything_where_a_trial_goes_on_after_a_loss() -> None:
    _, second = ranks_of(2)
    (trial,) = plan().trials
    again = dataclasses.replace(trial, recover=lambda executions: pytest.fail("nothing is lost"))
    assert not RunShare(second).keeps_all(trial)
    assert RunShare(second).keeps_all(again)
    _, some = RunShare(second).schedules(again, OWN, plan().pxn, relayed=False)
    assert all(len(one.operations) for one in some)


def test_a_machine_needs_memory_for_the_ranks_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ranks_of(2)
    drafts = [plan() for _ in range(3)]
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(
        preflight,
        "check_memory",
        lambda size, memory, operations, clock, pairs: seen.append((len(memory), operations)),
    )
    for one, share in zip(drafts, (RunShare(first), RunShare(second), RunShare()), strict=True):
        weighed(one, share)
    operations = seen[0][1]
    assert seen == [(4, operations), (4, operations // 2), (8, operations)]
    for one in (first, second):
        one.machines = ["a", "a"]
    seen.clear()
    weighed(drafts[0], RunShare(first))
    weighed(drafts[1], RunShare(second))
    assert seen == [(8, operations)] * 2
