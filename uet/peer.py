"""A peer as seen from this endpoint: how frames to it are made, and what is shared toward it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from uet.addresses import Neighbours, ip_of
from uet.carrier_codec import PeerEnvelope, packed_in_reach, reachable
from uet.congestion.context import CongestionContext
from uet.encapsulation_choice import Encapsulation, mac_octets
from uet.transport import Frame
from uet.wire.codes import ECN_ECT0, ECN_NOT_ECT

if TYPE_CHECKING:
    from uet.tss.record import SecureRecords

#: (IP traffic class, entropy value, UET headers, payload) -> frame.
Wrap = Callable[[int, int, bytes, "memoryview | bytes"], Frame]

#: Octets that the congestion sublayer adds to the transport size of a packet (UES 3.6.12).
NOMINAL_OVERHEAD: Final = 40


def traffic_class(dscp: int, *, ecn_capable: bool) -> int:
    """The IP traffic class octet: DSCP and ECN (RFC 2474, RFC 3168)."""
    return dscp << 2 | (ECN_ECT0 if ecn_capable else ECN_NOT_ECT)


class Peer:
    """A fabric endpoint that packets go to and come from.

    ``domains`` are the secure domains of this endpoint, by SDI.
    """

    __slots__ = ("_ways", "address", "congestion", "envelope", "key", "mpr")

    def __init__(
        self,
        address: str,
        envelope: PeerEnvelope,
        congestion: CongestionContext,
        domains: dict[int, SecureRecords],
    ) -> None:
        self.address = address
        self.key = ip_of(address).packed
        self.envelope = envelope
        self.congestion = congestion
        #: what it has reported last of the PSNs that it tracks, in units of 128; 0 if nothing yet
        self.mpr = 0
        around = envelope.transport_overhead + NOMINAL_OVERHEAD
        self._ways: dict[int | None, tuple[Wrap, int]] = {
            None: (envelope.wrap, around + envelope.trailer)
        }
        for sdi, records in domains.items():
            self._ways[sdi] = (_sealing(envelope, records), around + records.overhead)

    def way(self, sdi: int | None) -> tuple[Wrap, int]:
        """Return how packets are made in a secure domain, or in clear (``None``).

        The number is what a packet's nominal size (UES 3.6.12) has beyond its UET octets.
        """
        return self._ways[sdi]


P = TypeVar("P")


class Peers(dict[bytes, P], Generic[P]):
    """The peers of an endpoint by packed address, each made by ``make`` when it is first needed.

    ``make`` is given the address and the MAC.
    """

    def __init__(self, make: Callable[[str, str], P]) -> None:
        super().__init__()
        self._make = make
        self._unmet: dict[bytes, tuple[str, str]] = {}
        self._shared: Neighbours | None = None

    def expect(self, neighbours: Mapping[str, str], encapsulation: Encapsulation) -> None:
        """Let all ``neighbours`` be peers; ``EncapsulationError`` for one out of reach.

        Of a shared table nothing is copied, and nothing is checked twice.
        """
        if not isinstance(neighbours, Neighbours):
            for address, mac in neighbours.items():
                key, _ = reachable(encapsulation, address, mac)
                self._unmet[key] = address, mac
            return
        table = neighbours.table
        if encapsulation.version not in table.known.reached:
            for address in table.known.addresses:
                packed_in_reach(encapsulation, address)
            table.known.reached.add(encapsulation.version)
        if not table.checked:
            for mac in table.hops:
                mac_octets("peer_mac", mac)
            table.checked = True
        self._shared = neighbours

    def meet(self, key: bytes) -> P | None:
        """The peer at ``key``, made now if need be; None if nobody is known there."""
        known = self.get(key)
        if known is None:
            unmet = self._unmet.pop(key, None)
            if unmet is None and self._shared is not None:
                unmet = self._shared.find(key)
            if unmet is not None:
                known = self[key] = self._make(*unmet)
        return known

    def __missing__(self, key: bytes) -> P:
        peer = self.meet(key)
        if peer is None:
            raise KeyError(key)
        return peer


def _sealing(envelope: PeerEnvelope, records: SecureRecords) -> Wrap:
    seal, overhead = records.seal, records.overhead
    wrap_sealed = envelope.wrap_sealed

    def wrap(traffic_class: int, entropy: int, uet: bytes, payload: memoryview | bytes) -> Frame:
        return wrap_sealed(
            traffic_class,
            entropy,
            len(uet) + len(payload) + overhead,
            lambda prefix: b"".join(seal(prefix, uet, payload)),
        )

    return wrap
