"""Permutations give each GPU a partner, however many have to move for the last one."""

import pytest

from emulator.errors import UserError
from scenarios.workloads.permutations import across_rails
from topologies.catalogue import load


def test_each_rank_has_a_partner_on_another_rail_and_server() -> None:
    topology = load("rail_clos:hosts=4,gpus_per_host=4")
    partners = across_rails(topology, 1)
    assert sorted(partners) == list(range(16))
    for rank, to in enumerate(partners):
        assert rank // 4 != to // 4
        assert rank % 4 != to % 4


def test_a_large_fabric_needs_no_deep_recursion() -> None:
    topology = load("fat_tree:radix=64,leaves=40,gpus_per_host=8")
    partners = across_rails(topology, 1)
    assert sorted(partners) == list(range(len(topology.gpus)))


def test_a_fabric_without_one_is_refused() -> None:
    with pytest.raises(UserError, match="partner of its own"):
        across_rails(load("rail_clos:hosts=2,gpus_per_host=1"), 1)
