"""Groups of ranks in Megatron's order."""

from __future__ import annotations

import pytest

from scenarios.workloads.transformer.parallel_layout import (
    CP,
    DP,
    EP,
    EXPERT_DP,
    TP,
    ParallelLayout,
)

LAYOUT = ParallelLayout(tp=2, cp=2, dp=2, pp=2, ep=2)


def test_tensor_ranks_are_neighbours_and_stages_are_far_apart() -> None:
    assert LAYOUT.ranks == 16
    assert LAYOUT.groups(TP)[:3] == [(0, 1), (2, 3), (4, 5)]
    assert LAYOUT.groups(CP)[:3] == [(0, 2), (4, 6), (1, 3)]
    assert LAYOUT.groups(DP) == [(0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15)]
    assert list(LAYOUT.stage(1)) == list(range(8, 16))


def test_experts_are_spread_over_context_and_data_ranks() -> None:
    assert LAYOUT.groups(EP)[:2] == [(0, 2), (4, 6)]
    assert LAYOUT.groups(EXPERT_DP)[:2] == [(0, 4), (2, 6)]


@pytest.mark.parametrize("kind", [TP, CP, EP, DP, EXPERT_DP])
def test_each_rank_is_in_one_group(kind: str) -> None:
    members = [rank for group in LAYOUT.groups(kind) for rank in group]
    assert sorted(members) == list(range(16))


def test_ranks_have_one_place() -> None:
    for rank in range(LAYOUT.ranks):
        assert LAYOUT.rank(LAYOUT.place(rank)) == rank
    place = LAYOUT.place(11)
    assert (place.tp, place.cp, place.dp, place.pp) == (1, 1, 0, 1)


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="no kind of group 'XP'"):
        LAYOUT.groups("XP")
