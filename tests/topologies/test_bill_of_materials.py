"""A bill of materials counts what a topology is made of; a user's price list gives it its cost."""

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
    read_prices,
)
from topologies.model import TopologyError

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


G400 = 400 * 10**9
WHOLE = """\
currency: EUR
copper_reach: 3
lengths: {gpu-rail: 2.5, rail-spine: 30, spine-super-spine: 100}
switches:
  - {ports: 64, rate: 51.2Tbps, price: 40000}
  - {ports: 32, rate: 12.8Tbps, price: 15000}
cables:
  - {rate: 400Gbps, medium: copper, price: 120}
  - {rate: 400Gbps, medium: fibre, price: 15, per_metre: 0.5}
optics:
  - {rate: 400Gbps, price: 500.25}
nics:
  - {ports: 1, rate: 400Gbps, price: 1500}
"""


def test_every_item_has_its_price_and_the_costs_are_exact() -> None:
    prices = read_prices(WHOLE, "prices.yaml")
    bill = bill_of(catalogue.load("rail_clos"), prices.rules)
    assert prices.cost(bill, SWITCH) == 6 * 15_000
    assert prices.cost(bill, CABLE) == 24 * 120 + 24 * (15 + Fraction(1, 2) * 30)
    assert prices.cost(bill, OPTIC) == 48 * Fraction("500.25")
    assert prices.cost(bill, NIC) == 24 * 1500
    assert not any(prices.without_price(bill, kind) for kind in bill.items)


def test_a_switch_is_the_cheapest_model_with_its_ports_and_rate() -> None:
    prices = read_prices(WHOLE, "prices.yaml")
    assert prices.price(SwitchItem("rail", ((G400, 32),))) == 15_000
    assert prices.price(SwitchItem("rail", ((G400, 33),))) == 40_000  # too many ports
    assert prices.price(SwitchItem("rail", ((2 * G400, 17),))) == 40_000  # too fast
    assert prices.price(SwitchItem("rail", ((G400, 65),))) is None


def test_what_has_no_price_is_named_and_not_counted() -> None:
    prices = read_prices("currency: EUR\n", "prices.yaml")
    bill = bill_of(catalogue.load("rail_clos"), prices.rules)
    assert prices.without_price(bill, OPTIC) == [OpticItem(G400)]
    assert prices.cost(bill, OPTIC) == 0
    assert prices.price(CableItem(G400, Fraction(2), COPPER)) is None


def test_lengths_decide_copper_and_fibre() -> None:
    rules = read_prices(WHOLE, "prices.yaml").rules
    cables = bill_of(catalogue.load("rail_clos"), rules).items[CABLE]
    assert cables == {
        CableItem(G400, Fraction(5, 2), COPPER): 24,
        CableItem(G400, Fraction(30), FIBRE): 24,
    }


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("switchs: []", "p:1: unknown key switchs; did you mean switches?"),
        ("copper_reach: far", "p:1: copper_reach is not a number"),
        ("copper_reach: -1", "p:1: copper_reach is not a number"),
        ("copper_reach: .nan", "p:1: copper_reach is not a number"),
        ("copper_reach: .inf", "p:1: copper_reach is not a number"),
        ("copper_reach: true", "p:1: copper_reach is not a number"),
        ("lengths: 3", "p:1: lengths is not a mapping"),
        ("lengths: {rail-spin: 3}", "p:1: rail-spin names no two tiers"),
        ("lengths:\n  gpu-rail: x", "p:2: gpu-rail is not a number"),
        ("optics: 400Gbps", "p:1: optics is not a list"),
        ("optics:\n  - 400Gbps", "p:2: not an entry of optics: write {rate, price}"),
        ("optics:\n  - {rate: 400, price: 1}", "p:2: rate is no rate: '400' has no unit"),
        ("optics:\n  - {rate: 400Gbps}", "p:2: price missing"),
        ("cables:\n  - {rate: 1Gbps, medium: air, price: 1}", "p:2: medium is neither copper"),
        ("nics:\n  - {ports: 0, rate: 1Gbps, price: 1}", "p:2: ports is not a number of ports"),
        (
            "optics:\n  - {rate: 1Gbps, price: 1}\n  - {rate: 1Gbps, price: 2}",
            "p:3: there is another entry of optics",
        ),
        ("currency: ''", "p:1: currency is not a currency"),
        ("- 1", "p:1: not a mapping"),
    ],
)
def test_each_wrong_line_is_named(text: str, stated: str) -> None:
    with pytest.raises(TopologyError) as refusal:
        read_prices(text, "p")
    assert str(refusal.value).startswith(stated)


def test_all_wrong_lines_are_named_at_once() -> None:
    with pytest.raises(TopologyError, match=r"\(1 more: "):
        read_prices("optics: 1\nnics: 2\n", "p")
