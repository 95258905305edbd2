"""A tree of peers doubles the copies of a model in each round."""

import pytest

from scenarios.cluster_tests.model_push import Parameters, services, tree, ways


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


def test_only_what_the_sources_need_is_started() -> None:
    assert services(Parameters(sources=("head",))) == ""
    assert services(Parameters(sources=("storage", "head"))) == "nfs"
    assert services(Parameters(sources=("s3", "storage"))) == "nfs,s3"


def test_every_source_has_ways_of_its_own() -> None:
    found = list(ways("storage0", ["h0", "h1"], ("storage", "s3", "head")))
    roots = {way.what: way.root for way in found}
    assert len(roots) == len(found) == 10
    assert {what for what, root in roots.items() if root == "head0"} == {
        f"{way} from head0"
        for way in ("http, one at a time", "http, all at once", "http, tree", "relays, chain")
    }
    for way in found:
        assert not way.rounds or sum(map(len, way.rounds)) == 2
