"""A captured frame in the terms that UET and RoCEv2 have in common: whose packet, which number.

UET numbers packets for each sending half of a PDC (UES 3.5.8), so that source, destination and the
sender's PDC identifier (SPDCID) are a flow.  RoCEv2 numbers them for each queue pair (IBA 9.7.1),
of which a packet names the receiver's.  RUDI packets have an identifier instead (UES 3.5.8), and
UUD ones nothing but the message ID of SES: these stand in place of the PSN.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from emulator.rocev2.wire import codes as rocev2_codes
from emulator.rocev2.wire import headers as rocev2_headers
from emulator.rocev2.wire.codes import (
    CNP_OPCODE,
    OPERATION_MASK,
    SYNDROME_KIND,
    UDP_PORT,
    BthOperation,
    Syndrome,
)
from uet.pds import window as psn32
from uet.wire import headers
from uet.wire.codes import (
    ACK_TYPES,
    NACK_TYPES,
    REQUEST_TYPES,
    ControlType,
    NackCode,
    PacketType,
)
from uet.wire.envelope import Envelope, open_frame
from uet.wire.frame import DecodedPacket, OpenSecure, decode_frame

CE = 3  # RFC 3168
UET, ROCEV2 = "UET", "RoCEv2"
_RESPONSES = frozenset(
    {
        BthOperation.READ_RESPONSE_FIRST,
        BthOperation.READ_RESPONSE_MIDDLE,
        BthOperation.READ_RESPONSE_LAST,
        BthOperation.READ_RESPONSE_ONLY,
        BthOperation.ATOMIC_ACKNOWLEDGE,
    }
)
_FLAGS = ("pds.flags.syn", "pds.flags.retx", "pds.flags.ar", "ses.som", "ses.eom")


class PacketKind(enum.Enum):
    """The part that a packet plays for another one's delivery."""

    DATA = "data"
    ACK = "ACK"
    NACK = "NACK"
    CONTROL = "control"
    CNP = "CNP"


#: Kinds that acknowledge nothing.
SIGNALS = frozenset({PacketKind.CONTROL, PacketKind.CNP})
#: In place of a PDC: packets that have none.
RUDI, UUD = -1, -2


@dataclass(frozen=True, slots=True)
class FlowKey:
    """A sequence of PSNs: ``context`` is the SPDCID (UET) or the destination QP (RoCEv2).

    It is ``RUDI`` or ``UUD`` of packets without a PDC.  ``source`` and ``destination`` are IP
    addresses.
    """

    protocol: str
    source: str
    destination: str
    context: int

    @property
    def words(self) -> str:
        """Return the PDC or queue pair, or the service of a packet without one."""
        if self.protocol != UET:
            return f"QP {self.context:#x}"
        services = {RUDI: "RUDI, which has no PDC", UUD: "UUD, which has no PDC"}
        return services.get(self.context, f"PDC {self.context}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketView:
    """The content of a frame.

    ``psn`` is that of data, and what an acknowledgement names; ``sack`` its base and bitmap.
    ``peer`` is the DPDCID (UET); ``port`` the UDP source port, UET's entropy.  ``identity`` are the
    octets behind UDP that no switch changes, ``secure`` the TSS header of an encrypted packet.
    """

    kind: PacketKind
    flow: FlowKey
    psn: int
    words: str
    dscp: int
    ecn: int
    port: int
    identity: bytes
    peer: int | None = None
    cumulative: int | None = None
    sack: tuple[int, int] = (0, 0)
    message: int | None = None
    retransmission: bool = False
    trimmed: bool = False
    answers: bool = False
    secure: bytes = b""

    def settles(self, flow: FlowKey, number: int, port: int) -> bool:
        """Return whether this acknowledges, or refuses, packet ``number`` of ``flow``.

        RoCEv2 names only the receiver's queue pair: both ways of a connection have one UDP source
        ``port``.
        """
        if (self.flow.source, self.flow.destination) != (flow.destination, flow.source):
            return False
        if self.flow.protocol != flow.protocol or self.kind in SIGNALS:
            return False
        if RUDI in (flow.context, self.flow.context):
            both = flow.context == self.flow.context
            return both and self.kind is not PacketKind.DATA and self.psn == number
        if flow.protocol == UET:
            return self.peer == flow.context and self._settles_uet(number)
        if self.port != port or not (self.answers or self.kind is not PacketKind.DATA):
            return False
        ahead = rocev2_codes.distance(self.psn, number)
        return ahead == 0 if self.kind is PacketKind.NACK else ahead >= 0

    def _settles_uet(self, number: int) -> bool:
        if self.kind is PacketKind.NACK or self.psn == number:
            return self.psn == number and self.kind is not PacketKind.DATA
        if self.kind is not PacketKind.ACK or self.cumulative is None:
            return False
        if psn32.distance(self.cumulative, number) >= 0:
            return True
        base, bitmap = self.sack
        bit = psn32.distance(number, base)
        return bit >= 0 and bool(bitmap >> bit & 1)


def view(frame: bytes, length: int, open_secure: OpenSecure | None = None) -> PacketView | None:
    """Return what ``frame``, of ``length`` octets on the wire, says; None without a PSN."""
    packet = decode_frame(frame, wire_length=length, open_secure=open_secure)
    if packet.is_uet:
        return _uet(packet)
    if packet.envelope.dport != UDP_PORT:
        return None
    return _rocev2(frame, open_frame(frame, udp_port=UDP_PORT, wire_length=length))


def is_secure(frame: bytes, length: int) -> bool:
    """Return whether a frame's PDS header is behind a TSS header (UES 3.7)."""
    packet = decode_frame(frame, wire_length=length)
    return "tss" in packet.layer_names


def _uet(packet: DecodedPacket) -> PacketView | None:
    fields, envelope, start = packet.fields, packet.envelope, packet.envelope.uet
    kind, context = fields.get("pds.type"), fields.get("pds.spdcid")
    if kind is None or start is None:
        return None
    if kind in REQUEST_TYPES:
        part, number = PacketKind.DATA, fields.get("pds.psn")
    elif kind == PacketType.CP:
        part, number = PacketKind.CONTROL, fields.get("pds.psn")
    elif kind in _WITHOUT_PDC:
        part, number, context = _without_pdc(kind, fields)
    elif "pds.nack_pkt_id" in fields:
        part, number, context = PacketKind.NACK, fields["pds.nack_pkt_id"], RUDI
    elif kind in ACK_TYPES:
        part = PacketKind.ACK
        number = packet.derived.get("ack_psn", fields.get("pds.cack_psn"))
    elif kind in NACK_TYPES:
        part, number = PacketKind.NACK, fields.get("pds.nack_psn")
    else:
        return None
    if number is None or context is None:
        return None
    secure = next((layer for layer in packet.layers if layer.name == "tss"), None)
    size = headers.RUD_REQ.size if part is PacketKind.DATA else len(packet.octets) - start
    return PacketView(
        kind=part,
        flow=FlowKey(UET, envelope.source, envelope.destination, context),
        psn=number,
        words=_uet_words(packet, PacketType(kind)),
        dscp=envelope.dscp,
        ecn=envelope.ecn,
        port=envelope.entropy,
        identity=bytes(packet.octets[start : start + size]),
        peer=fields.get("pds.dpdcid"),
        cumulative=fields.get("pds.cack_psn"),
        sack=(packet.derived.get("sack_base_psn", 0), fields.get("pds.sack_bitmap", 0)),
        message=fields.get("ses.message_id"),
        retransmission=bool(fields.get("pds.flags.retx")),
        trimmed=packet.trimmed or envelope.shortened,
        secure=b""
        if secure is None
        else bytes(packet.octets[secure.offset : secure.offset + secure.length]),
    )


_WITHOUT_PDC = frozenset({PacketType.RUDI_REQ, PacketType.RUDI_RESP, PacketType.UUD_REQ})


def _without_pdc(kind: int, fields: Mapping[str, int]) -> tuple[PacketKind, int | None, int]:
    """Return the part of a packet without a PDC, what numbers it, and its service."""
    if kind == PacketType.UUD_REQ:
        return PacketKind.DATA, fields.get("ses.message_id"), UUD
    part = PacketKind.DATA if kind == PacketType.RUDI_REQ else PacketKind.ACK
    return part, fields.get("pds.pkt_id"), RUDI


def _uet_words(packet: DecodedPacket, kind: PacketType) -> str:
    fields = packet.fields
    words = [kind.name]
    if kind == PacketType.CP:
        control = fields.get("pds.ctl_type", 0)
        known = control in set(ControlType)
        words.append(ControlType(control).name if known else f"type {control}")
    if kind in NACK_TYPES:
        code = fields.get("pds.nack_code", 0)
        words.append(NackCode(code).name if code in set(NackCode) else f"code {code}")
    if "ack_psn" in packet.derived:
        words.append(f"of {packet.derived['ack_psn']},")
    if "pds.cack_psn" in fields:
        words.append(f"up to {fields['pds.cack_psn']}")
    words += [name.rpartition(".")[2] for name in _FLAGS if fields.get(name)]
    return " ".join(words)


def _rocev2(frame: bytes, envelope: Envelope) -> PacketView | None:
    at = envelope.uet  # what is behind UDP
    if at is None or envelope.udp is None or len(frame) < at + rocev2_headers.BTH.size:
        return None
    values = rocev2_headers.BTH.values(frame, at)
    opcode = int(values["opcode"])
    operation = opcode & OPERATION_MASK
    if opcode != CNP_OPCODE and operation not in set(BthOperation):
        return None
    part, words = PacketKind.CNP, "CNP"
    if opcode != CNP_OPCODE:
        part, words = PacketKind.DATA, BthOperation(operation).name
    if opcode != CNP_OPCODE and operation == BthOperation.ACKNOWLEDGE:
        part, words = _aeth(frame, at + rocev2_headers.BTH.size)
    return PacketView(
        kind=part,
        flow=FlowKey(ROCEV2, envelope.source, envelope.destination, int(values["dqpn"])),
        psn=int(values["psn"]),
        words=words,
        dscp=envelope.dscp,
        ecn=envelope.ecn,
        port=envelope.entropy,
        identity=frame[at : at + rocev2_headers.LARGEST],
        answers=operation in _RESPONSES,
    )


def _aeth(frame: bytes, at: int) -> tuple[PacketKind, str]:
    """Return the kind of an ACKNOWLEDGE packet, by its AETH (IBA 9.7.5.2)."""
    if len(frame) < at + rocev2_headers.AETH.size:
        return PacketKind.ACK, "ACKNOWLEDGE"
    syndrome = frame[at]
    if syndrome & SYNDROME_KIND == Syndrome.ACK:
        return PacketKind.ACK, "ACKNOWLEDGE"
    if syndrome in set(Syndrome):
        return PacketKind.NACK, Syndrome(syndrome).name
    return PacketKind.NACK, "RNR_NAK" if syndrome & SYNDROME_KIND == Syndrome.RNR_NAK else "NAK"
