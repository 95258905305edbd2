"""The initiator side of SES: requests become messages, responses become completions (UES 3.4).

In order: what is posted, how messages start, how they end or begin again, what the target side of
this endpoint requests, and time. :mod:`uet.ses.initiator.replies` takes responses and return data.
"""

from __future__ import annotations

from typing import Final

from uet.pds.rto import UNLIMITED_NACK
from uet.pds.semantics import ACCEPTED, REISSUABLE_ERRORS, Answer, Context, Outbound
from uet.ses.address import Address
from uet.ses.facilities import Facilities
from uet.ses.initiator.operation import (
    Ended,
    MessageIds,
    OperationStream,
    PeerHandles,
    PostedOperation,
    Timers,
    Waits,
)
from uet.ses.initiator.outbound import OutboundMessage
from uet.ses.initiator.replies import RELIABLE, Replies, code_name, refusal
from uet.ses.initiator.requests import (
    Carrier,
    MessageError,
    MessagePlan,
    plan,
    read_plan,
    restart_plan,
)
from uet.transport import Completion, Request
from uet.wire.codes import DEFERRABLE_OPCODES, RENDEZVOUS_OPCODES, ReturnCode

__all__ = ["Initiator", "MessageError"]

_BAD_GENERATION: Final = int(ReturnCode.BAD_GENERATION)
_NO_MATCH: Final = int(ReturnCode.NO_MATCH)
_DEFERRABLE: Final = frozenset(map(int, DEFERRABLE_OPCODES))
_RENDEZVOUS: Final = frozenset(map(int, RENDEZVOUS_OPCODES))
#: A target has no more generations than these (UES 3.4.1): who has received all of them in turn
#: will not come up to date by trying on.
_MOST_GENERATIONS: Final = 256

COUNTERS: Final = (
    "tx_messages",
    "tx_messages_failed",
    "tx_messages_deferred",
    "tx_message_restarts",
    "tx_messages_reissued",
    "post_waits_for_id",
    "rx_read_octets",
    "rx_read_data_duplicate",
    "rx_read_data_malformed",
    "rx_read_data_unknown",
    "rx_responses_malformed",
    "rx_responses_of_ended_message",
    "rx_restarts_unknown",
)


def _nobody_waits(error: str | None) -> None:
    """Do nothing for an operation without completion; its failure shows in the counters."""


class Initiator:
    """Carries out what is posted at one endpoint.

    Every posted request ends in exactly one :class:`Completion`.
    """

    def __init__(self, facilities: Facilities, carrier: Carrier) -> None:
        config, counters, rng = facilities.config, facilities.counters, facilities.rng
        for name in COUNTERS:
            counters.setdefault(name, 0)
        self._time = facilities.time
        self._config = config
        self._carrier = carrier
        self._complete = facilities.complete
        self._counters = counters
        self._rng = rng
        self._mtu = config.payload_mtu
        self._capabilities = config.capabilities
        self._home = Address(
            job_id=config.job_id,
            pid_on_fep=config.pid_on_fep,
            resource_index=config.resource_index,
            relative=config.relative,
        )
        self._serial = 0
        self.operations: dict[int, PostedOperation] = {}  # by serial number
        self.streams: dict[tuple[str, str], OperationStream] = {}
        self._blocked: dict[OperationStream, None] = {}  # waiting for a PDC
        self._starved: dict[OperationStream, None] = {}  # waiting for a message id
        self._asking: dict[OperationStream, None] = {}  # waiting for data to come, to request more
        self.ids = MessageIds(from_zero=config.compatibility.message_ids_from_zero)
        self.peer_handles = PeerHandles(facilities.memory, self._home, rng)
        self._timers: Timers[PostedOperation] = Timers(facilities.time)
        facilities.time.watch(self._timers.next_deadline)
        self.replies = Replies(self.ids, self._mtu, self._on_data, counters)
        self._answered = self.replies.answered
        self.deliver_data = self.replies.deliver_data

    # -- what is posted ------------------------------------------------------------------------

    def post(self, request: Request) -> None:
        """Queue a request; :class:`MessageError` for one that could never be carried out."""
        self._begin(plan(request, self._config, self._capabilities, self._home), None)

    def _begin(self, made: MessagePlan, ended: Ended | None) -> None:
        key = (made.peer, made.delivery)
        stream = self.streams.get(key)
        if stream is None:
            stream = self.streams[key] = OperationStream(
                *key, mtu=self._mtu, max_read_octets=self._config.max_read_octets
            )
        self._serial += 1
        operation = PostedOperation(made, self._serial, stream, ended)
        self.operations[operation.serial] = operation
        if made.opcode in _DEFERRABLE:
            self.peer_handles.give_token(operation)
        elif made.opcode in _RENDEZVOUS:
            self.peer_handles.expose(operation)
        stream.push(operation)
        self._start(stream)

    @property
    def open_messages(self) -> int:
        """Operations that have not ended, waiting ones included."""
        return len(self.operations)

    @property
    def waiting(self) -> bool:
        """Return whether something has not started for lack of a PDC or a message id."""
        return bool(self._blocked or self._starved)

    # -- how messages start --------------------------------------------------------------------

    def start_waiting(self) -> None:
        """Try again to start what had no PDC; operations without an id wait for a free one."""
        blocked, self._blocked = self._blocked, {}
        for stream in blocked:
            self._start(stream)

    def _start_freed(self) -> None:
        """Message ids may have become free, or room for more data."""
        starved, self._starved = self._starved, {}
        asking, self._asking = self._asking, {}
        for stream in (*starved, *asking):
            self._start(stream)

    def _start(self, stream: OperationStream) -> None:
        """Give what waits a message id and a PDC, in the order of posting."""
        if stream in self._blocked or stream in self._starved:
            return
        while (operation := stream.next(self._time.now)) is not None:
            made = operation.plan
            message_id = self.ids.take(operation) if made.has_id else 0
            if message_id is None:
                self._counters["post_waits_for_id"] += 1
                self._starved[stream] = None
                return
            generations = self.replies.generations
            message = OutboundMessage(
                made,
                message_id,
                self._mtu,
                self._answered,
                generation=generations.get((made.peer, made.address), 0) if generations else 0,
                tokens=(operation.token, operation.target_token),
            )
            message.operation = operation
            pdc = self._carrier.carry(message, made.peer, made.delivery)
            if pdc is None:
                if made.has_id:
                    self.ids.give_back(message_id)
                self._blocked[stream] = None
                return
            stream.pop(operation)
            stream.flying += 1
            if stream.recovering:
                stream.probe = operation
            operation.message, operation.pdc, operation.is_out = message, pdc, True
            self._timers.stop(operation)
            if made.memory is not None:
                self.replies.expect(operation, pdc, message.packets, made.memory.nbytes)
        if stream.is_asking:
            self._asking[stream] = None

    # -- how a message ends --------------------------------------------------------------------

    def message_end(self, pdc: Context, message: Outbound, now: int) -> None:
        """End a message: every packet is answered, or ``message.error`` gives the reason."""
        operation = self._landed(message)
        if operation is None:
            return
        stream = operation.stream
        if stream.probe is operation:
            stream.probe = None
            stream.recovering = False  # unless it must begin again
        operation.touched = now
        if message.error is not None:
            repeats = operation.plan.is_repeatable and operation.refused is None
            if not repeats or not self._reissue(operation, message.error):
                self._finish(operation, operation.refused or message.error)
        elif operation.message is not None:
            asked = operation.message.requested
            if asked < len(operation.settled):  # the rest of a read was never requested
                del operation.settled[asked:]
                operation.expect(asked - sum(operation.settled))
            self._advance(operation)
        if stream.has_waiting:
            self._start(stream)
        if self._starved or self._asking:
            self._start_freed()

    def message_unsent(self, message: Outbound) -> None:
        """Take back a message whose PDC ended before any packet of it was executed.

        It goes elsewhere at :meth:`start_waiting`, if that has not failed too often.
        """
        operation = self._landed(message)
        if operation is None:
            return
        if message.error is None:
            self._release(operation)
            operation.stream.push(operation)
        elif operation.refused is not None or not self._reissue(operation, message.error):
            self._finish(operation, operation.refused or message.error)
        self._blocked[operation.stream] = None

    def _reissue(self, operation: PostedOperation, error: str) -> bool:
        """Let it begin again on another PDC; false if it may not, or has too often."""
        limit = self._config.max_nack_retx_cnt
        if operation.has_its_data or error not in REISSUABLE_ERRORS:
            return False
        if operation.reissues >= limit != UNLIMITED_NACK:
            return False
        operation.reissues += 1
        self._counters["tx_messages_reissued"] += 1
        self._release(operation)
        operation.code = 0
        operation.accepted = None
        operation.deferred = operation.permitted = False
        self._timers.stop(operation)
        operation.stream.push(operation)
        return True

    @staticmethod
    def _landed(message: Outbound) -> PostedOperation | None:
        """Return whose message PDS gives back; ``None`` if that is over and done with."""
        operation = message.operation if isinstance(message, OutboundMessage) else None
        if (
            not isinstance(operation, PostedOperation)
            or operation.message is not message
            or not operation.is_out
        ):
            return None
        operation.is_out = False
        operation.stream.flying -= 1
        return operation

    def pdc_closed(self, pdc: Context) -> None:
        """End the waits for data of ``pdc``, which has closed."""
        for operation in list(self.operations.values()):
            if operation.pdc is pdc and operation.waits is Waits.DATA:
                error = pdc.failure or "PDC_CLOSED"
                repeats = operation.plan.is_repeatable and operation.refused is None
                if repeats and self._reissue(operation, error):
                    self._start(operation.stream)
                else:
                    self._finish(operation, operation.refused or "PDC_CLOSED")
        if self._starved or self._asking:
            self._start_freed()

    def abandon(self, error: str, peer: str | None = None) -> None:
        """Every operation, or every one of ``peer``, that has not ended ends with ``error``."""
        for key, stream in list(self.streams.items()):
            if peer in (None, stream.peer):
                del self.streams[key]
                self._blocked.pop(stream, None)
                self._starved.pop(stream, None)
        for operation in list(self.operations.values()):
            if peer in (None, operation.plan.peer):
                self._finish(operation, error)

    def _on_data(self, operation: PostedOperation) -> None:
        operation.touched = self._time.now
        if not operation.missing and not operation.is_out:
            self._advance(operation)
        if self._starved or self._asking:
            self._start_freed()

    def _advance(self, operation: PostedOperation) -> None:
        """Begin the next step of an operation whose message has ended."""
        config = self._config
        if operation.missing:
            # Even if it has failed: its id must not name another while its data may come.
            self._wait(operation, Waits.DATA, config.inbound_message_idle_time)
        elif operation.refused is not None or operation.has_its_data:
            self._finish(operation, operation.refused)
        elif operation.code:
            self._begin_again(operation)
        elif operation.deferred:
            self._release(operation)
            if operation.permitted:
                self._restart(operation)
            else:
                self._wait(operation, Waits.PERMISSION, config.deferred_time)
        elif not operation.rest_is_read:
            self._release(operation)
            self._wait(operation, Waits.FETCH, config.deferred_time)
        else:
            self._finish(operation, None)

    def _begin_again(self, operation: PostedOperation) -> None:
        """A refusal that a new generation, or time, may mend (UES 3.4.1)."""
        code, operation.code = operation.code, 0
        operation.accepted = None
        if code == _NO_MATCH:
            operation.target_token = 0  # what it reserved is gone; else it is still there
        operation.deferred = operation.permitted = False
        stream, config = operation.stream, self._config
        self._release(operation)
        delay = 0
        if code == _BAD_GENERATION:
            operation.generations += 1
            exhausted = operation.generations > _MOST_GENERATIONS
        elif stream.recovering and len(stream) and stream.head.serial < operation.serial:
            exhausted = False  # refused for the sake of one before it, whose turn it is first
        else:
            exhausted = operation.attempts >= config.max_restarts
            if not exhausted:
                wait = self._rng.randint(config.restart_time, 2 * config.restart_time)
                delay = wait << operation.attempts
                operation.attempts += 1
        if exhausted:
            self._finish(operation, code_name(code))
            return
        self._counters["tx_message_restarts"] += 1
        if stream.ordered:
            stream.recovering = True
        if stream.ordered or not delay:
            stream.push(operation)
            if stream.head is operation:
                stream.hold = self._time.now + delay
        if delay:
            self._wait(operation, Waits.RESTART, delay)
        else:
            self._start(stream)

    def _restart(self, operation: PostedOperation) -> None:
        """The target has a buffer for a deferred send now: from offset 0, as a new message."""
        operation.deferred = operation.permitted = False
        operation.accepted = None
        self._timers.stop(operation)
        self._counters["tx_message_restarts"] += 1
        operation.stream.push(operation)
        self._start(operation.stream)

    def _release(self, operation: PostedOperation) -> None:
        """Give back what one attempt holds: message id, lock, place among the expected."""
        self.replies.forget(operation)
        message, operation.message, operation.pdc = operation.message, None, None
        if message is not None and operation.plan.has_id:
            self.ids.give_back(message.id)

    def _finish(self, operation: PostedOperation, error: str | None) -> None:
        """The one end of an operation; where all its data has come back, that is a success."""
        if operation.has_its_data:
            error = None
        self._release(operation)
        self.peer_handles.withdraw(operation)
        self._timers.stop(operation)
        del self.operations[operation.serial]
        self._counters["tx_messages" if error is None else "tx_messages_failed"] += 1
        if operation.ended is not None:
            operation.ended(error)
            return
        made = operation.plan
        length = made.reported if operation.accepted is None or error else operation.accepted
        self._complete(
            Completion(
                kind=made.kind, peer=made.peer, length=length, context=made.context, error=error
            )
        )

    # -- what the target side requests ---------------------------------------------------------

    def on_restart(
        self,
        peer: str,
        initiator_token: int,
        target_token: int,
        message_id: int = 0,
        job_id: int = 0,
    ) -> Answer:
        """A DEFERRABLE_RTR (with this message id and JobID): send the message of the token now.

        CANCELLED reports that there is no such message any more, so that its buffer is free again.
        """
        operation = self.peer_handles.of_token(initiator_token)
        if operation is None or operation.plan.peer != peer:
            self._counters["rx_restarts_unknown"] += 1
            return refusal(message_id, job_id, ReturnCode.CANCELLED)
        operation.target_token = target_token
        operation.permitted = True
        if operation.waits is Waits.PERMISSION:
            self._restart(operation)
        return ACCEPTED

    def request_restart(
        self,
        peer: str,
        address: Address,
        initiator_token: int,
        target_token: int,
        delivery: str,
        ended: Ended = _nobody_waits,
    ) -> None:
        """Send DEFERRABLE_RTR: there is a buffer for the message of these tokens now.

        ``ended`` is called with ``None`` once the initiator has it, or with the error's name.
        """
        tokens = (initiator_token, target_token)
        self._begin(restart_plan(peer, delivery, address, tokens, self._config), ended)

    def fetch(
        self,
        peer: str,
        address: Address,
        key: int,
        offset: int,
        memory: memoryview,
        ended: Ended,
    ) -> None:
        """Read the rest of a rendezvous send from its initiator; ``ended`` gets the outcome."""
        delivery = self._config.delivery if self._config.delivery in RELIABLE else "rud"
        self._begin(read_plan(peer, delivery, address, key, offset, memory, self._config), ended)

    def decline(self, peer: str, address: Address, key: int, offset: int, length: int) -> None:
        """Decline the rest of a rendezvous send by a READ with IE.

        UES 1.0 has no message for it that the reference could confirm; a peer that does not
        implement it answers INITIATOR_ERR and waits on.
        """
        delivery = self._config.delivery if self._config.delivery in RELIABLE else "rud"
        asked = memoryview(bytes(min(length, self._mtu)))
        made = read_plan(peer, delivery, address, key, offset, asked, self._config)
        made.initiator_error, made.memory, made.span = True, None, 0  # no data is to come
        self._begin(made, _nobody_waits)

    def on_declined(self, key: int, peer: str) -> None:
        """Note the peer's READ with IE: it will not read the rest of a rendezvous."""
        operation = self.peer_handles.of_key(key)
        if operation is None or operation.plan.peer != peer:
            return
        operation.refused = operation.refused or ReturnCode.INITIATOR_ERR.name
        if operation.waits is Waits.FETCH:
            self._finish(operation, operation.refused)
            if self._starved or self._asking:
                self._start_freed()
        elif operation.is_out and operation.message is not None:
            operation.message.cancel()

    def on_served(self, key: int, offset: int, length: int, by: object = None) -> None:
        """A peer has acknowledged ``length`` octets read from ``offset`` of the region ``key``.

        ``by`` names the message that requested them.  A rendezvous send is complete when all that
        its eager part left over has been read; any other key is nobody's business here.
        """
        operation = self.peer_handles.of_key(key)
        if operation is None or operation.read_by_peer is None:
            return
        operation.read_by_peer.add(by, offset, offset + length)
        operation.touched = self._time.now
        if operation.waits is Waits.FETCH and operation.rest_is_read:
            self._finish(operation, None)

    def on_read_refused(self, key: int, by: object) -> None:
        """A packet of the message ``by``, which reads the region ``key``, has been refused."""
        operation = self.peer_handles.of_key(key)
        if operation is not None and operation.read_by_peer is not None:
            operation.read_by_peer.refuse(by)

    # -- time ----------------------------------------------------------------------------------

    def _wait(self, operation: PostedOperation, for_what: Waits, time: int) -> None:
        self._timers.start(operation, for_what, self._time.now + time)

    def next_deadline(self) -> int | None:
        """Return when :meth:`on_timer` must be called (ns), or ``None``."""
        return self._timers.next_deadline()

    def on_timer(self, now: int) -> None:
        """Restart, or give up, what has waited for long enough."""
        self._time.now = now
        while (timer := self._timers.pop(now)) is not None:
            operation, waited = timer
            if waited is Waits.RESTART:
                if not operation.stream.ordered:
                    operation.stream.push(operation)
                self._start(operation.stream)
                continue
            left = 0
            if waited is Waits.DATA:
                left = operation.touched + self._config.inbound_message_idle_time - now
            elif waited is Waits.FETCH:
                left = operation.touched + self._config.deferred_time - now
            if left > 0:  # something has come meanwhile
                self._wait(operation, waited, left)
            else:
                self._finish(operation, operation.refused or waited.value)
        if self._starved or self._asking:
            self._start_freed()
