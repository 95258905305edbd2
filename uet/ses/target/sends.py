"""Sends, as their target sees them: matched, kept, or fetched (UES 3.4.1).

A message is matched when its packet with SOM arrives, and is placed straight into the memory of
its receive.  One that finds no receive is refused (NO_MATCH), kept until a receive is posted, or
deferred: held by name only, until DEFERRABLE_RTR requests its initiator to begin again.  One that
is too long for its receive is refused (UNSUPPORTED_SIZE) and ends that with an error, whichever of
the two was there first; it does not where a peer expects that (``long_send_leaves_receive``).  Of a
rendezvous send only the eager part arrives by itself; the rest is read from the initiator once
there is a receive.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from uet.config import FepConfig
from uet.pds.semantics import NO_ROOM, Answer, Context
from uet.profiles import FepCapability
from uet.ses.address import Address
from uet.ses.arrival import RequestArrival
from uet.ses.facilities import Facilities
from uet.ses.matching import Match, MatchedMessage, PostedReceive, UnexpectedMessage
from uet.ses.memory.atomic_operations import execute, supported
from uet.ses.memory.operands import unpack_operands
from uet.ses.resources import Resource, ResourceError
from uet.ses.responses import response
from uet.ses.target.inbound import (
    RENDEZVOUS,
    TAGGED_OPCODES,
    InboundSend,
    InboundTable,
    MessageKey,
    RefusedMessage,
)
from uet.ses.target.rma_target import MemoryAccess
from uet.timekeeper import Timekeeper
from uet.transport import Completion, ReceiveRequest
from uet.wire.codes import DEFERRABLE_OPCODES, AtomicOpcode, ReturnCode

_OK: Final = int(ReturnCode.OK)
_TOKENS: Final = (1 << 32) - 1
_NO_MATCH: Final = int(ReturnCode.NO_MATCH)
_DROPPED: Final = int(ReturnCode.DROPPED)
_TOO_LONG: Final = int(ReturnCode.UNSUPPORTED_SIZE)
_DEFERRABLE: Final = frozenset(map(int, DEFERRABLE_OPCODES))


class OwnInitiator(Protocol):
    """The calls that the target side of an endpoint makes to its initiator side."""

    def on_restart(
        self,
        peer: str,
        initiator_token: int,
        target_token: int,
        message_id: int = 0,
        job_id: int = 0,
    ) -> Answer: ...

    def request_restart(
        self, peer: str, address: Address, initiator_token: int, target_token: int, delivery: str
    ) -> None: ...

    def fetch(
        self,
        peer: str,
        address: Address,
        key: int,
        offset: int,
        memory: memoryview,
        ended: Callable[[str | None], None],
    ) -> None: ...

    def decline(self, peer: str, address: Address, key: int, offset: int, length: int) -> None: ...

    def on_served(self, key: int, offset: int, length: int, by: object = None) -> None: ...

    def on_read_refused(self, key: int, by: object) -> None: ...

    def on_declined(self, key: int, peer: str) -> None: ...


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
        initiator: OwnInitiator,
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


class Sends:
    """Carries out the sends that reach one endpoint."""

    def __init__(
        self,
        facilities: Facilities,
        inbound: InboundTable,
        initiator: OwnInitiator,
    ) -> None:
        config, counters = facilities.config, facilities.counters
        self._config = config
        self._inbound = inbound
        self._initiator = initiator
        self._complete = facilities.complete
        self._counters = counters
        self._capabilities = config.capabilities
        self._plain = config.compatibility.plain_unexpected_response
        self._keeps = config.unexpected == "keep"
        self.kept = 0
        self.kept_octets = 0
        self.deferrals = Deferrals(config, initiator, self._repost, counters, facilities.time)

    # -- receives ----------------------------------------------------------------------------

    def post(self, receive: ReceiveRequest, resource: Resource) -> None:
        """Offer memory; messages that wait for it take it at once.

        Raises :class:`uet.ses.matching.MatchingError`, or :class:`ResourceError` for what
        the endpoint's profiles do not have.
        """
        held = self._capabilities
        if receive.tag is not None and FepCapability.TAGGED_SEND not in held:
            raise ResourceError("a tagged receive needs a profile with TAGGED_SEND; add 'ai_full'")
        if receive.ignore and FepCapability.WILDCARD not in held:
            raise ResourceError("ignore bits need a profile with WILDCARD; add 'hpc'")
        posted = PostedReceive(
            receive.memory,
            tag=receive.tag,
            ignore=receive.ignore,
            initiator=receive.initiator,
            source=receive.peer,
            min_multi=receive.least_space,
            context=receive.context,
        )
        self._meet(resource, resource.queue.post(posted))

    def _repost(self, resource: Resource, receive: PostedReceive) -> None:
        """A receive that was reserved is free again; a multi-receive has never left its queue."""
        if receive.min_multi is None:
            self._meet(resource, resource.queue.post_again(receive))

    def _meet(self, resource: Resource, meetings: list[MatchedMessage]) -> None:
        """Deliver the messages that a posted receive has matched."""
        for entry, code, match in meetings:
            message = entry.token
            if not isinstance(message, InboundSend):
                self.deferrals.permit(entry, code, match)
                if code == _TOO_LONG and match is not None:
                    self._complete_without_data(entry, match, None)
                continue
            self._let_go(message)
            if code != _OK or match is None:
                self._drop_kept(message, code)
                if match is not None:
                    self._complete_without_data(entry, match, message.header_data)
                continue
            message.match = match
            self._fetch(message)
            if message.placed == message.awaited:
                self.finish(message)

    def _drop_kept(self, message: InboundSend, code: int) -> None:
        """Drop a kept message that gets no receive, and report that to its waiting sender.

        Its sender has OK for what has arrived. The remainder is refused, and the rest of a
        rendezvous send is declined.
        """
        message.ended = True
        self._counters["rx_unexpected_dropped"] += 1
        if message.where is not None:
            self._inbound.stop(message.where, message, code)
        self._decline(message)

    def _decline(self, message: InboundSend) -> None:
        """Nobody will read what a rendezvous send has kept back."""
        rest = message.rest
        if rest is not None and message.awaited < message.length:
            length = message.length - message.awaited
            self._initiator.decline(message.peer, rest.address, rest.key, rest.offset, length)

    def _complete_without_data(
        self, entry: UnexpectedMessage, match: Match, header_data: int | None
    ) -> None:
        """A receive has met a message that is longer than its memory."""
        self._complete(
            Completion(
                kind="receive",
                peer=entry.source or "",
                length=entry.length,
                context=match.receive.context,
                header_data=header_data,
                offset=match.offset,
                used=0,
                tag=entry.tag,
                initiator=entry.initiator,
                error=ReturnCode.UNSUPPORTED_SIZE.name,
            )
        )

    def cancel(self, resource: Resource, context: object) -> bool:
        """Take back a posted receive; it completes as CANCELLED.  False if none is queued."""
        found = resource.queue.cancel(context)
        if found is None:
            return False
        self._complete(
            Completion(
                kind="receive",
                peer=found.source or "",
                length=0,
                context=found.context,
                tag=found.tag,
                error=ReturnCode.CANCELLED.name,
            )
        )
        return True

    def match(
        self, request: RequestArrival, peer: str, resource: Resource, length: int
    ) -> tuple[int, Match | None]:
        """A posted receive for a message, or why there is none.

        One with too little memory completes with an error, and the message's true length.
        """
        if request.opcode in TAGGED_OPCODES:
            code, match = resource.queue.match_tagged(
                request.match_bits, length, request.initiator, peer, request.job_id
            )
        else:
            code, match = resource.queue.match_untagged(
                length, request.initiator, peer, request.job_id
            )
        if code != _OK and match is not None:
            self.report(request, peer, match, length, ReturnCode(code).name)
            return code, None
        return code, match

    def match_datagram(
        self, request: RequestArrival, peer: str, resource: Resource
    ) -> Match | None:
        """A posted receive for a datagram; one that is too small stays posted (UES 3.5.3)."""
        _, match = resource.queue.match_untagged(
            request.length, request.initiator, peer, request.job_id, must_fit=True
        )
        return match

    # -- messages ----------------------------------------------------------------------------

    def begin(
        self,
        pdc: Context,
        key: MessageKey | None,
        request: RequestArrival,
        resource: Resource,
        now: int,
    ) -> InboundSend | Answer:
        """Find memory for a message whose packet with SOM is this one.

        The message, not yet with the packet's payload; or a return code, NO_ROOM, or what to
        answer instead.
        """
        length, payload, awaited = request.length, len(request.payload), request.awaited
        if payload < awaited and not self._inbound.make_room(now):
            return NO_ROOM
        peer = pdc.address
        deferrable = (
            request.opcode in _DEFERRABLE
            and FepCapability.DEFERRABLE in self._capabilities
            and not pdc.ordered  # there it would be overtaken
        )
        found = self.deferrals.take(peer, request) if deferrable else None
        if isinstance(found, int):
            return found
        match = found
        if match is None:
            code, match = self.match(request, peer, resource, length)
            if code == _NO_MATCH:
                return self._unexpected(pdc, key, request, resource, awaited, deferrable, now)
            if match is None:
                return code
        message = InboundSend(request, peer, awaited, match)
        message.where = key
        self._fetch(message)
        return message if not message.ended else _DROPPED

    def _unexpected(
        self,
        pdc: Context,
        key: MessageKey | None,
        request: RequestArrival,
        resource: Resource,
        awaited: int,
        deferrable: bool,
        now: int,
    ) -> InboundSend | Answer:
        """Nothing is posted for the message: defer it, keep it, or refuse it."""
        entry = UnexpectedMessage(
            request.length,
            tag=request.match_bits if request.opcode in TAGGED_OPCODES else None,
            initiator=request.initiator,
            source=pdc.address,
            job_id=request.job_id,
        )
        if deferrable and self.deferrals.hold(entry, request, resource, now):
            if key is not None:
                # What is under way of this attempt is dropped, and answered OK.
                early = self._inbound.take_early(key)
                seen = len(request.payload) + (0 if early is None else early.octets)
                self._inbound.refuse(
                    key,
                    RefusedMessage(request.signature, _OK, 0, request.length, seen, begun=True),
                )
            return response(request, _OK, unexpected=True, guaranteed=not self._plain)
        config = self._config
        if (
            (self._keeps or request.opcode in RENDEZVOUS)
            and self.kept < config.max_unexpected_messages
            and self.kept_octets + awaited <= config.max_unexpected_octets
        ):
            buffer = memoryview(bytearray(awaited))
            message = InboundSend(request, pdc.address, awaited, buffer)
            entry.data = buffer
            entry.token = message
            if resource.queue.hold(entry) == _OK:
                message.held = (resource.queue, entry)
                message.where = key
                self.kept += 1
                self.kept_octets += awaited
                return message
        if pdc.ordered:
            resource.disable_generation(pdc.address)
        return _NO_MATCH

    def kept_answer(self, request: RequestArrival) -> Answer:
        """Return the answer to the first packet of a message that had to be kept."""
        return response(
            request,
            _OK,
            unexpected=True,
            modified=request.length,
            guaranteed=not self._plain,
        )

    def _let_go(self, message: InboundSend) -> None:
        """The message is held as unexpected no longer."""
        message.held = None
        self.kept -= 1
        self.kept_octets -= message.awaited

    def _fetch(self, message: InboundSend) -> None:
        """Read what a rendezvous send leaves to be read, now that there is a place for it."""
        rest, match = message.rest, message.match
        if rest is None or match is None or message.awaited == message.length:
            return
        message.fetching = True
        self._initiator.fetch(
            message.peer,
            rest.address,
            rest.key,
            rest.offset,
            match.memory[message.awaited :],
            lambda error: self._fetched(message, error),
        )

    def _fetched(self, message: InboundSend, error: str | None) -> None:
        message.fetching = False
        failure = message.failure or error
        if failure is not None:
            if message.where is not None:
                self._inbound.stop(message.where, message, _DROPPED)
            self.fail(message, failure)
        elif message.placed == message.awaited:
            self.finish(message)

    # -- the end -----------------------------------------------------------------------------

    def finish(self, message: InboundSend) -> None:
        """All that comes by packets has arrived."""
        match = message.match
        if match is None or message.fetching or message.ended:
            return
        if message.buffer is not None:
            match.memory[: message.awaited] = message.buffer
            message.buffer = None
        message.ended = True
        self._counters["rx_messages"] += 1
        self._counters["rx_message_octets"] += message.length
        self._report(message, match, message.length, None)

    def fail(self, message: InboundSend, why: str) -> None:
        """Fail a message whose rest will not come, and notify its receive if it has one."""
        if message.ended:
            return
        if message.fetching:
            message.failure = why  # its memory is still being written to
            return
        if message.held is not None:
            queue, entry = message.held
            queue.discard(entry)
            self._let_go(message)
        message.ended = True
        if message.match is not None:
            self._report(message, message.match, message.placed, why)
        if why != ReturnCode.INITIATOR_ERR.name:
            self._decline(message)

    def _report(self, message: InboundSend, match: Match, length: int, error: str | None) -> None:
        self._complete(
            Completion(
                kind="receive",
                peer=message.peer,
                length=length,
                context=match.receive.context,
                header_data=message.header_data,
                offset=match.offset,
                used=None if error is None else len(match.memory),
                tag=message.tag,
                initiator=message.initiator,
                error=error,
            )
        )

    def report(
        self, request: RequestArrival, peer: str, match: Match, length: int, error: str | None
    ) -> None:
        """A receive has been used by a message of one packet that was never tracked."""
        self._complete(
            Completion(
                kind="receive",
                peer=peer,
                length=length,
                context=match.receive.context,
                header_data=request.header_data,
                offset=match.offset,
                used=None if error is None else len(match.memory),
                tag=request.match_bits if request.opcode in TAGGED_OPCODES else None,
                initiator=request.initiator,
                error=error,
            )
        )


def tagged_atomic(
    pdc: Context, request: RequestArrival, resource: Resource, sends: Sends, access: MemoryAccess
) -> Answer:
    """Match a receive and operate on its memory; a positive number is a return code.

    An operation that does not exist is refused before it takes a receive.
    """
    requested = unpack_operands(request.extension)
    if requested is None:
        return int(ReturnCode.OP_VIOLATION)
    length = requested.target_length(request.length)
    if not supported(requested.operation, requested.datatype):
        exists = 0 <= requested.operation < len(AtomicOpcode)
        return int(ReturnCode.AMO_UNSUPPORTED_DT if exists else ReturnCode.AMO_UNSUPPORTED_OP)
    code, match = sends.match(request, pdc.address, resource, length)
    if match is None:
        if code == ReturnCode.NO_MATCH and pdc.ordered:
            resource.disable_generation(pdc.address)
        return code
    code, before = execute(
        requested.operation,
        requested.datatype,
        match.memory,
        requested.operand,
        requested.compare,
        offset=match.offset,
    )
    name = None if code == _OK else ReturnCode(code).name
    sends.report(request, pdc.address, match, length if code == _OK else 0, name)
    return access.executed(pdc, request, before) if code == _OK else code
