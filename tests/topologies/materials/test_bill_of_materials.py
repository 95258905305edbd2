"""A bill of materials counts what a topology is made of."""

from __future__ import annotations

from fractions import Fraction

import pytest

from topologies import catalogue
from topologies.bill_of_materials import (
    CABLE,
    COPPER,
    FIBRE,
    NIC,
    OPTIC,
    SWITCH,
    CableItem,
    CableRules,
    NicItem,
    OpticItem,
    SwitchItem,
    bill_of,
    in_order,
)

G100, G200, G400, G800 = (rate * 10**9 for rate in (100, 200, 400, 800))


def test_a_pod_has_the_switches_and_cables_of_its_figure() -> None:
    bill = bill_of(catalogue.load("pod"))
    assert bill.gpus == 64
    assert bill.items[SWITCH] == {
        SwitchItem("rail", ((G100, 32), (G800, 4))): 4,
        SwitchItem("spine", ((G800, 4),)): 4,
    }
    assert bill.items[NIC] == {NicItem(2, G100): 64}
    lengths = Fraction(600, 5)  # of the design's 600 ns
    assert bill.items[CABLE] == {
        CableItem(G100, lengths, FIBRE): 128,
        CableItem(G800, lengths, FIBRE): 16,
    }
    assert bill.items[OPTIC] == {OpticItem(G100): 256, OpticItem(G800): 32}
    assert bill.switch_ports == 4 * 36 + 4 * 4


def test_a_short_cable_is_copper_and_has_no_optics() -> None:
    rules = CableRules(lengths_m={("gpu", "rail"): Fraction(2)})
    bill = bill_of(catalogue.load("pod"), rules)
    assert CableItem(G100, Fraction(2), COPPER) in bill.items[CABLE]
    assert bill.items[OPTIC] == {OpticItem(G800): 32}
    longer = CableRules(lengths_m={("gpu", "rail"): Fraction(201, 100)})
    assert OpticItem(G100) in bill_of(catalogue.load("pod"), longer).items[OPTIC]


def test_the_delay_of_a_cable_is_its_length_at_5_ns_a_metre() -> None:
    bill = bill_of(catalogue.load("rail_clos:nic_delay=10ns,uplink_delay=150ns"))
    assert {cable.length_m for cable in bill.items[CABLE]} == {2, 30}  # type: ignore[union-attr]


def test_pcie_of_a_shared_nic_is_no_cable() -> None:
    bill = bill_of(catalogue.load("shared_nic"))
    assert bill.items[NIC] == {NicItem(1, G200): 4}
    assert bill.count(CABLE) == 4


@pytest.mark.parametrize("design", catalogue.DESIGNS)
def test_every_cable_outside_servers_is_counted(design: str) -> None:
    topology = catalogue.load(design)
    bill = bill_of(topology)
    inside = sum(
        1
        for link in topology.links
        if {topology.node(end.node).role for end in link.ends} <= {"gpu", "nic"}
    )
    assert bill.count(CABLE) == len(topology.links) - inside
    assert bill.count(SWITCH) == len(topology.switches)
    assert bill.switch_ports == sum(len(switch.ports) for switch in topology.switches)


def test_items_stand_in_the_order_of_their_numbers() -> None:
    lengths = [CableItem(G400, Fraction(length), FIBRE) for length in (100, 30)]
    assert in_order(lengths) == lengths[::-1]
