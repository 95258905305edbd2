"""Octets between GPUs load the steps between groups as ECMP shares them."""

from __future__ import annotations

import numpy as np

from emulator.workers.forked.cable_load import ENDPOINT_WORK, group_load
from emulator.workers.forked.expected_traffic import ExpectedTraffic
from topologies import catalogue


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
