"""The routes of a modelled switch: longest prefix, live next hops, and the hash among them.

It follows ``fib_table_lookup`` and ``fib_select_multipath`` of Linux (net/ipv4/fib_trie.c,
fib_semantics.c) with ``ignore_routes_with_linkdown``: next hops without carrier do not count, and
a route without any is passed over for a shorter prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

from topologies.model import Node
from topologies.routing.forwarding import RouteTable
from topologies.routing.static_routes import Hop, Route, Rule

_HASH_BITS = 31
#: Look-ups that a switch remembers; with one more it begins anew.
MOST_KNOWN = 1 << 14


class ModelHop(NamedTuple):
    """The interface to leave by, and the neighbour; ``via`` None: the destination itself."""

    interface: str
    via: IPv4Address | None


#: Next hops, each with the largest hash (31 bits) that selects it.
Choices = tuple[tuple[int, ModelHop], ...]


class ForwardingTable:
    """The routes of ``node``; ``has_carrier`` returns whether an interface has carrier now."""

    def __init__(
        self,
        node: Node,
        routes: Iterable[Route],
        rules: Iterable[Rule],
        has_carrier: Callable[[str], bool],
    ) -> None:
        self._has_carrier = has_carrier
        self._tables: dict[RouteTable, dict[IPv4Network, tuple[ModelHop, ...]]] = {
            table: {} for table in RouteTable
        }
        self._connected: dict[IPv4Network, tuple[ModelHop, ...]] = {}
        self.local = set(_addresses(node))
        for bridge in node.bridges:
            if bridge.gateway is not None:
                self._connected[bridge.gateway.network] = (ModelHop(bridge.name, None),)
        for port in node.ports:
            if port.address is not None:
                self._connected[port.address.network] = (ModelHop(port.name, None),)
        self._rules: Mapping[str, list[Rule]] = {}
        by_interface: dict[str, list[Rule]] = {}
        for rule in rules:
            by_interface.setdefault(rule.interface, []).append(rule)
        self._rules = by_interface
        self._known: dict[tuple[str | None, bytes], Choices] = {}
        #: by next hops, so that destinations behind the same ones have them in common
        self._divided: dict[tuple[ModelHop, ...], Choices] = {}
        self.replace(routes)

    def replace(self, routes: Iterable[Route]) -> None:
        """Have ``routes``, and those to the switch's own subnets, in place of all others."""
        for table in self._tables.values():
            table.clear()
        self._tables[RouteTable.MAIN].update(self._connected)
        kept: dict[int, tuple[tuple[Hop, ...], tuple[ModelHop, ...]]] = {}
        for route in routes:
            known = kept.get(id(route.hops))
            if known is None:  # most destinations are behind the same next hops
                hops = tuple(ModelHop(hop.port, hop.via) for hop in route.hops)
                known = kept[id(route.hops)] = route.hops, hops  # which keeps the identity
            self._tables[route.table].setdefault(route.destination, known[1])
        self._prefixes = {table: _by_length(found) for table, found in self._tables.items()}
        self.forget()

    def forget(self) -> None:
        """Look everything up anew: a route, or the carrier of an interface, has changed."""
        self._known.clear()
        self._divided.clear()

    @property
    def known(self) -> int:
        """Return how many look-ups it remembers."""
        return len(self._known)

    @property
    def next_hops(self) -> int:
        """Return how many sets of next hops its routes have."""
        return len({id(hops) for table in self._tables.values() for hops in table.values()})

    def choices(self, interface: str, source: bytes, destination: bytes) -> Choices:
        """Return the next hops for a packet that came in by ``interface``; empty without a route.

        The address is none of the switch's own.
        """
        rules = self._rules.get(interface)
        key = (None, destination) if rules is None else (interface, source + destination)
        found = self._known.get(key)
        if found is None:
            found = self._look_up(rules or (), source, int.from_bytes(destination))
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = found
        return found

    def _look_up(self, rules: Iterable[Rule], source: bytes, destination: int) -> Choices:
        tables = [
            rule.table
            for rule in rules
            if rule.source is None or IPv4Address(source) in rule.source
        ]
        for table in (*tables, RouteTable.MAIN):
            for shift, prefixes in self._prefixes[table]:
                hops = prefixes.get(destination >> shift, ())
                alive = tuple(hop for hop in hops if self._has_carrier(hop.interface))
                if alive:
                    found = self._divided.get(alive)
                    if found is None:
                        found = self._divided[alive] = _shares(alive)
                    return found
        return ()


def _by_length(
    routes: Mapping[IPv4Network, tuple[ModelHop, ...]],
) -> list[tuple[int, dict[int, tuple[ModelHop, ...]]]]:
    """Return the next hops by prefix, as a number without its host bits, for each count of these.

    The longest prefixes come first.
    """
    found: dict[int, dict[int, tuple[ModelHop, ...]]] = {}
    for network, hops in routes.items():
        shift = network.max_prefixlen - network.prefixlen
        found.setdefault(shift, {})[int(network.network_address) >> shift] = hops
    return sorted(found.items())


def _shares(hops: tuple[ModelHop, ...]) -> Choices:
    """Divide all hashes among ``hops``, which weigh the same (``fib_rebalance``)."""
    count = len(hops)
    return tuple(
        (((place << _HASH_BITS) + count // 2) // count - 1, hop)
        for place, hop in enumerate(hops, start=1)
    )


def selected(choices: Choices, hash_: int) -> ModelHop:
    """Return the first of ``choices`` whose share has the 32-bit ``hash_``."""
    shortened = hash_ >> 1
    for most, hop in choices:
        if shortened <= most:
            return hop
    return choices[-1][1]


def _addresses(node: Node) -> Iterable[bytes]:
    if node.loopback is not None:
        yield node.loopback.packed
    for bridge in node.bridges:
        if bridge.gateway is not None:
            yield bridge.gateway.ip.packed
    for port in node.ports:
        if port.address is not None:
            yield port.address.ip.packed
