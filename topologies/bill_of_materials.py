"""Bills of materials: what a fabric is built of, counted, and what it costs.

The bill of materials of a fabric: switches by their ports, cables, optics and NICs.

::

    switch   rail: 32 x 100 Gbps + 4 x 800 Gbps      4     36 ports, 6.4 Tbps each
    cable    800 Gbps, 30 m, fibre                  16     with an optic at either end
    optic    800 Gbps                               32
    NIC      2 x 100 Gbps                           64

A cable whose length is at most ``copper_reach`` is a copper one without optics.  Lengths are those
that the user states for two tiers (:class:`CableRules`).  Where none is stated, the delay of the
cable gives the length, at 5 ns a metre: the group velocity in glass of index 1.468 is 4.9 ns a
metre (ITU-T G.652), that in copper about the same.

What a topology does not have is not counted: breakout cables, spares, power, racks, the scale-up
network, and the ports of a switch that no cable uses.

A user's own prices, from YAML text, and what a bill of materials costs by them.

::

    currency: EUR
    copper_reach: 2            # m; longer cables have an optic at either end
    lengths:                   # m, by the tiers that a cable joins; others have their delay's
      gpu-rail: 2
      rail-spine: 30
    switches:                  # a switch is the cheapest of these that has its ports and its rate
      - {ports: 64, rate: 51.2Tbps, price: 40000}
    cables:
      - {rate: 400Gbps, medium: copper, price: 120}
      - {rate: 400Gbps, medium: fibre, price: 15, per_metre: 0.5}
    optics:
      - {rate: 400Gbps, price: 500}
    nics:
      - {ports: 1, rate: 400Gbps, price: 1500}

``rate`` of a switch is that of all its ports together, one way.  An item without a price is named,
and the sum is then one of what has a price.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from fractions import Fraction
from typing import Any

from ruamel.yaml.comments import CommentedMap, CommentedSeq

from topologies.advice import question
from topologies.analysis.capacity import rates_by_kind
from topologies.analysis.twins import twins_of
from topologies.model import SWITCH_ROLES, Link, Role, Topology
from topologies.profile.yaml_lines import Problem, TextError, line_of, parse_mapping
from topologies.units import UnitError, format_rate, parse_rate

NS_PER_METRE = 5
#: The longest passive copper cables of IEEE 802.3ck (100 Gb/s lanes) are 2 m, of 802.3cd 3 m.
COPPER_REACH_M = 2
SWITCH, CABLE, OPTIC, NIC = KINDS = ("switch", "cable", "optic", "NIC")
COPPER, FIBRE = MEDIA = ("copper", "fibre")
#: Links of these ends lie inside a server: PCIe, not a cable.
_INSIDE = frozenset({Role.GPU, Role.NIC})


@dataclass(frozen=True, order=True)
class SwitchItem:
    """A switch of one role by its cabled ports: ``ports`` are pairs of (rate in bit/s, count)."""

    role: str
    ports: tuple[tuple[int, int], ...]

    @property
    def radix(self) -> int:
        """Return how many ports have a cable."""
        return sum(count for _, count in self.ports)

    @property
    def capacity_bps(self) -> int:
        """Return the rates of all cabled ports together, one way (bit/s)."""
        return sum(rate * count for rate, count in self.ports)

    def __str__(self) -> str:
        ports = " + ".join(f"{count} x {format_rate(rate)}" for rate, count in self.ports)
        return f"{self.role}: {ports or 'no cable'}"


@dataclass(frozen=True, order=True)
class CableItem:
    """A cable by its rate (bit/s), its length in metres and its medium."""

    rate_bps: int
    length_m: Fraction
    medium: str

    def __str__(self) -> str:
        return f"{format_rate(self.rate_bps)}, {float(self.length_m):g} m, {self.medium}"


@dataclass(frozen=True, order=True)
class OpticItem:
    """An optical transceiver by its rate (bit/s)."""

    rate_bps: int

    def __str__(self) -> str:
        return format_rate(self.rate_bps)


@dataclass(frozen=True, order=True)
class NicItem:
    """A NIC by the number of its ports and their rate (bit/s)."""

    ports: int
    rate_bps: int

    def __str__(self) -> str:
        return f"{self.ports} x {format_rate(self.rate_bps)}"


Item = SwitchItem | CableItem | OpticItem | NicItem


@dataclass(frozen=True, kw_only=True)
class CableRules:
    """The rules for cables: ``copper_reach_m``, and lengths in metres by the roles of both ends.

    Two roles stand in alphabetical order in a key of ``lengths_m``.
    """

    copper_reach_m: Fraction = Fraction(COPPER_REACH_M)
    lengths_m: Mapping[tuple[str, str], Fraction] = field(default_factory=dict)

    def length_m(self, link: Link, roles: tuple[str, str]) -> Fraction:
        """Return the length of ``link`` in metres: the stated one, else that of its delay."""
        return self.lengths_m.get(roles, Fraction(link.delay_ns, NS_PER_METRE))

    def is_copper(self, length_m: Fraction) -> bool:
        return length_m <= self.copper_reach_m


@dataclass(frozen=True, kw_only=True)
class Bill:
    """The items that a fabric of ``gpus`` GPUs is bought from, by kind, each with its number."""

    name: str
    gpus: int
    items: Mapping[str, Mapping[Item, int]]

    @property
    def switch_ports(self) -> int:
        counts = self.items[SWITCH].items()
        return sum(item.radix * count for item, count in counts if isinstance(item, SwitchItem))

    def count(self, kind: str) -> int:
        return sum(self.items[kind].values())


def bill_of(topology: Topology, rules: CableRules | None = None) -> Bill:
    rules = rules or CableRules()
    cables = _cables(topology, rules)
    optics: Counter[Item] = Counter()
    for cable, count in cables.items():
        if cable.medium == FIBRE:
            optics[OpticItem(cable.rate_bps)] += 2 * count
    counted: dict[str, Mapping[Item, int]] = {
        SWITCH: _switches(topology),
        CABLE: Counter[Item](cables),
        OPTIC: optics,
        NIC: _nics(topology),
    }
    items = {
        kind: {item: found[item] for item in in_order(found)} for kind, found in counted.items()
    }
    return Bill(name=topology.name, gpus=len(topology.gpus), items=items)


def in_order(items: Iterable[Item]) -> list[Item]:
    return sorted(items, key=astuple)


def _switches(topology: Topology) -> Counter[Item]:
    counted: Counter[Item] = Counter()
    for node, count, sides in rates_by_kind(topology):
        if node.is_switch:
            rates = sum(sides, Counter[int]())
            counted[SwitchItem(node.role.value, tuple(sorted(rates.items())))] += count
    return counted


def _cables(topology: Topology, rules: CableRules) -> Counter[CableItem]:
    role = {node.name: node.role for node in topology.nodes}
    alike: dict[tuple[Role, Role, int, int], list[Link]] = {}
    for link in topology.links:
        key = role[link.a.node], role[link.b.node], link.rate_bps, link.delay_ns
        alike.setdefault(key, []).append(link)
    counted: Counter[CableItem] = Counter()
    for first, *more in alike.values():
        roles = roles_of(topology, first)
        if roles is not None:
            length = rules.length_m(first, roles)
            medium = COPPER if rules.is_copper(length) else FIBRE
            counted[CableItem(first.rate_bps, length, medium)] += 1 + len(more)
    return counted


def roles_of(topology: Topology, link: Link) -> tuple[str, str] | None:
    """Return the roles of both ends of a cable in alphabetical order; None inside a server."""
    roles = [topology.node(end.node).role for end in link.ends]
    if _INSIDE.issuperset(roles):
        return None
    first, second = sorted(role.value for role in roles)
    return first, second


def _nics(topology: Topology) -> Counter[Item]:
    """Count every NIC: a shared one, or that of a GPU with a cable of its own."""
    counted: Counter[Item] = Counter()
    for kind in twins_of(topology):
        if kind.nodes[0].role not in _INSIDE:
            continue
        outside = [
            rate
            for far, rate in zip(kind.far, kind.rates, strict=True)
            if topology.node(far).role not in _INSIDE
        ]
        if outside:
            counted[NicItem(len(outside), outside[0])] += len(kind.nodes)
    return counted


MOST_ENTRIES = 1_000
MOST_PORTS = 100_000
MOST = 10**12
_TIERS = frozenset({role.value for role in (*SWITCH_ROLES, Role.GPU, Role.NIC)})


@dataclass(frozen=True)
class SwitchModel:
    """A switch that can be bought: ports, the rate of all of them (bit/s), the price."""

    ports: int
    rate_bps: int
    price: Fraction


@dataclass(frozen=True)
class CablePrice:
    """The price of a cable: for each piece, and for each of its metres."""

    piece: Fraction
    per_metre: Fraction

    def of(self, length_m: Fraction) -> Fraction:
        return self.piece + self.per_metre * length_m


@dataclass(frozen=True, kw_only=True)
class PriceList:
    """Prices by item, in ``currency``, and the rules for cables that stand with them."""

    currency: str
    rules: CableRules
    switches: Sequence[SwitchModel]
    cables: Mapping[tuple[int, str], CablePrice]
    optics: Mapping[int, Fraction]
    nics: Mapping[tuple[int, int], Fraction]

    def price(self, item: Item) -> Fraction | None:
        """Return the price of one ``item``; None where the list has none."""
        match item:
            case SwitchItem():
                fit = (
                    model.price
                    for model in self.switches
                    if model.ports >= item.radix and model.rate_bps >= item.capacity_bps
                )
                return min(fit, default=None)
            case CableItem():
                cable = self.cables.get((item.rate_bps, item.medium))
                return None if cable is None else cable.of(item.length_m)
            case OpticItem():
                return self.optics.get(item.rate_bps)
            case NicItem():
                return self.nics.get((item.ports, item.rate_bps))

    def without_price(self, bill: Bill, kind: str) -> list[Item]:
        return [item for item in bill.items[kind] if self.price(item) is None]

    def cost(self, bill: Bill, kind: str) -> Fraction:
        counts = bill.items[kind].items()
        priced = ((self.price(item), count) for item, count in counts)
        return sum((price * count for price, count in priced if price is not None), Fraction(0))


#: Reads one value; ValueError with what it should be.
Reader = Callable[[Any], Any]


def read_prices(text: str, name: str) -> PriceList:
    """Return the price list that ``text`` holds.

    Raises TextError with the lines of all that is wrong; ``name`` is the file's.
    """
    return _Reading(name).read(parse_mapping(text, name))


class _Reading:
    """One reading of a price list, which collects what is wrong."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._problems: list[Problem] = []

    def read(self, content: CommentedMap) -> PriceList:
        sections: dict[str, Reader] = {
            "currency": _word,
            "copper_reach": _amount,
            "lengths": _mapping,
            **dict.fromkeys(("switches", "cables", "optics", "nics"), _entries),
        }
        top = self._values(content, sections, required=())
        size = {"ports": _ports, "rate": _rate, "price": _amount}
        rate = {"rate": _rate, "price": _amount}
        switches = self._entries(top, "switches", size)
        cables = self._entries(top, "cables", {**rate, "medium": _medium}, {"per_metre": _amount})
        optics = self._entries(top, "optics", rate)
        nics = self._entries(top, "nics", size)
        lengths = self._lengths(top.get("lengths", CommentedMap()))
        if self._problems:
            raise TextError(self._problems, self._name)
        reach = top.get("copper_reach", Fraction(COPPER_REACH_M))
        return PriceList(
            currency=top.get("currency", ""),
            rules=CableRules(copper_reach_m=reach, lengths_m=lengths),
            switches=[SwitchModel(one["ports"], one["rate"], one["price"]) for one in switches],
            cables={
                (one["rate"], one["medium"]): CablePrice(
                    one["price"], one.get("per_metre", Fraction(0))
                )
                for one in cables
            },
            optics={one["rate"]: one["price"] for one in optics},
            nics={(one["ports"], one["rate"]): one["price"] for one in nics},
        )

    def _entries(
        self,
        top: Mapping[str, Any],
        section: str,
        required: Mapping[str, Reader],
        optional: Mapping[str, Reader] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the entries of a section that have all values; equal ones are refused."""
        found, seen = [], set()
        entries = top.get(section, ())
        for number, entry in enumerate(entries):
            line = entries.lc.item(number)[0] + 1
            if not isinstance(entry, CommentedMap):
                self._wrong(line, f"not an entry of {section}: write {{{', '.join(required)}}}")
                continue
            before = len(self._problems)
            values = self._values(entry, {**required, **(optional or {})}, required, line)
            if len(self._problems) > before:
                continue
            key = tuple(values[name] for name in required if name != "price")
            if key in seen:
                self._wrong(line, f"there is another entry of {section} with the same words")
            seen.add(key)
            found.append(values)
        return found

    def _lengths(self, content: CommentedMap) -> dict[tuple[str, str], Fraction]:
        lengths = {}
        for key, value in content.items():
            line = line_of(content, key)
            tiers = _tiers(str(key))
            if tiers is None:
                self._wrong(
                    line,
                    f"{key!s} names no two tiers; write two of {', '.join(sorted(_TIERS))} with a "
                    "hyphen between them, such as rail-spine",
                )
                continue
            try:
                lengths[tiers] = _amount(value)
            except ValueError as error:
                self._wrong(line, f"{key!s} is {error}")
        return lengths

    def _values(
        self,
        content: CommentedMap,
        readers: Mapping[str, Reader],
        required: Mapping[str, Reader] | Sequence[str],
        default_line: int = 1,
    ) -> dict[str, Any]:
        values = {}
        for key, value in content.items():
            line = line_of(content, key, default_line)
            if key not in readers:
                asked = question(str(key), readers) or f"the keys are {', '.join(readers)}"
                self._wrong(line, f"unknown key {key!s}; {asked}")
                continue
            try:
                values[key] = readers[key](value)
            except ValueError as error:
                self._wrong(line, f"{key} is {error}")
        missing = [name for name in required if name not in content]
        if missing:
            self._wrong(default_line, f"{' and '.join(missing)} missing")
        return values

    def _wrong(self, line: int, stated: str) -> None:
        self._problems.append(Problem(line, stated))


def _tiers(text: str) -> tuple[str, str] | None:
    """Return the two roles that ``text`` joins by a hyphen, in alphabetical order."""
    for place, letter in enumerate(text):
        pair = text[:place], text[place + 1 :]
        if letter == "-" and _TIERS.issuperset(pair):
            return min(pair), max(pair)
    return None


def _word(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 8 or not value.isprintable():
        raise ValueError("not a currency; write for example EUR")
    return value


def _mapping(value: Any) -> CommentedMap:
    if not isinstance(value, CommentedMap):
        raise ValueError("not a mapping; write for example {rail-spine: 30}")
    return value


def _entries(value: Any) -> CommentedSeq:
    if not isinstance(value, CommentedSeq) or len(value) > MOST_ENTRIES:
        raise ValueError(f"not a list of at most {MOST_ENTRIES} entries, each with - before it")
    return value


def _ports(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST_PORTS:
        raise ValueError(f"not a number of ports from 1 to {MOST_PORTS}")
    return value


def _rate(value: Any) -> int:
    try:
        return parse_rate(str(value))
    except UnitError as error:
        raise ValueError(f"no rate: {error}") from None


def _medium(value: Any) -> str:
    if value not in MEDIA:
        raise ValueError(f"neither {' nor '.join(MEDIA)}")
    return str(value)


def _amount(value: Any) -> Fraction:
    """Return the exact decimal that stands in the text, zero or more."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MOST:  # also of NaN
        raise ValueError(f"not a number from 0 to {MOST}")
    return Fraction(str(float(value))) if isinstance(value, float) else Fraction(value)
