"""Bills of materials of one or several fabrics, side by side: ``--format bom`` and ``bom-json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from emulator.cli.plain_tables import page, plain_table
from emulator.errors import UserError
from topologies.bill_of_materials import (
    FIBRE,
    KINDS,
    NS_PER_METRE,
    SWITCH,
    Bill,
    CableRules,
    Item,
    PriceList,
    bill_of,
    in_order,
    read_prices,
)
from topologies.model import Role, Topology
from topologies.profile.yaml_lines import LARGEST_TEXT

SCHEMA = "uetemu.bom/1"
#: Designs beside each other that a terminal's width still shows.
MOST_DESIGNS = 6


def prices_from(path: str) -> PriceList:
    """Return the price list in the file ``path``.

    Raises UserError where it cannot be read, TextError for what is wrong in it.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(LARGEST_TEXT + 1)  # what is longer is refused unread
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text in UTF-8; a price list is YAML") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; check --prices") from None
    return read_prices(text, path)


def bills(topologies: Sequence[Topology], prices: PriceList | None) -> list[Bill]:
    """Return the bill of each topology, with the lengths that stand in ``prices``."""
    rules = _rules(prices)
    return [bill_of(topology, rules) for topology in topologies]


def _rules(prices: PriceList | None) -> CableRules:
    return CableRules() if prices is None else prices.rules


def text(topologies: Sequence[Topology], prices: PriceList | None, *, to_terminal: bool) -> str:
    """Return the table: each item in number, per GPU, and in money where ``prices`` has it."""
    made = bills(topologies, prices)
    shown: list[object] = [_items(made), ""]
    if prices is not None:
        shown += [_costs(made, prices), ""]
    shown += _notes(topologies, made, prices)
    return page(shown, to_terminal=to_terminal)


def as_json(topologies: Sequence[Topology], prices: PriceList | None) -> str:
    """Return the bills as one JSON object of the schema ``uetemu.bom/1``."""
    designs = [
        {
            "name": bill.name,
            "gpus": bill.gpus,
            "switch_ports": bill.switch_ports,
            "items": [
                {"kind": kind, "item": str(item), "count": count} | _priced(item, count, prices)
                for kind in KINDS
                for item, count in bill.items[kind].items()
            ],
        }
        for bill in bills(topologies, prices)
    ]
    currency = {} if prices is None else {"currency": prices.currency}
    return json.dumps({"schema": SCHEMA, **currency, "designs": designs}, indent=2) + "\n"


def _priced(item: Item, count: int, prices: PriceList | None) -> dict[str, object]:
    if prices is None:
        return {}
    price = prices.price(item)
    if price is None:
        return {"price": None, "cost": None}
    return {"price": float(price), "cost": float(price * count)}


def _items(made: Sequence[Bill]) -> object:
    """Return the table of numbers: two columns for each design."""
    heads = [head for bill in made for head in (bill.name, "per GPU")]
    table = plain_table("Bill of materials", "", "item", *heads, right=2)
    table.add_row("GPU", "", *_cells(made, [bill.gpus for bill in made]))
    for kind in KINDS:
        items = dict.fromkeys(item for bill in made for item in bill.items[kind])
        for item in in_order(items):
            counts = [bill.items[kind].get(item, 0) for bill in made]
            table.add_row(kind, str(item), *_cells(made, counts))
        if len(items) != 1:
            table.add_row(kind, "all", *_cells(made, [bill.count(kind) for bill in made]))
        if kind == SWITCH:
            ports = [bill.switch_ports for bill in made]
            table.add_row(kind, "ports with a cable", *_cells(made, ports))
    return table


def _cells(made: Sequence[Bill], counts: Sequence[int]) -> list[str]:
    pairs = zip(made, counts, strict=True)
    return [cell for bill, count in pairs for cell in (str(count), f"{count / bill.gpus:.4g}")]


def _costs(made: Sequence[Bill], prices: PriceList) -> object:
    """Return the table of costs: two columns for each design."""
    heads = [head for bill in made for head in (bill.name, "per GPU")]
    table = plain_table(f"Cost ({prices.currency or 'no currency'})", "", *heads, right=1)
    for name, kinds in (*((kind, (kind,)) for kind in KINDS), ("all", KINDS)):
        table.add_row(name, *(cell for bill in made for cell in _money(bill, prices, kinds)))
    return table


def _money(bill: Bill, prices: PriceList, kinds: Sequence[str]) -> list[str]:
    """Return the cost of the fabric and of each GPU; at least that where a price is missing."""
    cost = sum((prices.cost(bill, kind) for kind in kinds), Fraction(0))
    least = ">= " if any(prices.without_price(bill, kind) for kind in kinds) else ""
    return [f"{least}{float(cost):,.0f}", f"{least}{float(cost / bill.gpus):,.0f}"]


def _notes(
    topologies: Sequence[Topology], made: Sequence[Bill], prices: PriceList | None
) -> list[str]:
    """Return the reader's notes on the numbers, one line for each."""
    rules = _rules(prices)
    notes = [
        "Not counted: breakout cables, spares, power, racks, the scale-up network, ports without a"
        " cable.",
        f"Lengths are {'stated, or ' if rules.lengths_m else ''}those of the"
        f" cables' delays, at {NS_PER_METRE} ns a metre; longer than"
        f" {float(rules.copper_reach_m):g} m is {FIBRE} with two optics.",
    ]
    if any(switch.role is Role.ROUTER for one in topologies for switch in one.switches):
        notes.append("A router of a direct network counts as a switch, also where a server is one.")
    if prices is not None:
        missing = {
            f"{kind} {item}": None
            for bill in made
            for kind in KINDS
            for item in prices.without_price(bill, kind)
        }
        if missing:
            notes.append(f"Without a price, so that sums begin with >=: {'; '.join(missing)}.")
    return notes
