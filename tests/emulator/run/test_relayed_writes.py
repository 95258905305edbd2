"""Writes relayed in columns, by one process or by several, are those of a walk through all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.run.pxn import BUFFER, Pxn, changed, free_tags
from emulator.sim.endpoint.operations.operation_table import OperationTable
from emulator.sim.endpoint.operations.schedule import (
    Apply,
    Barrier,
    Compute,
    Copy,
    Operation,
    Receive,
    Reduce,
    Region,
    Schedule,
    ScheduleSpan,
    Write,
    only_operations_of,
    without_others,
)
from emulator.workers.division import Division, JobSchedules
from emulator.workers.ranks.rank_exchange import Ranks
from tests.harness.engine.rank_threads import in_ranks
from tests.harness.runs.relayed_one_by_one import relayed_one_by_one
from tests.harness.runs.wanted_parts import assert_parts
from topologies.catalogue import load

RAILS_ONLY = "clos:hosts=3,gpus_per_host=4,spines=0"
SPINES = "clos:hosts=3,gpus_per_host=4,spines=1"
SHARED = "clos:hosts=3,gpus_per_host=4,gpus_per_nic=2,spines=0"
RACKS = "clos:hosts=4,gpus_per_host=3,spines=0,scale_up_hosts=2"
COLLECTIVES = {"alltoall": "3072", "alltoallv": "5000", "sendrecv": "100KiB", "allreduce": "64KiB"}


class _AnyRelay(Pxn):
    """Relays chosen by chance, which ``mode`` decides, as if all GPUs were joined."""

    def relay(self, source: int, destination: int) -> int | None:
        gpus = range(len(self.topology.gpus))
        others = [rank for rank in gpus if rank != source]
        chance = random.Random(f"{self.mode} {source} {destination}")
        return chance.choice([None, destination, *others, *others])


def by_chance(ranks: int, seed: int) -> list[Schedule]:
    """Return schedules of all kinds of operations, with tags twice, and peers that do not exist."""
    chance = random.Random(seed)
    made = []
    for rank in range(ranks):
        operations: list[Operation] = []
        for index in range(40):
            peer = chance.choice([*(set(range(ranks)) - {rank}), -1, ranks])
            tag = chance.randrange(6)
            length = chance.choice([1, 63, 64, 65, 1000])
            a = Region(f"a{chance.randrange(3)}", chance.randrange(1 << 34), length)
            b = Region(f"b{peer}", chance.randrange(100), length)
            after = tuple({chance.randrange(index)}) if index else ()
            operations.append(
                chance.choice(
                    [
                        Write(peer=peer, tag=tag, local=a, remote=b, after=after),
                        Write(peer=peer, tag=tag, local=a, remote=b, after=after),
                        Copy(peer=peer, tag=tag, local=a, remote=b, after=after),
                        Receive(peer=peer, tag=tag, into=a, after=after),
                        Receive(peer=peer, tag=tag, into=a, after=after),
                        Reduce(source=a, into=b, function="max", after=after),
                        Compute(duration_ns=7, after=after),
                        Apply(function="f", inputs=(a,), outputs=(b,), duration_ns=3),
                        Barrier(name=f"all {tag}"),
                    ]
                )
            )
        buffers = {"a0": 5, "a1": 6, "a2": 7}
        made.append(
            Schedule(
                rank=rank,
                buffers=buffers,
                operations=OperationTable.of(operations) if rank % 2 else tuple(operations),
                spans=(ScheduleSpan("all", 0, 40),),
            )
        )
    return made


def in_parts(pxn: Pxn, schedules: Sequence[Schedule], owner: Sequence[int]) -> list[list[Schedule]]:
    """Return what each process makes of the schedules of its own GPUs; ``owner`` by rank."""
    count = max(owner) + 1

    def part(ranks: Ranks) -> list[Schedule]:
        process = Division(ranks, owner)
        with only_operations_of(process.own):
            own = JobSchedules(without_others(schedules), process)
        relayed = list(pxn.relayed(own))
        counts.append(changed(own, relayed))
        return relayed

    counts: list[int] = []
    made = in_ranks(count, part)
    assert {type(one) for one in counts} == {int}
    assert sum(counts) == changed(schedules, pxn.relayed(schedules))
    return made


def assert_alike(pxn: Pxn, schedules: Sequence[Schedule]) -> None:
    """Assert that one process, and up to four, make of ``schedules`` what a plain walk does."""
    whole = relayed_one_by_one(pxn, schedules)
    relayed = list(pxn.relayed(schedules))
    assert relayed == whole
    assert [list(one.buffers.items()) for one in relayed] == [
        list(one.buffers.items()) for one in whole
    ]
    assert changed(schedules, relayed) == sum(
        isinstance(one, Write) and not isinstance(other, Write)
        for old, new in zip(schedules, whole, strict=True)
        for one, other in zip(old.operations, new.operations, strict=False)
    )
    gpus = range(len(schedules))
    for owner in (
        [2 * rank // len(gpus) for rank in gpus],
        [rank % 3 for rank in gpus],
        [random.Random(rank).randrange(3) for rank in gpus[:-1]] + [3],
    ):
        for process, part in enumerate(in_parts(pxn, schedules, owner)):
            own = frozenset(rank for rank in gpus if owner[rank] == process)
            assert_parts(part, whole, own)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    ("fabric", "mode"),
    [(RAILS_ONLY, "auto"), (SPINES, "always"), (SHARED, "auto"), (RACKS, "auto")],
    ids=["rails", "always", "shared", "racks"],
)
def test_collectives_are_relayed_alike(fabric: str, mode: str, collective: str) -> None:
    found = scenario.load(collective)
    topology = load(fabric)
    (trial,) = found.module.schedules(
        found.parameters({"sizes": COLLECTIVES[collective]}), topology, 1
    )
    assert_alike(Pxn(topology, mode), trial.compile())


@pytest.mark.parametrize("seed", range(12))
def test_any_schedules_are_relayed_alike_by_any_relays(seed: int) -> None:
    """Tags of copies and of writes are given to the same pairs in turns."""
    topology = load("clos:hosts=2,gpus_per_host=3,spines=0")
    schedules = by_chance(6, seed)
    relays = _AnyRelay(topology, str(seed))
    assert_alike(relays, schedules)
    assert changed(schedules, relays.relayed(schedules)) > 0


def test_a_buffer_of_that_name_on_one_gpu_gives_the_stages_of_all_another() -> None:
    topology = load("clos:hosts=2,gpus_per_host=3,spines=0")
    first, *others = by_chance(6, 1)
    schedules = [replace(first, buffers={**first.buffers, BUFFER: 1, BUFFER + "-": 2}), *others]
    assert_alike(_AnyRelay(topology), schedules)
    stages = {name for one in _AnyRelay(topology).relayed(schedules) for name in one.buffers}
    assert BUFFER + "--" in stages


def test_a_process_without_gpus_takes_part() -> None:
    topology = load(RAILS_ONLY)
    (trial,) = scenario.load("alltoall").module.schedules(
        scenario.load("alltoall").parameters({"sizes": "3072"}), topology, 1
    )
    schedules = trial.compile()
    part = in_parts(Pxn(topology), schedules, [1] * 12)[0]
    assert_parts(part, relayed_one_by_one(Pxn(topology), schedules), frozenset())


def test_schedules_without_a_relayed_write_are_returned_as_they_are() -> None:
    topology = load(SPINES)
    schedules = by_chance(12, 1)
    relayed = list(Pxn(topology).relayed(schedules))
    assert all(one is other for one, other in zip(relayed, schedules, strict=True))
    assert changed(schedules, relayed) == 0


def test_all_processes_state_the_lowest_pair_that_nobody_can_relay() -> None:
    """Process 0 has no such pair at first, 1 has the lowest, and 2 another one."""
    topology = load("clos:pods=2,hosts=1,gpus_per_host=3,spines=1")
    a = Region("a", 0, 8)
    schedules = [
        Schedule(
            rank=rank,
            buffers={"a": 8},
            operations=[Write(peer=peer, tag=0, local=a, remote=a) for peer in peers],
        )
        for rank, peers in enumerate(([1], [4, 3], [], [], [0], [2]))
    ]
    with pytest.raises(UserError) as alone:
        Pxn(topology).relayed(schedules)
    assert str(alone.value).startswith("h0g1 does not reach h1g0 ")

    def stated(ranks: Ranks) -> str:
        process = Division(ranks, [0, 1, 0, 0, 2, 2])
        with only_operations_of(process.own):
            own = JobSchedules(without_others(schedules), process)
        with pytest.raises(UserError) as failure:
            Pxn(topology).relayed(own)
        return str(failure.value)

    assert in_ranks(3, stated) == [str(alone.value)] * 3


@pytest.mark.parametrize("seed", range(20))
def test_tags_are_the_lowest_free_ones_in_turn(seed: int) -> None:
    chance = random.Random(seed)
    taken = [(chance.randrange(5), chance.randrange(-1, 12)) for _ in range(seed * 2)]
    asked = [chance.randrange(5) for _ in range(30)]
    used, expected = set(taken), []
    for pair in asked:
        tag = next(tag for tag in range(100) if (pair, tag) not in used)
        used.add((pair, tag))
        expected.append(tag)
    pairs, tags = np.array(taken, np.int64).reshape(-1, 2).T
    assert free_tags(np.array(asked), pairs, tags).tolist() == expected
