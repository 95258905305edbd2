"""Every node of a fabric has one owner, and workers know how far they may run ahead."""

import os
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import UserError
from emulator.sim.endpoint.operations.operation_table import OperationTable
from emulator.sim.endpoint.operations.schedule import Copy, Operation, Receive, Region, Write
from emulator.workers import partition
from emulator.workers.partition import (
    ENDPOINT_WORK,
    LEAST_GPUS,
    SLACK,
    ExpectedTraffic,
    GroupLoad,
    Partition,
    automatic,
    cut,
    group_load,
    lookahead_ps,
    refined,
)
from topologies import catalogue
from topologies.model import CableEnd, Role, Topology


def write(peer: int, octets: int) -> Write:
    return Write(peer=peer, tag=octets, local=Region("x", 0, octets), remote=Region("y", 0, octets))


def table(*operations: Operation) -> OperationTable:
    return OperationTable.of(operations)


def test_writes_and_copies_are_added_by_pair() -> None:
    copied = Copy(peer=2, tag=9, local=Region("x", 0, 64), remote=Region("y", 0, 64))
    received = Receive(peer=0, tag=1, into=Region("y", 0, 4096))
    made = ExpectedTraffic.of(
        [table(write(1, 100), write(2, 30), write(1, 7), copied), table(received), table()]
    )
    rows = zip(made.sender, made.receiver, made.written, made.copied, strict=True)
    assert [tuple(map(int, row)) for row in rows] == [(0, 1, 107, 0), (0, 2, 30, 0), (0, 2, 0, 64)]
    both = ExpectedTraffic.joined([made, made])
    assert (int(both.written.sum()), int(both.copied.sum())) == (274, 128)
    assert len(ExpectedTraffic.joined([]).sender) == 0


def test_spines_share_what_leaves_a_leaf_and_copies_go_straight() -> None:
    topology = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,spines=2")
    group_of = {one.name: one.name for one in topology.switches}
    ranks = [gpu.name for gpu in topology.gpus]
    for gpu in topology.gpus:
        group_of[gpu.name] = f"rail{gpu.name[-1]}"
    far = [ranks.index(name) for name in ("h0g0", "h1g1", "h0g1", "h1g0")]
    traffic = ExpectedTraffic(
        np.array([far[0], far[0], far[0]]),
        np.array([far[1], far[2], far[3]]),
        np.array([1000, 0, 40]),
        np.array([0, 64, 0]),
    )
    names = ["rail0", "rail1", "spine0", "spine1"]
    made = group_load(topology, names, group_of, traffic)
    assert made.between.tolist() == [
        [0, 64, 500, 500],
        [64, 0, 500, 500],
        [500, 500, 0, 0],
        [500, 500, 0, 0],
    ]
    at_rail0 = 1000 + ENDPOINT_WORK * (1000 + 2 * 40)
    assert made.work.tolist() == [at_rail0, 1000 + ENDPOINT_WORK * 1000, 1000, 1000]


def load(pairs: dict[tuple[int, int], int], work: list[int]) -> GroupLoad:
    between = np.zeros((len(work), len(work)), np.int64)
    for (one, other), octets in pairs.items():
        between[one, other] = between[other, one] = octets
    return GroupLoad(between, np.array(work, np.int64))


def test_pairs_that_talk_come_together_by_a_change_of_places() -> None:
    talk = load({(0, 2): 50, (1, 3): 50, (0, 1): 1}, [10] * 4)
    owner = np.array([0, 0, 1, 1])
    after = refined(talk, owner, np.ones(4, np.int64))
    assert after[0] == after[2] != after[1] == after[3]
    assert (cut(talk, owner), cut(talk, after)) == (100, 1)
    assert owner.tolist() == [0, 0, 1, 1]


def test_a_switch_without_gpus_goes_to_those_who_use_it_unless_that_is_too_much_work() -> None:
    busy = np.array([1, 1, 0])
    owner = np.array([0, 1, 1])
    light = load({(0, 2): 50}, [100, 100, 9])
    assert refined(light, owner, busy).tolist() == [0, 1, 0]
    heavy = load({(0, 2): 50}, [100, 10, 80])
    assert refined(heavy, owner, busy).tolist() == [0, 1, 1]


def test_nobody_is_left_without_gpus() -> None:
    one_pair = load({(0, 1): 50}, [0, 0])
    assert refined(one_pair, np.array([0, 1]), np.ones(2, np.int64)).tolist() == [0, 1]


def test_work_is_shared_where_neighbours_in_blocks_have_unequal_parts() -> None:
    """As with four leaf switches and four spines for three workers."""
    made = load({}, [100] * 4 + [20] * 4)
    after = refined(made, np.array([0, 1, 1, 2, 0, 0, 1, 2]), np.array([1] * 4 + [0] * 4))
    assert max(int(made.work[after == one].sum()) for one in range(3)) == 200


def test_unequal_groups_change_places() -> None:
    made = load({}, [90, 60, 30, 20])
    after = refined(made, np.array([0, 0, 1, 1]), np.ones(4, np.int64))
    assert sorted(int(made.work[after == one].sum()) for one in range(2)) == [90, 110]


@given(st.integers(2, 9), st.integers(2, 4), st.randoms(use_true_random=False))
def test_the_cut_never_grows_where_the_work_is_balanced_and_it_stays_balanced(
    groups: int, workers: int, draw: Random
) -> None:
    workers = min(groups, workers)
    pairs = {(i, j): draw.randrange(100) for i in range(groups) for j in range(i)}
    made = load(pairs, [draw.randrange(1, 50) for _ in range(groups)])
    owner = np.array([number * workers // groups for number in range(groups)])
    after = refined(made, owner, np.ones(groups, np.int64))
    before_most = max(int(made.work[owner == one].sum()) for one in range(workers))
    most = int(made.work.sum()) * SLACK // (100 * workers)
    assert before_most > most or cut(made, after) <= cut(made, owner)
    assert set(after.tolist()) == set(range(workers))
    assert max(int(made.work[after == one].sum()) for one in range(workers)) <= max(
        most, before_most
    )


SPECS = (
    "rail_clos",
    "clos:hosts=8,gpus_per_host=8",
    "pod",
    "fabric_planes:nic_ports=8",
    "shared_nic",
    "fat_tree",
    "torus",
    "dragonfly",
    "rail_clos:hosts=2,gpus_per_host=1",
)


@pytest.mark.parametrize("workers", [1, 2, 3, 64])
@pytest.mark.parametrize("spec", SPECS)
def test_every_node_has_an_owner_and_every_worker_has_gpus(spec: str, workers: int) -> None:
    topology = catalogue.load(spec)
    partition = Partition.of(topology, workers)
    assert set(partition.worker_of) == {node.name for node in topology.nodes}
    assert 1 <= partition.workers <= workers
    with_gpus = {partition.worker_of[gpu.name] for gpu in topology.gpus}
    assert with_gpus == set(range(partition.workers)) == set(partition.worker_of.values())
    assert partition.lookahead_ps == Partition.of(topology, 1).lookahead_ps


@pytest.mark.parametrize("spec", SPECS)
def test_gpus_are_with_their_switch_or_shared_nic(spec: str) -> None:
    topology = catalogue.load(spec)
    owner = Partition.of(topology, 64).worker_of
    for gpu in topology.gpus:
        links = [topology.link_at(end) for end in _ends(topology, gpu.name)]
        near = [end.node for link in links for end in link.ends if end.node != gpu.name]
        assert owner[gpu.name] in {owner[node] for node in near}
        for node in near:
            if topology.node(node).role is Role.NIC:
                assert owner[node] == owner[gpu.name]


def _ends(topology: Topology, node: str) -> list[CableEnd]:
    return [end for link in topology.links for end in link.ends if end.node == node]


def test_halves_are_equal_where_rails_are() -> None:
    owner = Partition.of(topology := catalogue.load("rail_clos"), 2).worker_of
    assert sorted(owner[gpu.name] for gpu in topology.gpus) == [0] * 12 + [1] * 12


def test_what_is_joined_without_delay_stays_together() -> None:
    at_once = catalogue.load("rail_clos:scale_up_latency=0ns")
    owner = Partition.of(at_once, 4).worker_of
    assert len({owner[gpu.name] for gpu in at_once.gpus}) == 1
    no_cable = catalogue.load("rail_clos:uplink_delay=0ns,nic_delay=0ns")
    assert Partition.of(no_cable, 4).workers == 1
    assert lookahead_ps(no_cable) == 700_000  # that of the scale-up network


def test_the_lookahead_is_the_least_of_delays_and_latency_between_groups() -> None:
    assert lookahead_ps(catalogue.load("rail_clos")) == 600_000
    assert lookahead_ps(catalogue.load("rail_clos:uplink_delay=100ns")) == 100_000
    assert lookahead_ps(catalogue.load("rail_clos:scale_up_latency=50ns")) == 50_000


def test_cables_that_are_never_cut_do_not_shorten_windows() -> None:
    assert lookahead_ps(catalogue.load("rail_clos:nic_delay=20ns")) == 600_000
    one_rail = catalogue.load("rail_clos:gpus_per_host=1,scale_up_latency=50ns,nic_delay=20ns")
    assert lookahead_ps(one_rail) == 600_000  # no scale-up network reaches beyond its leaf switch
    alone = catalogue.load("single_rail_switch:nic_delay=20ns")
    assert lookahead_ps(alone) == 20_000  # nothing can be cut


def test_a_small_fabric_gets_one_worker_by_itself() -> None:
    assert automatic(catalogue.load(f"rail_clos:hosts={LEAST_GPUS - 1},gpus_per_host=1")) == 1


@pytest.mark.parametrize(("runnable", "workers"), [(1, 4), (2, 3), (4, 1), (9, 1)])
def test_a_worker_gets_an_idle_processor(
    runnable: int, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loadavg = tmp_path / "loadavg"
    loadavg.write_text(f"3.12 2.05 1.31 {runnable}/417 29311\n")
    monkeypatch.setattr(partition, "LOADAVG", loadavg)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert automatic(catalogue.load("rail_clos")) == workers


def to_all_of_one_parity(topology: Topology) -> ExpectedTraffic:
    """GPUs of even rails send to those of the other even one, and those of odd rails so, too."""
    numbers = {gpu.name: rank for rank, gpu in enumerate(topology.gpus)}
    pairs = [
        (rank, numbers[f"{name[:-1]}{(int(name[-1]) + 2) % 4}"]) for name, rank in numbers.items()
    ]
    sender, receiver = np.array(pairs).T
    octets = np.full(len(pairs), 1000)
    return ExpectedTraffic(sender, receiver, octets * 0, octets)


def test_parts_follow_the_traffic_and_stay_balanced() -> None:
    topology = catalogue.load("rail_clos")
    traffic = to_all_of_one_parity(topology)
    plain, cut = Partition.of(topology, 2), Partition.of(topology, 2, traffic)
    assert plain.shares(topology, traffic).cut == 24_000
    assert cut.shares(topology, traffic).cut == 0
    assert cut.worker_of["rail0"] == cut.worker_of["rail2"] != cut.worker_of["rail1"]
    assert sorted(cut.worker_of[gpu.name] for gpu in topology.gpus) == [0] * 12 + [1] * 12
    assert cut == Partition.of(topology, 2, traffic)
    assert cut.lookahead_ps == plain.lookahead_ps


def test_parts_by_hand_have_the_gpus_of_their_switches() -> None:
    topology = catalogue.load("rail_clos")
    made = Partition.by_hand(topology, [["rail3", "rail0", "spine1"], ["rail1", "rail2"]])
    assert made.workers == 2
    assert {gpu: made.worker_of[gpu] for gpu in ("h0g0", "h0g1", "h5g2", "h5g3")} == {
        "h0g0": 0,
        "h0g1": 1,
        "h5g2": 1,
        "h5g3": 0,
    }
    assert made.worker_of["spine1"] == 0
    assert set(made.worker_of) == {node.name for node in topology.nodes}


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        (
            [["rail0", "rail9"]],
            r"part 0 \(from 0 on\) names rail9, .* its switches are rail0",
        ),
        ([["rail0", "rail1"], ["rail2"]], "is in no part: name rail3"),
        ([["rail0", "rail1"], ["rail2", "rail3", "rail0"]], "rail0 is in part 1, and in part 0"),
        ([["rail0", "rail1", "rail2", "rail3"], ["spine0"]], "part 1 has no GPU"),
    ],
)
def test_parts_that_cannot_be_are_refused(parts: list[list[str]], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        Partition.by_hand(catalogue.load("rail_clos"), parts)
