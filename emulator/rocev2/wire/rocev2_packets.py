"""Finds the RoCEv2 packet in a frame that arrived, and checks its ICRC.

Everything before AckReq and PSN is alike in packet after packet of a flow.  What follows from
it, the CRC of it included, is kept; the ICRC of the next packet then costs its own octets only.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from emulator.rocev2.wire import rocev2_headers as headers
from emulator.rocev2.wire.icrc import RESIDUE, seed
from emulator.rocev2.wire.rocev2_codes import ICRC_SIZE, UDP_PORT
from uet.carrier_codec import Decapsulator
from uet.encapsulation_choice import Encapsulation

_SEED_OCTETS = 8  # of the BTH: what stands before AckReq and PSN
_ETHERTYPE_AT = 12
_IP_AT = 14
_UDP_SIZE = 8
_SOURCE_IN_IP = {4: 12, 6: 8}
_IP_SIZE = {4: 20, 6: 40}
#: Flows are distinguished by these octets; a hostile sender may make up as many as it likes.
_KEPT_FLOWS = 4_096

_PAD_SHIFT = headers.BTH.shift("padcount")
_VERSION = headers.BTH.mask("version")
_DQPN_SHIFT, _DQPN = headers.BTH.shift("dqpn"), (1 << 24) - 1

#: What the opener of encapsulations calls packets of another kind.
_REASONS = {"rx_drop_not_uet": "rx_drop_not_rocev2"}


class PacketFlow(NamedTuple):
    """The fields that packets alike up to the PSN have in common.

    ``crc_at``, ``extensions_at``, ``payload_at``, ``payload_end`` and ``end`` are offsets in the
    frame; the ICRC stands before ``end``.  ``traffic_class`` is the octet with DSCP and ECN.
    """

    crc: int
    crc_at: int
    extensions_at: int
    payload_at: int
    payload_end: int
    end: int
    opcode: int
    pkey: int
    dqpn: int
    source: bytes
    source_port: int
    traffic_class: int
    fault: str | None


class PacketDecapsulator:
    """Opens the frames of one endpoint; never raises on what they hold."""

    def __init__(self, encapsulation: Encapsulation) -> None:
        self._opener = Decapsulator(encapsulation)
        version = encapsulation.version
        self._source_at = _SOURCE_IN_IP[version]
        self._bth_at = _IP_AT + _IP_SIZE[version] + _UDP_SIZE
        self._key_end = self._bth_at + _SEED_OCTETS
        self._flows: dict[bytes, PacketFlow] = {}

    def open(self, frame: memoryview) -> PacketFlow | str:
        """The flow that ``frame`` belongs to; or the counter under which it is dropped.

        A wrong ICRC comes first: nothing in such a packet may be believed.
        """
        key = bytes(frame[_ETHERTYPE_AT : self._key_end])
        flow = self._flows.get(key)
        if flow is None:
            found = self._find(frame)
            if isinstance(found, str):
                return found
            flow = found
            if flow.crc_at == self._key_end:  # no VLAN tags, options or extension headers
                if len(self._flows) >= _KEPT_FLOWS:
                    self._flows.clear()
                self._flows[key] = flow
        crc, crc_at, _, _, _, end, *_ = flow
        if end > len(frame):
            return "rx_drop_truncated"
        if crc32(frame[crc_at:end], crc) != RESIDUE:
            return "rx_drop_bad_icrc"
        return flow if flow.fault is None else flow.fault

    def _find(self, frame: memoryview) -> PacketFlow | str:
        """Return the flow of any frame as :meth:`open` does; the ICRC is not checked."""
        opened = self._opener.open(frame)
        if isinstance(opened, str):
            return _REASONS.get(opened, opened)
        source, at, end, source_port, traffic_class, source_at = opened
        if end < at + headers.BTH.size + ICRC_SIZE:
            return "rx_drop_truncated"
        word, pkey, rest = headers.BTH.unpack_from(frame, at)
        opcode = word >> 8
        extensions_at = at + headers.BTH.size
        payload_at = extensions_at + headers.EXTENSION_OCTETS.get(opcode, 0)
        payload_end = end - ICRC_SIZE - (word >> _PAD_SHIFT & 3)
        fault = None
        if word & _VERSION:
            fault = "rx_drop_bad_version"
        elif payload_end < payload_at:
            fault = "rx_drop_truncated"
        return PacketFlow(
            crc=seed(frame[source_at - self._source_at : at], frame[at : at + _SEED_OCTETS]),
            crc_at=at + _SEED_OCTETS,
            extensions_at=extensions_at,
            payload_at=payload_at,
            payload_end=payload_end,
            end=end,
            opcode=opcode,
            pkey=pkey,
            dqpn=rest >> _DQPN_SHIFT & _DQPN,
            source=source,
            source_port=source_port,
            traffic_class=traffic_class,
            fault=fault,
        )


def encapsulation(address: str, mac: str, ttl: int = 64) -> Encapsulation:
    """Return the encapsulation of RoCEv2: UDP."""
    return Encapsulation(address=address, mac=mac, udp_port=UDP_PORT, ttl=ttl)
