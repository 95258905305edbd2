"""Routing of tokens to experts: popularity, limits, and the hops of an exchange."""

import numpy as np
import pytest

from scenarios.workloads.experts import ExpertExchange, ExpertRouting

NODES = [0] * 4 + [1] * 4 + [2] * 4


def routed(skew: float, node_limit: int = 0, top_k: int = 3, tokens: int = 2000) -> np.ndarray:
    routing = ExpertRouting(nodes=NODES, top_k=top_k, skew=skew, node_limit=node_limit)
    return routing.choices(tokens, (7,), routing.popularity((1,)))


def test_popularity_follows_zipf() -> None:
    popular = ExpertRouting(nodes=NODES, top_k=1, skew=1.0).popularity((1,))
    assert popular.sum() == pytest.approx(1)
    assert np.sort(popular)[::-1] == pytest.approx(popular.max() / np.arange(1, 13))


def test_first_experts_are_drawn_by_popularity() -> None:
    popular = ExpertRouting(nodes=NODES, top_k=1, skew=1.0).popularity((1,))
    counts = np.bincount(routed(1.0, top_k=1, tokens=20000).ravel(), minlength=12)
    assert counts / 20000 == pytest.approx(popular, abs=0.02)


def test_without_skew_all_experts_are_alike() -> None:
    counts = np.bincount(routed(0.0).ravel(), minlength=12)
    assert counts == pytest.approx(np.full(12, 500), rel=0.15)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_token_goes_to_few_nodes_and_to_different_experts(limit: int) -> None:
    choices = routed(1.0, limit)
    assert all(len(set(row)) == 3 for row in choices.tolist())
    nodes = np.asarray(NODES)[choices]
    assert max(len(set(row)) for row in nodes.tolist()) == limit


def test_the_limit_takes_the_nodes_of_the_best_experts() -> None:
    """With one node, the first experts of a token are of the node with its best three."""
    routing = ExpertRouting(nodes=[0, 0, 1, 1], top_k=2, skew=0.0, node_limit=1)
    choices = routing.choices(500, (3,), np.array([0.499, 0.499, 0.001, 0.001]))
    assert np.mean(choices[:, 1] < 2) > 0.98


def exchange(once: bool) -> ExpertExchange:
    """Return four members in two nodes, two experts each, a token each."""
    choices = np.array([[[0, 4, 6, 7]], [[0, 1, 4, 5]], [[0, 2, 3, 4]], [[6, 7, 0, 2]]])
    return ExpertExchange(choices=np.sort(choices), nodes=[0, 0, 1, 1], per_member=2, once=once)


def test_each_expert_gets_a_row_of_its_own() -> None:
    (hop,) = exchange(once=False).hops
    assert hop.counts.tolist() == [[1, 0, 1, 2], [2, 0, 2, 0], [1, 2, 1, 0], [1, 1, 0, 2]]


def test_a_token_crosses_to_each_node_once_on_its_rail() -> None:
    first, second = exchange(once=True).hops
    # all tokens have experts in both nodes; those of the own node start where the token is
    assert first.counts.tolist() == [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
    assert second.counts[0].tolist() == [2, 1, 0, 0]  # its own token, and that of member 2
    assert second.counts[3].tolist() == [0, 0, 1, 1]  # its own token, and that of member 1
    nodes = np.asarray([0, 0, 1, 1])
    assert not second.counts[nodes[:, None] != nodes].any()


@pytest.mark.parametrize("once", [False, True])
def test_experts_work_on_the_tokens_that_chose_them(once: bool) -> None:
    one = exchange(once)
    found = [
        (int(one.arrived[member][row][0]), int(expert))
        for member in range(4)
        for row, expert in one.work[member]
    ]
    wanted = [(p, int(e)) for p in range(4) for e in one.choices[p, 0]]
    assert sorted(found) == sorted(wanted)
    assert one.load.tolist() == [5, 3, 4, 4]
    assert one.nodes_per_token == 2
