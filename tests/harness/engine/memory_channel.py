"""Channels between ranks that are all in this process."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from emulator.engine.ranks.rank_exchange import Ranks


@dataclass
class MemoryChannel:
    """The channel of rank ``number``; ``queues`` are those of all, by sender and receiver."""

    number: int
    count: int
    queues: dict[tuple[int, int], deque[bytes]]
    aborted: int | None = None
    #: ranks that take no message any more
    deaf: set[int] = field(default_factory=set)

    def send(self, peer: int, octets: bytes) -> None:
        if peer in self.deaf:
            raise ConnectionError(f"{peer} is gone")
        self.queues[self.number, peer].append(octets)

    def poll(self, peer: int) -> bytes | None:
        waiting = self.queues[peer, self.number]
        return waiting.popleft() if waiting else None

    def abort(self, status: int) -> None:
        self.aborted = status


def ranks_of(count: int, patience_s: float = 0.05) -> list[Ranks]:
    """Return ``count`` ranks on machines a, b, c, ..., that wait for ``patience_s`` at most."""
    queues = {(one, other): deque[bytes]() for one in range(count) for other in range(count)}
    made = [
        Ranks(MemoryChannel(number, count, queues), machine="", patience_s=patience_s)
        for number in range(count)
    ]
    for one in made:
        one.machines = [chr(ord("a") + number) for number in range(count)]
    return made
