"""Channels between ranks that are all in this process."""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

from emulator.workers.ranks.exchange import Ranks


@dataclass
class MemoryChannel:
    """The channel of rank ``number``; ``queues`` are those of all, by sender and receiver.

    ``gathers`` has the blocks of all by how many each has gathered before.
    """

    number: int
    count: int
    queues: dict[tuple[int, int], deque[bytes]]
    gathers: defaultdict[int, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    aborted: int | None = None
    #: ranks that take no message any more
    deaf: set[int] = field(default_factory=set)
    #: gathers that this one has begun
    begun: int = 0
    #: messages that this one has sent, by receiver
    sent: Counter[int] = field(default_factory=Counter)

    def send(self, peer: int, octets: bytes) -> None:
        if peer in self.deaf:
            raise ConnectionError(f"{peer} is gone")
        self.queues[self.number, peer].append(octets)
        self.sent[peer] += 1

    def poll(self, peer: int) -> bytes | None:
        waiting = self.queues[peer, self.number]
        return waiting.popleft() if waiting else None

    def gather(self, block: bytes) -> None:
        self.gathers[self.begun][self.number] = block
        self.begun += 1

    def gathered(self) -> bytes | None:
        blocks = self.gathers[self.begun - 1]
        whole = len(blocks) == self.count
        return b"".join(blocks[number] for number in range(self.count)) if whole else None

    def abort(self, status: int) -> None:
        self.aborted = status


def ranks_of(count: int, patience_s: float = 0.05) -> list[Ranks]:
    """Return ``count`` ranks on machines a, b, c, ..., that wait for ``patience_s`` at most."""
    queues = {(one, other): deque[bytes]() for one in range(count) for other in range(count)}
    gathers: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
    made = [
        Ranks(MemoryChannel(number, count, queues, gathers), machine="", patience_s=patience_s)
        for number in range(count)
    ]
    for one in made:
        one.machines = [chr(ord("a") + number) for number in range(count)]
    return made
