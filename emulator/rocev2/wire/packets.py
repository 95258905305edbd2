"""Packets of RoCEv2: the invariant CRC, what a frame that arrived holds, frames that leave.

The ICRC ends every packet (IBA 7.8.1 and annex A17). It is the CRC of Ethernet over 64 ones and
everything from the IP header to the pad octets. The ones stand for the InfiniBand local route
header that is not there. What routers may change is set to ones: TOS, TTL and checksum of IPv4;
traffic class, flow label and hop limit of IPv6; the UDP checksum; FECN, BECN and six reserved bits
in octet 4 of the BTH.  It stands least significant octet first.

Everything before AckReq and PSN is alike in packet after packet of a flow, or of a queue pair with
one opcode, length and traffic class.  What follows from it, the CRC of it included, is kept; the
ICRC of the next packet then costs its own octets only.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

try:
    from zlib_ng.zlib_ng import crc32  # zlib's own takes ten times as long for a packet's payload
except ImportError:
    from zlib import crc32

from emulator.rocev2.wire import headers
from emulator.rocev2.wire.codes import ICRC_SIZE, UDP_PORT, flow_label, source_port
from uet.carrier_codec import Decapsulator, PeerEnvelope
from uet.encapsulation_choice import Encapsulation
from uet.transport import Frame

_UDP_SIZE: Final = 8
_LOCAL_ROUTE: Final = b"\xff" * 8
_VARIANT_IN_BTH: Final = 4
#: CRC-32 of any octets and their own CRC behind them.
RESIDUE: Final = 0x2144_DF1C
_FIRST_HALF: Final = 8  # octets of the BTH before AckReq and PSN
_BECN: Final = headers.BTH.mask("becn")
_KEPT_PREFIXES: Final = 64
#: Where a packet requests an answer: in the word of its PSN.
ACK_REQUEST: Final = headers.BTH.mask("ackreq")
_SEED_OCTETS: Final = 8  # of the BTH: what stands before AckReq and PSN
_ETHERTYPE_AT: Final = 12
_IP_AT: Final = 14
_SOURCE_IN_IP: Final = {4: 12, 6: 8}
_IP_SIZE: Final = {4: 20, 6: 40}
#: Flows are distinguished by these octets; a hostile sender may make up as many as it likes.
_KEPT_FLOWS: Final = 4_096
_PAD_SHIFT: Final = headers.BTH.shift("padcount")
_VERSION: Final = headers.BTH.mask("version")
_DQPN_SHIFT: Final = headers.BTH.shift("dqpn")
_DQPN: Final = (1 << 24) - 1
#: What the opener of encapsulations calls packets of another kind.
_REASONS: Final = {"rx_drop_not_uet": "rx_drop_not_rocev2"}


def seed(headers: bytes | memoryview, bth: bytes | memoryview) -> int:
    """The CRC from the start through the first octets of the BTH.

    ``headers`` are the IP header (with options or extension headers) and the UDP header, ``bth``
    at least five octets.  Go on with ``crc32(octets, seed)``.
    """
    masked = bytearray(headers)
    if masked[0] >> 4 == 4:
        masked[1] = masked[8] = 0xFF
        masked[10:12] = b"\xff\xff"
    else:
        masked[0] |= 0x0F
        masked[1:4] = b"\xff\xff\xff"
        masked[7] = 0xFF
    masked[-2:] = b"\xff\xff"  # the UDP checksum
    masked += bth
    masked[len(headers) + _VARIANT_IN_BTH] = 0xFF
    return crc32(masked, crc32(_LOCAL_ROUTE))


def packed(crc: int) -> bytes:
    """The ICRC as it stands in the packet."""
    return crc.to_bytes(ICRC_SIZE, "little")


def icrc(packet: bytes | memoryview, udp_at: int) -> bytes:
    """The ICRC of ``packet``: from the IP header through the pad, its UDP header at ``udp_at``."""
    bth_at = udp_at + _UDP_SIZE
    return packed(crc32(packet[bth_at + 8 :], seed(packet[:bth_at], packet[bth_at : bth_at + 8])))


@dataclass(slots=True, eq=False)
class PacketFlow:
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
        end = flow.end
        if end > len(frame):
            return "rx_drop_truncated"
        residue: int = crc32(frame[flow.crc_at : end], flow.crc)
        if residue != RESIDUE:
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


class Frames:
    """Makes frames to one queue pair of a peer, or to several (datagrams)."""

    __slots__ = ("_dqpn", "_envelope", "_pkey", "_port", "_prefixes")

    def __init__(self, envelope: PeerEnvelope, source_port: int, dqpn: int, pkey: int) -> None:
        self._envelope = envelope
        self._port = source_port.to_bytes(2, "big")
        self._dqpn = dqpn
        self._pkey = pkey
        self._prefixes: dict[int, tuple[bytes, int, bytes]] = {}

    def frame(
        self,
        traffic_class: int,
        word: int,
        psn: int,
        extensions: bytes,
        payload: memoryview | bytes = b"",
        becn: int = 0,
    ) -> Frame:
        """One frame.

        ``word`` is the first of the BTH: opcode and flags, PadCnt left to this.  ``psn`` has 24
        bits, and :data:`ACK_REQUEST` where it requests an answer.
        """
        octets = len(extensions) + len(payload)
        key = (octets << 16 | word) << 9 | traffic_class << 1 | becn
        try:
            prefix, crc, pad = self._prefixes[key]
        except KeyError:
            prefix, crc, pad = self._prefix(key, traffic_class, word, octets, becn)
        rest = psn.to_bytes(4, "big") + extensions
        crc = crc32(rest, crc)
        if not payload:
            return prefix + rest, crc.to_bytes(ICRC_SIZE, "little")
        crc = crc32(payload, crc)
        if pad:
            return prefix + rest, b"".join(
                (payload, pad, crc32(pad, crc).to_bytes(ICRC_SIZE, "little"))
            )
        return prefix + rest, b"".join((payload, crc.to_bytes(ICRC_SIZE, "little")))

    def _prefix(
        self, key: int, traffic_class: int, word: int, octets: int, becn: int
    ) -> tuple[bytes, int, bytes]:
        """Everything before the PSN, the CRC of it, and the pad octets."""
        pad = -octets & 3  # extension headers are whole words
        length = headers.BTH.size + octets + pad + ICRC_SIZE
        bth = headers.BTH.pack(
            word | pad << _PAD_SHIFT,
            self._pkey,
            self._dqpn << _DQPN_SHIFT | (_BECN if becn else 0),
        )[:_FIRST_HALF]
        prologue = bytearray(self._envelope.prologue(traffic_class, length))
        udp_at = len(prologue) - _UDP_SIZE
        prologue[udp_at : udp_at + 2] = self._port
        made = bytes(prologue) + bth, seed(bytes(prologue[_IP_AT:]), bth), bytes(pad)
        if len(self._prefixes) >= _KEPT_PREFIXES:
            self._prefixes.clear()
        self._prefixes[key] = made
        return made


class HcaPeer:
    """An endpoint that packets go to and come from; ``EncapsulationError`` if it cannot be."""

    __slots__ = ("_envelope", "address", "key")

    def __init__(self, encapsulation: Encapsulation, address: str, mac: str) -> None:
        self.address = address
        self.key = ip_address(address).packed
        self._envelope = PeerEnvelope(encapsulation, address, mac)

    def frames(self, local_qpn: int, remote_qpn: int, pkey: int) -> Frames:
        """Return the frames of one pair of queue pairs, which share a UDP port (annex A17.9.4)."""
        port = source_port(flow_label(local_qpn, remote_qpn))
        return Frames(self._envelope, port, remote_qpn, pkey)
