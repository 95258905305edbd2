"""A modelled switch: its bridges, its routes, and what both do to a frame.

A frame of a transport goes the way that Linux sends it in a switch's namespace
(:mod:`emulator.dataplane.kernel.fabric.nodes`): by forwarding entry within a bridge, by route
between interfaces.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import Final, NamedTuple

from librt.strings import read_i16_be
from mypy_extensions import i64

from emulator.dataplane.kernel.kernel_objects import VXLAN_UDP_PORT
from emulator.dataplane.kernel.port_counters import PortCounters
from emulator.dataplane.kernel.sysctls import kernel_seed
from emulator.dataplane.model.packet import next_hop
from emulator.dataplane.model.port import ModelPort
from emulator.dataplane.model.tunnel import (
    BACK_INTO_TUNNEL,
    REFUSED_IN_TUNNEL,
    ModelTunnel,
    TunnelTable,
    hash_inside,
    opened,
    source_port,
)
from topologies.model import Node
from topologies.routing.forwarding import RouteTable
from topologies.routing.static_routes import Hop, Neighbour, Route, Rule

_HASH_BITS = 31
#: Look-ups that a switch remembers; with one more it begins anew.
MOST_KNOWN = 1 << 14


class ModelHop(NamedTuple):
    """The interface to leave by, and the neighbour; ``via`` None: the destination itself."""

    interface: str
    via: bytes | None


#: Next hops, each with the largest hash (31 bits) that selects it.
Choices = tuple[tuple[int, ModelHop], ...]


class ForwardingTable:
    """The routes of ``node``; ``has_carrier`` returns whether an interface has carrier now.

    It follows ``fib_table_lookup`` and ``fib_select_multipath`` of Linux (net/ipv4/fib_trie.c,
    fib_semantics.c) with ``ignore_routes_with_linkdown``: next hops without carrier do not count,
    and a route without any is passed over for a shorter prefix.
    """

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
        #: by destination, or by interface, source and destination where there is a rule
        self._known: dict[bytes | tuple[str, bytes], Choices] = {}
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
                hops = tuple(
                    ModelHop(hop.port, None if hop.via is None else hop.via.packed)
                    for hop in route.hops
                )
                known = kept[id(route.hops)] = route.hops, hops  # which keeps the identity
            self._tables[route.table].setdefault(route.destination, known[1])
        self._prefixes = {table: _by_length(found) for table, found in self._tables.items()}
        self.forget()

    def forget(self) -> None:
        """Look everything up anew: a route, or the carrier of an interface, has changed."""
        self._known.clear()
        self._divided.clear()

    @property
    def ruled(self) -> bool:
        """Return whether a route depends on more than the destination."""
        return bool(self._rules)

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
        rules = self._rules.get(interface) if self._rules else None
        key = destination if rules is None else (interface, source + destination)
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


_WORD = 2**64 - 1
_KEYS = struct.Struct("<2xBx4x8x8x4x2H4x2I4x")  # protocol, ports, addresses
_WORDS = struct.Struct("<6Q")
_UDP = 17
_INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def udp_hash(seed: int, source: bytes, destination: bytes, ports: tuple[int, int]) -> int:
    """Return the hash (32 bits, never 0) of a UDP packet with IPv4 addresses and two ``ports``.

    A packet that a switch sends itself has no hash of its own to be routed by, so that the kernel
    takes one of its addresses and ports: SipHash-2-4 of ``struct flow_keys`` with the seed of
    ``fib_multipath_hash_seed`` (Linux 6.11, net/core/flow_dissector.c, include/net/ip_fib.h).
    ``seed`` has 32 bits.  The kernel sorts the two addresses, and the two ports, as numbers of a
    little-endian machine, so that both directions of a flow have one hash.
    """
    addresses = sorted(int.from_bytes(one, "little") for one in (source, destination))
    numbers = sorted(int.from_bytes(port.to_bytes(2), "little") for port in ports)
    octets = _KEYS.pack(_UDP, *numbers, *addresses)
    return siphash(seed << 32 | seed, octets) & 0xFFFF_FFFF or 1


def siphash(key: int, octets: bytes) -> int:
    """Return SipHash-2-4 of 48 ``octets`` with ``key`` for both halves of the key."""
    v0, v1, v2, v3 = (start ^ key for start in _INITIAL)
    for word in (*_WORDS.unpack(octets), _WORDS.size << 56):
        v3 ^= word
        v0, v1, v2, v3 = _round(*_round(v0, v1, v2, v3))
        v0 ^= word
    v2 ^= 0xFF
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = v0 + v1 & _WORD
    v1 = _turned(v1, 13) ^ v0
    v0 = _turned(v0, 32)
    v2 = v2 + v3 & _WORD
    v3 = _turned(v3, 16) ^ v2
    v0 = v0 + v3 & _WORD
    v3 = _turned(v3, 21) ^ v0
    v2 = v2 + v1 & _WORD
    v1 = _turned(v1, 17) ^ v2
    v2 = _turned(v2, 32)
    return v0, v1, v2, v3


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _WORD


_IPV4: Final = b"\x08\x00"
_IPV4_TYPE: Final = 0x0800
_ETHERNET: Final = 14
_GROUP: Final = 1
_OWN: Final = "lo"  # of packets that the switch sends itself
#: Why a switch drops a frame that its program has let in, as
#: emulator/dataplane/kernel/frames/kernel_drops.py has it.
NO_ROUTE = "no route"
TTL_EXCEEDED = "time to live exceeded"
NO_NEIGHBOUR = "no neighbour or no memory on departure"
TOO_LONG = "packet too long for the link"
NOT_FOR_IT = "address that is none here"
CAME_BACK = "packet of its own that came back"
#: Counters of an interface, in words: from the Ethernet header on, as the kernel counts.
FRAMES_IN: Final = 0
OCTETS_IN: Final = 1
FRAMES_OUT: Final = 2
OCTETS_OUT: Final = 3
INTERFACE_WORDS: Final = 4


def counter_words(interfaces: int) -> memoryview:
    """Return words for the counters of ``interfaces``, which workers forked later share."""
    return memoryview(mmap.mmap(-1, max(1, 8 * INTERFACE_WORDS * interfaces))).cast("Q")


class ModelInterface:
    """One port of a node: ``wire`` is the inner end of its cable, ``program`` the switch program.

    ``bridge`` is the bridge that the port is a member of.  Of a ``standby`` link, that is flooded
    nothing, and it is the ``backup`` of the members beside it.
    """

    __slots__ = (
        "at",
        "backup",
        "bridge",
        "carrier",
        "counted",
        "frames_in",
        "frames_out",
        "mac",
        "mtu",
        "name",
        "octets_in",
        "octets_out",
        "program",
        "standby",
        "wire",
        "words",
    )

    def __init__(
        self,
        name: str,
        mac: bytes,
        wire: int,
        mtu: int,
        *,
        bridge: str | None = None,
        standby: bool = False,
    ) -> None:
        self.name, self.mac, self.wire, self.mtu = name, mac, wire, mtu
        self.bridge, self.standby = bridge, standby
        self.program: ModelPort | None = None
        self.carrier = True
        self.backup: ModelInterface | None = None
        #: where the words of its counters are, and from which on (FRAMES_IN and those below)
        self.words, self.at = counter_words(1), 0
        #: what these do not have yet
        self.frames_in = self.octets_in = self.frames_out = self.octets_out = 0
        #: the interfaces that have such, which this one joins
        self.counted: list[ModelInterface] = []

    def came(self, frame: bytes) -> None:
        """Count a frame that comes in."""
        if not self.frames_in and not self.frames_out:
            self.counted.append(self)
        self.frames_in += 1
        self.octets_in += len(frame)

    def went(self, frame: bytes) -> None:
        """Count a frame that goes out."""
        if not self.frames_in and not self.frames_out:
            self.counted.append(self)
        self.frames_out += 1
        self.octets_out += len(frame)

    def write(self) -> None:
        """Write what was counted into the words."""
        words, at = self.words, self.at
        if self.frames_in:
            words[at + FRAMES_IN] += self.frames_in
            words[at + OCTETS_IN] += self.octets_in
            self.frames_in = self.octets_in = 0
        if self.frames_out:
            words[at + FRAMES_OUT] += self.frames_out
            words[at + OCTETS_OUT] += self.octets_out
            self.frames_out = self.octets_out = 0

    def counters(self) -> PortCounters:
        """The counters of the interface."""
        self.write()
        words, at = self.words, self.at
        return PortCounters(
            rx_packets=words[at + FRAMES_IN],
            rx_bytes=words[at + OCTETS_IN],
            rx_dropped=0,
            tx_packets=words[at + FRAMES_OUT],
            tx_bytes=words[at + OCTETS_OUT],
            tx_dropped=0,
        )


@dataclass
class ModelBridge:
    """A bridge with its own MAC, its members in the order of the ports, and who is behind them.

    ``tunnel`` is one more member where the bridge's network lies on several switches.
    """

    mac: bytes
    tunnel: ModelTunnel | None = None
    members: list[ModelInterface] = field(default_factory=list)
    entries: dict[bytes, ModelInterface] = field(default_factory=dict)

    @property
    def carrier(self) -> bool:
        """Return whether a member has carrier; a tunnel always has."""
        return self.tunnel is not None or any(member.carrier for member in self.members)

    def stand_by(self) -> None:
        """Make the member that is the end of a standby link the backup of all others."""
        for standby in (member for member in self.members if member.standby):
            for member in self.members:
                member.backup = None if member is standby else standby


class Way:
    """The way to a neighbour, whose MAC and the own one ``macs`` are.

    It leads out of an interface, or into a bridge that the switch has an address in.
    """

    __slots__ = ("bridge", "macs", "out")

    def __init__(
        self, macs: bytes, out: ModelInterface | None = None, bridge: ModelBridge | None = None
    ) -> None:
        self.macs, self.out, self.bridge = macs, out, bridge


class Ways:
    """The ways to a destination; None: by a hop that has no neighbour.

    ``shares`` has the largest hash (31 bits) that selects each, and nothing if there is one way.
    """

    __slots__ = ("shares", "ways")

    def __init__(self, shares: list[int], ways: list[Way | None]) -> None:
        self.shares, self.ways = shares if len(ways) > 1 else [], ways

    def place(self, hash_: i64) -> int:
        """Return the number of the first way whose share has the 32-bit ``hash_``."""
        shortened, last = hash_ >> 1, len(self.shares) - 1
        for place in range(last):
            if shortened <= self.shares[place]:
                return place
        return last


class ModelSwitch:
    """The switch ``node`` with ``interfaces``; ``behind`` are the MACs beyond each port.

    ``reason`` is why the last frame was dropped, None if the switch program has it in its count, or
    nothing was.  With ``vlans`` its bridges are VLANs of one, and have carrier together.
    """

    def __init__(
        self,
        node: Node,
        interfaces: Sequence[ModelInterface],
        behind: Mapping[str, Iterable[str]],
        routing: tuple[Iterable[Route], Iterable[Rule], Iterable[Neighbour]],
        *,
        vlans: bool = False,
    ) -> None:
        routes, rules, neighbours = routing
        self.node, self._vlans = node, vlans
        #: what the frame that has come in has become, so far
        self._left: list[tuple[int, bytes]] = []
        self.interfaces = {one.name: one for one in interfaces}
        self.bridges = {bridge.name: ModelBridge(octets_of(bridge.mac)) for bridge in node.bridges}
        for one in interfaces:
            if one.bridge is not None:
                bridge = self.bridges[one.bridge]
                bridge.members.append(one)
                for mac in behind.get(one.name, ()):
                    bridge.entries[octets_of(mac)] = one
        for bridge in self.bridges.values():
            bridge.stand_by()
        self._tunnels: dict[int, ModelTunnel] = {}
        for network in node.bridges:
            if network.vni is not None and node.loopback is not None:
                tunnel = ModelTunnel(network.name, network.vni, node.loopback.packed)
                self._tunnels[network.vni] = self.bridges[network.name].tunnel = tunnel
        self._table = ForwardingTable(node, routes, rules, self._has_carrier)
        self._local = self._table.local
        self._neighbours = {
            (one.interface, one.address.packed): octets_of(one.mac) for one in neighbours
        }
        self._learned: dict[tuple[str, bytes], bytes] = {}
        #: by interface and address of the neighbour, as far as they were looked for
        self._ways: dict[tuple[str, bytes], Way] = {}
        #: by destination, where the interface that a frame came in by does not matter
        self._known: dict[bytes, Ways] = {}
        self._seed = kernel_seed(node)
        self._hashes: dict[tuple[bytes, int], int] = {}
        #: the frame's port and, if it has one already, hash
        self._came: ModelInterface
        self._came_hash: int | None = None
        self.reason: str | None = None

    def _has_carrier(self, name: str) -> bool:
        if name in self.bridges:
            if self._vlans:
                return any(bridge.carrier for bridge in self.bridges.values())
            return self.bridges[name].carrier
        return self.interfaces[name].carrier

    def carrier_changed(self) -> None:
        """Route anew, as the carrier of an interface has changed."""
        self._table.forget()
        self._known.clear()

    def learn(self, routes: Iterable[Route]) -> None:
        """Have ``routes`` in place of those that the switch has had."""
        self._table.replace(routes)
        self._known.clear()

    def learn_members(
        self, vni: int, table: TunnelTable, neighbours: Mapping[bytes, bytes]
    ) -> None:
        """Have ``table`` for the tunnel of ``vni``; ``neighbours``: address -> MAC behind it."""
        tunnel = self._tunnels[vni]
        tunnel.table = table
        kept = {key: mac for key, mac in self._learned.items() if key[0] != tunnel.bridge}
        self._learned = kept | {(tunnel.bridge, one): mac for one, mac in neighbours.items()}
        self._ways.clear()
        self._known.clear()

    def arrive(self, port: ModelInterface, frame: bytes) -> list[tuple[int, bytes]]:
        """Bring ``frame`` in by ``port``; return what leaves: the inner end of a cable, a frame."""
        self.reason = None
        left: list[tuple[int, bytes]] = []
        self._left = left
        port.came(frame)
        program, origin = port.program, 0
        hash_: int | None = None
        if program is not None:
            rules = program.rules
            if rules.strikes_arrivals:
                taken = program.arrive(frame)
                if taken is None:
                    return left
                frame = taken
            origin = program.origin
            if rules.hashes_at_once:
                hash_ = program.hash_of(frame)
        self._came, self._came_hash = port, hash_
        destination = frame[:6]
        if port.bridge is None:
            if destination == port.mac:
                self._route(port, port.name, frame, origin, hash_)
            else:
                self.reason = NOT_FOR_IT
            return left
        bridge = self.bridges[port.bridge]
        if destination == bridge.mac:
            self._route(port, port.bridge, frame, origin, hash_)
        else:
            self._bridge(bridge, frame, origin, port)
        return left

    def _bridge(
        self,
        bridge: ModelBridge,
        frame: bytes,
        origin: int,
        came: ModelInterface | ModelTunnel | None,
    ) -> None:
        """Send ``frame`` to the member that its destination is behind, or to all but ``came``.

        A member without carrier has a backup where there is a standby link (``br_forward`` of
        Linux).
        """
        tunnel = bridge.tunnel
        if tunnel is not None and frame[:6] in tunnel.table.behind:
            if tunnel is came:
                self.reason = BACK_INTO_TUNNEL
            else:
                self._tunnel(tunnel, frame, origin)
            return
        member = None if frame[0] & _GROUP else bridge.entries.get(frame[:6])
        if member is not None:
            if member.backup is not None and not member.carrier:
                member = member.backup
            if member is not came and member.carrier:
                self._leave(member, frame, origin)
            return
        for other in reversed(bridge.members):
            if other is not came and other.carrier and not other.standby:
                self._leave(other, frame, origin)
        if tunnel is not None and tunnel is not came:
            self._tunnel(tunnel, frame, origin)

    def _tunnel(self, tunnel: ModelTunnel, frame: bytes, origin: int) -> None:
        """Send ``frame`` into ``tunnel``: to one end that its destination is behind, or to all."""
        hash_ = self._given_hash(frame) or hash_inside(frame)
        ends = tunnel.table.behind.get(frame[:6])
        to = tunnel.table.everybody if ends is None else (tunnel.far_end(ends, hash_),)
        chosen = source_port(hash_)
        for far in to:
            self._underlay(tunnel, far, chosen, frame, origin)

    def _given_hash(self, frame: bytes) -> int | None:
        """Return the hash that ``frame`` has got where it came in, None if it has got none."""
        program, hash_ = self._came.program, self._came_hash
        if hash_ is None and program is not None and program.rules.gives_hashes:
            return program.hash_of(frame)
        return hash_

    def _underlay(
        self, tunnel: ModelTunnel, far: bytes, chosen: int, frame: bytes, origin: int
    ) -> None:
        """Send ``frame`` from ``tunnel`` to its end ``far`` with the UDP source port ``chosen``."""
        choices = self._table.choices(_OWN, tunnel.local, far)
        if not choices:
            self.reason = NO_ROUTE
            return
        hop = choices[0][1]
        if len(choices) > 1:
            hash_ = self._hashes.get((far, chosen))
            if hash_ is None:
                hash_ = udp_hash(self._seed, tunnel.local, far, (chosen, VXLAN_UDP_PORT))
                if len(self._hashes) >= MOST_KNOWN:
                    self._hashes.clear()
                self._hashes[far, chosen] = hash_
            hop = selected(choices, hash_)
        out = self.interfaces[hop.interface]
        mac = self._neighbours.get((hop.interface, far if hop.via is None else hop.via))
        if mac is None:
            self.reason = NO_NEIGHBOUR
            return
        outer = b"".join((mac, out.mac, _IPV4, tunnel.packet(frame, far, chosen)))
        self._leave(out, outer, origin)

    def _open(self, outer: bytes, origin: int) -> None:
        """Bring in what the tunnel packet ``outer`` has inside."""
        inside = opened(outer)
        tunnel = None if inside is None else self._tunnels.get(inside.vni)
        if inside is None or tunnel is None:
            self.reason = REFUSED_IN_TUNNEL if self._tunnels else NOT_FOR_IT
            return
        bridge = self.bridges[tunnel.bridge]
        if inside.frame[:6] == bridge.mac:
            hash_ = self._given_hash(outer)
            self._route(self._came, tunnel.bridge, inside.frame, origin, hash_)
        else:
            self._bridge(bridge, inside.frame, origin, tunnel)

    def _route(
        self, came: ModelInterface, interface: str, frame: bytes, origin: int, hash_: int | None
    ) -> None:
        if read_i16_be(frame, 12) != _IPV4_TYPE:
            self.reason = NOT_FOR_IT
            return
        source, destination = frame[26:30], frame[30:34]
        known = self._known.get(destination)
        if known is None and destination in self._local:
            self._open(frame, origin)
            return
        if source in self._local:
            self.reason = CAME_BACK
            return
        if known is None:
            known = self._look_up(interface, source, destination)
        if not known.ways:
            self.reason = NO_ROUTE
            return
        if frame[22] <= 1:
            self.reason = TTL_EXCEEDED
            return
        place = 0
        if known.shares and came.program is not None:  # emulator.dataplane.kinds: else it is one
            place = known.place(came.program.hash_of(frame) if hash_ is None else hash_)
        way = known.ways[place]
        if way is None:
            self.reason = NO_NEIGHBOUR
        elif way.out is not None:
            self._leave(way.out, next_hop(frame, way.macs), origin)
        elif way.bridge is not None:
            self._bridge(way.bridge, next_hop(frame, way.macs), origin, None)

    def _look_up(self, interface: str, source: bytes, destination: bytes) -> Ways:
        """Return the ways of a packet to ``destination``, which is no address of the switch."""
        choices = self._table.choices(interface, source, destination)
        ends = [(hop.interface, destination if hop.via is None else hop.via) for _, hop in choices]
        found = Ways(
            [most for most, _ in choices], [self._ways.get(at) or self._find(at) for at in ends]
        )
        if not self._table.ruled:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[destination] = found
        return found

    def _find(self, at: tuple[str, bytes]) -> Way | None:
        """Return the way to the neighbour ``at`` an interface, None if nobody is known there."""
        mac = self._neighbours.get(at) or self._learned.get(at)
        if mac is None:
            return None
        bridge = self.bridges.get(at[0])
        if bridge is None:
            out = self.interfaces[at[0]]
            way = Way(mac + out.mac, out=out)
        else:
            way = Way(mac + bridge.mac, bridge=bridge)
        self._ways[at] = way
        return way

    def _leave(self, out: ModelInterface, frame: bytes, origin: int) -> None:
        if len(frame) - _ETHERNET > out.mtu:
            self.reason = TOO_LONG
            return
        going: list[bytes] = []
        if out.program is None:
            going.append(frame)
        else:
            out.program.leave(frame, origin, going)
        for one in going:
            out.went(one)
            self._left.append((out.wire, one))


def octets_of(mac: str) -> bytes:
    """Return the octets of a MAC address."""
    return bytes.fromhex(mac.replace(":", ""))
