"""The functions with which the Wireshark dissector reads headers, one per layout, in Lua.

Making items is what costs time in Wireshark's Lua.  So the numbers that dissection needs come
straight from the packet's octets, by code that is generated for each layout.
"""

from __future__ import annotations

from collections.abc import Iterable

from uet.wire.codec import Field, Header

#: Fields that the dissector needs whether somebody looks at them or not.
NEEDED = frozenset(
    {
        *("ack_psn_offset", "an", "ar", "atomic_opcode", "cack_psn", "clear_psn_offset"),
        *("counter", "ctl_type", "dpdcid", "eom", "epoch", "isrod", "m", "message_id"),
        *("message_offset", "nack_code", "nack_pkt_id", "nack_psn", "next_hdr", "opcode", "p"),
        *("payload_length", "payload_word", "pkt_id", "psn", "psn_offset", "req"),
        *("request_length", "response_message_id", "retx", "return_code", "sack_psn_offset"),
        *("sdi", "som", "spdcid", "syn", "version"),
    }
)
#: Octets between two that are read which are read with them rather than by a call of their own.
_GAP = 3


def decoder(header: Header) -> str:
    """A Lua function of a string and the index of the header's first octet in it.

    It returns a table of the fields in :data:`NEEDED`, by the names that the dissector has for
    them. ``reserved`` is in it if any reserved bit is set.
    """
    values = [(key(field), _value(field)) for field in header.fields if key(field) in NEEDED]
    reserved = _reserved_octets(header)
    octets = {number for field in header.fields if key(field) in NEEDED for number in _span(field)}
    lines = [
        f"local {', '.join(f'b{number}' for number in run)} ="
        f" byte(s, i{_plus(run[0])}, i{_plus(run[-1])})"
        for run in _runs(sorted(octets | set(reserved)))
    ]
    entries = [f"{name} = {value}" for name, value in values]
    if reserved:
        tests = [
            f"b{number} ~= 0" if mask == 0xFF else f"band(b{number}, {mask}) ~= 0"
            for number, mask in sorted(reserved.items())
        ]
        entries.append(f"reserved = {' or '.join(tests)}")
    body = " ".join([*lines, f"return {{ {', '.join(entries)} }}"])
    return f"function(s, i) {body} end"


def key(field: Field) -> str:
    """Return what the dissector calls ``field``: tokens have one name wherever they stand."""
    return field.name.removeprefix("rtr_")


def _plus(number: int) -> str:
    return f" + {number}" if number else ""


def _span(field: Field) -> range:
    return range(field.offset // 8, (field.offset + field.width - 1) // 8 + 1)


def _runs(octets: list[int]) -> Iterable[range]:
    """Ranges that cover ``octets``, and few others."""
    start = previous = None
    for number in octets:
        if start is None or previous is None:
            start = number
        elif number - previous > _GAP + 1:
            yield range(start, previous + 1)
            start = number
        previous = number
    if start is not None and previous is not None:
        yield range(start, previous + 1)


def _value(field: Field) -> str:
    octets = _span(field)
    last = octets[-1]
    terms = [f"b{n} * {1 << 8 * (last - n)}" if n != last else f"b{n}" for n in octets]
    word = " + ".join(terms)
    right = (last + 1) * 8 - field.offset - field.width
    if right:
        word = f"rshift({word}, {right})"
    elif len(terms) > 1 and field.width < 8 * len(terms):
        word = f"({word})"
    if field.offset % 8:
        word = f"{word} % {1 << field.width}"
    if field.signed:
        half = 1 << field.width - 1
        return f"({word} + {half}) % {2 * half} - {half}"
    return word


def _reserved_octets(header: Header) -> dict[int, int]:
    """Octet -> mask of its reserved bits.

    The upper reserved flag of ACKs is left out, as a peer may give it a meaning
    (:data:`uet.wire.dispatch.EXPECTED_PSN_FLAG`).
    """
    masks: dict[int, int] = {}
    for field in header.fields:
        if not field.reserved or (
            header.name.startswith("pds.ack") and field.name == "rsvd_flags_hi"
        ):
            continue
        for bit in range(field.offset, field.offset + field.width):
            masks[bit // 8] = masks.get(bit // 8, 0) | 0x80 >> bit % 8
    return masks
