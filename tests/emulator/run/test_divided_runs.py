"""The shares of MPI ranks in a run: who has which schedules, and who weighs the trials."""

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.run.measures import message_graph
from emulator.run.plan import preflight
from emulator.run.plan.run_plan import RunPlan, RunRequest, drafted, weighed
from emulator.sim.endpoint.operations.schedule import Schedule, has_operations
from emulator.workers.division import Division
from emulator.workers.ranks.exchange import Ranks
from tests.harness.engine.rank_threads import in_ranks

SPEC = "rail_clos:hosts=2,gpus_per_host=4,spines=2"
#: Of which exchanges between rails need the GPUs of a server to relay them.
RAILS = "rail_only:hosts=2,gpus_per_host=4"
OWN = frozenset({0, 4})
LOCK = threading.Lock()


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
            workers=2,
        )
    )


def weighed_together(name: str = "alltoall", spec: str = SPEC) -> list[RunPlan]:
    """Return the plan as each of two ranks has it."""
    drafts = [plan(spec, name) for _ in range(2)]
    return in_ranks(2, lambda ranks: weighed(drafts[ranks.number], ranks))


@pytest.mark.parametrize("spec", [SPEC, RAILS])
def test_ranks_weigh_together_what_one_process_weighs(spec: str) -> None:
    whole, parts = weighed(plan(spec)), weighed_together(spec=spec)
    assert (whole.loads[0].relayed > 0) == (spec == RAILS)
    first, second = parts
    assert first.loads == second.loads == whole.loads  # but for the traffic, not compared
    assert [load.traffic for load in second.loads] == [None]
    assert first.loads[0].traffic is not None
    assert first.partition == second.partition


def test_no_rank_has_a_graph_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    make = message_graph.MessageGraph.__init__

    def counted(self: message_graph.MessageGraph, *given: Any) -> None:
        make(self, *given)
        sizes.append(len(self))

    monkeypatch.setattr(message_graph.MessageGraph, "__init__", counted)
    whole = weighed(plan()).loads[0].operations
    assert sizes.pop() == whole
    weighed_together()
    assert sizes == [whole // 2] * 2


@pytest.mark.parametrize("name", ["allreduce", "alltoall", *JOBS])
@pytest.mark.parametrize("spec", [SPEC, RAILS])
def test_ranks_have_the_operations_of_their_own_in_each_row(name: str, spec: str) -> None:
    whole = plan(spec, name)

    def part(ranks: Ranks) -> int:
        draft, kept = plan(spec, name), 0
        owners = Division(ranks, [0 if rank in OWN else 1 for rank in range(8)])
        for trial, other in zip(whole.trials, draft.trials, strict=True):
            with LOCK:  # both ranks ask the one whole
                everything = whole.pxn.relayed(trial.compile())
            some = draft.pxn.relayed(owners.compiled(other.compile, other.name))
            for one, of_all in zip(some, everything, strict=True):
                assert one.buffers == of_all.buffers
                own = one.rank in owners.own
                assert list(one.operations) == (list(of_all.operations) if own else [])
                kept += len(one.operations)
        return kept

    assert all(in_ranks(2, part))


def test_what_one_rank_cannot_compile_all_refuse() -> None:
    (trial,) = plan().trials

    def compiled() -> Sequence[Schedule]:
        if has_operations(0):
            raise UserError("rank 0 has no schedule")
        return trial.compile()

    broken = dataclasses.replace(trial, compile=compiled)

    def part(ranks: Ranks) -> str:
        with pytest.raises(UserError) as refused:
            Division.in_blocks(ranks, 8).compiled(broken.compile, broken.name)
        return str(refused.value)

    assert in_ranks(2, part) == ["rank 0 has no schedule"] * 2


@pytest.mark.parametrize("machines", [["a", "b"], ["a", "a"]])
def test_a_machine_needs_memory_for_the_ranks_on_it(
    monkeypatch: pytest.MonkeyPatch, machines: list[str]
) -> None:
    whole, *drafts = (plan() for _ in range(3))
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(
        preflight,
        "check_memory",
        lambda size, memory, operations, pairs, shared: seen.append((len(memory), operations)),
    )
    operations = weighed(whole).loads[0].operations
    assert seen.pop() == (8, operations)

    def part(ranks: Ranks) -> None:
        ranks.machines = machines
        weighed(drafts[ranks.number], ranks)

    in_ranks(2, part)
    here = 8 // len(set(machines))
    assert seen == [(here, operations * here // 8)] * 2
