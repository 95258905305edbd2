"""Deferrable sends at their target (UES 3.4): held by name only until there is a receive.

Nothing of the message is kept but who sent it and how long it is.  When a receive is posted for it,
DEFERRABLE_RTR requests the initiator to begin again; the target's token then leads the new attempt
to the memory that is reserved for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from uet.config import FepConfig
from uet.ses.address import Address
from uet.ses.arrival import RequestArrival
from uet.ses.matching import Match, PostedReceive, UnexpectedMessage
from uet.ses.resources import Resource
from uet.timekeeper import Timekeeper
from uet.wire.codes import ReturnCode

_OK = int(ReturnCode.OK)
_TOKENS = (1 << 32) - 1


class Restarter(Protocol):
    """Sends DEFERRABLE_RTR."""

    def request_restart(
        self, peer: str, address: Address, initiator_token: int, target_token: int, delivery: str
    ) -> None: ...


class Deferred:
    """A message that waits for a receive, or for its initiator to begin again."""

    __slots__ = (
        "address",
        "deadline",
        "entry",
        "initiator_token",
        "length",
        "match",
        "peer",
        "refusal",
        "resource",
        "token",
    )

    def __init__(
        self, entry: UnexpectedMessage, request: RequestArrival, resource: Resource, token: int
    ) -> None:
        self.entry: UnexpectedMessage | None = entry
        self.resource = resource
        self.peer = entry.source or ""
        self.initiator_token = request.tokens[0]
        self.token = token
        self.length = request.length
        # The initiator's own resource is not in the request; jobs are laid out alike.
        self.address = Address(
            job_id=request.job_id,
            pid_on_fep=request.pid,
            resource_index=request.index,
            relative=request.relative,
        )
        self.match: Match | None = None
        self.refusal = _OK  # what its new attempt is answered
        self.deadline = 0


class Deferrals:
    """The deferred messages of one endpoint.

    ``give_back`` gets a receive whose reservation has run out.
    """

    def __init__(
        self,
        config: FepConfig,
        initiator: Restarter,
        give_back: Callable[[Resource, PostedReceive], None],
        counters: dict[str, int],
        time: Timekeeper,
    ) -> None:
        self._limit = config.max_deferred_messages
        self._time_limit = config.deferred_time
        self._time = time
        self._initiator = initiator
        self._give_back = give_back
        self._counters = counters
        self._by_token: OrderedDict[int, Deferred] = OrderedDict()  # by deadline, too
        # 0 means that there is none, but some peers begin with it.
        self._lowest = 0 if config.compatibility.message_ids_from_zero else 1
        self._token = self._lowest
        self._to_index_zero = config.compatibility.restarts_at_index_zero

    def __len__(self) -> int:
        return len(self._by_token)

    def hold(
        self, entry: UnexpectedMessage, request: RequestArrival, resource: Resource, now: int
    ) -> bool:
        """Hold a message without a receive; return False if there are too many."""
        if len(self._by_token) >= self._limit:
            return False
        deferred = Deferred(entry, request, resource, self._token)
        entry.token = deferred
        if resource.queue.hold(entry) != _OK:
            return False
        self._expires(deferred, now)
        self._by_token[deferred.token] = deferred
        self._token = self._token + 1 if self._token < _TOKENS else self._lowest
        return True

    def _expires(self, deferred: Deferred, now: int) -> None:
        self._time.stopped()
        deferred.deadline = now + self._time_limit
        self._time.started(deferred.deadline)

    def permit(self, entry: UnexpectedMessage, code: int, match: Match | None) -> None:
        """A receive was posted for a message: let its initiator begin again.

        On any ``code`` but OK, as the receive is not for it after all, the new attempt is refused.
        """
        deferred = entry.token
        assert isinstance(deferred, Deferred)
        deferred.entry = None
        deferred.refusal = code
        deferred.match = match if code == _OK else None
        self._expires(deferred, self._time.now)
        self._by_token.move_to_end(deferred.token)
        address = deferred.address
        if self._to_index_zero:
            address = replace(address, resource_index=0)
        self._initiator.request_restart(
            deferred.peer, address, deferred.initiator_token, deferred.token, "rud"
        )

    def take(self, peer: str, request: RequestArrival) -> Match | int | None:
        """The memory reserved for a message that begins again, or why it has none."""
        initiator_token, token = request.tokens
        deferred = self._by_token.get(token)
        if (
            deferred is None
            or deferred.entry is not None
            or deferred.peer != peer
            or deferred.initiator_token != initiator_token
            or deferred.length != request.length
        ):
            return None
        self._time.stopped()
        del self._by_token[token]
        return deferred.match or deferred.refusal

    def next_deadline(self) -> int | None:
        for deferred in self._by_token.values():
            return deferred.deadline
        return None

    def on_timer(self, now: int) -> None:
        """Forget what has waited for too long, and free the receives reserved for it."""
        while self._by_token:
            deferred = next(iter(self._by_token.values()))
            if deferred.deadline > now:
                return
            self._time.stopped()
            del self._by_token[deferred.token]
            self._counters["rx_deferred_expired"] += 1
            if deferred.entry is not None:
                deferred.resource.queue.discard(deferred.entry)
            elif deferred.match is not None:
                self._give_back(deferred.resource, deferred.match.receive)
