"""Decodes a whole frame into layers and named fields, without trusting any octet of it.

Works on the fast codec.  What a frame does wrong comes back as sentences; nothing is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from uet.wire import crc as uet_crc
from uet.wire import headers
from uet.wire.codec import Field, Header
from uet.wire.codes import (
    ACK_TYPES,
    CRC_SIZE,
    ICV_SIZE,
    NACK_TYPES,
    NATIVE_PROTOCOL,
    NO_PAYLOAD_OPCODES,
    REQUEST_TYPES,
    UDP_PORT,
    ControlType,
    NextHeader,
    Opcode,
    PacketType,
    ProviderOpcode,
)
from uet.wire.dispatch import (
    EXPECTED_PSN_FLAG,
    KNOWN_TYPES,
    RESPONSES,
    extension_headers,
    pds_header,
    request_header,
)
from uet.wire.envelope import Envelope, open_frame
from uet.wire.naming import presented, shown_fields

CrcMode = Literal["auto", "on", "off"]
#: Gives the plaintext of a packet, or what is wrong with it as a sentence, from the octets that
#: are authenticated in front of the packet, the packet from TSS header through tag, and the
#: octets of an IP address in the former.
OpenSecure = Callable[[bytes, memoryview, int], "bytes | str"]

_MASK32 = 0xFFFFFFFF
_OPCODES = frozenset(map(int, Opcode))
_PROVIDER_OPCODES = frozenset(map(int, ProviderOpcode))
_ADDRESS_SIZES = {4: 4, 6: 16}

_SMALL, _MEDIUM, _STD = (
    NextHeader.REQUEST_SMALL,
    NextHeader.REQUEST_MEDIUM,
    NextHeader.REQUEST_STD,
)
#: Return data travels as a request of the other direction (UES 3.5.20.1).
_RETURN_DATA = (NextHeader.RESPONSE_DATA, NextHeader.RESPONSE_DATA_SMALL)
_REQUEST_NEXT: frozenset[int] = frozenset({NextHeader.NONE, _SMALL, _MEDIUM, _STD, *_RETURN_DATA})
_ACK_NEXT: frozenset[int] = frozenset({NextHeader.NONE, *RESPONSES})
#: Control packets whose payload is a PSN, and what that PSN is called (UES Table 3-38).
_PAYLOAD_PSNS: dict[int, str] = {
    ControlType.CLEAR_CMD: "clear_psn",
    ControlType.CLEAR_REQ: "clear_psn",
    ControlType.PROBE: "sack_base_psn",
}
#: What may follow each packet type (UES Table 3-16).
SENSIBLE: dict[int, frozenset[int]] = {
    **dict.fromkeys(REQUEST_TYPES, _REQUEST_NEXT),
    **dict.fromkeys(ACK_TYPES, _ACK_NEXT),
    **dict.fromkeys(NACK_TYPES, frozenset({NextHeader.NONE})),
    PacketType.RUDI_REQ: frozenset({NextHeader.NONE, _SMALL, _MEDIUM, _STD}),
    PacketType.RUDI_RESP: _ACK_NEXT,
    PacketType.UUD_REQ: frozenset({NextHeader.NONE, _MEDIUM, _STD}),
}


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a decoded frame.

    ``offset`` and ``length`` are octets of the frame.  ``header`` with its decoded ``values``
    (reserved fields included) are ``None`` and empty for payload, trailers and truncated rests.
    A header that a capture cut has the values of the fields in front of the cut.
    """

    name: str
    offset: int
    length: int
    header: Header | None = None
    values: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The octets of this layer, made again from its values."""
        if self.header is None or len(self.values) < len(self.header.fields):
            raise ValueError(f"{self.name} has no fields, or not all of them")
        return self.header.encode(*self.values)


@dataclass(slots=True)
class DecodedPacket:
    """The result of :func:`decode_frame`.

    ``errors`` are sentences on what is malformed, ``notes`` on what is remarkable but allowed;
    ``fields`` are numbers by name, ``derived`` the sequence numbers that follow from them.
    ``octets`` is the frame, with the plaintext in place of a ciphertext that was opened.
    """

    envelope: Envelope
    octets: bytes | memoryview
    layers: list[Layer] = field(default_factory=list)
    fields: dict[str, int] = field(default_factory=dict)
    derived: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    trimmed: bool = False
    reference_provider: bool = False

    @property
    def is_uet(self) -> bool:
        return self.envelope.uet is not None

    @property
    def layer_names(self) -> list[str]:
        return [layer.name for layer in self.layers]

    def presented_fields(self) -> dict[str, int | str]:
        """Fields for people and JSON: numbers wider than 32 bits as full-width ``0x`` strings."""
        return {name: presented(name, value) for name, value in self.fields.items()}

    def presented_derived(self) -> dict[str, int | str]:
        """Return derived numbers and the fields of a control packet's payload, by name."""
        shown: dict[str, int | str] = dict(self.derived)
        word = self.fields.get("pds.payload")
        kind = self.fields.get("pds.ctl_type")
        if word is None or kind is None:
            return shown
        if kind in _PAYLOAD_PSNS:
            shown[_PAYLOAD_PSNS[kind]] = word
        elif kind == ControlType.NEGOTIATION:
            more = (
                bytes(self.octets[each.offset : each.offset + each.length])
                for each in self.layers
                if each.name == "payload"
            )
            shown["negotiation_payload"] = (
                "0x" + word.to_bytes(4, "big").hex() + b"".join(more).hex()
            )
        return shown


def decode_frame(
    frame: bytes | memoryview,
    *,
    crc: CrcMode = "auto",
    udp_port: int = UDP_PORT,
    native_protocol: int = NATIVE_PROTOCOL,
    trimmed_dscp: frozenset[int] | None = None,
    wire_length: int | None = None,
    open_secure: OpenSecure | None = None,
    reference_provider: bool = False,
) -> DecodedPacket:
    """Decode an Ethernet frame.  Never raises on a frame's content.

    ``crc``: ``on`` takes the last four octets as CRC and checks it, ``off`` as payload, ``auto``
    as CRC if they verify.  ``trimmed_dscp``: code points of trimmed packets; ``None`` takes a
    packet as trimmed if its IP length is below its UDP length.  ``wire_length``: octets the frame
    had before a capture cut it.  ``open_secure`` opens packets with a TSS header; without it what
    follows that header is opaque.  ``reference_provider``: take what UES reserves as the UEC
    reference provider means it (:class:`~uet.wire.codes.ProviderOpcode`, Expected_PSN of an ACK).
    """
    envelope = open_frame(
        frame, udp_port=udp_port, native_protocol=native_protocol, wire_length=wire_length
    )
    decoder = _Decoder(frame, envelope, open_secure, wire_length)
    decoder.packet.reference_provider = reference_provider
    if envelope.uet is not None:
        if envelope.cut:
            decoder.packet.notes.append(f"captured {len(frame)} of {wire_length} octets")
        decoder.open(crc, trimmed_dscp)
    return decoder.packet


class _Decoder:
    """A cursor over the UET part: ``at`` moves, ``end`` is where the IP packet or frame ends."""

    def __init__(
        self,
        frame: bytes | memoryview,
        envelope: Envelope,
        open_secure: OpenSecure | None,
        wire_length: int | None,
    ) -> None:
        self.wire_length = wire_length
        self.frame = frame
        self.envelope = envelope
        self.open_secure = open_secure
        self.packet = DecodedPacket(envelope, frame, errors=envelope.errors)
        self.at = envelope.uet or 0
        self.end = envelope.end
        # Octets of the packet behind ``end`` that the capture does not have.
        self.missing = max(0, envelope.claimed_end - envelope.end) if envelope.cut else 0
        # A trailer that the capture cut off cannot be distinguished from payload.
        self.unseen_crc = 0
        self.has_crc = False

    def open(self, crc: CrcMode, trimmed_dscp: frozenset[int] | None) -> None:
        env, packet = self.envelope, self.packet
        if trimmed_dscp is None:
            packet.trimmed = env.shortened
        else:
            packet.trimmed = not trimmed_dscp.isdisjoint((env.dscp, *env.outer_dscps))
            if env.shortened and not packet.trimmed:
                self.error(
                    f"UDP length is {env.udp_length}, but IP carries"
                    f" {env.claimed_end - (env.udp or 0)} octets and DSCP {env.dscp} is none of"
                    " trimmed packets"
                )
        self.describe_envelope()
        if packet.trimmed:
            packet.notes.append(f"trimmed by a switch (DSCP {env.dscp})")
        if self.at >= self.end:
            if not self.missing:
                self.error("no octets follow the UDP or entropy header")
            return
        kind = self.frame[self.at] >> 3
        if kind == PacketType.TSS:
            self.tss()
            return
        if self.missing and crc != "off":
            self.unseen_crc = CRC_SIZE
        self.has_crc = not packet.trimmed and crc != "off" and self.crc(crc)
        self.pds(kind)
        if self.has_crc:
            packet.layers.append(Layer("crc", self.end, CRC_SIZE))

    def error(self, sentence: str) -> None:
        self.packet.errors.append(sentence)

    def describe_envelope(self) -> None:
        env, fields = self.envelope, self.packet.fields
        fields["ip.version"] = env.version
        fields["ip.dscp"] = env.dscp
        if env.vni is not None:
            fields["vxlan.vni"] = env.vni
        if env.udp is None:
            fields["ip.proto"] = env.protocol
            fields["entropy.entropy"] = env.entropy
            fields["entropy.rsvd"] = env.entropy_rsvd
            return
        fields["udp.sport"] = env.entropy
        fields["udp.dport"] = env.dport
        # The length has a meaning only where it differs from IP's, and then no checksum holds.
        if env.shortened:
            fields["udp.length"] = env.udp_length
        else:
            fields["udp.checksum"] = env.udp_checksum

    def crc(self, mode: CrcMode) -> bool:
        """Take the CRC trailer off the end, if there is one."""
        if self.missing or self.end - self.at < CRC_SIZE:
            if mode == "on" and not self.missing:
                self.error("the packet is too short for its CRC")
            return False
        env = self.envelope
        udp = None if env.udp is None else env.udp - env.ip
        ip_packet = memoryview(self.frame)[env.ip : self.end - CRC_SIZE]
        expected = uet_crc.packet_crc(ip_packet, udp_offset=udp)
        (sent,) = headers.CRC.decode(self.frame, self.end - CRC_SIZE)
        if sent != expected and mode == "auto":
            return False
        if sent != expected:
            self.error(f"the CRC is 0x{sent:08x}, but the packet's is 0x{expected:08x}")
        self.packet.fields["crc"] = sent
        self.end -= CRC_SIZE
        return True

    def take(self, header: Header, name: str = "") -> dict[str, int] | None:
        """Decode the next header; ``None`` if it is not all there."""
        left = self.end - self.at
        if left < header.size:
            self.take_part(header, left)
            return None
        values = header.decode(self.frame, self.at)
        self.packet.layers.append(Layer(name or header.name, self.at, header.size, header, values))
        for index, label in shown_fields(header):
            self.packet.fields[label] = values[index]
        for field_, value in zip(header.fields, values, strict=True):
            if value and field_.reserved and not self.announces_psn(header, field_):
                self.packet.notes.append(f"{header.name}: reserved {field_.name} is {value}")
        self.at += header.size
        return dict(zip(header.names, values, strict=True))

    def announces_psn(self, header: Header, field_: Field) -> bool:
        """Return whether ``field_`` is the ACK's flag with the reference provider's meaning."""
        return (
            self.packet.reference_provider
            and header.name.startswith("pds.ack")
            and field_.name == "rsvd_flags_hi"
        )

    def take_part(self, header: Header, left: int) -> None:
        """A header that ends early: by a switch, by the capture, or against the rules."""
        if self.missing and not self.packet.trimmed:
            padded = bytes(self.frame[self.at : self.end]) + bytes(header.size)
            whole = sum(there.offset + there.width <= left * 8 for there in header.fields)
            values = header.decode(padded)[:whole]
            for index, label in shown_fields(header):
                if index < whole:
                    self.packet.fields[label] = values[index]
            if left:
                self.packet.layers.append(Layer(header.name, self.at, left, header, values))
        else:
            self.rest("truncated")
            if not self.packet.trimmed:
                self.error(f"{header.name} needs {header.size} octets, {left} are left")
        self.at = self.end

    def rest(self, name: str) -> None:
        if self.at < self.end:
            self.packet.layers.append(Layer(name, self.at, self.end - self.at))
        self.at = self.end

    def trailing(self, behind: str) -> None:
        """Octets where there should be none."""
        left = self.end - self.at
        if not left:
            return
        if self.packet.trimmed or left + self.missing == self.unseen_crc:
            self.rest("truncated")
            return
        hint = self.crc_hint(left)
        self.error(f"{left} octets follow {behind}, which has no payload{hint}")
        self.rest("payload")

    def crc_hint(self, surplus: int) -> str:
        """Return what ``surplus`` octets more than the headers account for may be."""
        return " (a CRC that does not verify?)" if surplus == CRC_SIZE and not self.has_crc else ""

    def tss(self) -> None:
        """Security header; without keys the rest is opaque (UES Table 3-90)."""
        start = self.at
        with_ssi = self.frame[start] & 0x04
        if self.take(headers.TSS_SSI if with_ssi else headers.TSS) is None:
            return
        if self.packet.trimmed or self.missing:
            if self.missing and self.open_secure is not None:
                self.packet.notes.append(
                    f"not decrypted: the capture has {len(self.frame)} of {self.wire_length}"
                    " octets; capture with --snaplen full"
                )
            self.rest("truncated" if self.packet.trimmed else "payload")
            return
        if self.end - self.at < ICV_SIZE:
            self.error(f"{self.end - self.at} octets are too few for the authentication tag")
            self.rest("payload")
            return
        opened = self.open_secure is not None and self.decrypt(self.open_secure, start)
        self.end -= ICV_SIZE
        if opened and self.at < self.end:
            self.pds(self.frame[self.at] >> 3)
        elif opened:
            self.error("nothing stands between TSS header and authentication tag")
        else:
            self.rest("payload")
        self.packet.layers.append(Layer("icv", self.end, ICV_SIZE))

    def decrypt(self, open_secure: OpenSecure, start: int) -> bool:
        """Put the plaintext of the packet that begins at ``start`` in its ciphertext's place."""
        env = self.envelope
        source_at = env.ip + uet_crc.COVERAGE_START[env.version]
        prefix = bytes(self.frame[source_at:start])
        if env.udp is not None:  # its checksum, last in the header, is taken as zero
            prefix = prefix[:-2] + bytes(2)
        packet = memoryview(self.frame)[start : self.end]
        plaintext = open_secure(prefix, packet, _ADDRESS_SIZES[env.version])
        if isinstance(plaintext, str):
            self.error(plaintext)
            return False
        tag_at = self.at + len(plaintext)
        self.frame = bytes(self.frame[: self.at]) + plaintext + bytes(self.frame[tag_at:])
        self.packet.octets = self.frame
        return True

    def pds(self, kind: int) -> None:
        if self.at == self.end:
            self.error("the packet is nothing but a CRC")
            return
        if kind not in KNOWN_TYPES:
            self.error(f"packet type {kind} is reserved")
            self.rest("payload")
            return
        octets = self.frame[self.at : self.end]
        if len(octets) > 1:
            self.packet.fields["pds.flags"] = octets[1] & 0x7F
        values = self.take(pds_header(octets))
        if values is None:
            return
        self.derive(kind, values)
        if kind in (PacketType.RUD_CC_REQ, PacketType.ROD_CC_REQ) and not self.take(
            headers.REQ_CC_STATE
        ):
            return
        if kind == PacketType.CP:
            if values["ctl_type"] == ControlType.NEGOTIATION:
                self.rest("payload")
            self.trailing("a control packet")
            return
        if (
            kind in ACK_TYPES
            and self.packet.reference_provider
            and octets[1] & EXPECTED_PSN_FLAG
            and self.take(headers.EXPECTED_PSN) is None
        ):
            return
        next_header = values["next_hdr"]
        if next_header not in SENSIBLE[kind]:
            self.error(f"next header {next_header} makes no sense in packet type {kind}")
        if kind in NACK_TYPES:
            self.trailing("a NACK")
        else:
            self.ses(next_header)

    def derive(self, kind: int, values: dict[str, int]) -> None:
        """Sequence numbers that the packet gives as offsets, modulo 2^32."""
        derived = self.packet.derived
        if kind in REQUEST_TYPES:
            derived["clear_psn"] = (values["psn"] + values["clear_psn_offset"]) & _MASK32
        if "psn_offset" in values:
            derived["start_psn"] = (values["psn"] - values["psn_offset"]) & _MASK32
        if "ack_psn_offset" in values:
            derived["ack_psn"] = (values["cack_psn"] + values["ack_psn_offset"]) & _MASK32
        if "sack_psn_offset" in values:
            derived["sack_base_psn"] = (values["cack_psn"] + values["sack_psn_offset"]) & _MASK32

    def ses(self, next_header: int) -> None:
        if next_header == NextHeader.NONE:
            self.payload()
        elif next_header in (_SMALL, _MEDIUM, _STD):
            self.request(next_header)
        elif next_header in RESPONSES:
            values = self.take(RESPONSES[next_header])
            if values is None:
                return
            self.check_version(values)
            if "payload_length" in values:
                self.payload(values["payload_length"])
            else:
                self.trailing("a response")
        else:
            self.rest("payload")

    def check_version(self, values: dict[str, int]) -> None:
        if values["version"]:
            self.error(f"SES version {values['version']} is unknown")

    def request(self, next_header: int) -> None:
        values = self.take(request_header(next_header, self.frame[self.at : self.end]))
        if values is None:
            return
        opcode = values["opcode"]
        self.check_version(values)
        provider = self.packet.reference_provider
        extensions = extension_headers(
            opcode, self.frame[self.at : self.end], reference_provider=provider
        )
        if any(self.take(extension) is None for extension in extensions):
            return
        if opcode not in _OPCODES and not (provider and opcode in _PROVIDER_OPCODES):
            meant = "; the UEC reference provider has an extension behind it: --compat"
            whose = f"{meant} reference-provider" if opcode in _PROVIDER_OPCODES else ""
            self.packet.notes.append(f"opcode 0x{opcode:02x} is none of UES 1.0{whose}")
            self.payload()  # whatever it is made of
        elif opcode in NO_PAYLOAD_OPCODES:
            self.trailing(f"a {Opcode(opcode).name} request")
        else:
            self.payload(values.get("payload_length"))

    def payload(self, length: int | None = None) -> None:
        """Present the rest of the packet, to which the header gives ``length`` octets."""
        left = self.end - self.at
        if self.packet.trimmed:
            self.rest("truncated")
            return
        whole = left + self.missing
        if length is not None and whole not in (length, length + self.unseen_crc):
            hint = self.crc_hint(whole - length)
            self.error(f"payload_length is {length}, but {whole} octets follow{hint}")
        self.rest("payload")
