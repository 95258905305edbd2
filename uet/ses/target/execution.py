"""Requests step by step: known message, common checks, then the opcode's own (UES 3.4.1).

Every kind of request can come this way; the frequent ones have a shorter one in
:mod:`uet.ses.target.target`.  :class:`Checks` are those that every request passes; the first that
fails decides the return code.  Those of one kind of request (does a receive match, is the memory
registered) are made by what carries it out.
"""

from __future__ import annotations

from typing import Final

from uet.compatibility import Compatibility
from uet.pds.semantics import ACCEPTED, NO_ROOM, Answer, Context, Response
from uet.profiles import FepCapability
from uet.ses.arrival import SYNC_ATOMIC, SYNC_WRITE, RequestArrival, parse
from uet.ses.facilities import Facilities
from uet.ses.resources import Resource, ResourceTable
from uet.ses.responses import malformed, response
from uet.ses.target.inbound import (
    InboundMessage,
    InboundSend,
    InboundTable,
    MessageKey,
    RefusedMessage,
)
from uet.ses.target.rma_target import MemoryAccess
from uet.ses.target.sends import OwnInitiator, Sends, tagged_atomic
from uet.wire.codes import DEFERRABLE_OPCODES, Opcode, ReturnCode

_NEEDED: Final[dict[int, FepCapability]] = {
    Opcode.NO_OP: FepCapability.NONE,
    Opcode.WRITE: FepCapability.NONE,
    Opcode.READ: FepCapability.READ,
    Opcode.ATOMIC: FepCapability.ATOMIC,
    Opcode.FETCHING_ATOMIC: FepCapability.FETCHING_ATOMIC,
    Opcode.SEND: FepCapability.NONE,
    Opcode.RENDEZVOUS_SEND: FepCapability.RENDEZVOUS,
    Opcode.DEFERRABLE_SEND: FepCapability.NONE,  # without the capability it is a plain send
    Opcode.TAGGED_SEND: FepCapability.TAGGED_SEND,
    Opcode.RENDEZVOUS_TSEND: FepCapability.RENDEZVOUS | FepCapability.TAGGED_SEND,
    Opcode.DEFERRABLE_TSEND: FepCapability.TAGGED_SEND,
    Opcode.DEFERRABLE_RTR: FepCapability.DEFERRABLE,
    Opcode.TSEND_ATOMIC: FepCapability.TSEND_ATOMIC,
    Opcode.TSEND_FETCH_ATOMIC: FepCapability.TSEND_ATOMIC,
    Opcode.MSG_ERROR: FepCapability.NONE,
}
_SYNC: Final = {SYNC_WRITE: FepCapability.NONE, SYNC_ATOMIC: FepCapability.ATOMIC}
#: What a small request may carry: memory named by the resource index.
SMALL_OPCODES: Final = frozenset(
    {int(Opcode.WRITE), int(Opcode.READ), int(Opcode.ATOMIC), int(Opcode.FETCHING_ATOMIC)}
)
#: What a datagram may be: the UEC reference provider sends SEND.
DATAGRAM_OPCODES: Final = frozenset({int(Opcode.SEND), int(Opcode.DATAGRAM_SEND)})


def supported_opcodes(capabilities: FepCapability, compatibility: Compatibility) -> frozenset[int]:
    """Opcodes that an endpoint with these profiles carries out on a PDC."""
    needed = _NEEDED | (_SYNC if compatibility.sync_operations else {})
    return frozenset(int(opcode) for opcode, what in needed.items() if capabilities & what == what)


class Checks:
    """The receive checks of one endpoint."""

    def __init__(
        self,
        resources: ResourceTable,
        capabilities: FepCapability,
        compatibility: Compatibility,
        payload_mtu: int,
    ) -> None:
        self._resources = resources
        self._opcodes = supported_opcodes(capabilities, compatibility)
        self._short = FepCapability.OPTIMIZED_HEADERS in capabilities
        self._mtu = payload_mtu

    def restart(self, request: RequestArrival) -> int:
        """The code of the first check that DEFERRABLE_RTR fails, or 0.

        Its token names a message of this endpoint.  The message did not name the resource that
        it was posted at. So the resource in the RTR means nothing.
        """
        if request.version:
            return ReturnCode.UNCOR
        known = request.opcode in self._opcodes and request.has_id
        if known and not request.consistent(self._mtu):
            return ReturnCode.OP_VIOLATION
        if request.initiator_error:
            return ReturnCode.INITIATOR_ERR
        return 0 if known else ReturnCode.UNSUPPORTED_OP

    def common(
        self, request: RequestArrival, peer: str, *, ordered: bool = False, datagram: bool = False
    ) -> tuple[int, Resource | None]:
        """The checks up to the opcode: (0, the resource), or the code of the first that fails.

        With a wrong generation the resource comes too, as the answer carries its own.  For a
        datagram the generation does not count (UES 3.5.3); only an ordered stream can be disabled.
        """
        if request.version:
            return ReturnCode.UNCOR, None
        # The index of a small request is that of a region, which has no generations.
        by_region = request.small and request.opcode in SMALL_OPCODES
        resources = self._resources
        found = resources.find_process(request) if by_region else resources.find(request)
        if isinstance(found, int):
            return found, None
        if not found.enabled:
            return ReturnCode.DISABLED, None
        opcodes = DATAGRAM_OPCODES if datagram else self._opcodes
        known = request.opcode in opcodes and (request.has_id or self._short)
        if known and not request.consistent(self._mtu):
            return ReturnCode.OP_VIOLATION, None
        if not datagram and not by_region:
            if ordered and found.is_disabled(peer):
                return ReturnCode.DISABLED_GEN, None
            if found.generation(peer) != request.generation:
                return ReturnCode.BAD_GENERATION, found
        if request.initiator_error:
            return ReturnCode.INITIATOR_ERR, None
        if not known or (request.small and not by_region and request.opcode != Opcode.NO_OP):
            return ReturnCode.UNSUPPORTED_OP, None
        return 0, found


_OK: Final = int(ReturnCode.OK)
_OP_VIOLATION: Final = int(ReturnCode.OP_VIOLATION)
_INITIATOR_ERR: Final = int(ReturnCode.INITIATOR_ERR)
_DROPPED: Final = int(ReturnCode.DROPPED)
_READ: Final = int(Opcode.READ)
_NO_OP: Final = int(Opcode.NO_OP)
_RTR: Final = int(Opcode.DEFERRABLE_RTR)
_MSG_ERROR: Final = int(Opcode.MSG_ERROR)
_WRITES: Final = frozenset({int(Opcode.WRITE), SYNC_WRITE})
_ATOMICS: Final = frozenset({int(Opcode.ATOMIC), int(Opcode.FETCHING_ATOMIC), SYNC_ATOMIC})
_TAGGED_ATOMICS: Final = frozenset({int(Opcode.TSEND_ATOMIC), int(Opcode.TSEND_FETCH_ATOMIC)})
_DEFERRABLE: Final = frozenset(map(int, DEFERRABLE_OPCODES))


class Execution:
    """Judges and carries out the requests of one endpoint."""

    def __init__(
        self,
        facilities: Facilities,
        checks: Checks,
        inbound: InboundTable,
        access: MemoryAccess,
        sends: Sends,
        initiator: OwnInitiator,
    ) -> None:
        config = facilities.config
        self._checks = checks
        self._inbound = inbound
        self._access = access
        self._sends = sends
        self._initiator = initiator
        self._counters = facilities.counters
        self._mtu = config.payload_mtu
        self._sync = config.compatibility.sync_operations
        self._target_token_first = config.compatibility.target_restart_token_first
        self._plain = config.compatibility.plain_unexpected_response
        self._time = facilities.time

    def judge(
        self, pdc: Context, psn: int, next_header: int, packet: memoryview, at: int
    ) -> Answer:
        """Answer the request whose SES header begins at ``at``."""
        request = parse(next_header, packet, at, psn, sync=self._sync)
        if request is None:
            self._counters["rx_malformed_requests"] += 1
            return malformed()
        key = None
        if request.has_id:
            key = (pdc.id, request.message_id)
            known = self._known(pdc, key, request)
            if known is not None:
                return known
        if request.opcode == _RTR:
            code = self._checks.restart(request)
            return self._refuse(key, request, code, 0) if code else self._restart(pdc, request)
        code, resource = self._checks.common(request, pdc.address, ordered=pdc.ordered)
        if code or resource is None:
            if code == _INITIATOR_ERR and request.opcode == _READ:
                self._initiator.on_declined(request.match_bits, pdc.address)
            generation = resource.generation(pdc.address) if resource else 0
            return self._refuse(key, request, code, generation)
        answer = self._begin(pdc, key, request, resource)
        if isinstance(answer, int) and answer > 0:
            return self._refuse(key, request, answer, 0)
        return answer

    def _known(self, pdc: Context, key: MessageKey, request: RequestArrival) -> Answer | None:
        """A packet of a message that is being received, or has been refused."""
        inbound = self._inbound
        message = inbound.messages.get(key)
        if request.version or (message is None and key not in inbound.refused):
            return None
        if request.opcode == _MSG_ERROR:
            inbound.end(key, request.start, self._time.now)
            return ACCEPTED
        if message is None:
            return self._refused_before(key, request)
        if request.initiator_error:
            inbound.drop(key, ReturnCode.INITIATOR_ERR.name)
            return self._refuse(key, request, _INITIATOR_ERR, 0, seen=message.placed)
        if message.signature != request.signature or not request.consistent(self._mtu):
            self._counters["rx_requests_refused"] += 1
            return response(request, _OP_VIOLATION)
        if not request.payload and message.awaited:
            inbound.end(key, request.start, self._time.now)  # an attempt that was matched meanwhile
            return ACCEPTED
        return self._place(pdc, key, message, request)

    def _refused_before(self, key: MessageKey, request: RequestArrival) -> Answer | None:
        octets = request.weight(self._mtu)
        refused = self._inbound.count(key, request, octets)
        if refused is None:
            return None
        if request.opcode in _DEFERRABLE and request.is_last and not octets:
            if key in self._inbound.refused:
                self._inbound.end(key, request.start, self._time.now)
            return ACCEPTED
        if not refused.code:
            return ACCEPTED
        plain = refused.code == _OK and self._plain
        return response(request, refused.code, generation=refused.generation, guaranteed=not plain)

    def _begin(
        self, pdc: Context, key: MessageKey | None, request: RequestArrival, resource: Resource
    ) -> Answer:
        """Carry out what has passed the common checks; a positive number is a return code."""
        opcode = request.opcode
        if opcode in _WRITES:
            return self._write(pdc, key, request)
        if opcode == _READ:
            return self._access.read(pdc, request)
        if opcode in _ATOMICS:
            return self._confirm(request, self._access.atomic(pdc, request))
        if opcode in _TAGGED_ATOMICS:
            answer = tagged_atomic(pdc, request, resource, self._sends, self._access)
            return self._confirm(request, answer)
        if opcode == _NO_OP:
            return self._confirm(request, ACCEPTED)
        if opcode == _MSG_ERROR:
            if key is not None:
                self._inbound.end(key, request.start, self._time.now)
            return ACCEPTED
        if request.is_first or key is None:
            return self._send(pdc, key, request, resource)
        if opcode in _DEFERRABLE and request.length and not request.payload:
            return ACCEPTED  # the end of an attempt that has been forgotten
        if pdc.ordered:
            return _DROPPED  # its SOM came before, and it is known no longer
        return ACCEPTED if self._inbound.keep_early(key, request, self._time.now) else NO_ROOM

    def _send(
        self, pdc: Context, key: MessageKey | None, request: RequestArrival, resource: Resource
    ) -> Answer:
        """The packet of a send that takes a receive: the one with SOM."""
        message = self._sends.begin(pdc, key, request, resource, self._time.now)
        if not isinstance(message, InboundSend):
            return message
        early = None if key is None else self._inbound.take_early(key)
        if early is not None and not early.place_in(message):
            self._sends.fail(message, "OP_VIOLATION")
            return _OP_VIOLATION
        kept = message.held is not None
        answer = self._place(pdc, key, message, request)
        return self._sends.kept_answer(request) if kept else answer

    def _restart(self, pdc: Context, request: RequestArrival) -> Answer:
        initiator_token, target_token = request.tokens
        if self._target_token_first:
            initiator_token, target_token = target_token, initiator_token
        return self._initiator.on_restart(
            pdc.address, initiator_token, target_token, request.message_id, request.job_id
        )

    def _write(self, pdc: Context, key: MessageKey | None, request: RequestArrival) -> Answer:
        region = self._access.region(request, request.length, write=True, read=False)
        if isinstance(region, int):
            return region
        offset, length = request.buffer_offset, request.length
        if len(request.payload) < length and not self._inbound.make_room(self._time.now):
            return NO_ROOM
        key_used = region.key if region.key in request.keys else request.keys[0]
        memory = region.memory[offset : offset + length]
        if self._access.guard is not None:
            memory = self._access.guard(pdc.address, key_used, memory)
        message = InboundMessage(
            memory,
            word=request.identity,
            to=request.to,
            key=key_used,
            offset=offset,
            length=length,
        )
        message.group = self._access.group(request)
        return self._place(pdc, key, message, request)

    def _place(
        self, pdc: Context, key: MessageKey | None, message: InboundMessage, request: RequestArrival
    ) -> Answer:
        """Put the packet's payload into its message, which may be new."""
        if not message.place(request.start, request.payload):
            self._counters["rx_requests_refused"] += 1
            return response(request, _OP_VIOLATION)
        if request.header_data is not None:
            message.header_data = request.header_data
        if message.placed < message.awaited:
            # the checks let no message without a key have several packets
            if key is not None and key not in self._inbound.messages:
                self._inbound.add(key, message, self._time.now)
            message.touched = self._time.now
            return ACCEPTED
        if key is not None:
            self._inbound.messages.pop(key, None)
        return self._confirm(request, ACCEPTED) if self.finish(pdc, message) else ACCEPTED

    def finish(self, pdc: Context, message: InboundMessage) -> bool:
        """All that comes by packets has arrived; whether that makes the message complete."""
        if isinstance(message, InboundSend):
            self._sends.finish(message)
            return message.ended
        self._access.written(
            pdc.address,
            message.key,
            message.offset,
            message.length,
            message.header_data,
            message.group,
        )
        return True

    def _confirm(self, request: RequestArrival, answer: Answer) -> Answer:
        """Confirm delivery complete: the response reports success explicitly (UES 3.4.1)."""
        if answer == ACCEPTED and request.delivery_complete:
            return response(request, _OK, modified=request.length)
        return answer

    def _refuse(
        self,
        key: MessageKey | None,
        request: RequestArrival,
        code: int,
        generation: int,
        seen: int = 0,
    ) -> Response:
        """A return code, which the other packets of the message will draw as well."""
        self._counters["rx_requests_refused"] += 1
        whole = request.is_first and request.is_last
        if key is None or whole or request.opcode == _MSG_ERROR:
            pass
        elif request.opcode == _READ:
            # Its packets are judged one by one: some may have been served.
            self._initiator.on_read_refused(request.match_bits, key)
        else:
            seen += len(request.payload)
            if (early := self._inbound.take_early(key)) is not None:
                seen += early.octets
            self._inbound.refuse(
                key,
                RefusedMessage(
                    request.signature,
                    code,
                    generation,
                    request.awaited,
                    seen,
                    begun=request.is_first,
                ),
            )
        return response(request, code, generation=generation)
