"""Silence of peers: when the last packet of each came in which plane.

Retransmission alone takes long to give up a peer, as it must where there is no other way.  Here is
one: a plane is taken for dead in which something has waited for ``after`` ns, without a word from
the peer. The peer must have answered in another plane since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

_VERSION_AT = 14
_SOURCE4, _SOURCE6 = slice(26, 30), slice(22, 38)


@dataclass(slots=True)
class _Waiting:
    """The open work in one plane towards one peer; ``final`` parts must not be issued again."""

    since: int = 0
    count: int = 0
    final: int = 0
    is_watched: bool = False


class Hearing:
    """``routes`` has each peer's addresses, in the order of planes."""

    def __init__(self, routes: Mapping[str, Sequence[str]], *, after: int) -> None:
        self.after = after
        self._address = {
            (peer, plane): ip_address(address).packed
            for peer, route in routes.items()
            for plane, address in enumerate(route)
        }
        self._heard: dict[bytes, int] = {}
        self._waiting = {place: _Waiting() for place in self._address}

    def listen(self, frames: Sequence[memoryview], now: int) -> None:
        """Frames have come in."""
        heard = self._heard
        for frame in frames:
            if len(frame) > _VERSION_AT:
                source = _SOURCE4 if frame[_VERSION_AT] >> 4 == 4 else _SOURCE6
                heard[bytes(frame[source])] = now

    def opened(self, peer: str, plane: int, now: int, *, is_final: bool) -> bool:
        """Something goes there; whether the caller shall :meth:`look` in ``after`` ns."""
        waiting = self._waiting[peer, plane]
        if not waiting.count:
            waiting.since = now
        waiting.count += 1
        waiting.final += is_final
        starts, waiting.is_watched = not waiting.is_watched, True
        return starts

    def ended(self, peer: str, plane: int, *, is_final: bool) -> None:
        """Something that went there has ended."""
        waiting = self._waiting[peer, plane]
        waiting.count -= 1
        waiting.final -= is_final

    def look(self, peer: str, plane: int, now: int) -> int | None:
        """Return when to look again (ns), or ``None`` if nothing waits there.

        ``now`` means that there has been silence for too long.
        """
        waiting = self._waiting[peer, plane]
        if not waiting.count:
            waiting.is_watched = False
            return None
        if waiting.final:  # it would end with an error
            return now + self.after
        return max(now, self._last(peer, plane) + self.after)

    def is_heard_since(self, peer: str, plane: int, others: Sequence[int]) -> bool:
        """Return whether ``peer`` has sent in one of ``others`` since it last did in ``plane``."""
        last = self._last(peer, plane)
        return any(self._heard.get(self._address[peer, other], -1) > last for other in others)

    def _last(self, peer: str, plane: int) -> int:
        """Return when ``plane`` fell silent."""
        since = self._waiting[peer, plane].since
        return max(since, self._heard.get(self._address[peer, plane], since))
