"""Connection cards: what two ends must exchange before either can send (IBA 12.7).

The connection manager would exchange it; tools such as perftest do it over a socket of their own.
Here it is one JSON object in one line, the *card* of an end::

    {"address": "10.0.0.1", "gid": "::ffff:10.0.0.1", "qpn": 291, "psn": 4711, "mtu": 1024,
     "rkey": 4660, "vaddr": 65536, "length": 4096}

``qpn`` is the number of its queue pair, and ``psn`` that of the first packet it will send. ``mtu``
is the most payload of a packet that it can take: both ends use the smaller one.  ``rkey``,
``vaddr`` and ``length`` describe its first memory region, where it has one.  ``gid`` is for verbs,
which name peers by it; of ``gid`` and ``address`` one suffices.

Cards go over TCP, through the kernel's own stack, before the endpoint begins.  The end that
connects sends its card; the end that listens answers with its own, and both close.  One connection
is served.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from emulator.errors import UserError
from emulator.lab.standalone.script.phrases import host_and_port, number
from emulator.lab.standalone.session import Stop
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


DEFAULT_PORT = 18516
_LONGEST = 4096
#: How often a peer that does not listen yet is tried again (s).
_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class CardExchange:
    """The place where cards are exchanged; ``host`` may be empty where ``listens``.

    An empty ``host`` is any own address.
    """

    host: str
    port: int
    listens: bool


def meeting(text: str, *, listens: bool) -> CardExchange:
    """A place from ``[HOST][:PORT]``, an IPv6 address with a port in brackets."""
    what = "--listen" if listens else "--connect"
    host, port = host_and_port(text, listens=listens)
    if not host and not listens:
        raise UserError(f"{what} {text!r} names no host; write HOST or HOST:PORT")
    return CardExchange(host, number(port or DEFAULT_PORT, f"{what}: the port", low=1, high=65535),
                   listens)  # fmt: skip


def exchange(own: Card, place: CardExchange, stop: Stop, budget_s: float | None) -> Card:
    """The peer's card, for one's own.

    Raises :class:`UserError` if there is none after ``budget_s`` (``None``: wait for ever), and
    ``KeyboardInterrupt`` when ``stop`` returns true.
    """
    end = None if budget_s is None else time.monotonic() + budget_s
    with contextlib.ExitStack() as opened:
        try:
            if place.listens:
                return _answer(own, place, stop, end, opened)
            return _ask(own, place, stop, end, opened)
        except TimeoutError:
            raise UserError(
                f"nobody exchanged cards at {place.host or '*'}:{place.port} in {budget_s:g} s;"
                " start the peer, or give more --timeout"
            ) from None
        except OSError as error:
            raise UserError(
                f"cannot exchange cards at {place.host or '*'}:{place.port}: "
                f"{error.strerror or error}; check host and port"
            ) from None


def _answer(
    own: Card, place: CardExchange, stop: Stop, end: float | None, opened: contextlib.ExitStack
) -> Card:
    host = place.host or ("::" if ip_address(own.address).version == 6 else "0.0.0.0")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, place.port))
    listener.listen(1)
    _wait(listener, stop, end)
    peer, _ = listener.accept()
    opened.enter_context(peer)
    card = card_of(_line(peer, stop, end))
    peer.sendall(own.line())
    return card


def _ask(
    own: Card, place: CardExchange, stop: Stop, end: float | None, opened: contextlib.ExitStack
) -> Card:
    while True:
        try:
            peer = socket.create_connection((place.host, place.port), timeout=5)
            break
        except ConnectionRefusedError:
            if end is not None and time.monotonic() > end:
                raise TimeoutError from None
            _pause(stop, _AGAIN_S)
    opened.enter_context(peer)
    peer.sendall(own.line())
    return card_of(_line(peer, stop, end))


def _line(peer: socket.socket, stop: Stop, end: float | None) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        _wait(peer, stop, end)
        more = peer.recv(_LONGEST)
        line += more
        if not more or len(line) > _LONGEST:
            break
    return line


def _wait(readable: socket.socket, stop: Stop, end: float | None) -> None:
    timeout = None if end is None else max(0.0, end - time.monotonic())
    ready, _, _ = select.select((readable, stop.reader), (), (), timeout)
    if stop.reader in ready:
        raise KeyboardInterrupt
    if not ready:
        raise TimeoutError


def _pause(stop: Stop, seconds: float) -> None:
    if select.select((stop.reader,), (), (), seconds)[0]:
        raise KeyboardInterrupt
