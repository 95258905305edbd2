# scapy.contrib.description = Ultra Ethernet Transport (UET): encapsulation, CRC, trimming
# scapy.contrib.status = loads

"""Ultra Ethernet Transport below the packet delivery sublayer.

UET travels in UDP (destination port 4793) or straight in IP behind a four-octet entropy header
(UES Table 3-31).  The first five bits after that choose the header; :class:`UET` does so.

What is configuration rather than signalled on the wire lives in ``conf.contribs["uet"]``:

``crc``
    ``True``: every packet ends with a CRC; ``False``: none does; ``"auto"``: the last four
    octets are a CRC if, and only if, they verify.
``trimmed_dscp``
    the code points that switches give to packets they have trimmed.
``reference_provider``
    ``True``: opcodes 0x10 and 0x11 have the extension of the UEC reference provider.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scapy.config import conf
from scapy.error import warning
from scapy.fields import BitEnumField, BitField, ShortField, XIntField
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import NoPayload, Packet, Raw, bind_layers, bind_top_down

from uet.wire.codes import CRC_SIZE, NATIVE_PROTOCOL, UDP_PORT, NextHeader, PacketType
from uet.wire.crc import crc32c

conf.contribs.setdefault("uet", {"crc": "auto", "trimmed_dscp": set(), "reference_provider": False})


class UETLayer(Packet):
    """The base of all UET headers: octets that no header claims are payload or a trimmed rest.

    ``uet_name`` is the name under which a decoder shows the layer. ``uet_labels`` has the names of
    its fields that are not shown under the field's own.
    """

    uet_name = ""
    uet_labels: dict[str, str] = {}

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        header = self.following(payload)
        if is_trimmed(self) and (header is Raw or len(payload) < len(header())):
            return UET_TRUNCATED
        return header

    def following(self, payload: bytes) -> type[Packet]:
        """The header behind this one, were the packet not trimmed."""
        header: type[Packet] = super().guess_payload_class(payload)
        return header


class UET_TRUNCATED(Raw):
    """The rest of a header or payload after a switch trimmed the packet."""

    name = "UET truncated"


class UET_CRC(Packet):
    """UET CRC trailer (CRC-32C).  Computed when the packet is built, unless given."""

    name = "UET CRC"
    fields_desc = [XIntField("crc", None)]

    def expected(self) -> int:
        """The value that covers the packet this trailer ends, as it would be built."""
        first: Packet = self
        while isinstance(first.underlayer, Packet) and not isinstance(
            first.underlayer, (UDP, UET_ENTROPY)
        ):
            first = first.underlayer
        return _crc_of(first, bytes(first)[:-CRC_SIZE])


class UETFirst(UETLayer):
    """A UET header that may stand right behind UDP or the entropy header; minds the trailer."""

    def do_dissect_payload(self, s: bytes) -> None:
        if not (len(s) >= CRC_SIZE and self._ends_with_crc(s)):
            super().do_dissect_payload(s)
            return
        super().do_dissect_payload(s[:-CRC_SIZE])
        self.lastlayer().add_payload(UET_CRC(s[-CRC_SIZE:]))

    def _ends_with_crc(self, s: bytes) -> bool:
        setting = conf.contribs["uet"]["crc"]
        if setting != "auto" or not isinstance(self.underlayer, (UDP, UET_ENTROPY)):
            return bool(setting is True and not is_trimmed(self))
        wire = (self.raw_packet_cache or b"") + s
        sent = int.from_bytes(wire[-CRC_SIZE:], "big")
        return sent == _crc_of(self, wire[:-CRC_SIZE])

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        wire = pkt + pay
        last = self.lastlayer()
        if isinstance(last, UET_CRC) and last.getfieldval("crc") is None:
            if _ip_above(self) is None:
                warning("UET CRC needs IP addresses: left 0")
            else:
                crc = _crc_of(self, wire[:-CRC_SIZE])
                wire = wire[:-CRC_SIZE] + crc.to_bytes(CRC_SIZE, "big")
        return wire


class UET(UETFirst):
    """Chooses the UET header by its type; itself stands for the reserved types (UES Table 3-32)."""

    name = "UET"
    fields_desc = [
        BitEnumField("type", 0, 5, PacketType),
        BitEnumField("next_hdr", 0, 4, NextHeader),
        BitField("flags", 0, 7),
    ]
    #: packet type -> header class, filled by :func:`bind_type`.
    types: dict[int, type[Packet]] = {}

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: Any, **kargs: Any) -> type[Packet]:
        return cls.types.get(_pkt[0] >> 3, cls) if _pkt else cls


class UET_ENTROPY(Packet):
    """Entropy header: stands for the UDP header in native IP encapsulation (UES Table 3-31)."""

    name = "UET entropy"
    fields_desc = [ShortField("entropy", 0), ShortField("rsvd", 0)]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        return UET


def bind_type(header: type[Packet], *types: int) -> None:
    """Announce ``header`` as the one that packets of these ``types`` begin with."""
    for number in types:
        UET.types[number] = header
    # A UET sender leaves the UDP checksum zero.
    bind_top_down(UDP, header, dport=UDP_PORT, chksum=0)
    bind_top_down(UET_ENTROPY, header)


def _above(layer: Packet) -> Iterator[Packet]:
    """The layers in front of ``layer``, nearest first."""
    above = layer.underlayer
    while isinstance(above, Packet) and not isinstance(above, NoPayload):
        yield above
        above = above.underlayer


def _ip_above(layer: Packet) -> Packet | None:
    return next((above for above in _above(layer) if isinstance(above, (IP, IPv6))), None)


def is_trimmed(layer: Packet) -> bool:
    """Return whether the IP header above ``layer`` has a code point of trimmed packets."""
    ip = _ip_above(layer)
    if ip is None:
        return False
    traffic_class = ip.tos if isinstance(ip, IP) else ip.tc
    return traffic_class >> 2 in conf.contribs["uet"]["trimmed_dscp"]


def _crc_of(first: Packet, octets: bytes) -> int:
    """CRC of a packet whose UET part, without the trailer, is ``octets``, under ``first``."""
    covered = octets
    for above in _above(first):
        if isinstance(above, UDP):
            length = above.getfieldval("len")
            if length is None:
                length = 8 + len(octets) + CRC_SIZE
            covered = above.self_build()[:4] + length.to_bytes(2, "big") + b"\0\0" + covered
        elif isinstance(above, IP):
            header = above.self_build()
            return crc32c(header[12:] + bytes(-len(header) % 4) + covered)
        elif isinstance(above, IPv6):
            return crc32c(above.self_build()[8:] + covered)
        else:
            covered = above.self_build() + covered
    return crc32c(covered)


# The UDP source port is entropy and takes every value, those of other protocols too: the
# destination port must be looked up before any binding by source port.
UDP.payload_guess.insert(0, ({"dport": UDP_PORT}, UET))
bind_top_down(UDP, UET, dport=UDP_PORT, chksum=0)
bind_layers(IP, UET_ENTROPY, proto=NATIVE_PROTOCOL)
bind_layers(IPv6, UET_ENTROPY, nh=NATIVE_PROTOCOL)
