"""The small language of ``uetemu fep``: phrases, whole numbers and spans of time.

A phrase is ``HEAD[:SIZE][,name=value]...``; a name without a value is switched on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from emulator.errors import UserError
from topologies.advice import question
from topologies.units import UnitError, parse_size

_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_WORDS = {"true": True, "yes": True, "on": True, "1": True}
_WORDS |= {"false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class Phrase:
    """A phrase taken apart; ``size`` is what stands behind the colon."""

    text: str
    head: str
    size: str | None
    fields: dict[str, str]


def phrase(text: str) -> Phrase:
    """Take a phrase apart.  Raises :class:`UserError`."""
    first, *rest = text.split(",")
    head, colon, size = first.partition(":")
    if not head.strip():
        raise UserError(f"{text!r} begins with nothing; write HEAD[:SIZE][,name=value]...")
    fields: dict[str, str] = {}
    for part in rest:
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not name:
            raise UserError(f"{text!r} has an empty name between its commas; write name=value")
        if name in fields:
            raise UserError(f"{text!r} says {name} twice; leave one out")
        fields[name] = value.strip() if equals else "true"
    return Phrase(text, head.strip(), size.strip() if colon else None, fields)


def check_names(names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise :class:`UserError` for a name that is not among those known."""
    listed = list(known)
    for name in names:
        if name not in listed:
            hint = question(name, listed, otherwise=f"it has {', '.join(listed)}")
            raise UserError(f"{where} has no {name!r}; {hint}")


def number(value: object, what: str, *, low: int = 0, high: int = 2**64 - 1) -> int:
    """A whole number: decimal, ``0x...``, or a size with its unit (``4k``, ``1MiB``)."""
    if isinstance(value, int) and not isinstance(value, bool):
        result = value
    else:
        text = str(value).strip().replace("_", "")
        try:
            sized = text[-1:].isalpha() and not text.lower().startswith("0x")
            result = parse_size(text) if sized else int(text, 0)
        except (ValueError, UnitError):
            raise UserError(
                f"{what} is {str(value)!r}; give a whole number, such as 3000, 0xbeef or 64k"
            ) from None
    if not low <= result <= high:
        raise UserError(f"{what} is {result}; it must lie in {low}..{high}")
    return result


def ip(value: object, what: str) -> str:
    """An IP address, as the stack writes it.  It has no zone: the interface is the endpoint's."""
    text, percent, zone = str(value).partition("%")
    try:
        address = str(ip_address(text))
    except ValueError:
        raise UserError(f"{what} {str(value)!r} is not an IP address") from None
    if percent:
        raise UserError(f"{what} {value}: leave out %{zone}; --interface says which link it is on")
    return address


def host_and_port(text: str, *, listens: bool) -> tuple[str, str]:
    """Parts of ``[HOST][:PORT]``, an IPv6 address with a port in brackets; absent ones are empty.

    A number alone is a host where one connects, and a port where one ``listens``.
    """
    host, port = text.strip(), ""
    if host.startswith("["):
        host, _, port = host[1:].partition("]")
        port = port.removeprefix(":")
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    elif listens and host.isdigit():
        host, port = "", host
    return host, port


def duration(value: object, what: str, *, plain: str = "s") -> int:
    """A span of time in ns: ``250us``, ``5ms``, ``1.5s``; without a unit it is in ``plain``."""
    text = str(value).strip().lower()
    unit = next((unit for unit in ("ns", "us", "ms", "s") if text.endswith(unit)), None)
    digits = text[: -len(unit)] if unit else text
    try:
        result = float(digits) * _UNITS[unit or plain]
    except ValueError:
        result = -1.0
    if not 0 <= result <= 10**18:
        raise UserError(f"{what} is {str(value)!r}; give a time such as 250us, 5ms or 1.5s")
    return round(result)


def switch(value: object, what: str) -> bool:
    if isinstance(value, bool):
        return value
    try:
        return _WORDS[str(value).strip().lower()]
    except KeyError:
        raise UserError(f"{what} is {str(value)!r}; it is true or false") from None
