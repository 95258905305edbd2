"""Connection cards: what two ends must exchange before either can send (IBA 12.7).

The connection manager would exchange it; tools such as perftest do it over a socket of their own.
Here it is one JSON object in one line, the *card* of an end::

    {"address": "10.0.0.1", "gid": "::ffff:10.0.0.1", "qpn": 291, "psn": 4711, "mtu": 1024,
     "rkey": 4660, "vaddr": 65536, "length": 4096}

``qpn`` is the number of its queue pair, and ``psn`` that of the first packet it will send. ``mtu``
is the most payload of a packet that it can take: both ends use the smaller one.  ``rkey``,
``vaddr`` and ``length`` describe its first memory region, where it has one.  ``gid`` is for verbs,
which name peers by it; of ``gid`` and ``address`` one suffices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from emulator.errors import UserError
from emulator.rocev2.wire.codes import GSI_QPN, PATH_MTUS, PSN_MASK, QPN_MASK

_BITS32, _BITS64 = (1 << 32) - 1, (1 << 64) - 1
_LIMITS: Mapping[str, tuple[int, int]] = {
    "qpn": (GSI_QPN + 1, QPN_MASK - 1),
    "psn": (0, PSN_MASK),
    "rkey": (0, _BITS32),
    "vaddr": (0, _BITS64),
    "length": (0, _BITS64),
}
_NEEDED = ("qpn", "psn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One end of a connection; ``rkey`` is ``None`` without memory to reach."""

    address: str
    qpn: int
    psn: int
    mtu: int = PATH_MTUS[-1]
    rkey: int | None = None
    vaddr: int = 0
    length: int = 0

    def as_data(self) -> dict[str, object]:
        """The object that is sent."""
        data: dict[str, object] = {
            "address": self.address,
            "gid": gid_of(self.address),
            "qpn": self.qpn,
            "psn": self.psn,
            "mtu": self.mtu,
        }
        if self.rkey is not None:
            data |= {"rkey": self.rkey, "vaddr": self.vaddr, "length": self.length}
        return data

    def line(self) -> bytes:
        """The object as a line."""
        return json.dumps(self.as_data()).encode() + b"\n"


def gid_of(address: str) -> str:
    """The GID of an IP address: itself, IPv4 mapped into IPv6 (IBA annex A17.2)."""
    ip = ip_address(address)
    return f"::ffff:{ip}" if ip.version == 4 else str(ip)


def _address_of(text: object) -> str:
    ip: IPv4Address | IPv6Address = ip_address(str(text))
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return str(ip)


def card_of(line: bytes | str) -> Card:
    """The card that a peer has sent.  Raises :class:`UserError`."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise UserError(
            f"the peer has sent {bytes(line[:60]) if isinstance(line, bytes) else line[:60]!r} and"
            " not its card, a JSON object in one line; see `uetemu hca --help`"
        )
    return card_from(data, "the peer's card")


def card_from(data: Mapping[str, Any], where: str) -> Card:
    """A card from its fields.  Raises :class:`UserError`."""
    numbers: dict[str, int] = {}
    for name, (low, high) in _LIMITS.items():
        value = data.get(name)
        if value is None:
            if name in _NEEDED:
                raise UserError(f"{where} says no {name}; a connection needs it")
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise UserError(f"{where}: {name} is {value!r}; it must be a number in {low}..{high}")
        numbers[name] = value
    mtu = data.get("mtu", PATH_MTUS[-1])
    if mtu not in PATH_MTUS:
        raise UserError(
            f"{where}: mtu is {mtu!r}; it must be one of {', '.join(map(str, PATH_MTUS))}"
        )
    reported = data.get("address") or data.get("gid")
    if reported is None:
        raise UserError(f"{where} says neither address nor gid; a connection needs one of them")
    try:
        address = _address_of(reported)
    except ValueError:
        raise UserError(f"{where}: {reported!r} is no IP address, nor the GID of one") from None
    return Card(address=address, mtu=mtu, **numbers)
