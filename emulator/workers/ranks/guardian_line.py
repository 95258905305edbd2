"""Lines by which guardians of ranks hear of each other, and of their ranks, in JSON."""

from __future__ import annotations

import json
import mmap
import platform
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Self

import psutil

from emulator.workers.ranks.rank_channel import Death

#: Host time (s) in which an address of guardian 0 answers.
_ANSWER_S = 1.0
_PIECE = 65536
#: How the other end of a line goes: its process, or its machine.
ENDED_SILENTLY, CUT_OFF = "ended without a word", "does not answer any more"


@dataclass(frozen=True)
class Contact:
    """Where guardian 0 listens: its ``machine`` and IP ``addresses``; ``token`` proves the job."""

    machine: str
    addresses: tuple[str, ...]
    port: int
    token: str

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Return what :meth:`as_data` was made of."""
        return cls(data["machine"], tuple(data["addresses"]), data["port"], data["token"])


class MessageLine:
    """One end of a line.

    ``ended`` is None until the other end has gone, then how; ``heard`` is when (s, monotonic)
    something came last.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._rest = b""
        self.ended: str | None = None
        self.heard = time.monotonic()

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send ``message``; one that the other end does not take any more is dropped."""
        with suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def received(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that are there, after a wait for the first octet."""
        try:
            piece = self._socket.recv(_PIECE)
        except OSError:  # also where no answer comes in time
            piece = b""
        self.heard = time.monotonic()
        if not piece:
            self.ended = ENDED_SILENTLY
        *lines, self._rest = (self._rest + piece).split(b"\n")
        yield from map(json.loads, lines)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def line_pair() -> tuple[MessageLine, MessageLine]:
    """Return both ends of a line between two processes of this machine."""
    one, other = socket.socketpair()
    return MessageLine(one), MessageLine(other)


@dataclass(frozen=True)
class _Hello:
    """The first words of a guardian of this job."""

    number: int
    machine: str

    @classmethod
    def of(cls, data: object, token: str) -> Self | None:
        """Return the hello that ``data`` is, None if it is none with this ``token``."""
        if not isinstance(data, dict) or not isinstance(data.get("token"), str):
            return None
        number, machine = data.get("number"), data.get("machine")
        if not secrets.compare_digest(data["token"].encode(), token.encode()):
            return None
        return cls(number, machine) if type(number) is int and type(machine) is str else None


def _parsed(line: MessageLine) -> Iterator[object]:
    """Yield what comes over ``line`` until something is no JSON."""
    with suppress(ValueError, RecursionError):  # those of JSON and of UTF-8 are ValueErrors
        yield from line.received()


class Listener:
    """Guardian 0's ear for the others."""

    def __init__(self) -> None:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        self._socket = socket.create_server(
            ("", 0), family=family, dualstack_ipv6=family == socket.AF_INET6
        )
        port = self._socket.getsockname()[1]
        self.contact = Contact(platform.node(), _addresses(), port, secrets.token_hex(16))

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    def accepted(self) -> tuple[int, str, MessageLine] | None:
        """Take a connection; return rank, machine and line of a guardian of this job.

        Whoever says something else, or nothing, is not heard again: None.
        """
        try:
            end, _ = self._socket.accept()
        except OSError:  # it has gone already
            return None
        end.settimeout(_ANSWER_S)
        line = MessageLine(end)
        if (hello := _Hello.of(next(_parsed(line), None), self.contact.token)) is None:
            line.close()
            return None
        end.settimeout(None)
        line.send({"welcome": True})
        return hello.number, hello.machine, line

    def close(self) -> None:
        """Hear nobody any more."""
        self._socket.close()


def reach(contact: Contact, number: int) -> MessageLine | None:
    """Return a line to guardian 0 for that of rank ``number``; None if no address answers."""
    here = contact.machine == platform.node()
    for address in (*(["127.0.0.1"] if here else []), *contact.addresses):
        try:
            end = socket.create_connection((address, contact.port), timeout=_ANSWER_S)
        except OSError:
            continue
        line = MessageLine(end)
        line.send({"token": contact.token, "number": number, "machine": platform.node()})
        if any(True for _ in line.received()):
            end.settimeout(None)
            return line
        line.close()
    return None


def _addresses() -> tuple[str, ...]:
    """Return the addresses of this machine that others may reach."""
    found = [
        one.address
        for addresses in psutil.net_if_addrs().values()
        for one in addresses
        if one.family in (socket.AF_INET, socket.AF_INET6)
    ]
    unfit = ("127.", "fe80:", "::1")
    return tuple(sorted(one for one in found if not one.startswith(unfit)))


class SharedDeath:
    """Memory that a guardian shares with its rank, for the one :class:`Death`."""

    _SIZE = struct.Struct("=I")

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def write(self, death: Death) -> None:
        """Have the rank know of ``death``."""
        octets = json.dumps(asdict(death)).encode()
        start = self._SIZE.size
        self._memory[start : start + len(octets)] = octets
        self._SIZE.pack_into(self._memory, 0, len(octets))  # written last: now it is there

    def read(self) -> Death | None:
        """Return the death that the guardian has written."""
        (length,) = self._SIZE.unpack_from(self._memory)
        start = self._SIZE.size
        return Death(**json.loads(self._memory[start : start + length])) if length else None
