"""The two sides of messages: which receive takes which send.

A receive takes the first send that was called, in the order of fabric time and rank; a send takes
the first receive.  So it is for a receive from any rank too, whose sender is known from then on.
"""

from __future__ import annotations

from collections import defaultdict

from emulator.torch_backend.calls import ANY, SEND, Call


class MessageSides:
    """Sends and receives that have not found each other, each in the order of its call."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int, int], list[Call]] = defaultdict(list)

    def partner(self, call: Call) -> Call | None:
        """Return the other side of ``call``, or keep ``call`` until that comes."""
        receiver = call.members[call.root] if call.kind == SEND else call.rank
        waiting = self._open[call.group, receiver, call.tag]
        for other in waiting:
            if other.kind != call.kind and _fit(*sorted((call, other), key=_is_send)):
                waiting.remove(other)
                return other
        waiting.append(call)
        return None

    @property
    def open(self) -> list[Call]:
        """Return the calls that have not found the other side."""
        return [one for waiting in self._open.values() for one in waiting]


def _is_send(call: Call) -> bool:
    return call.kind == SEND


def _fit(receive: Call, send: Call) -> bool:
    return receive.root == ANY or receive.members[receive.root] == send.rank
