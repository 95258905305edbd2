"""A tree of peers doubles the copies of a model in each round."""

from __future__ import annotations

import pytest

from scenarios.cluster_tests.model_push import tree


@pytest.mark.parametrize(("servers", "rounds"), [(1, 1), (3, 2), (4, 3), (7, 3), (8, 4)])
def test_everyone_gets_one_copy_from_someone_who_has_it(servers: int, rounds: int) -> None:
    names = [f"h{number}" for number in range(servers)]
    plan = tree("storage0", names)
    assert len(plan) == rounds
    having = {"storage0"}
    for now in plan:
        sources = [one.source for one in now]
        assert len(set(sources)) == len(sources)
        assert set(sources) <= having
        having |= {one.server for one in now}
    assert [one.server for now in plan for one in now] == names
