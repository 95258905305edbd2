"""Schedules of every algorithm of every collective, proven in memory in any legal order."""

import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.scenario import Trial
from emulator.sim.endpoint.operations.schedule import Copy, Receive, Schedule, Write
from scenarios.collectives.algorithm_registry import algorithm_of, algorithms
from tests.harness.nightly import nightly_beyond
from tests.harness.runs.collective_benchmarks import ALL, FIRST, IN_PLACE
from tests.harness.runs.schedule_executor import Executor, hazards
from topologies.catalogue import load

#: Collectives that move data on in slices are those that can work in place.
SLICED = IN_PLACE
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
    "rail_clos:hosts=4,gpus_per_host=3",
)


def trial(name: str, spec: str, **given: str) -> Trial:
    chosen = scenario.load(name)
    if name in SLICED:
        given.setdefault("slice_bytes", "64")
    (one,) = chosen.schedules(chosen.parameters(given), load(spec), 1)
    return one


def contents(one: Trial, ranks: int) -> Iterator[tuple[int, str, np.ndarray]]:
    for rank in range(ranks):
        for buffer, content in one.expected(rank).items():
            yield rank, buffer, content


def execute(one: Trial, seed: int = 5) -> tuple[Executor, int]:
    """Run the trial in memory; return how many results are not as expected."""
    schedules = one.compile()
    executor = Executor(schedules, random.Random(seed))
    for rank in range(len(schedules)):
        for buffer, content in one.inputs(rank).items():
            executor.memory[rank][buffer][:] = content.view(np.uint8)
    executor.run()
    wrong = 0
    for rank, buffer, content in contents(one, len(schedules)):
        there = executor.memory[rank][buffer].view(content.dtype)
        allowed: Mapping[str, np.ndarray] = one.tolerance(rank) if one.tolerance else {}
        if buffer in allowed:
            off = np.abs(there.astype(float) - content.astype(float))
            wrong += int(np.count_nonzero(~(off <= allowed[buffer])))
        else:
            wrong += int(np.count_nonzero(there != content))
    return executor, wrong


@pytest.mark.parametrize(("name", "algorithm"), ALL)
@pytest.mark.parametrize("spec", FABRICS)
def test_inputs_become_expected(name: str, algorithm: str, spec: str) -> None:
    for size in ("400", "1000"):
        one = trial(name, spec, sizes=size, algorithm=algorithm)
        assert list(contents(one, 9))
        assert execute(one)[1] == 0


@pytest.mark.parametrize(("name", "algorithm"), ALL)
@pytest.mark.parametrize("spec", ["rail_clos:hosts=3,gpus_per_host=1", "rail_clos:hosts=3"])
def test_nothing_is_touched_by_two_without_an_order(name: str, algorithm: str, spec: str) -> None:
    spec += ",gpus_per_host=2" if "gpus" not in spec else ""
    ways = ("0", "1") if name in IN_PLACE else (None,)
    for in_place in ways:
        given = {} if in_place is None else {"in_place": in_place}
        one = trial(name, spec, sizes="480", algorithm=algorithm, **given)
        assert hazards(one.compile()) == []


@pytest.mark.parametrize(("name", "algorithm"), [one for one in ALL if one[0] in IN_PLACE])
@pytest.mark.parametrize("spec", nightly_beyond(3, FABRICS))
def test_results_replace_sources(name: str, algorithm: str, spec: str) -> None:
    one = trial(name, spec, sizes="1000", algorithm=algorithm, in_place="1")
    for schedule in one.compile():
        assert "input" not in schedule.buffers
    assert execute(one)[1] == 0


@pytest.mark.parametrize(("name", "algorithm"), ALL)
def test_any_ranks_make_a_communicator(name: str, algorithm: str) -> None:
    spec = "rail_clos:hosts=3,gpus_per_host=4"
    for ranks in ("host", "rail", "0-3,8-11", "5,1,9"):
        one = trial(name, spec, sizes="960", algorithm=algorithm, ranks=ranks)
        assert execute(one)[1] == 0
        silent = [s.rank for s in one.compile() if not s.operations]
        assert len(silent) == {"0-3,8-11": 4, "5,1,9": 9}.get(ranks, 0)


UNEVEN = [one for one in ALL if one[1] not in ("hierarchical", "nvls")]


@pytest.mark.parametrize(("name", "algorithm"), UNEVEN)
def test_hosts_may_have_unequal_numbers_of_members(name: str, algorithm: str) -> None:
    one = trial(name, "rail_clos:hosts=3,gpus_per_host=3", sizes="960", algorithm=algorithm,
                ranks="0-3,8")  # fmt: skip
    assert execute(one)[1] == 0


@pytest.mark.parametrize(("name", "algorithm"), [one for one in ALL if one[0] in SLICED])
@pytest.mark.parametrize("more", [{"channels": "1"}, {"channels": "5"}, {"order": "shuffled"}])
def test_channels_and_orders(name: str, algorithm: str, more: dict[str, str]) -> None:
    spec, given = "rail_clos:hosts=3,gpus_per_host=2", {"sizes": "960", "algorithm": algorithm}
    if more.keys() & algorithm_of(name, algorithm).idle:
        with pytest.raises(UserError, match=f"changes nothing beside algorithm={algorithm}: leave"):
            trial(name, spec, **given, **more)
        return
    one = trial(name, spec, **given, **more)
    assert repr(one.compile()) != repr(trial(name, spec, **given).compile())
    assert execute(one)[1] == 0


REDUCING = [one for one in ALL if one[0] in ("allreduce", "reducescatter", "reduce")]


@pytest.mark.parametrize("datatype", ["float", "half", "bfloat16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
def test_types_and_operations(datatype: str, op: str) -> None:
    for name, algorithm in REDUCING:
        one = trial(
            name, "rail_clos:hosts=3,gpus_per_host=1", sizes="960", algorithm=algorithm,
            datatype=datatype, op=op,
        )  # fmt: skip
        assert execute(one)[1] == 0, (name, algorithm)
        values = next(contents(one, 1))[2]
        assert len(np.unique(values)) > 1


@pytest.mark.parametrize("datatype", ["float", "half", "bfloat16"])
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
def test_random_reals_are_within_their_bound(datatype: str, op: str) -> None:
    for name, algorithm in REDUCING:
        one = trial(
            name, "rail_clos:hosts=5,gpus_per_host=1", sizes="960", algorithm=algorithm,
            datatype=datatype, op=op, data="random",
        )  # fmt: skip
        assert execute(one)[1] == 0, (name, algorithm)


@pytest.mark.parametrize("root", ["0", "1", "5"])
def test_any_member_is_the_root(root: str) -> None:
    for name in ("broadcast", "reduce", "gather", "scatter"):
        for algorithm in algorithms(name, first=FIRST[name]):
            one = trial(name, "rail_clos:hosts=3,gpus_per_host=2", sizes="960",
                        algorithm=algorithm, root=root)  # fmt: skip
            assert execute(one)[1] == 0, (name, algorithm)
            if name in ("reduce", "gather"):
                assert [rank for rank, _, _ in contents(one, 6)] == [int(root)]


@pytest.mark.parametrize("algorithm", algorithms("alltoallv", first="shift"))
@pytest.mark.parametrize("more", [{"skew": "2.5"}, {"pattern": "distance", "spread": "0.5"}])
def test_parts_may_be_unequal(algorithm: str, more: dict[str, str]) -> None:
    one = trial("alltoallv", "rail_clos:hosts=3,gpus_per_host=2", sizes="4000",
                algorithm=algorithm, **more)  # fmt: skip
    assert execute(one)[1] == 0
    assert hazards(one.compile()) == []
    sent = {op.local.length for s in one.compile() for op in s.operations if isinstance(op, Write)}
    assert len(sent) > 1
    balanced = one.facts["imbalance"] == pytest.approx(1)
    assert balanced is ("pattern" in more)


def test_nobody_leaves_a_barrier_before_all_have_come() -> None:
    for hosts in range(2, 18):
        one = trial("barrier", f"rail_clos:hosts={hosts},gpus_per_host=1")
        schedules = one.compile()
        senders = {
            (schedule.rank, operation.peer, operation.tag): (schedule.rank, index)
            for schedule in schedules
            for index, operation in enumerate(schedule.operations)
            if isinstance(operation, Write | Copy)
        }
        for rank in range(hosts):
            assert len(_known(schedules, senders, rank)) == hosts


Senders = Mapping[tuple[int, int, int], tuple[int, int]]


def _known(schedules: Sequence[Schedule], senders: Senders, rank: int) -> set[int]:
    """Return the members whose coming ``rank`` knows of when all its operations are over."""
    seen: set[tuple[int, int]] = set()
    todo = [(rank, index) for index in range(len(schedules[rank].operations))]
    while todo:
        key = todo.pop()
        if key in seen:
            continue
        seen.add(key)
        operation = schedules[key[0]].operations[key[1]]
        todo += [(key[0], earlier) for earlier in operation.after]
        if isinstance(operation, Receive):
            todo.append(senders[operation.peer, key[0], operation.tag])
    return {one for one, _ in seen}
