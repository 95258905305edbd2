"""The bill of materials of a fabric: switches by their ports, cables, optics and NICs.

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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from fractions import Fraction

from topologies.model import CableEnd, Link, Node, Role, Topology
from topologies.units import format_rate

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
        """Return whether a cable of this length has no optics."""
        return length_m <= self.copper_reach_m


@dataclass(frozen=True, kw_only=True)
class Bill:
    """The items that a fabric of ``gpus`` GPUs is bought from, by kind, each with its number."""

    name: str
    gpus: int
    items: Mapping[str, Mapping[Item, int]]

    @property
    def switch_ports(self) -> int:
        """Return the cabled ports of all switches."""
        counts = self.items[SWITCH].items()
        return sum(item.radix * count for item, count in counts if isinstance(item, SwitchItem))

    def count(self, kind: str) -> int:
        """Return the number of all items of ``kind``."""
        return sum(self.items[kind].values())


def bill_of(topology: Topology, rules: CableRules | None = None) -> Bill:
    """Return the bill of materials of ``topology``."""
    rules = rules or CableRules()
    cables = Counter(_cables(topology, rules))
    optics: Counter[Item] = Counter()
    for cable, count in cables.items():
        if cable.medium == FIBRE:
            optics[OpticItem(cable.rate_bps)] += 2 * count
    counted: dict[str, Mapping[Item, int]] = {
        SWITCH: Counter(_switch(topology, node) for node in topology.switches),
        CABLE: Counter[Item](cables),
        OPTIC: optics,
        NIC: Counter[Item](_nics(topology)),
    }
    items = {
        kind: {item: found[item] for item in in_order(found)} for kind, found in counted.items()
    }
    return Bill(name=topology.name, gpus=len(topology.gpus), items=items)


def in_order(items: Iterable[Item]) -> list[Item]:
    """Return items of one kind in the order of their fields."""
    return sorted(items, key=astuple)


def _switch(topology: Topology, node: Node) -> SwitchItem:
    rates = Counter(link.rate_bps for link, _, _ in topology.neighbours(node.name))
    return SwitchItem(node.role.value, tuple(sorted(rates.items())))


def _cables(topology: Topology, rules: CableRules) -> Iterator[CableItem]:
    for link in topology.links:
        roles = roles_of(topology, link)
        if roles is not None:
            length = rules.length_m(link, roles)
            medium = COPPER if rules.is_copper(length) else FIBRE
            yield CableItem(link.rate_bps, length, medium)


def roles_of(topology: Topology, link: Link) -> tuple[str, str] | None:
    """Return the roles of both ends of a cable in alphabetical order; None inside a server."""
    roles = [topology.node(end.node).role for end in link.ends]
    if _INSIDE.issuperset(roles):
        return None
    first, second = sorted(role.value for role in roles)
    return first, second


def _nics(topology: Topology) -> Iterator[NicItem]:
    """Yield every NIC: a shared one, or that of a GPU with a cable of its own."""
    for node in topology.nodes:
        if node.role not in _INSIDE:
            continue
        outside = [
            link for link, _, far in topology.neighbours(node.name) if _leaves(topology, far)
        ]
        if outside:
            yield NicItem(len(outside), outside[0].rate_bps)


def _leaves(topology: Topology, far: CableEnd) -> bool:
    return topology.node(far.node).role not in _INSIDE
