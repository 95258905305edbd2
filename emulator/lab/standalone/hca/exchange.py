"""The exchange of cards over TCP, through the kernel's own stack, before the endpoint begins.

The end that connects sends its card, in one line; the end that listens answers with its own, and
both close.  One connection is served.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from dataclasses import dataclass
from ipaddress import ip_address

from emulator.errors import UserError
from emulator.lab.standalone.hca.card import Card, card_of
from emulator.lab.standalone.script.phrases import host_and_port, number
from emulator.lab.standalone.session import Stop

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
