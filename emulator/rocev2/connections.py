"""What two ends agree on about queue pairs; a mesh of them, computed alike at every end.

The mesh stands for the exchange that connection managers, or a job's launcher, do out of band.  All
ends are given the same list of addresses and the same seed.  Each QP number says whom it is for::

    base of this end | place 0: qps numbers | place 1: qps numbers | ...

so an end makes a connection when it is first needed, and keeps nothing for those that it never has.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from emulator.rocev2.wire.codes import GSI_QPN, PSN_MASK, QPN_MASK
from uet.addresses import Neighbours, NeighbourTable, ip_of
from uet.config_checks import ConfigurationError

SERVICES = ("rc", "uc")
#: The service of a mesh's connections.
_OF_MESH = "rc"
#: QP numbers start behind those of special meaning, each endpoint's somewhere else.
_FIRST_QPN, _FIRST_QPN_BITS = 0x100, 20
#: Numbers that every endpoint has, wherever its own start.
_ROOM = QPN_MASK - _FIRST_QPN - 2**_FIRST_QPN_BITS
#: Seeds of people are below this many bits.
_LIFE_SHIFT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The agreement of two ends about one pair of queue pairs, as seen from one end.

    ``first_psn`` is that of the first request sent from here, ``expected_psn`` that of the first
    one to arrive.
    """

    local_qpn: int
    remote_qpn: int
    first_psn: int = 0
    expected_psn: int = 0
    service: str = "rc"

    def __post_init__(self) -> None:
        for name in ("local_qpn", "remote_qpn"):
            number = getattr(self, name)
            if not GSI_QPN < number < QPN_MASK:
                raise ConfigurationError(
                    f"connections: {name} is {number}; it must lie in {GSI_QPN + 1}..{QPN_MASK - 1}"
                )
        for name in ("first_psn", "expected_psn"):
            number = getattr(self, name)
            if not 0 <= number <= PSN_MASK:
                raise ConfigurationError(
                    f"connections: {name} is {number}; it must lie in 0..{PSN_MASK}"
                )
        if self.service not in SERVICES:
            raise ConfigurationError(
                f"connections: service is {self.service!r}; choose one of {', '.join(SERVICES)}"
            )


class MeshAddresses:
    """The addresses of all ends of a mesh, in an order that all know: one table for all of them."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = addresses
        self._lacking: dict[NeighbourTable, tuple[str, ...]] = {}

    def __reduce__(self) -> tuple[type[MeshAddresses], tuple[Sequence[str]]]:
        return type(self), (self.addresses,)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, MeshAddresses) and self.addresses == other.addresses
        )

    def __hash__(self) -> int:
        return hash(tuple(self.addresses))

    @cached_property
    def places(self) -> Mapping[bytes, int]:
        """The place of each packed address; ValueError for what is no address."""
        return {ip_of(address).packed: place for place, address in enumerate(self.addresses)}

    def lacking(self, table: NeighbourTable) -> tuple[str, ...]:
        """Return the addresses that ``table`` has no MAC for, looked up once for all its users."""
        if table not in self._lacking:
            macs = table.macs
            self._lacking[table] = tuple(one for one in self.addresses if one not in macs)
        return self._lacking[table]


class FullMesh(Mapping[str, tuple[Connection, ...]]):
    """The connections of the end at place ``own`` to every other, each made when asked for."""

    __slots__ = ("_base", "_own", "_qps", "_seed", "_table")

    def __init__(self, table: MeshAddresses, own: int, qps: int, seed: int) -> None:
        ends = len(table.addresses)
        if ends * qps > _ROOM:
            raise ConfigurationError(
                f"connections: {ends} endpoints with {qps} queue pairs to each need more QP "
                f"numbers than there are; choose at most {_ROOM // ends} queue pairs"
            )
        self._table, self._own, self._qps, self._seed = table, own, qps, seed
        self._base = _base(own, seed)

    def __getitem__(self, address: str) -> tuple[Connection, ...]:
        place = self._place(address)
        if place is None:
            raise KeyError(address)
        return tuple(self._made(place, number) for number in range(self._qps))

    def __contains__(self, address: object) -> bool:
        return isinstance(address, str) and self._place(address) is not None

    def __iter__(self) -> Iterator[str]:
        own = self._own
        return (one for place, one in enumerate(self._table.addresses) if place != own)

    def __len__(self) -> int:
        return len(self._table.addresses) - 1

    def numbers(self, key: bytes) -> range:
        """Return the QP numbers toward the peer with packed address ``key``: none if it is no end.

        They are in the order in which messages take turns.
        """
        place = self._table.places.get(key)
        if place is None or place == self._own:
            return range(0)
        first = self._base + place * self._qps
        return range(first, first + self._qps)

    def holds(self, qpn: int) -> bool:
        """Return whether the QP number ``qpn`` of this end is that of a connection."""
        place = (qpn - self._base) // self._qps
        return 0 <= place < len(self._table.addresses) and place != self._own

    def find(self, qpn: int) -> tuple[bytes, Connection] | None:
        """Return the connection that has ``qpn`` here, behind its peer's packed address."""
        if not self.holds(qpn):
            return None
        place, number = divmod(qpn - self._base, self._qps)
        return ip_of(self._table.addresses[place]).packed, self._made(place, number)

    def strangers(self, neighbours: Mapping[str, str]) -> Iterator[str]:
        """Yield the peers that are not among ``neighbours``.

        All endpoints that share a table of neighbours share the look into it.
        """
        candidates: Sequence[str] = self._table.addresses
        if isinstance(neighbours, Neighbours):
            candidates = (*self._table.lacking(neighbours.table), neighbours.own)
        for address in candidates:
            if address in self and address not in neighbours:
                yield address

    def _place(self, address: str) -> int | None:
        """Return the place of a peer's address, spelled as in the table."""
        try:
            place = self._table.places.get(ip_of(address).packed)
        except ValueError:
            return None
        if place is None or place == self._own or self._table.addresses[place] != address:
            return None
        return place

    def _made(self, place: int, number: int) -> Connection:
        own, qps, seed = self._own, self._qps, self._seed
        return Connection(
            local_qpn=self._base + place * qps + number,
            remote_qpn=_base(place, seed) + own * qps + number,
            first_psn=_psn(seed, own, place, number),
            expected_psn=_psn(seed, place, own, number),
        )


def full_mesh(
    addresses: MeshAddresses | Sequence[str], own: int, qps: int, seed: int, life: int = 0
) -> FullMesh:
    """The ``qps`` connections from ``addresses[own]`` to every other address.

    Those of another ``life`` of all endpoints have other numbers, and so other paths.
    """
    table = addresses if isinstance(addresses, MeshAddresses) else MeshAddresses(addresses)
    return FullMesh(table, own, qps, seed + (life << _LIFE_SHIFT))


@lru_cache(maxsize=2**14)  # every endpoint asks for those of its peers
def _base(place: int, seed: int) -> int:
    return _FIRST_QPN + random.Random(f"qpn {seed} {place}").getrandbits(_FIRST_QPN_BITS)


def _psn(seed: int, source: int, destination: int, number: int) -> int:
    return zlib.crc32(b"%d %d %d %d" % (seed, source, destination, number)) & PSN_MASK


class ConnectionBook:
    """The connections of an adapter, by local QP number and by peer (its packed address).

    Those of a mesh are computed; only those added one by one are kept.
    """

    def __init__(self, connections: Mapping[str, tuple[Connection, ...]]) -> None:
        self._mesh = connections if isinstance(connections, FullMesh) else None
        self._added: dict[int, tuple[bytes, Connection]] = {}
        self._numbers: dict[tuple[bytes, str], list[int]] = {}  # of those added
        if self._mesh is None:
            for address, several in connections.items():
                for connection in several:
                    self.add(address, connection)

    def add(self, address: str, connection: Connection) -> None:
        """Add a connection to ``address``, whose messages take turns with those there are."""
        key = ip_of(address).packed
        self._added[connection.local_qpn] = key, connection
        self._numbers.setdefault((key, connection.service), []).append(connection.local_qpn)

    def __contains__(self, qpn: int) -> bool:
        return qpn in self._added or (self._mesh is not None and self._mesh.holds(qpn))

    def find(self, qpn: int) -> tuple[bytes, Connection] | None:
        """Return the peer and the connection that has ``qpn`` here, if there is one."""
        found = self._added.get(qpn)
        if found is None and self._mesh is not None:
            return self._mesh.find(qpn)
        return found

    def numbers(self, key: bytes, service: str) -> Sequence[int]:
        """Return the QP numbers toward a peer, in the order in which messages take turns."""
        added = self._numbers.get((key, service), ())
        if self._mesh is None or service != _OF_MESH:
            return added
        computed = self._mesh.numbers(key)
        return [*computed, *added] if added else computed

    def services(self, key: bytes) -> list[str]:
        """Return the services that there are connections of to a peer, sorted."""
        services = {service for at, service in self._numbers if at == key}
        if self._mesh is not None and self._mesh.numbers(key):
            services.add(_OF_MESH)
        return sorted(services)
