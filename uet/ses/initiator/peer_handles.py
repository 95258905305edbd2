"""Numbers of this endpoint that a peer comes back with: message ids, restart tokens, keys."""

from __future__ import annotations

import random

from uet.ses.address import Address
from uet.ses.initiator.operation import PeerReads, PostedOperation
from uet.ses.memory.registered_memory import MemoryTable, RegisteredRegion
from uet.wire import headers

_HIGHEST_ID = 0xFFFF
_KEY_BITS = 48  # of a memory key, beside its flags (UES Table 2-13)
_HIGHEST_TOKEN = (1 << 32) - 1


class MessageIds:
    """Unique over all PDCs while their messages are open; id 0 is a datagram's (UES 3.4.1)."""

    def __init__(self, *, from_zero: bool) -> None:
        self._lowest = 0 if from_zero else 1
        self._next = self._lowest
        self._open: dict[int, PostedOperation] = {}

    def __len__(self) -> int:
        return len(self._open)

    def take(self, operation: PostedOperation) -> int | None:
        """The id longest unused, or ``None`` if all are in use."""
        if len(self._open) > _HIGHEST_ID - self._lowest:
            return None
        number = self._next
        while number in self._open:
            number = self._after(number)
        self._open[number] = operation
        self._next = self._after(number)
        return number

    def _after(self, number: int) -> int:
        return number + 1 if number < _HIGHEST_ID else self._lowest

    def give_back(self, number: int) -> None:
        del self._open[number]

    def find(self, number: int) -> PostedOperation | None:
        return self._open.get(number)


class PeerHandles:
    """Deferrable sends by restart token, rendezvous sends by memory key."""

    def __init__(self, memory: MemoryTable, home: Address, rng: random.Random) -> None:
        self._memory = memory
        self._home = home
        self._rng = rng
        self._by_token: dict[int, PostedOperation] = {}
        self._by_key: dict[int, PostedOperation] = {}
        self._next_token = 1

    def __len__(self) -> int:
        return len(self._by_token) + len(self._by_key)

    def give_token(self, operation: PostedOperation) -> None:
        """Return a restart token, unique while outstanding; 0 would mean none."""
        while self._next_token in self._by_token:
            self._next_token = self._next_token % _HIGHEST_TOKEN + 1
        operation.token = self._next_token
        self._by_token[operation.token] = operation
        self._next_token = operation.token % _HIGHEST_TOKEN + 1

    def expose(self, operation: PostedOperation) -> None:
        """Let the peer read what a rendezvous send keeps back, under a key of its own.

        The region is the whole message, so that an octet's place in it is its place in the message;
        ``read_offset`` is where the rest begins.  If this endpoint's resource has a later
        generation than 0, the first READ gets it in the response.
        """
        made = operation.plan
        payload = made.whole
        assert payload is not None
        key = 0
        if made.span < made.length:
            key = self._rng.getrandbits(_KEY_BITS)
            while self._memory.find(key) is not None:
                key = self._rng.getrandbits(_KEY_BITS)
            self._memory.register(
                RegisteredRegion(
                    memory=payload, key=key, writable=False, job_id=made.address.job_id
                )
            )
            operation.key = key
            operation.read_by_peer = PeerReads()
            self._by_key[key] = operation
        made.extension = headers.SES_RENDEZVOUS.encode(
            eager_length=made.span,
            read_ri_generation=0,
            read_pid_on_fep=self._home.pid_on_fep,
            read_resource_index=self._home.resource_index,
            read_offset=made.span,
            read_memory_key=key,
        )

    def of_token(self, token: int) -> PostedOperation | None:
        return self._by_token.get(token)

    def of_key(self, key: int) -> PostedOperation | None:
        return self._by_key.get(key)

    def withdraw(self, operation: PostedOperation) -> None:
        """The operation has ended: nobody may come back with its numbers."""
        if operation.token:
            del self._by_token[operation.token]
        if operation.key is not None:
            self._memory.unregister(operation.key)
            del self._by_key[operation.key]
