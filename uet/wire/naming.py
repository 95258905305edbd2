"""Names under which decoded fields are shown: ``pds.psn``, ``pds.flags.syn``, ``ses.opcode``...

They follow from the layers: prefix of the header, and name of the field or the layer's label for
it. ``flags`` stands in between for the bits of the PDS prologue's flags.
"""

from __future__ import annotations

from functools import cache

from uet.wire import headers
from uet.wire.codec import Field, Header
from uet.wire.codes import ProviderOpcode

#: Place of the flags in the PDS prologue, in bits (UES Table 3-32).
_FLAGS = range(9, 16)
#: Wider numbers are shown as hexadecimal strings.
_DECIMAL_BITS = 32
_PROVIDER_NAMES = {int(member): member.name for member in ProviderOpcode}


def prefix(header: Header) -> str:
    """First part of the names of this header's fields."""
    return "ext" if header.name.startswith("ses.ext_") else header.name.split(".")[0]


def label(header: Header, field: Field) -> str | None:
    """Name of ``field``, or ``None`` if it is reserved."""
    if field.reserved:
        return None
    own = getattr(header.layer, "uet_labels", {}).get(field.name, field.name)
    start = prefix(header)
    if start == "pds" and header.names[0] == "type" and field.offset in _FLAGS:
        start = "pds.flags"
    return f"{start}.{own}"


@cache
def shown_fields(header: Header) -> tuple[tuple[int, str], ...]:
    """Index and name of each field that is not reserved."""
    named = ((index, label(header, field)) for index, field in enumerate(header.fields))
    return tuple((index, name) for index, name in named if name is not None)


@cache
def _digits() -> dict[str, int]:
    """Hexadecimal digits of the fields that are too wide for a decimal number."""
    compiled = [header for header in vars(headers).values() if isinstance(header, Header)]
    digits = {
        name: -(-header.fields[index].width // 4)
        for header in compiled
        for index, name in shown_fields(header)
        if header.fields[index].width > _DECIMAL_BITS
    }
    return {**digits, "crc": 8}


def presented(name: str, value: int) -> int | str:
    """``value`` as it is shown: wider than 32 bits, and the CRC, as full-width ``0x`` string."""
    digits = _digits().get(name)
    return value if digits is None else f"0x{value:0{digits}x}"


def meaning(
    header: Header, field: Field, value: int, *, reference_provider: bool = False
) -> str | None:
    """Name that the layer's enumeration gives to ``value``, if it has one.

    ``reference_provider``: also the names of its opcodes, which UES reserves.
    """
    if reference_provider and field.name == "opcode" and header.name.startswith("ses.request"):
        provider = _PROVIDER_NAMES.get(value)
        if provider is not None:
            return provider
    for description in header.layer.fields_desc if header.layer else ():
        if description.name == field.name:
            names: dict[int, str] = getattr(description, "i2s", None) or {}
            return names.get(value)
    return None
