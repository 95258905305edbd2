"""Processes that have some of the GPUs each come to what one process with all of them does."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pytest

from emulator.run.measures.ideal import ideal_ns
from emulator.run.measures.message_graph import MessageGraph
from emulator.run.measures.message_times import Iteration, Recorder
from emulator.run.plan.trial_load import TrialLoad
from emulator.scenario import Trial
from emulator.scenario import load as load_scenario
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import (
    Copy,
    Operation,
    Receive,
    Region,
    Schedule,
    Write,
    only_operations_of,
    without_others,
)
from emulator.transports.wire_cost import WireCost
from emulator.workers.division import Division, JobSchedules
from emulator.workers.ranks.exchange import Ranks
from tests.harness.engine.rank_threads import in_ranks
from topologies.catalogue import load
from topologies.model import Topology

WIRE = WireCost(around_bytes=104, payload_mtu=4096)
FABRIC = load("rail_clos:hosts=3,gpus_per_host=4,spines=2")
CASES = {
    "allreduce": {"sizes": "96KiB"},
    "alltoall": {"sizes": "40KiB"},
    "broadcast": {"sizes": "70KiB"},
    "llm": {"tp": "2", "pp": "2", "dp": "2", "layers": "2", "batch": "2", "scale": "65536"},
    "moe": {"experts": "24", "tokens": "16"},
}
#: Owners of twelve GPUs: in a row, in turns, and one that has none.
DIVISIONS = [
    [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1],
    [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1],
    [2, 2, 0, 1, 0, 1, 1, 0, 2, 0, 0, 1],
    [3, 1, 1, 3, 3, 1, 0, 0, 0, 1, 3, 3],
]


def trial_of(name: str) -> Trial:
    chosen = load_scenario(name)
    return chosen.schedules(chosen.parameters(CASES[name]), FABRIC, 1)[0]


def results_of(schedules: Sequence[Schedule]) -> list[RankResult]:
    """Return made-up results, different for each operation, as one process has them."""
    return [
        RankResult(
            rank=one.rank,
            node=f"g{one.rank}",
            execution=1,
            start_ns=1_000,
            end_ns=90_000,
            operation_start=np.arange(len(one.operations)) * 7 + one.rank,
            operation_end=np.arange(len(one.operations)) * 9 + one.rank - 3,
        )
        for one in schedules
    ]


def same(one: Iteration, other: Iteration) -> bool:
    return all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name))
        for field in fields(Iteration)
    )


def test_what_planning_matched_records_the_same_messages() -> None:
    trial = trial_of("allreduce")
    load = TrialLoad.of(trial, FABRIC, WIRE)
    assert load.messages is not None
    results = results_of(trial.compile())
    kept, anew = load.messages.anew(), Recorder(trial.compile())
    for recorder in (kept, anew):
        recorder.add(results)
    ((one,), (other,)) = kept, anew
    assert same(one, other)
    assert not list(load.messages.anew())


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("name", CASES)
def test_the_parts_come_to_the_whole(name: str, division: list[int]) -> None:
    whole = trial_of(name).compile()
    graph, recorder = MessageGraph(whole), Recorder(whole)
    ideal = ideal_ns(FABRIC, whole, WIRE, graph=graph)
    results = results_of(whole)
    recorder.add(results)
    recorder.add(results)

    def part(ranks: Ranks) -> tuple[float, list[Iteration], tuple[int, int], list[bool]]:
        owners = Division(ranks, division)
        with only_operations_of(owners.own):
            own = JobSchedules(without_others(whole), owners)
        of_own = [one if one.rank in owners.own else one.brief() for one in results]
        graph = MessageGraph(own)
        bound = ideal_ns(FABRIC, own, WIRE, graph=graph)
        messages = Recorder(own)
        messages.add(of_own)
        sent = [
            np.array_equal(
                messages.sent_ns(rank, len(whole[rank].operations)),
                recorder.sent_ns(rank, len(whole[rank].operations)),
            )
            for rank in owners.own
        ]
        return bound, list(messages), messages.delivered(of_own), sent

    found = in_ranks(1 + max(division), part)
    assert {bound for bound, *_ in found} == {ideal}
    ((iteration,), *others) = [iterations for _, iterations, *_ in found]
    assert others == [[]] * (len(found) - 1)
    assert same(iteration, next(iter(recorder)))
    assert all(all(sent) for *_, sent in found)
    delivered = np.array([count for *_, count, _ in found]).sum(axis=0)
    assert tuple(delivered) == recorder.delivered(results)
    assert recorder.total == len(iteration)
    assert recorder.total_octets == iteration.length.sum()


@pytest.mark.parametrize("name", CASES)
def test_loads_are_equal_and_the_first_has_the_traffic(name: str) -> None:
    whole = TrialLoad.of(trial_of(name), FABRIC, WIRE)

    def part(ranks: Ranks) -> TrialLoad:
        owners = Division.in_blocks(ranks, 12)
        return TrialLoad.of(trial_of(name), FABRIC, WIRE, None, owners)

    first, *others = in_ranks(3, part)
    assert [first, *others] == [whole] * 3  # but for the traffic, which is not compared
    assert [one.traffic for one in others] == [None] * 2
    assert first.traffic is not None
    assert whole.traffic is not None
    for field in fields(whole.traffic):
        ours, theirs = getattr(first.traffic, field.name), getattr(whole.traffic, field.name)
        assert np.array_equal(ours, theirs)


REGION = Region("b", 0, 8)


def schedules_of(*operations: Sequence[Operation]) -> list[Schedule]:
    return [
        Schedule(rank=rank, buffers={"b": 8}, operations=tuple(some))
        for rank, some in enumerate(operations)
    ]


def write(peer: int, tag: int = 0, after: tuple[int, ...] = ()) -> Write:
    return Write(peer=peer, tag=tag, local=REGION, remote=REGION, after=after)


def receive(peer: int, tag: int = 0, after: tuple[int, ...] = ()) -> Receive:
    return Receive(peer=peer, tag=tag, into=REGION, after=after)


@pytest.mark.parametrize(
    "schedules",
    [
        schedules_of([write(9)], [write(0)], []),
        schedules_of([receive(1)], [receive(2)], []),
        schedules_of([receive(1), write(1, after=(0,))], [receive(0), write(0, after=(0,))], []),
        schedules_of([], [], [Copy(peer=1, tag=0, local=REGION, remote=REGION)]),
        schedules_of([receive(2)], [], [Copy(peer=0, tag=0, local=REGION, remote=REGION)]),
    ],
    ids=["nowhere", "unsent", "circle", "no receive", "no scale-up"],
)
def test_parts_fail_with_the_sentence_of_the_whole(schedules: list[Schedule]) -> None:
    fabric: Topology = load("rail_clos:hosts=3,gpus_per_host=1")

    def stated(schedules: Sequence[Schedule]) -> str:
        try:
            ideal_ns(fabric, schedules, WIRE)
        except ValueError as wrong:
            return str(wrong)
        return "sound"

    def part(ranks: Ranks) -> str:
        owners = Division(ranks, [0, 1, 1])
        with only_operations_of(owners.own):
            own = without_others(schedules)
        return stated(JobSchedules(own, owners))

    assert in_ranks(2, part) == [stated(schedules)] * 2
