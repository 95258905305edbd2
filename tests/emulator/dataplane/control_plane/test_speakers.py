"""Test who speaks with whom, from the topology alone."""

import dataclasses
from ipaddress import IPv4Address, IPv4Network

import pytest

from emulator.dataplane.control_plane.control_plane_choice import ControlPlane, parse
from emulator.dataplane.control_plane.speakers import (
    FOUR_OCTETS,
    TWO_OCTETS,
    as_numbers,
    reflectors,
    speakers,
)
from emulator.errors import UserError
from topologies import catalogue
from topologies.model import Role, Topology

PODS = "clos:pods=2,hosts=2,gpus_per_host=2,spines=2,super_spines=2"
EBGP = ControlPlane(name="ebgp")
IBGP = ControlPlane(name="ibgp")
TIERED = ControlPlane(name="ebgp", systems="tier")


@pytest.fixture
def pods() -> Topology:
    return catalogue.load(PODS)


def test_every_switch_has_a_private_as_of_its_own(pods: Topology) -> None:
    numbers = as_numbers(pods, EBGP)
    assert set(numbers) == {switch.name for switch in pods.switches}
    assert len(set(numbers.values())) == len(numbers)
    assert set(numbers.values()) <= set(TWO_OCTETS)


def test_four_octets_when_two_do_not_suffice(
    pods: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulator.dataplane.control_plane.speakers.TWO_OCTETS", TWO_OCTETS[:3])
    numbers = as_numbers(pods, EBGP)
    assert len(set(numbers.values())) == len(numbers)
    assert all(number in FOUR_OCTETS for number in numbers.values())


def test_spines_of_a_pod_and_all_super_spines_share_an_as_per_tier(pods: Topology) -> None:
    numbers = as_numbers(pods, TIERED)
    of_role = {
        role: [numbers[s.name] for s in pods.switches if s.role.value == role]
        for role in ("rail", "spine", "super-spine")
    }
    assert len(set(of_role["rail"])) == len(of_role["rail"])
    assert len(set(of_role["super-spine"])) == 1
    assert len(set(of_role["spine"])) == 2  # one a pod
    pod_of = {s.name: s.pod for s in pods.switches}
    spines = [s.name for s in pods.switches if s.role.value == "spine"]
    for one in spines:
        for other in spines:
            assert (numbers[one] == numbers[other]) == (pod_of[one] == pod_of[other])


def test_neighbours_cannot_share_an_as(pods: Topology) -> None:
    nodes = tuple(
        dataclasses.replace(node, role=Role.SPINE) if node.role is Role.RAIL else node
        for node in pods.nodes
    )
    flat = dataclasses.replace(pods, nodes=nodes)
    assert len(set(as_numbers(flat, EBGP).values())) == len(flat.switches)
    with pytest.raises(UserError, match=r"are joined and would share an AS .* take as=switch"):
        as_numbers(flat, TIERED)


def test_ebgp_sessions_are_the_cables_between_switches(pods: Topology) -> None:
    found = speakers(pods, EBGP)
    between = [link for link in pods.links if all(e.node in found for e in link.ends)]
    assert sum(len(speaker.sessions) for speaker in found.values()) == 2 * len(between)
    for link in between:
        for ours, theirs in (link.ends, link.ends[::-1]):
            far = pods.node(theirs.node).port(theirs.port).address
            assert far is not None
            (session,) = [s for s in found[ours.node].sessions if s.address == far.ip]
            assert session.peer == theirs.node
            assert session.system == found[theirs.node].system


def test_the_highest_tier_reflects(pods: Topology) -> None:
    top = {s.name for s in pods.switches if s.role.value == "super-spine"}
    assert set(reflectors(pods.switches)) == top
    found = speakers(pods, IBGP)
    assert len({speaker.system for speaker in found.values()}) == 1
    for name, speaker in found.items():
        peers = {session.peer for session in speaker.sessions}
        clients = {session.peer for session in speaker.sessions if session.client}
        assert peers == (set(found) if name in top else top) - {name}
        assert clients == (set(found) - top if name in top else set())
        assert (speaker.cluster is not None) == (name in top)
    assert len({found[name].cluster for name in top}) == 1


def test_of_switches_that_are_all_alike_two_reflect() -> None:
    torus = catalogue.load("torus:routing=shortest")
    found = speakers(torus, IBGP)
    reflecting = {name for name, speaker in found.items() if speaker.cluster is not None}
    assert len(reflecting) == 2
    for name, speaker in found.items():
        assert {session.peer for session in speaker.sessions} >= reflecting - {name}


def test_parts_that_no_switch_joins_have_reflectors_of_their_own() -> None:
    apart = catalogue.load("clos:hosts=2,gpus_per_host=2,nic_ports=2,planes=own")
    found = speakers(apart, IBGP)
    for name, speaker in found.items():
        plane = apart.node(name).plane
        assert speaker.sessions
        assert {apart.node(session.peer).plane for session in speaker.sessions} == {plane}


def test_what_is_behind_two_switches_is_told_by_both() -> None:
    homed = catalogue.load("clos:hosts=2,gpus_per_host=2,nic_ports=2")
    found = speakers(homed, EBGP)
    for gpu in homed.gpus:
        assert gpu.loopback is not None
        tellers = [s.name for s in found.values() if IPv4Network(gpu.loopback) in s.networks]
        assert len(tellers) == 2


def test_summaries_are_the_topologys() -> None:
    divided = catalogue.load(
        "clos:hosts=2,gpus_per_host=4,rails_per_switch=2,subnets=divided,subnet_prefix=25"
    )
    summed = speakers(divided, EBGP)["rail0"]
    assert summed.summaries == (IPv4Network("10.0.1.0/24"),)
    halves = {IPv4Network("10.0.1.0/25"), IPv4Network("10.0.1.128/25")}
    assert halves < set(summed.networks)
    plain = speakers(divided, ControlPlane(name="ebgp", summaries=False))["rail0"]
    assert plain.summaries == ()


def test_a_switch_without_a_loopback_is_refused(pods: Topology) -> None:
    nodes = tuple(
        dataclasses.replace(node, loopback=None) if node.is_switch else node for node in pods.nodes
    )
    with pytest.raises(UserError, match="has no loopback, which the control plane ebgp takes"):
        speakers(dataclasses.replace(pods, nodes=nodes), EBGP)


def test_unnumbered_sessions_have_a_port() -> None:
    plane = parse("ebgp:unnumbered=on")
    assert plane is not None
    small = speakers(catalogue.load("rail_clos:hosts=2,gpus_per_host=2"), plane)
    assert [session.port for session in small["rail0"].sessions] == ["up0", "up1"]
    assert small["rail0"].router_id == IPv4Address("10.255.0.1")
