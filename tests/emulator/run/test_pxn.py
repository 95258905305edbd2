"""PXN: whose writes are relayed, that what arrives is what was sent, and columns in parts."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.run.measures.ideal import ideal_ns
from emulator.run.plan.trial_load import TrialLoad
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
from emulator.transports.wire_cost import WireCost
from emulator.workers.division import Division, JobSchedules
from emulator.workers.ranks.exchange import Ranks
from scenarios.collective_benchmarks import allreduce
from scenarios.workloads.flows import Flow, Traffic, TrafficParameters, across_rails
from tests.harness.engine.rank_threads import in_ranks
from tests.harness.runs.relayed_one_by_one import relayed_one_by_one
from tests.harness.runs.schedule_executor import Executor
from tests.harness.runs.wanted_parts import assert_parts
from topologies.catalogue import load
from topologies.model import Topology

RAILS_ONLY = load("clos:hosts=3,gpus_per_host=3,spines=0")
SPINES = load("clos:hosts=3,gpus_per_host=3,spines=1")
SHARED = load("clos:hosts=2,gpus_per_host=4,gpus_per_nic=2,spines=0")
WIRE = WireCost(around_bytes=104, payload_mtu=4096)


def all_to_all(topology: Topology) -> Traffic:
    gpus = topology.gpus
    flows = tuple(
        Flow(source=a, destination=b, length=300)
        for a in range(len(gpus))
        for b in range(len(gpus))
        if gpus[a].server != gpus[b].server
    )
    return Traffic(topology, flows, 128, 2, 1)


def executed(schedules: Sequence[Schedule], traffic: Traffic, seed: int) -> Executor:
    machine = Executor(schedules, random.Random(seed))
    for schedule in schedules:
        for name, content in traffic.inputs(schedule.rank).items():
            machine.memory[schedule.rank][name][:] = content
    machine.run()
    return machine


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("topology", [RAILS_ONLY, SHARED], ids=["own NICs", "shared NICs"])
def test_everybody_reaches_everybody_without_a_spine(topology: Topology, seed: int) -> None:
    traffic = all_to_all(topology)
    machine = executed(Pxn(topology).relayed(traffic.schedules()), traffic, seed)
    for rank in range(len(topology.gpus)):
        for name, content in traffic.expected(rank).items():
            assert machine.memory[rank][name].tobytes() == content.tobytes()


def test_a_gpu_of_another_server_of_the_domain_relays() -> None:
    """Two racks of two servers without spines: on the rail of the destination, in the rack."""
    racks = load("clos:hosts=4,gpus_per_host=3,spines=0,scale_up_hosts=2")
    domains = racks.scale_up_domains
    names = [gpu.name for gpu in racks.gpus]
    flows = tuple(
        Flow(source=a, destination=b, length=300)
        for a, one in enumerate(names)
        for b, other in enumerate(names)
        if domains[one] != domains[other]
    )
    traffic = Traffic(racks, flows, 128, 2, 1)
    relaying = Pxn(racks)
    machine = executed(relaying.relayed(traffic.schedules()), traffic, 1)
    for rank in range(len(names)):
        for name, content in traffic.expected(rank).items():
            assert machine.memory[rank][name].tobytes() == content.tobytes()
    relay = relaying.relay(names.index("h0g0"), names.index("h2g1"))
    assert relay is not None
    assert racks.gpus[relay].name in ("h0g1", "h1g1")
    with pytest.raises(ValueError, match="h0g0 and h1g1 share a scale-up network"):
        Traffic(racks, (Flow(source=0, destination=names.index("h1g1"), length=1),), 1, 1, 1)


def test_only_neighbours_in_a_ring_relay() -> None:
    ring = load("clos:hosts=2,gpus_per_host=4,spines=0,scale_up=ring")
    ranks = {gpu.name: rank for rank, gpu in enumerate(ring.gpus)}
    assert Pxn(ring).relay(ranks["h0g0"], ranks["h1g1"]) == ranks["h0g1"]
    assert Pxn(ring).relay(ranks["h0g0"], ranks["h1g3"]) == ranks["h0g3"]
    with pytest.raises(UserError, match="no GPU that it reaches over NVLink does"):
        Pxn(ring).relay(ranks["h0g0"], ranks["h1g2"])


def test_what_is_left_for_the_fabric_stays_on_a_rail() -> None:
    for topology, mode in ((RAILS_ONLY, "auto"), (SPINES, "always")):
        gpus = topology.gpus
        relayed = Pxn(topology, mode).relayed(all_to_all(topology).schedules())
        for schedule in relayed:
            own = gpus[schedule.rank]
            for operation in schedule.operations:
                if isinstance(operation, Write):
                    assert gpus[operation.peer].rail == own.rail
                if isinstance(operation, Copy):
                    assert gpus[operation.peer].server == own.server


def test_nothing_changes_where_the_fabric_reaches_everybody() -> None:
    schedules = all_to_all(SPINES).schedules()
    for mode in ("auto", "off"):
        assert list(Pxn(SPINES, mode).relayed(schedules)) == list(schedules)


def test_what_stays_on_its_rail_is_left_alone() -> None:
    (trial,) = allreduce.schedules(
        allreduce.Parameters(sizes=(4096,)), load("clos:hosts=2,gpus_per_host=2,spines=0"), 1
    )
    schedules = trial.compile()
    fabric = load("clos:hosts=2,gpus_per_host=2,spines=0")
    assert list(Pxn(fabric, "off").relayed(schedules)) == list(schedules)


def test_operations_keep_their_places() -> None:
    """Ranks 0 and 1 share server 0; rank 3 (on rail 1, as 1 is) gets what 0 writes through 1."""
    fabric = load("clos:hosts=2,gpus_per_host=2,spines=0")
    traffic = Traffic(fabric, (Flow(source=0, destination=3, length=100),), 64, 2, 1)
    before = traffic.schedules()
    after: Any = Pxn(fabric).relayed(before)
    first, second = after[0].operations
    assert (type(first), first.peer, first.local) == (Copy, 1, Region("to3", 0, 64))
    assert second.remote == Region(BUFFER, 64, 36)
    assert after[1].buffers[BUFFER] == 128
    kinds = [(type(one), one.peer) for one in after[1].operations]
    assert kinds == [(Receive, 0), (Write, 3), (Receive, 0), (Write, 3)]
    assert [one.after for one in after[1].operations] == [(), (0,), (), (2,)]
    assert [one.peer for one in after[3].operations] == [1, 1]
    assert [len(s.operations) for s in before] == [2, 0, 0, 2]


def test_tags_and_buffers_of_the_relay_stay_its_own() -> None:
    """The relay copies and writes by itself, with the tags that would come first."""
    fabric = load("clos:hosts=2,gpus_per_host=2,spines=0")
    a, b = Region("a", 0, 8), Region("b", 0, 8)
    schedules = [
        Schedule(
            rank=0,
            buffers={"a": 8},
            operations=(
                Copy(peer=1, tag=0, local=a, remote=b),
                Write(peer=3, tag=0, local=a, remote=a),
            ),
        ),
        Schedule(
            rank=1,
            buffers={BUFFER: 8, "b": 8},
            operations=(
                Receive(peer=0, tag=0, into=b),
                Write(peer=3, tag=0, local=b, remote=b, after=(0,)),
            ),
        ),
        Schedule(rank=2, buffers={}),
        Schedule(
            rank=3,
            buffers={"a": 8, "b": 8},
            operations=(Receive(peer=0, tag=0, into=a), Receive(peer=1, tag=0, into=b)),
        ),
    ]
    relayed = Pxn(fabric).relayed(schedules)
    assert relayed[1].buffers[BUFFER] == 8
    assert len(relayed[1].buffers) == 3
    machine = Executor(relayed, random.Random(1))
    machine.memory[0]["a"][:] = 7
    machine.run()
    assert machine.memory[3]["a"].tolist() == machine.memory[3]["b"].tolist() == [7] * 8


def test_a_server_mate_that_the_fabric_does_not_reach_gets_a_copy() -> None:
    fabric = load("clos:hosts=2,gpus_per_host=2,spines=0")
    a = Region("a", 0, 8)
    schedules = [
        Schedule(rank=0, buffers={"a": 8}, operations=(Write(peer=1, tag=5, local=a, remote=a),)),
        Schedule(rank=1, buffers={"a": 8}, operations=(Receive(peer=0, tag=5, into=a),)),
        Schedule(rank=2, buffers={}),
        Schedule(rank=3, buffers={}),
    ]
    relayed = Pxn(fabric).relayed(schedules)
    assert relayed[0].operations == (Copy(peer=1, tag=5, local=a, remote=a),)
    assert relayed[1:] == schedules[1:]


def test_off_names_the_pair_and_the_way_out() -> None:
    traffic = all_to_all(RAILS_ONLY)
    with pytest.raises(UserError, match=r"h0g0 does not reach h1g1 .*--pxn at auto.*spines"):
        Pxn(RAILS_ONLY, "off").relayed(traffic.schedules())


def test_nobody_can_relay_to_a_pod_of_its_own() -> None:
    pods = load("clos:pods=2,hosts=1,gpus_per_host=2,spines=1")
    traffic = Traffic(pods, (Flow(source=0, destination=2, length=1),), 1, 1, 1)
    with pytest.raises(
        UserError, match=r"h0g0 does not reach h1g0 .* no GPU that it reaches over NVLink"
    ):
        Pxn(pods).relayed(traffic.schedules())


def test_the_ideal_time_counts_the_way_over_nvlink() -> None:
    fabric = load(
        "clos:hosts=2,gpus_per_host=2,spines=0,scale_up_rate=3200Gbps,scale_up_latency=500ns"
    )
    traffic = Traffic(fabric, (Flow(source=0, destination=3, length=4096),), 4096, 1, 1)
    # 4096 octets at 400 octets/ns and the latency; then 4200 at 50 octets/ns and two cables
    expected = 4096 / 400 + 500 + 84 + 1200
    assert ideal_ns(fabric, Pxn(fabric).relayed(traffic.schedules()), WIRE) == pytest.approx(
        expected
    )
    trial = traffic.trial("one", TrafficParameters())
    assert TrialLoad.of(trial, fabric, WIRE).ideal_ns == pytest.approx(expected)


def test_a_permutation_across_rails_is_relayed_whole() -> None:
    fabric = load("clos:hosts=2,gpus_per_host=2,spines=0")
    partners = across_rails(fabric, 1)
    pxn = Pxn(fabric)
    relays = [pxn.relay(rank, to) for rank, to in enumerate(partners)]
    assert all(
        relay is not None
        and fabric.gpus[relay].server == fabric.gpus[rank].server
        and fabric.gpus[relay].rail == fabric.gpus[to].rail
        for rank, (to, relay) in enumerate(zip(partners, relays, strict=True))
    )


RAILS = "clos:hosts=3,gpus_per_host=4,spines=0"
SPINED = "clos:hosts=3,gpus_per_host=4,spines=1"
SHARED_NICS = "clos:hosts=3,gpus_per_host=4,gpus_per_nic=2,spines=0"
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
    [(RAILS, "auto"), (SPINED, "always"), (SHARED_NICS, "auto"), (RACKS, "auto")],
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
    topology = load(RAILS)
    (trial,) = scenario.load("alltoall").module.schedules(
        scenario.load("alltoall").parameters({"sizes": "3072"}), topology, 1
    )
    schedules = trial.compile()
    part = in_parts(Pxn(topology), schedules, [1] * 12)[0]
    assert_parts(part, relayed_one_by_one(Pxn(topology), schedules), frozenset())


def test_schedules_without_a_relayed_write_are_returned_as_they_are() -> None:
    topology = load(SPINED)
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
