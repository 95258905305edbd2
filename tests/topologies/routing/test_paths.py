"""Lengths of ways and circles of links, against every way of a small fabric walked step by step."""

from collections.abc import Mapping
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from math import ceil

import pytest

from tests.harness.topologies.walks import walks
from topologies.analysis.deadlock import buffer_cycle
from topologies.analysis.round_trip import ACK_BYTES, base_rtt_ns
from topologies.catalogue import load
from topologies.model import VXLAN_OVERHEAD, Link, Topology
from topologies.routing.forwarding import forwarding_of
from topologies.routing.paths import (
    longest_paths_from,
    longest_to_gpus,
    paths_from,
    spans_from,
)
from topologies.stretch import stretch_of
from topologies.wiring import NOWHERE, shortest_spans, ticks_of

FRAME = 9038
#: Delays and rates that differ, so that ways of as many cables are not as long.
SPECS = (
    "clos:pods=2,hosts=2,gpus_per_host=2,super_spines=2,uplink_rate=800G,uplink_delay=333ns",
    "clos:hosts=2,gpus_per_host=3,rails_per_switch=3,spines=0",
    "fat_tree:radix=4,levels=3,gpus_per_host=2,uplink_delay=450ns",
    "torus:x=4,y=3,z=2,link_rate=800G",
    "torus:x=5,y=4,nic_delay=50ns",
    "torus:x=4,y=3,routing=shortest,gpus_per_host=2",
    "torus:x=4,y=3,z=2,routing=up-down",
    "torus:x=2,y=3,pair_cables=2",
    "dragonfly:groups=5,uplink_delay=100ns,global_delay=1us",
    "dragonfly:gpus_per_host=1,routers=3,global_links=1,routing=valiant,global_delay=1us",
    "dragonfly:gpus_per_host=1,routers=3,global_links=1,routing=up-down",
    "dragonfly_plus:gpus_per_host=2,groups=3,global_delay=2us",
    "dragonfly_plus:gpus_per_host=1,leaves=2,spines=2,groups=3,routing=valiant,global_delay=2us",
)
#: Where a GPU has several ports or shares one, and where rails are stretched.
ATTACHED = (
    "clos:nic_ports=2,planes=own,hosts=2",
    "clos:nic_ports=4,planes=own,hosts=2,gpus_per_host=2",
    "clos:gpus_per_host=4,gpus_per_nic=4,hosts=3",
    "clos:pods=2,super_spines=2,subnets=stretched",
)

Way = tuple[Link, ...]


def ways(topology: Topology) -> Mapping[tuple[str, str], list[Way]]:
    """Every way between two GPUs, each with one cable to its switch; those of a switch by it."""
    at = {gpu.name: next(iter(topology.neighbours(gpu.name))) for gpu in topology.gpus}
    between: dict[tuple[str, str], list[Way]] = {}
    found: dict[tuple[str, str], list[Way]] = {}
    for one, (first, _, near) in at.items():
        for other, (last, _, far) in at.items():
            pair = near.node, far.node
            if one == other:
                continue
            if pair not in between:
                tables = forwarding_of(topology).tables(far.node).values()
                joined = near.node == far.node or any(near.node in hops for hops in tables)
                between[pair] = (
                    [tuple(step.link for step in walk) for walk in walks(topology, *pair)]
                    if joined
                    else []
                )
            if between[pair]:
                found[one, other] = [(first, *way, last) for way in between[pair]]
    return found


def length(way: Way) -> tuple[int, int]:
    return len(way), sum(link.delay_ns for link in way)


def round_trip(way: Way, tunnel: Way = ()) -> int:
    """Return the definition's round trip: there and back, and every port sends packet and ACK."""
    octets = [(FRAME + ACK_BYTES, link) for link in way]
    octets += [(2 * VXLAN_OVERHEAD, link) for link in tunnel]
    serialisation = sum(Fraction(count * 8 * 10**9, link.rate_bps) for count, link in octets)
    return ceil(2 * sum(link.delay_ns for link in way) + serialisation)


def tunnel(topology: Topology, source: str, destination: str, way: Way) -> Way:
    """The cables of ``way`` that packets pass in a tunnel."""
    stretch = stretch_of(topology)
    return () if stretch is None else stretch.tunnel(source, destination, way)


@pytest.mark.parametrize("spec", SPECS)
def test_lengths_are_those_of_the_shortest_and_the_longest_of_all_ways(spec: str) -> None:
    topology = load(spec)
    every = ways(topology)
    ticks = ticks_of(topology)
    assert every
    for longest, extreme in ((False, min), (True, max)):
        for gpu in topology.gpus:
            spans = spans_from(topology, gpu.name, longest=longest)
            for peer in topology.gpus:
                pair = gpu.name, peer.name
                if pair not in every:
                    assert gpu is peer or peer.name not in spans
                    continue
                bound = extreme(map(length, every[pair]))
                alike = [way for way in every[pair] if length(way) == bound]
                assert spans[peer.name] in [ticks.span(way) for way in alike]
    farthest = [max(every[pair], key=length) for pair in every]
    assert base_rtt_ns(topology, FRAME) == max(map(round_trip, farthest))


@pytest.mark.parametrize("spec", [*SPECS, *ATTACHED])
def test_lengths_are_those_of_the_paths(spec: str) -> None:
    topology = load(spec)
    ticks = ticks_of(topology)
    for node in (topology.gpus[0], topology.gpus[-1], topology.switches[-1]):
        for longest, paths in ((False, paths_from), (True, longest_paths_from)):
            spans = spans_from(topology, node.name, longest=longest)
            for name, path in paths(topology, node.name).items():
                inside = sum(map(ticks.of, tunnel(topology, node.name, name, path)))
                assert spans[name] == ticks.span(path)._replace(tunnel_ticks=inside)


LATENCY = 650


def through(topology: Topology, source: str, way: Way) -> int:
    """How many switches a packet from ``source`` comes to on ``way``."""
    here, count = source, 0
    for link in way:
        here = next(end.node for end in link.ends if end.node != here)
        count += topology.node(here).is_switch
    return count


@pytest.mark.parametrize("spec", [*SPECS, *ATTACHED])
def test_each_switch_on_the_way_adds_its_latency(spec: str) -> None:
    topology = load(spec)
    slower = topology.with_switch_latency(LATENCY)
    ticks = ticks_of(slower)
    for node in (topology.gpus[0], topology.gpus[-1], topology.switches[-1]):
        for longest, paths in ((False, paths_from), (True, longest_paths_from)):
            spans = spans_from(slower, node.name, longest=longest)
            for name, path in paths(slower, node.name).items():
                plain = ticks.span(path)
                more = LATENCY * through(slower, node.name, path)
                inside = sum(map(ticks.of, tunnel(slower, node.name, name, path)))
                delay = plain.delay_ns + more
                assert spans[name] == plain._replace(delay_ns=delay, tunnel_ticks=inside)
    assert slower.with_switch_latency(0) == topology


@pytest.mark.parametrize("spec", ATTACHED)
def test_the_base_round_trip_is_that_of_the_longest_path(spec: str) -> None:
    topology = load(spec)
    gpus = [gpu.name for gpu in topology.gpus]
    trips = [
        round_trip(reached[peer], tunnel(topology, gpu, peer, reached[peer]))
        for gpu in gpus
        for reached in [longest_paths_from(topology, gpu)]
        for peer in gpus
        if peer != gpu and peer in reached
    ]
    assert base_rtt_ns(topology, FRAME) == max(trips)


def test_without_two_gpus_the_farthest_switch_counts() -> None:
    topology = load("clos:hosts=1,gpus_per_host=1,spines=2,uplink_delay=700ns")
    (gpu,) = topology.gpus
    far = [path for name, path in paths_from(topology, gpu.name).items() if name != gpu.name]
    assert base_rtt_ns(topology, FRAME) == max(map(round_trip, far))


@pytest.mark.parametrize("spec", SPECS)
def test_links_wait_in_a_circle_if_packets_on_all_ways_say_so(spec: str) -> None:
    topology = load(spec)
    waits: dict[tuple[str, str], set[tuple[str, str]]] = {}
    hosts = forwarding_of(topology).graph.hosts
    for source in hosts:
        for owner in hosts:
            hops = forwarding_of(topology).tables(owner).values()
            if source == owner or not any(source in table for table in hops):
                continue
            for walk in walks(topology, source, owner):
                names = [source, *(step.node for step in walk)]
                outs = [(name, step.port) for name, step in zip(names, walk, strict=False)]
                for one, following in pairwise(outs):
                    waits.setdefault(one, set()).add(following)
    try:
        tuple(TopologicalSorter(waits).static_order())
        circular = False
    except CycleError:
        circular = True
    assert bool(buffer_cycle(topology)) is circular


@pytest.mark.parametrize(
    "spec", ["fat_tree:radix=4,levels=3,gpus_per_host=2,uplink_delay=450ns", "pod", "rail_clos"]
)
def test_lengths_from_a_gpu_are_those_from_its_switch_and_its_cable(spec: str) -> None:
    topology = load(spec).with_switch_latency(700)
    for gpu in topology.gpus:
        reached, walked = spans_from(topology, gpu.name), shortest_spans(topology, gpu.name)
        assert list(reached.items()) == list(walked.items())
        assert len(reached) == len(walked)
        assert "nobody" not in reached
        to_gpus = [walked.get(peer.name, NOWHERE) for peer in topology.gpus]
        longest = max(one.delay_ns for one in to_gpus), max(one.hops for one in to_gpus)
        assert longest_to_gpus(topology, gpu.name) == longest


def test_paths_are_measured_once_however_often_the_round_trip_is_needed() -> None:
    topology = load("rail_clos:hosts=2,gpus_per_host=2")
    base_rtt_ns(topology, 4096)
    measured = dict(topology.results)
    assert base_rtt_ns(topology, 9000) > base_rtt_ns(topology, 4096)
    assert topology.results == measured
    assert any(key.startswith(base_rtt_ns.__module__) for key in measured)
