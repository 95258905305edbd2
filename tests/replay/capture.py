"""The captures of another implementation, as packets that can be compared and sent again.

Two conversations are compared after their free choices are taken out: PDC identifiers become the
order in which PDCs were opened, PSNs the distance from the PDC's first one, and what nobody else
can foretell (entropy of requests, congestion state) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from scapy.utils import RawPcapReader

from uet.encapsulation import ipv4_checksum
from uet.pds.psn import MASK, distance
from uet.tss.domain import SecureDomain
from uet.tss.record import SecureRecords
from uet.wire import crc as uet_crc
from uet.wire.codes import CRC_SIZE, ICV_SIZE, ControlType, NackCode
from uet.wire.envelope import open_frame
from uet.wire.frame import DecodedPacket, decode_frame

DIRECTORY = Path(__file__).parents[1] / "captures"
NAMES = sorted(path.stem for path in DIRECTORY.glob("*.pcap"))

INITIATOR, TARGET = "initiator", "target"
OTHER = {INITIATOR: TARGET, TARGET: INITIATOR}
MACS = {INITIATOR: "02:00:00:00:00:0a", TARGET: "02:00:00:00:00:0b"}
ADDRESSES = {4: {INITIATOR: "10.99.0.1", TARGET: "10.99.0.2"},
             6: {INITIATOR: "fd99::1", TARGET: "fd99::2"}}  # fmt: skip
SIDES = {address: side for both in ADDRESSES.values() for side, address in both.items()}
BASE_KEY = bytes.fromhex("07e9724958d9e1f710f594e18e11fd8d4a3582c256ccfecfc5eb1902e556bed4")
_BITMAP = 64

#: Canonical form of a packet.
Canonical = dict[str, object]


def version(name: str) -> int:
    """The version of IP in a capture."""
    return 6 if "ipv6" in name else 4


def domain(name: str) -> SecureDomain | None:
    """The secure domain of a capture."""
    if not name.startswith("tss_"):
        return None
    if "direct" in name:
        return SecureDomain(sdi=1, mode="direct", keys={0: BASE_KEY}, accept_clear=True)
    return SecureDomain(
        sdi=1,
        mode="cluster",
        keys={0: BASE_KEY},
        rekey_mask=0xFF00,
        rekey_shift=8,
        accept_clear=True,
    )


@dataclass
class Packet:
    """A frame of one side, decoded."""

    octets: bytes
    decoded: DecodedPacket
    time: int = 0  # ns since the first frame of the capture
    #: its PDC and where that began when the packet left, once a conversation has seen it
    pdc: int | None = None
    start: int = 0

    @property
    def side(self) -> str:
        return SIDES[self.decoded.envelope.source]

    @property
    def fields(self) -> Mapping[str, int]:
        return self.decoded.fields

    @property
    def kind(self) -> str:
        """Name of the PDS header, without the prefix."""
        return next(n for n in self.decoded.layer_names if n.startswith("pds."))[4:]

    @property
    def is_request(self) -> bool:
        return self.kind in ("rud_req", "rod_req", "rudi_req", "uud_req")

    @property
    def is_syn(self) -> bool:
        return self.fields.get("pds.flags.syn") == 1

    @property
    def is_resend(self) -> bool:
        return self.fields.get("pds.flags.retx") == 1

    @property
    def control(self) -> int | None:
        return self.fields["pds.ctl_type"] if self.kind == "cp" else None

    @property
    def secured(self) -> bool:
        return any(name.startswith("tss") for name in self.decoded.layer_names)

    @property
    def payload(self) -> bytes:
        """SES payload, or whatever else stands behind the last header."""
        for layer in self.decoded.layers:
            if layer.name == "payload":
                return bytes(self.decoded.octets[layer.offset : layer.offset + layer.length])
        return b""


def decode(frame: bytes, records: SecureRecords | None, time: int = 0) -> Packet:
    """Decode a frame of either side; with ``records`` secured ones are opened."""

    def open_secure(prefix: bytes, packet: memoryview, size: int) -> bytes | str:
        assert records is not None
        return records.open(prefix, packet, size)

    decoded = decode_frame(frame, open_secure=None if records is None else open_secure)
    assert decoded.errors == []
    return Packet(frame, decoded, time)


@cache
def raw(name: str) -> tuple[tuple[int, bytes], ...]:
    """(ns since the first frame, frame) of a capture."""
    frames = [
        (meta.sec * 1_000_000_000 + meta.usec * 1_000, octets)
        for octets, meta in RawPcapReader(str(DIRECTORY / f"{name}.pcap"))
    ]
    return tuple((time - frames[0][0], octets) for time, octets in frames)


def packets(name: str) -> list[Packet]:
    """A capture, decoded; secured packets opened."""
    secure = domain(name)
    records = SecureRecords(secure) if secure is not None else None
    return [decode(octets, records, time) for time, octets in raw(name)]


@dataclass
class Tracked:
    """A PDC as an onlooker sees it: who opened it, its identifier at each side, its first PSN."""

    opener: str
    ids: dict[str, int]
    start: int
    #: the first PSN that its target has demanded (NEW_START_PSN)
    demanded: int | None = None


@dataclass
class Conversation:
    """What has been seen of a conversation; gives its packets their canonical form.

    ``judged`` is the side whose free choices are left out of it.
    """

    judged: str
    pdcs: list[Tracked] = field(default_factory=list)
    first_packet_id: int | None = None

    def place(self, packet: Packet) -> int | None:
        """Which PDC a packet belongs to; a SYN may open one, or begin it elsewhere."""
        fields, side = packet.fields, packet.side
        if "pds.spdcid" not in fields:
            return None
        here, there = fields["pds.spdcid"], fields.get("pds.dpdcid")
        if packet.is_syn:
            start = packet.decoded.derived["start_psn"]
            for index, pdc in enumerate(self.pdcs):
                if pdc.opener == side and pdc.ids[side] == here:
                    pdc.start = start
                    return index
            self.pdcs.append(Tracked(side, {side: here}, start))
            return len(self.pdcs) - 1
        for index, pdc in enumerate(self.pdcs):
            if pdc.ids.get(OTHER[side]) == there and pdc.ids.get(side, here) in (here, here or -1):
                if here:
                    pdc.ids[side] = here
                return index
            if not here and pdc.ids.get(OTHER[side]) == there:
                return index
        raise AssertionError(f"a packet of no PDC: {dict(fields)}")

    def canonical(self, packet: Packet) -> Canonical:
        """The packet without free choices; it counts as seen from now on."""
        index = self.place(packet)
        decoded, fields = packet.decoded, packet.fields
        seen: Canonical = {"kind": packet.kind, "pdc": index, "dscp": decoded.envelope.dscp}
        seen["secured"] = packet.secured
        for name, value in fields.items():
            if name.startswith(("pds.flags.", "ses.", "ext.")):
                seen[name] = value
        for name in ("pds.psn_offset", "pds.pdc_info", "pds.ctl_type", "pds.nack_code", "pds.mpr"):
            if name in fields:
                seen[name] = fields[name]
        seen["next"] = fields.get("pds.next_hdr", 0) if packet.control is None else 0
        seen["payload"] = packet.payload
        if packet.kind.startswith("ack"):
            seen["ev"] = decoded.envelope.entropy
        if "pds.pkt_id" in fields:
            if self.first_packet_id is None:
                self.first_packet_id = fields["pds.pkt_id"]
            seen["pkt_id"] = (fields["pds.pkt_id"] - self.first_packet_id) & MASK
        for token in ("initiator", "target"):
            if token == self.judged:
                seen.pop(f"ses.{token}_restart_token", None)
        if index is not None:
            packet.pdc, packet.start = index, self.pdcs[index].start
            self._number(packet, self.pdcs[index], seen)
        return seen

    def _number(self, packet: Packet, pdc: Tracked, seen: Canonical) -> None:
        """PSNs, as distances from the first."""
        fields, derived = packet.fields, packet.decoded.derived

        def number(psn: int) -> int:
            return distance(psn & MASK, pdc.start)

        if packet.control != ControlType.CLEAR_CMD:
            for name in ("psn", "nack_psn", "cack_psn"):
                if f"pds.{name}" in fields:
                    seen[name] = number(fields[f"pds.{name}"])
        for name in ("clear_psn", "ack_psn"):
            if name in derived:
                seen[name] = number(derived[name])
        if "pds.sack_bitmap" in fields:
            base, cack = derived["sack_base_psn"], fields["pds.cack_psn"]
            seen["sack"] = frozenset(
                number(base + bit)
                for bit in range(_BITMAP)
                if fields["pds.sack_bitmap"] >> bit & 1 and distance(base + bit & MASK, cack) > 0
            )
        if packet.kind == "cp":
            value = fields["pds.payload"]
            seen["value"] = number(value) if packet.control == ControlType.CLEAR_CMD else value
        if packet.kind == "nack":
            if fields["pds.nack_code"] == NackCode.NEW_START_PSN:
                pdc.demanded = fields["pds.payload"]
            else:
                seen["value"] = fields["pds.payload"]
        if packet.kind.startswith("ack") and not fields["pds.next_hdr"] and packet.payload:
            seen["expected_psn"] = number(int.from_bytes(packet.payload, "big"))
            seen["payload"] = b""


@dataclass
class Translator:
    """Makes frames of one side of a capture fit a conversation with another's ids and PSNs."""

    captured: Conversation
    live: Conversation
    records: SecureRecords | None = None
    #: restart tokens of the live conversation, by those of the capture
    tokens: dict[str, int] = field(default_factory=dict)

    def translate(self, packet: Packet) -> bytes:
        """The frame that ``packet`` would have been in the live conversation.

        One that needs no change goes as it was captured, octet for octet.  The conversation of the
        capture must have seen it.
        """
        side, index = packet.side, packet.pdc
        changed: dict[str, int] = {}
        if index is not None and index < len(self.live.pdcs):
            old, new = self.captured.pdcs[index], self.live.pdcs[index]
            if packet.is_syn and packet.start == old.demanded and new.demanded is not None:
                new.start = new.demanded
            shift = new.start - packet.start
            for name in ("psn", "nack_psn", "cack_psn"):
                if packet.fields.get(f"pds.{name}"):
                    changed[name] = (packet.fields[f"pds.{name}"] + shift) & MASK
            if packet.control == ControlType.CLEAR_CMD:
                changed["payload"] = (packet.fields["pds.payload"] + shift) & MASK
            if packet.fields.get("pds.spdcid"):
                changed["spdcid"] = new.ids.get(side, packet.fields["pds.spdcid"])
            if "pds.dpdcid" in packet.fields:
                changed["dpdcid"] = new.ids[OTHER[side]]
        if "pds.pkt_id" in packet.fields and packet.kind == "rudi_resp":
            assert self.live.first_packet_id is not None
            assert self.captured.first_packet_id is not None
            shift = self.live.first_packet_id - self.captured.first_packet_id
            changed["pkt_id"] = (packet.fields["pds.pkt_id"] + shift) & MASK
        for name, value in self.tokens.items():
            if f"ses.{name}" in packet.fields:
                changed[name] = value
        return rewritten(packet, changed, self.records)


def rewritten(packet: Packet, changed: Mapping[str, int], records: SecureRecords | None) -> bytes:
    """A frame with other values in some of its fields, CRC or tag made anew."""
    octets = bytearray(packet.decoded.octets)
    trailer = 0
    for layer in packet.decoded.layers:
        if layer.name == "crc":
            trailer = CRC_SIZE
        if layer.header is None or layer.name.partition(".")[0] not in ("pds", "ses"):
            continue
        values = [
            changed.get(field_name.removeprefix("rtr_"), value)
            for field_name, value in zip(layer.header.names, layer.values, strict=True)
        ]
        octets[layer.offset : layer.offset + layer.length] = layer.header.encode(*values)
    if bytes(octets) == bytes(packet.decoded.octets):
        return packet.octets
    envelope = packet.decoded.envelope
    assert envelope.uet is not None
    if packet.secured:
        assert records is not None
        tss = next(layer for layer in packet.decoded.layers if layer.name == "tss")
        at = envelope.ip + uet_crc.COVERAGE_START[envelope.version]
        plaintext = bytes(octets[tss.offset + tss.length : envelope.end - ICV_SIZE])
        sealed = b"".join(records.seal(bytes(octets[at : tss.offset]), plaintext))
        octets[tss.offset : envelope.end] = sealed
    elif trailer:
        udp = None if envelope.udp is None else envelope.udp - envelope.ip
        body = bytes(octets[envelope.ip : envelope.end - CRC_SIZE])
        octets[envelope.end - CRC_SIZE : envelope.end] = uet_crc.trailer(body, udp_offset=udp)
    return bytes(octets)


def sealed(frame: bytes, records: SecureRecords) -> bytes:
    """A frame with CRC, secured in its place: what a ``*_clear`` capture was derived from."""
    envelope = open_frame(frame)
    assert envelope.uet is not None
    octets = bytearray(frame[: envelope.uet])
    source_at = envelope.ip + uet_crc.COVERAGE_START[envelope.version]
    plaintext = frame[envelope.uet : envelope.end - CRC_SIZE]
    secured = b"".join(records.seal(bytes(octets[source_at:]), plaintext))
    assert envelope.version == 4
    length = len(octets) - envelope.ip + len(secured)
    octets[envelope.ip + 2 : envelope.ip + 4] = length.to_bytes(2, "big")
    octets[envelope.ip + 10 : envelope.ip + 12] = bytes(2)
    header = bytes(octets[envelope.ip : envelope.ip + 20])
    octets[envelope.ip + 10 : envelope.ip + 12] = ipv4_checksum(header).to_bytes(2, "big")
    return bytes(octets) + secured
