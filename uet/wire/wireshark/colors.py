"""Wireshark's colours for UET packets: filters on the dissector's names, first match first."""

from __future__ import annotations

from uet.wire.codes import ECN_CE, PacketType

#: Expert infos of a packet that is not as it should be.
ERRORS = (
    *(f"uet.{sublayer}.invalid_header" for sublayer in ("pds", "ses", "tss")),
    *(f"uet.error.{what}" for what in ("type", "length", "trailing", "next_hdr", "version", "crc")),
)

_REQUESTS = (
    PacketType.RUD_REQ,
    PacketType.ROD_REQ,
    PacketType.RUDI_REQ,
    PacketType.RUD_CC_REQ,
    PacketType.ROD_CC_REQ,
)
_ANSWERS = (PacketType.ACK, PacketType.ACK_CC, PacketType.ACK_CCX, PacketType.RUDI_RESP)
_NACKS = (PacketType.NACK, PacketType.NACK_CCX)


def _type_in(types: tuple[PacketType, ...]) -> str:
    return f"uet.pds.type in {{{', '.join(str(int(each)) for each in types)}}}"


_DARK = (4718, 10030, 11796)
#: Name, filter, colours of background and text (16 bits each of red, green and blue).
_RULES = (
    ("malformed", " || ".join(ERRORS), (42148, 0, 0), (65535, 64764, 40092)),
    ("trimmed", "uet.trimmed == 1", (65535, 47802, 65535), _DARK),
    ("NACK", _type_in(_NACKS), (65535, 34695, 34695), _DARK),
    (
        "retransmitted",
        f"uet.pds.flags.retx == 1 && {_type_in(_REQUESTS)}",
        (65535, 52428, 39321),
        _DARK,
    ),
    (
        "CE-marked",
        f"uet && (ip.dsfield.ecn == {ECN_CE:d} || ipv6.tclass.ecn == {ECN_CE:d}"
        " || uet.pds.flags.m == 1)",
        (65535, 62965, 42405),
        _DARK,
    ),
    ("control", _type_in((PacketType.CP,)), (54227, 54227, 65535), _DARK),
    ("ACK", _type_in(_ANSWERS), (58596, 65535, 58596), _DARK),
    ("data", "uet", (56026, 61166, 65535), _DARK),
)


def color_rules() -> list[str]:
    """Lines for Wireshark's ``colorfilters`` file; the first rule that fits a packet wins."""
    return [
        f"@UET {name}@{rule}@[{_rgb(background)}][{_rgb(text)}]"
        for name, rule, background, text in _RULES
    ]


def _rgb(colour: tuple[int, int, int]) -> str:
    return ",".join(map(str, colour))
