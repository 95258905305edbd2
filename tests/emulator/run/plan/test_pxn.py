"""PXN: whose writes are relayed, and that what arrives is what was sent, in any legal order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from emulator.errors import UserError
from emulator.run.measures.ideal import ideal_ns
from emulator.run.plan.trial_load import TrialLoad
from emulator.run.pxn import BUFFER, Pxn
from emulator.sim.endpoint.operations.schedule import Copy, Receive, Region, Schedule, Write
from emulator.transports.wire_cost import WireCost
from scenarios.collective_benchmarks import allreduce
from scenarios.workloads.flows import Flow, Traffic, TrafficParameters, across_rails
from tests.harness.runs.schedule_executor import Executor
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
    after = Pxn(fabric).relayed(before)
    first, second = after[0].operations
    assert (type(first), first.peer, first.local) == (Copy, 1, Region("to3", 0, 64))  # type: ignore[attr-defined]
    assert second.remote == Region(BUFFER, 64, 36)  # type: ignore[attr-defined]
    assert after[1].buffers[BUFFER] == 128
    kinds = [(type(one), one.peer) for one in after[1].operations]  # type: ignore[attr-defined]
    assert kinds == [(Receive, 0), (Write, 3), (Receive, 0), (Write, 3)]
    assert [one.after for one in after[1].operations] == [(), (0,), (), (2,)]
    assert [one.peer for one in after[3].operations] == [1, 1]  # type: ignore[attr-defined]
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
