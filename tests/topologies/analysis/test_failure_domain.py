"""Test what one failure takes with it, against what can be counted on the drawings."""

from fractions import Fraction

import pytest

from topologies import catalogue
from topologies.addressing import rail_subnet
from topologies.analysis.failure_domain import FailureDomain, failure_domains
from topologies.model import Role, ScaleUp
from topologies.parts.assembly import Assembly

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)


def domains(spec: str) -> dict[str, FailureDomain]:
    return {domain.kind: domain for domain in failure_domains(catalogue.load(spec))}


@pytest.mark.parametrize(
    ("spec", "kind", "cut_off", "slower"),
    [
        ("single_rail_switch", "rail switch", 24, {}),
        ("single_rail_switch", "link gpu - rail", 1, {}),
        ("dual_rail_switch", "rail switch", 0, {HALF: 24}),
        ("dual_rail_switch", "link gpu - rail", 0, {HALF: 1}),
        ("host_segment", "rail switch", 0, {HALF: 32}),
        ("fabric_planes", "rail switch", 0, {HALF: 4}),
        ("rail_only", "rail switch", 4, {}),
        ("shared_nic", "shared NIC", 4, {}),
        ("shared_nic", "link nic - rail", 4, {}),
        ("shared_nic", "link gpu - nic", 1, {}),
        ("shared_nic", "rail switch", 16, {}),
        # 1.2 Tbps of NICs behind a switch that keeps 800 Gbps of its uplinks
        (
            "clos:gpus_per_nic=2,hosts=3,segments=2,spines=2",
            "spine switch",
            0,
            {Fraction(1, 3): 24},
        ),
        ("single_rail_per_switch", "rail switch", 32, {}),
        ("dual_rail_per_switch", "rail switch", 32, {}),
        ("multi_rail_per_switch", "rail switch", 32, {}),
        ("pod", "rail switch", 0, {HALF: 32}),
        ("pod:rails_per_switch=4", "rail switch", 0, {HALF: 16}),
        ("clos:nic_ports=4,gpus_per_host=2", "rail switch", 0, {QUARTER: 6}),
        ("clos:nic_ports=4,gpus_per_host=2", "link gpu - rail", 0, {QUARTER: 1}),
        ("pod", "spine switch", 0, {QUARTER: 64}),
        # of the eight uplinks of a segment; the other has nobody else to send to
        ("pod", "link rail - spine", 0, {Fraction(1, 8): 64}),
        # half of the uplinks of a rail switch lead to spines of the plane that lost one of four
        ("pod:planes=own", "spine switch", 0, {Fraction(1, 8): 64}),
        # its pod's spines only; the other pod keeps all of its own
        ("multi_pod", "spine switch", 0, {QUARTER: 64}),
        ("multi_pod", "super-spine switch", 0, {QUARTER: 128}),
        ("multi_pod", "link spine - super-spine", 0, {Fraction(1, 16): 128}),
        ("multi_pod:pods=3", "super-spine switch", 0, {QUARTER: 192}),
        # three times more spines than needed: nobody feels the loss of one
        ("rail_clos:spines=6,uplinks_per_spine=3", "spine switch", 0, {}),
        ("rail_clos:uplinks_per_spine=1", "spine switch", 0, {HALF: 24}),
        # eight GPUs of a group share six global links, then six share four; two other groups
        # lose one of six
        (
            "dragonfly:groups=4,arrangement=relative",
            "router",
            2,
            {Fraction(1, 9): 6, Fraction(1, 6): 16},
        ),
    ],
)
def test_gpus_that_are_hit(spec: str, kind: str, cut_off: int, slower: dict[Fraction, int]) -> None:
    domain = domains(spec)[kind]
    assert (domain.cut_off, domain.apart, domain.slower) == (cut_off, 0, slower)


def test_without_its_only_spine_a_rail_is_apart() -> None:
    domain = domains("rail_clos:spines=1")["spine switch"]
    assert (domain.cut_off, domain.apart, domain.slower) == (0, 24, {})
    assert domain.reported() == "24 apart from the rest"


def test_the_smaller_the_share_of_rails_on_a_switch_the_fewer_gpus_it_takes_along() -> None:
    shares = []
    for name in ("single_rail_switch", "multi_rail_per_switch", "dual_rail_per_switch"):
        gpus = len(catalogue.load(name).gpus)
        shares.append(Fraction(domains(name)["rail switch"].cut_off, gpus))
    shares.append(Fraction(domains("single_rail_per_switch")["rail switch"].cut_off, 256))
    assert shares == [1, Fraction(1, 2), Fraction(1, 4), Fraction(1, 8)]


@pytest.mark.parametrize("name", catalogue.DESIGNS)
def test_every_kind_of_element_of_a_design_is_told(name: str) -> None:
    topology = catalogue.load(name)
    roles = {node.role for node in topology.nodes if node.forwards}
    reported = domains(name)
    for role in roles:
        assert sum(kind.startswith(role.value) for kind in reported) == (role is not Role.NIC)
    assert ("shared NIC" in reported) == (Role.NIC in roles)
    pairs = {
        frozenset(topology.node(end.node).role for end in link.ends) for link in topology.links
    }
    within = [kind for kind in reported if kind.startswith("link ") and "between" not in kind]
    assert len(within) <= len(pairs) <= len([kind for kind in reported if kind.startswith("link ")])


def test_the_words_of_a_domain() -> None:
    domain = FailureDomain(
        kind="rail switch",
        example="rail0",
        cut_off=2,
        apart=0,
        slower={QUARTER: 1, Fraction(1, 3): 12},
    )
    assert domain.reported() == "2 cut off; 12 lose 33.3 %; 1 loses 25 %"
    assert domain.as_data()["slower"] == [
        {"gpus": 12, "lost_share": 0.333333},
        {"gpus": 1, "lost_share": 0.25},
    ]
    none = FailureDomain(kind="k", example="e", cut_off=0, apart=0, slower={})
    assert none.reported() == "nothing"


def test_links_between_pods_are_a_kind_of_their_own() -> None:
    fabric = Assembly(mtu=9000, buffer_bytes=1 << 20)
    for pod, pair in enumerate((("r0", "r1"), ("r2", "r3"))):
        for router in pair:
            fabric.switch(Role.ROUTER, router, pod=pod)
    for a, b in (("r0", "r1"), ("r2", "r3"), ("r1", "r2")):
        fabric.join(a, b, rate_bps=10**9, delay_ns=0)
    for number in range(4):
        (gpu,) = fabric.server(f"h{number}", 1, scale_up=ScaleUp(), pod=number // 2)
        fabric.bridge(f"r{number}", "rail0", rail=0, subnet=rail_subnet(number))
        fabric.attach(gpu, f"r{number}", "rail0", rate_bps=10**9, delay_ns=0)
    reported = {each.kind: each for each in failure_domains(fabric.topology("line", {}))}
    assert list(reported) == [
        "link gpu - router",
        "link router - router",
        "link router - router, between groups",
        "router",
    ]
    assert reported["link router - router, between groups"].apart == 4
    # r0's GPU stands alone then; the other three still reach each other
    assert reported["link router - router"].cut_off == 1
    assert reported["router"].cut_off == 1
