"""The shared receive queue of an endpoint: what its connected queue pairs may take (IBA 10.2.9)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from emulator.rocev2.connection.work import WorkError
from uet.transport import Completion, ReceiveRequest


class QpReceiveQueue:
    """Receives in the order they were posted.

    ``endless``: a write with immediate needs none of them, as under a library that keeps the queue
    filled with receives of no memory.
    """

    def __init__(self, complete: Callable[[Completion], None], *, endless: bool) -> None:
        self._complete = complete
        self._endless = endless
        self._queue: deque[ReceiveRequest] = deque()

    def post(self, receive: ReceiveRequest) -> None:
        """Offer memory; ``WorkError`` for what RoCEv2 does not have."""
        matching = receive.tag, receive.initiator, receive.peer, receive.least_space
        if any(part is not None for part in matching):
            raise WorkError(
                "receives of RoCEv2 are taken in the order they were posted: leave out tag,"
                " initiator, peer and least_space"
            )
        memory = receive.memory
        if memory.ndim != 1 or memory.itemsize != 1 or not memory.contiguous or memory.readonly:
            raise WorkError(
                "a receive needs a flat view of octets that can be written: use .cast('B')"
            )
        self._queue.append(receive)

    def take(self) -> ReceiveRequest | None:
        """The oldest one."""
        return self._queue.popleft() if self._queue else None

    def put_back(self, receive: ReceiveRequest) -> None:
        """Put back a receive that was not used as the oldest."""
        self._queue.appendleft(receive)

    def take_immediate(self) -> bool:
        """Return whether there is one for a write with immediate; its memory is not touched."""
        if self._endless:
            return True
        if not self._queue:
            return False
        receive = self._queue.popleft()
        self._complete(
            Completion(kind="receive", peer="", length=0, context=receive.context, offset=0)
        )
        return True
