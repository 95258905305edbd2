"""``uetemu graph --format bom``: bills of materials of several fabrics, side by side."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from emulator.cli.graph import graph_verb
from emulator.errors import UserError

PRICES = """\
currency: EUR
lengths: {gpu-rail: 2, rail-spine: 30}
switches:
  - {ports: 64, rate: 51.2Tbps, price: 40000}
cables:
  - {rate: 400Gbps, medium: copper, price: 100}
  - {rate: 400Gbps, medium: fibre, price: 20}
nics:
  - {ports: 1, rate: 400Gbps, price: 1500}
"""


def _graph(*arguments: str) -> Result:
    return CliRunner().invoke(graph_verb.command, arguments, catch_exceptions=True)


@pytest.fixture
def prices(tmp_path: Path) -> str:
    path = tmp_path / "prices.yaml"
    path.write_text(PRICES)
    return str(path)


def test_two_designs_stand_side_by_side_with_numbers_per_gpu() -> None:
    text = _graph("pod", "rail_clos", "--format", "bom").stdout
    assert re.search(r"item +\| pod \| per GPU \| rail_clos \| per GPU", text)
    assert re.search(r"NIC +\| 2 x 100 Gbps +\| +64 \| +1 \| +0 \| +0 \|", text)
    assert re.search(r"NIC +\| 1 x 400 Gbps +\| +0 \| +0 \| +24 \| +1 \|", text)
    assert re.search(r"ports with a cable +\| 160 \| +2\.5 \| +72 \| +3 \|", text)
    assert "Cost" not in text


def test_prices_give_a_table_of_costs(prices: str) -> None:
    text = _graph("rail_clos", "--format", "bom", "--prices", prices).stdout
    assert re.search(r"switch \| +240,000 \| +10,000 \|", text)
    assert re.search(r"cable +\| +2,880 \| +120 \|", text)
    assert re.search(r"optic +\| +>= 0 \| +>= 0 \|", text)
    assert re.search(r"all +\| >= 278,880 \| >= 11,620 \|", text)
    assert "sums begin with >=: optic 400 Gbps." in text


def test_json_has_the_numbers_and_null_without_a_price(prices: str) -> None:
    data = json.loads(_graph("rail_clos", "--format", "bom-json", "--prices", prices).stdout)
    assert (data["schema"], data["currency"]) == ("uetemu.bom/1", "EUR")
    (design,) = data["designs"]
    items = {(one["kind"], one["item"]): one for one in design["items"]}
    assert items["NIC", "1 x 400 Gbps"]["cost"] == 36_000
    assert items["optic", "400 Gbps"]["price"] is None


@pytest.mark.parametrize(
    ("arguments", "stated"),
    [
        (("pod", "rail_clos"), "--format text shows one fabric, not 2"),
        (("pod", "--prices", "x.yaml"), "--prices is for a bill of materials"),
        (("pod", "--format", "bom", "--full"), "has no --full"),
        (("pod", "--format", "bom", "--prices", "nowhere.yaml"), "nowhere.yaml cannot be read"),
        (("pod",) * 7 + ("--format", "bom"), "7 fabrics; at most 6"),
    ],
)
def test_wrong_words_are_one_sentence(arguments: tuple[str, ...], stated: str) -> None:
    error = _graph(*arguments).exception
    assert isinstance(error, UserError)
    assert stated in str(error)
