"""The connections that an adapter has agreed on: those of a mesh, and any added one by one.

Only those added are kept; those of a mesh are computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emulator.rocev2.connection_agreement import Connection
from emulator.rocev2.connections import FullMesh
from uet.addresses import ip_of

#: The service of a mesh's connections.
_OF_MESH = "rc"


class ConnectionBook:
    """The connections of one endpoint, by local QP number and by peer (its packed address)."""

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
