"""A user's price list gives a bill its cost, and each line that is wrong is named."""

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
    OpticItem,
    SwitchItem,
    bill_of,
    read_prices,
)
from topologies.model import TopologyError

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
