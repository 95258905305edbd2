"""Posted receives that several endpoints share: a message takes one wherever it arrives.

A receive is queued at every endpoint.  The first message that takes it, at any of them, has it; the
others withdraw it before they see another packet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from uet.fep import FabricEndpoint
from uet.ses.initiator.initiator import MessageError
from uet.transport import ReceiveRequest


class SharedReceive:
    """A posted receive.  ``at`` are the endpoints where it is queued, by number."""

    __slots__ = ("at", "receive", "was_taken")

    def __init__(self, receive: ReceiveRequest) -> None:
        self.receive = receive
        self.at: set[int] = set()
        self.was_taken = False


class _Watch:
    """The events of receives at one endpoint (:class:`uet.ses.matching.Watcher`)."""

    __slots__ = ("_place", "_receives")

    def __init__(self, receives: SharedReceives, place: int) -> None:
        self._receives, self._place = receives, place

    def queued(self, context: object) -> None:
        if isinstance(context, SharedReceive):
            self._receives.queued(context, self._place)

    def taken(self, context: object) -> None:
        if isinstance(context, SharedReceive):
            self._receives.taken(context, self._place)


class SharedReceives:
    """The receives of ``feps``; ``address_at`` gives a peer's address at an endpoint."""

    def __init__(
        self, feps: Sequence[FabricEndpoint], address_at: Callable[[str, int], str]
    ) -> None:
        self._feps = feps
        self._address_at = address_at
        for place, fep in enumerate(feps):
            fep.watch_receives(_Watch(self, place))

    def post(self, receive: ReceiveRequest) -> None:
        """Offer memory for a message; ``MessageError`` for one that nothing could match."""
        if receive.least_space is not None:
            raise MessageError(
                "a fabric interface has no multi-receives, which several planes would fill at "
                "once; post a receive for each message"
            )
        self._offer(SharedReceive(receive), range(len(self._feps)))

    def _offer(self, shared: SharedReceive, places: Sequence[int]) -> None:
        """Queue a receive at ``places``, until a message that waits at one of them takes it."""
        receive = shared.receive
        for place in places:
            peer = None if receive.peer is None else self._address_at(receive.peer, place)
            self._feps[place].post_receive(replace(receive, peer=peer, context=shared))
            if place not in shared.at:
                return

    def queued(self, shared: SharedReceive, place: int) -> None:
        """A receive waits at ``place``; if a message gave it back, then soon at the others, too."""
        is_back = shared.was_taken and not shared.at
        shared.at.add(place)
        if is_back:
            shared.was_taken = False
            self._offer(shared, [each for each in range(len(self._feps)) if each != place])

    def taken(self, shared: SharedReceive, place: int) -> None:
        """A message has taken a receive at ``place``: it is there for no other."""
        others = shared.at - {place}
        shared.at.clear()
        shared.was_taken = True
        for other in others:
            self._feps[other].withdraw_receive(shared)
