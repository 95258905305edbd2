"""A captured packet in a few words: what a ladder writes on an arrow."""

from __future__ import annotations

from emulator.rocev2.wire import headers as rocev2_headers
from emulator.rocev2.wire.codes import (
    CNP_OPCODE,
    OPERATION_MASK,
    UDP_PORT,
    BthOperation,
)
from uet.wire.frame import DecodedPacket, decode_frame

#: Fields that are shown, and flags that are shown where they are set, by their names in captures.
_FIELDS = ("pds.psn", "pds.cack_psn", "pds.nack_code", "pds.nack_psn", "pds.ctl_type")
_MESSAGE = ("ses.message_id", "ses.message_offset")
_FLAGS = ("pds.flags.syn", "pds.flags.retx", "pds.flags.ar", "ses.som", "ses.eom")
_CE = 3  # RFC 3168
_ETHERNET, _UDP = 14, 8  # octets of these headers


def packet_words(frame: bytes, length: int) -> str:
    """Describe ``frame``, of ``length`` octets on the wire, as far as it was captured."""
    packet = decode_frame(frame, wire_length=length)
    words = _uet(packet) if packet.is_uet else _rocev2(frame, packet)
    if packet.envelope.ecn == _CE:
        words += " CE"
    return words


def _uet(packet: DecodedPacket) -> str:
    layers = [name.partition(".")[2] for name in packet.layer_names if "." in name]
    words = [" ".join(name.upper() for name in layers[:1])]
    for name in (*_FIELDS, *_MESSAGE):
        if name in packet.fields:
            words.append(f"{name.partition('.')[2]}={packet.fields[name]}")
    words += [name.rpartition(".")[2] for name in _FLAGS if packet.fields.get(name)]
    if packet.trimmed or packet.envelope.shortened:
        words.append("trimmed")
    return " ".join(words) or "UET"


def _rocev2(frame: bytes, packet: DecodedPacket) -> str:
    envelope = packet.envelope
    at = _ETHERNET + 4 * (frame[_ETHERNET] & 0xF) + _UDP if len(frame) > _ETHERNET else 0
    if envelope.dport != UDP_PORT or len(frame) < at + rocev2_headers.BTH.size:
        return f"{len(frame)} octets"
    values = rocev2_headers.BTH.values(frame, at)
    opcode = int(values["opcode"])
    if opcode == CNP_OPCODE:
        name = "CNP"
    else:
        operation = opcode & OPERATION_MASK
        known = operation in BthOperation.__members__.values()
        name = BthOperation(operation).name if known else f"opcode {opcode:#x}"
    return f"{name} psn={values['psn']} qp={values['dqpn']:#x}"
