"""The parts of a Clos fabric, each by itself: panels, subnets, trunks."""

from dataclasses import replace

import pytest

from topologies.clos import (
    APART,
    AUTO_HOMING,
    BY_HOST,
    BY_RAIL,
    DIVIDED,
    INTERLEAVED,
    PAIR,
    PATHS,
    PLANES,
    STRETCHED,
    ClosTiers,
    ClosTrunks,
    NicHoming,
    RailSubnets,
    SwitchPanel,
)
from topologies.model import TopologyError

G = 10**9
TIERS = ClosTiers(
    pods=2,
    segments=2,
    hosts=4,
    gpus_per_host=8,
    gpus_per_nic=1,
    nic_ports=1,
    rails_per_switch=4,
    spines=2,
    own_spines=False,
    super_spines=2,
)
TRUNKS = ClosTrunks(
    tiers=TIERS,
    nic_rate=400 * G,
    uplink_rate=800 * G,
    uplinks_per_spine=None,
    super_rate=None,
    uplinks_per_super=None,
)


def test_an_interleaved_panel_has_the_interfaces_of_figure_13_6() -> None:
    panel = SwitchPanel(order=INTERLEAVED, ports=None, hosts=4)
    panels = {
        rail: [(panel.interface(host, rail - 1) or 0) + 1 for host in range(4)]
        for rail in (1, 2, 5)
    }
    assert panels == {1: [1, 4, 7, 10], 2: [13, 16, 19, 22], 5: [2, 5, 8, 11]}


def test_cables_come_by_rail_or_by_host() -> None:
    panel = SwitchPanel(order=BY_RAIL, ports=None, hosts=2)
    assert panel.cables(range(4, 6)) == [(0, 4), (1, 4), (0, 5), (1, 5)]
    assert replace(panel, order=BY_HOST).cables(range(4, 6)) == [(0, 4), (0, 5), (1, 4), (1, 5)]
    assert panel.interface(1, 0) is None


def test_a_panel_has_room_for_both_directions() -> None:
    panel = SwitchPanel(order=BY_RAIL, ports=24, hosts=4)
    panel.check(rails=4, below=16, above=8, spines=2)
    with pytest.raises(TopologyError, match=r"25 of them \(16 down, 9 up\)"):
        panel.check(rails=4, below=16, above=9, spines=3)


def test_places_are_numbered_through_pods_segments_and_switches() -> None:
    places = list(TIERS.places())
    assert len(places) == TIERS.rail_switches == 8
    assert [(p.name, p.pod, p.segment, p.index) for p in places[1:4]] == [
        ("rail1", 0, 0, 1), ("rail2", 0, 1, 0), ("rail3", 0, 1, 1),
    ]  # fmt: skip
    assert TIERS.rails_of(places[3]) == range(4, 8)


def test_trunks_that_are_not_given_do_not_block() -> None:
    assert TRUNKS.parallel == 4  # 16 x 400G down over two spines of 800G
    assert TRUNKS.parallel_super == 8  # 4 rail switches, 4 links each, over two super-spines
    assert replace(TRUNKS, super_rate=1600 * G).parallel_super == 4
    assert replace(TRUNKS, uplinks_per_spine=1).parallel_super == 2


@pytest.mark.parametrize(
    ("word", "prefix", "subnet"),
    [
        (APART, 24, "10.1.14.0/24"),
        (DIVIDED, 26, "10.1.4.64/26"),
        (STRETCHED, 24, "10.0.6.0/24"),
    ],
)
def test_a_rail_has_its_subnet(word: str, prefix: int, subnet: str) -> None:
    """Rail 5 in the second segment of the second pod."""
    subnets = RailSubnets(
        word=word, prefix=prefix, tiers=TIERS, homing=NicHoming(PATHS, nic_ports=1)
    )
    place = list(TIERS.places())[7]
    assert str(subnets.subnet(place, 5)) == subnet


def test_each_plane_has_a_second_octet_of_its_own() -> None:
    tiers = replace(TIERS, nic_ports=2, own_spines=True, super_spines=0)
    subnets = RailSubnets(word=APART, prefix=24, tiers=tiers, homing=NicHoming(PLANES, nic_ports=2))
    found = {(p.pod, p.plane): str(subnets.subnet(p, 0)) for p in tiers.places() if not p.segment}
    assert found == {
        (0, 0): "10.1.1.0/24", (0, 1): "10.2.1.0/24",
        (1, 0): "10.11.1.0/24", (1, 1): "10.12.1.0/24",
    }  # fmt: skip


@pytest.mark.parametrize(("ports", "drawn"), [(1, PATHS), (2, PAIR), (4, PATHS)])
def test_homing_of_the_machines_choice_is_drawn_as_a_bond_of_two(ports: int, drawn: str) -> None:
    assert NicHoming(AUTO_HOMING, nic_ports=ports).drawn == drawn
