"""A conversation as an onlooker follows it, and the canonical form of its packets.

Two conversations are compared after their free choices are taken out: PDC identifiers become the
order in which PDCs were opened, PSNs the distance from the PDC's first one, and what nobody else
can foretell (entropy of requests, congestion state) is left out.
"""

from dataclasses import dataclass, field

from tests.harness.replay.capture import OTHER, Packet
from uet.pds.window import MASK, distance
from uet.wire.codes import ControlType, NackCode

#: Canonical form of a packet.
Canonical = dict[str, object]
_BITMAP = 64


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
    """Hold what has been seen of a conversation; gives its packets their canonical form.

    ``judged`` is the side whose free choices are left out of it.
    """

    judged: str
    pdcs: list[Tracked] = field(default_factory=list)
    first_packet_id: int | None = None

    def place(self, packet: Packet) -> int | None:
        """Return which PDC a packet belongs to; a SYN may open one, or begin it elsewhere."""
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
        if packet.tells_expected_psn:
            seen["expected_psn"] = number(int.from_bytes(packet.payload, "big"))
            seen["payload"] = b""
