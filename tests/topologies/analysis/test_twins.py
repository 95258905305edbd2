"""Twins have the same cables, and a fabric has as many kinds of them at any size of its parts."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from topologies import catalogue
from topologies.analysis.capacity import bisection_bandwidth
from topologies.analysis.failure_domain import failure_domains
from topologies.analysis.twins import first_twins, twins_of
from topologies.wiring import shortest_spans


@pytest.mark.parametrize(
    "spec", ["mrc", "multi_pod", "shared_nic", "dual_rail_switch", "torus", "dragonfly_plus"]
)
def test_each_node_has_the_cables_of_its_kind(spec: str) -> None:
    topology = catalogue.load(spec)
    kinds = twins_of(topology)
    assert sorted(node.name for kind in kinds for node in kind.nodes) == sorted(topology.by_name)
    for kind in kinds:
        for node in kind.nodes:
            around = [cable for cable in topology.neighbours(node.name) if not cable[0].standby]
            assert tuple(far.node for _, _, far in around) == kind.far
            assert tuple(link.rate_bps for link, _, _ in around) == kind.rates


def test_more_servers_and_spines_make_no_more_kinds() -> None:
    """So what is computed from kinds takes no longer for them."""
    numbers = "mrc:scale=1,segments=16,hosts={},spines={},uplinks_per_spine=1,nic_ports=2"
    small, large = (catalogue.load(numbers.format(*each)) for each in ((2, 2), (8, 8)))
    assert len(large.nodes) > 3 * len(small.nodes)
    assert len(twins_of(large)) == len(twins_of(small)) == 16 * 4 + 16 * 2 + 2
    assert [domain.kind for domain in failure_domains(large)] == [
        domain.kind for domain in failure_domains(small)
    ]
    assert bisection_bandwidth(large)["servers"] == 4 * bisection_bandwidth(small)["servers"]


@pytest.mark.parametrize("spec", ["pod", "shared_nic", "clos:uplink_rate=200G,spines=4,hosts=4"])
def test_walks_over_the_first_twins_are_those_over_all(spec: str) -> None:
    """Links in any order, with ties between links of unequal rates."""
    random, fabric = Random(1), catalogue.load(spec)
    for part in (0.0, 0.1, 0.1, 1.0):
        links = [
            replace(link, rate_bps=100 * 10**9) if random.random() < part else link
            for link in fabric.links
        ]
        if part:
            random.shuffle(links)
        topology = replace(fabric, links=tuple(links))
        few = first_twins(topology)
        assert part or len(few.links) < len(topology.links)
        source = topology.gpus[0].name
        walked = shortest_spans(topology, source)
        kept = [(name, span) for name, span in walked.items() if name in few.by_name]
        assert list(shortest_spans(few, source).items()) == kept
        assert {span for _, span in kept} == set(walked.values())
