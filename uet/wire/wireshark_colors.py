"""How Wireshark colours UET packets: filters on the names of the dissector, the first that fits."""

from __future__ import annotations

from uet.wire.codes import ECN_CE, PacketType

#: Expert infos of a packet that is not as it should be.
ERRORS = (
    *(f"uet.{sublayer}.invalid_header" for sublayer in ("pds", "ses", "tss")),
    *(f"uet.error.{what}" for what in ("type", "length", "trailing", "next_hdr", "version", "crc")),
)

_RULES = (
    ("malformed", " || ".join(ERRORS), (42148, 0, 0), (65535, 64764, 40092)),
    ("trimmed", "uet.trimmed == 1", (65535, 47802, 65535), (4718, 10030, 11796)),
    ("NACK", "uet.pds.type in {10, 12}", (65535, 34695, 34695), (4718, 10030, 11796)),
    (
        "retransmission",
        "uet.pds.flags.retx == 1 && uet.pds.type in {2..4, 13, 14}",
        (65535, 52428, 39321),
        (4718, 10030, 11796),
    ),
    (
        "congestion",
        "uet && (uet.pds.flags.m == 1 || ip.dsfield.ecn == 3 || ipv6.tclass.ecn == 3)",
        (65535, 62965, 42405),
        (4718, 10030, 11796),
    ),
    ("control", "uet.pds.type == 11", (54227, 54227, 65535), (4718, 10030, 11796)),
    ("ACK", "uet.pds.type in {5, 7..9}", (58596, 65535, 58596), (4718, 10030, 11796)),
    ("data", "uet", (56026, 61166, 65535), (4718, 10030, 11796)),
)


def color_rules() -> list[str]:
    """Lines for Wireshark's ``colorfilters`` file; the first rule that fits a packet wins."""
    return [
        f"@UET {name}@{rule}@[{_rgb(background)}][{_rgb(text)}]"
        for name, rule, background, text in _RULES
    ]


def _rgb(colour: tuple[int, int, int]) -> str:
    return ",".join(map(str, colour))
