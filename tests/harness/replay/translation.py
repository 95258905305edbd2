"""Makes captured frames fit a conversation with other identifiers, PSNs and keys in use."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.harness.replay.capture import OTHER, Packet
from tests.harness.replay.conversation import Conversation
from uet.carrier_codec import ipv4_checksum
from uet.pds.window import MASK
from uet.tss.record import SecureRecords
from uet.wire import crc as uet_crc
from uet.wire.codes import CRC_SIZE, ICV_SIZE, ControlType, Opcode
from uet.wire.envelope import open_frame

#: The provider's DEFERRABLE_RTR has the tokens the other way round than UES.
_SWAPPED = {
    "initiator_restart_token": "target_restart_token",
    "target_restart_token": "initiator_restart_token",
}


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
            if packet.tells_expected_psn:
                reported = int.from_bytes(packet.payload, "big")
                changed["expected_psn"] = (reported + shift) & MASK
        if "pds.pkt_id" in packet.fields and packet.kind == "rudi_resp":
            assert self.live.first_packet_id is not None
            assert self.captured.first_packet_id is not None
            shift = self.live.first_packet_id - self.captured.first_packet_id
            changed["pkt_id"] = (packet.fields["pds.pkt_id"] + shift) & MASK
        restarts = packet.fields.get("ses.opcode") == Opcode.DEFERRABLE_RTR
        for name, value in self.tokens.items():
            place = _SWAPPED[name] if restarts else name
            if f"ses.{place}" in packet.fields:
                changed[place] = value
        return rewritten(packet, changed, self.records)


def rewritten(packet: Packet, changed: Mapping[str, int], records: SecureRecords | None) -> bytes:
    """A frame with other values in some of its fields, CRC or tag made anew."""
    octets = bytearray(packet.decoded.octets)
    trailer = 0
    for layer in packet.decoded.layers:
        if layer.name == "crc":
            trailer = CRC_SIZE
        if layer.name == "payload" and "expected_psn" in changed:
            octets[layer.offset : layer.offset + layer.length] = changed["expected_psn"].to_bytes(
                layer.length, "big"
            )
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
