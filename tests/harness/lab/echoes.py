"""ICMP echoes between the nodes of a running lab: who hears whom, and who says why not.

One raw socket in each namespace, all in this process: thousands of pairs take a second.
"""

import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from types import TracebackType
from typing import Self

from emulator.dataplane.kernel import namespaces
from emulator.dataplane.lab import Lab

ECHO_REPLY, UNREACHABLE, ECHO = 0, 3, 8
IP_HEADER = 20
BUDGET_S = 10.0
QUIET_S = 0.05  # after the last echo that is due, for those that are not


@dataclass
class Answers:
    """Hold what came back to one asker: addresses that answered, and gateways that had no route."""

    heard: set[IPv4Address] = field(default_factory=set)
    refused: dict[IPv4Address, IPv4Address] = field(default_factory=dict)


class Asker:
    """A raw socket inside a node, which asks from ``source``, out of ``port`` if that is given."""

    def __init__(self, lab: Lab, node: str, source: IPv4Address, port: str | None = None) -> None:
        def make() -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            if port is not None:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, port.encode())
            made.bind((str(source), 0))
            return made

        self.node, self.source = node, source
        self.answers = Answers()
        self.socket = namespaces.visitor().inside(lab.netns(node), make)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.socket.close()

    def ask(self, targets: Iterable[IPv4Address]) -> None:
        for sequence, target in enumerate(targets):
            head = struct.pack("!BBHHH", ECHO, 0, 0, 1, sequence)
            total = sum(struct.unpack("!4H", head))
            head = struct.pack("!BBHHH", ECHO, 0, ~(total + (total >> 16)) & 0xFFFF, 1, sequence)
            self.socket.sendto(head, (str(target), 0))

    def take(self) -> None:
        """Everything that has arrived."""
        for packet, (sender, _) in self._received():
            source, message = IPv4Address(sender), packet[IP_HEADER:]
            if message[0] == ECHO_REPLY:
                self.answers.heard.add(source)
            elif message[0] == UNREACHABLE:
                target = IPv4Address(message[8 + 16 : 8 + 20])
                self.answers.refused[target] = source

    def _received(self) -> Iterator[tuple[bytes, tuple[str, int]]]:
        while True:
            try:
                yield self.socket.recvfrom(2048, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return


def listen(askers: Iterable[Asker], due: dict[str, set[IPv4Address]]) -> None:
    """Take answers until every asker has heard those of ``due`` (by node), and what else comes."""
    poll = select.poll()
    by_handle = {asker.socket.fileno(): asker for asker in askers}
    for handle in by_handle:
        poll.register(handle, select.POLLIN)
    deadline = time.monotonic() + BUDGET_S
    while True:
        done = all(due[asker.node] <= asker.answers.heard for asker in by_handle.values())
        ready = poll.poll(1000 * (QUIET_S if done else 1.0))
        for handle, _ in ready:
            by_handle[handle].take()
        if (done and not ready) or time.monotonic() > deadline:
            return
