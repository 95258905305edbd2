"""The target side of SES: whether a request is allowed, and its execution (UES 3.4.1).

A packet of a message that is known goes to its place at once.  So does a write to the endpoint's
first resource, whose first header word and addressing equal the expected ones: that is one
comparison instead of nine checks.  All else is parsed and checked step by step, in the
specification's order, and the first check that fails decides the return code.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from uet.config import FepConfig
from uet.congestion.signals import congestion_penalty
from uet.pds.semantics import ACCEPTED, NO_ROOM, Answer, Context, Response
from uet.profiles import FepCapability
from uet.ses.address import Address
from uet.ses.arrival import FREE, RequestArrival, parse
from uet.ses.facilities import Facilities
from uet.ses.matching import ReceiveQueue, Watcher
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.ses.resources import Resource, ResourceTable
from uet.ses.responses import default_response, malformed, response
from uet.ses.target.execution import Checks, Execution
from uet.ses.target.inbound import InboundMessage, InboundSend, InboundTable
from uet.ses.target.rma_target import Guard, MemoryAccess, ReturnData
from uet.ses.target.sends import OwnInitiator, Sends
from uet.transport import ReceiveRequest
from uet.wire import headers
from uet.wire.codes import NextHeader, Opcode, ReturnCode

_OP_VIOLATION: Final = int(ReturnCode.OP_VIOLATION)


class ConnectionlessTarget:
    """Carries out requests without a PDC: idempotent ones (RUDI) and datagrams (UUD), UES 3.5.3.

    These may be executed any number of times, or not at all.
    """

    def __init__(
        self,
        config: FepConfig,
        checks: Checks,
        access: MemoryAccess,
        sends: Sends,
        counters: dict[str, int],
    ) -> None:
        self._checks = checks
        self._access = access
        self._sends = sends
        self._counters = counters
        self._able = FepCapability.RUDI in config.capabilities
        self._with_length = config.compatibility.modified_length_in_default_response

    def idempotent(self, peer: str, request: RequestArrival | None) -> Response:
        """A RUDI packet: executed at every arrival, with no memory of the last one.

        Only READ, and WRITE without header data, of a region whose key marks this as safe.
        """
        if request is None:
            self._counters["rx_malformed_requests"] += 1
            return malformed()
        code = self._execute(peer, request)
        if isinstance(code, int):
            self._counters["rx_requests_refused"] += 1
            return response(request, code)
        return code

    def _execute(self, peer: str, request: RequestArrival) -> Response | int:
        if not self._able:
            return int(ReturnCode.UNSUPPORTED_OP)
        code, resource = self._checks.common(request, peer)
        if code:
            if code == ReturnCode.BAD_GENERATION and resource is not None:
                self._counters["rx_requests_refused"] += 1
                return response(request, code, generation=resource.generation(peer))
            return code
        writes = request.opcode == Opcode.WRITE
        if not writes and request.opcode != Opcode.READ:
            return _OP_VIOLATION
        region = self._access.region(request, request.length, write=writes, read=not writes)
        if isinstance(region, int):
            if region == ReturnCode.BAD_MKEY and self._access.is_unsafe(request):
                return _OP_VIOLATION
            return region
        if not region.key & IDEMPOTENT_SAFE or request.header_data is not None:
            return _OP_VIOLATION
        if not writes:
            return self._access.read_inline(request)
        begin = request.buffer_offset + request.start
        region.memory[begin : begin + len(request.payload)] = request.payload
        return default_response(request, request.length if self._with_length else 0)

    def datagram(self, peer: str, request: RequestArrival | None) -> None:
        """Put a UUD packet into a posted receive, or drop it without an answer (UES 3.5.3)."""
        if request is None:
            self._counters["rx_malformed_requests"] += 1
            return
        code, resource = self._checks.common(request, peer, datagram=True)
        length = request.length
        whole = request.is_first and request.is_last and len(request.payload) == length
        if code or resource is None or not whole:
            self._counters["rx_datagrams_dropped"] += 1
            return
        match = self._sends.match_datagram(request, peer, resource)
        if match is None:
            self._counters["rx_datagrams_dropped"] += 1
            return
        match.memory[:] = request.payload
        self._counters["rx_messages"] += 1
        self._counters["rx_message_octets"] += length
        self._sends.report(request, peer, match, length, None)


_SOM: Final = headers.SES_STD_SOM
_NOSOM: Final = headers.SES_STD_NOSOM
_unpack_som: Final = _SOM.unpack_from
_unpack_nosom: Final = _NOSOM.unpack_from
_SIZE: Final = _SOM.size
_SOM_BIT: Final = _SOM.mask("som")
_HD_BIT: Final = _SOM.mask("hd")
_DC_BIT: Final = _SOM.mask("dc")
_PAYLOAD_LENGTH: Final = _NOSOM.mask("payload_length")
_STD: Final = int(NextHeader.REQUEST_STD)
_OK: Final = int(ReturnCode.OK)
COUNTERS: Final = (
    "rx_messages",
    "rx_message_octets",
    "rx_messages_abandoned",
    "rx_requests_refused",
    "rx_malformed_requests",
    "rx_unexpected_dropped",
    "rx_deferred_expired",
    "rx_datagrams_dropped",
    "tx_read_octets",
)


class Target:
    """Carries out the requests that reach one endpoint."""

    def __init__(self, facilities: Facilities, initiator: OwnInitiator) -> None:
        config, memory, counters = facilities.config, facilities.memory, facilities.counters
        for name in COUNTERS:
            counters.setdefault(name, 0)
        self._config = config
        self._memory = memory
        self._sync = config.compatibility.sync_operations
        self._resources = ResourceTable()
        self._checks = Checks(
            self._resources, config.capabilities, config.compatibility, config.payload_mtu
        )
        self.inbound = InboundTable(config, counters, facilities.time, self._abandoned)
        self._messages, self._refused = self.inbound.messages, self.inbound.refused
        self._access = MemoryAccess(facilities, initiator.on_served)
        self.sends = Sends(facilities, self.inbound, initiator)
        self._execution = Execution(
            facilities, self._checks, self.inbound, self._access, self.sends, initiator
        )
        self._connectionless = ConnectionlessTarget(
            config, self._checks, self._access, self.sends, counters
        )
        self._home = self._resource(
            Address(
                job_id=config.job_id,
                pid_on_fep=config.pid_on_fep,
                resource_index=config.resource_index,
                relative=config.relative,
            )
        )
        self._job_id = config.job_id
        self._plain_write = _SOM.word(opcode=Opcode.WRITE, rel=int(config.relative)) & ~FREE
        self._time = facilities.time
        self._time.watch(self.inbound.next_deadline)
        self._time.watch(self.sends.deferrals.next_deadline)

    # -- what the application offers ---------------------------------------------------------

    def _resource(self, address: Address) -> Resource:
        config = self._config
        resource = Resource(
            address,
            ReceiveQueue(
                max_unexpected=config.max_unexpected_messages + config.max_deferred_messages,
                max_unexpected_octets=config.max_unexpected_octets,
                must_fit=config.compatibility.long_send_leaves_receive,
            ),
        )
        self._resources.add(resource)
        return resource

    def pressure(self) -> int:
        """rcv_cwnd_pend (0 to 127): how full the buffers for unexpected messages are."""
        return congestion_penalty(self._resources.fullest, self._config.max_unexpected_octets)

    def add_resource(self, address: Address) -> None:
        """Serve one more resource; :class:`uet.ses.resources.ResourceError` if it is there."""
        self._resource(address)

    def set_enabled(self, enabled: bool, address: Address | None = None) -> None:
        """Let a resource take requests, or refuse all of them (DISABLED)."""
        self._at(address).set_enabled(enabled)

    def generation(self, peer: str, address: Address | None = None) -> int:
        """The generation of a peer's ordered stream to a resource.

        It is disabled by a message without a receive, and grows when one is posted.
        """
        return self._at(address).generation(peer)

    def _at(self, address: Address | None) -> Resource:
        return self._home if address is None else self._resources.at(address)

    def post_receive(self, receive: ReceiveRequest, address: Address | None = None) -> None:
        """Offer memory to sends; messages that wait for it take it at once.

        Raises :class:`uet.ses.matching.MatchingError` for impossible memory or tags, and
        :class:`uet.ses.resources.ResourceError` for what the profiles or the address rule out.
        """
        resource = self._at(address)
        self.sends.post(receive, resource)
        resource.renew()

    def cancel_receive(self, context: object, address: Address | None = None) -> bool:
        """Take a posted receive back: it completes as CANCELLED.  False if none is queued."""
        return self.sends.cancel(self._at(address), context)

    def watch_receives(self, watcher: Watcher) -> None:
        """Notify ``watcher`` of what happens to receives of the configured resource."""
        self._home.queue.watcher = watcher

    def guard_writes(self, guard: Guard) -> None:
        """Let ``guard`` decide at the start of each write where its octets go."""
        self._access.guard = guard

    def withdraw_receive(self, context: object) -> None:
        """Take a posted receive back without a completion."""
        self._home.queue.cancel(context)

    # -- requests ----------------------------------------------------------------------------

    def deliver(
        self, pdc: Context, psn: int, next_header: int, packet: memoryview, at: int
    ) -> Answer:
        """Carry out the request whose SES header begins at ``at`` (see :class:`Semantics`)."""
        word: int
        number: int
        to: int
        offset: int
        bits: int
        length: int
        octets: int
        start: int
        left = len(packet) - at - _SIZE
        if next_header != _STD or left < 0:
            return self._execution.judge(pdc, psn, next_header, packet, at)
        if packet[at + 1] & _SOM_BIT:
            word, number, to, offset, _, bits, data, length = _unpack_som(packet, at)
            start, octets = 0, left
            header_data = data if word & _HD_BIT else None
        else:
            word, number, to, offset, _, bits, octets, start, length = _unpack_nosom(packet, at)
            octets &= _PAYLOAD_LENGTH
            header_data = None
        key = (pdc.id, number)
        message = self._messages.get(key)
        if message is not None:
            if (
                message.signature != (word & ~FREE, to, bits, offset, length)
                or octets != left
                or not octets
                or start + octets > message.awaited
            ):
                return self._execution.judge(pdc, psn, next_header, packet, at)
        else:
            home = self._home
            may_pass = home.addressing
            if home.moved_on:
                may_pass = home.addressing_from(pdc.address, ordered=pdc.ordered)
            if (
                to != may_pass
                or word & ~FREE != self._plain_write
                or octets != left
                or start + octets > length
                or (length and not octets)
                or key in self._refused
            ):
                return self._execution.judge(pdc, psn, next_header, packet, at)
            region = self._memory.find(bits)
            if (
                region is None
                or not region.writable
                or (region.job_id is not None and region.job_id != self._job_id)
                or offset + length > len(region.memory)
            ):
                return self._execution.judge(pdc, psn, next_header, packet, at)
            memory = region.memory[offset : offset + length]
            if self._access.guard is not None:
                memory = self._access.guard(pdc.address, bits, memory)
            if octets == length:
                memory[:] = packet[at + _SIZE :]
                self._access.written(pdc.address, bits, offset, length, header_data)
                return self._visible(length, packet, at, psn) if word & _DC_BIT else ACCEPTED
            if not self.inbound.make_room(self._time.now):
                return NO_ROOM
            message = InboundMessage(
                memory, word=word & ~FREE, to=to, key=bits, offset=offset, length=length
            )
            self.inbound.add(key, message, self._time.now)
        message.touched = self._time.now
        if not message.place(start, packet[at + _SIZE :]):
            return self._execution.judge(pdc, psn, next_header, packet, at)
        if header_data is not None:
            message.header_data = header_data
        if message.placed != message.awaited:
            return ACCEPTED
        del self._messages[key]
        complete = self._execution.finish(pdc, message)
        if complete and word & _DC_BIT:
            return self._visible(length, packet, at, psn)
        return ACCEPTED

    def _visible(self, length: int, packet: memoryview, at: int, psn: int) -> Answer:
        """Return the response that confirms delivery complete, in answer to the last packet."""
        request = parse(_STD, packet, at, psn, sync=self._sync)
        assert request is not None
        return response(request, _OK, modified=length)

    def deliver_connectionless(
        self, delivery: str, address: str, next_header: int, packet: memoryview, at: int
    ) -> Response | None:
        """A request without a PDC (UES 3.5.3): the answer to a RUDI one, nothing for a datagram."""
        request = parse(next_header, packet, at, 0, sync=False)
        if delivery == "rudi":
            return self._connectionless.idempotent(address, request)
        self._connectionless.datagram(address, request)
        return None

    def divert(self, key: int, pdcs: Container[int]) -> None:
        """Discard what these PDCs write under ``key`` from now on."""
        for (pdc_id, _), message in self._messages.items():
            if message.key == key and pdc_id in pdcs:
                message.divert()

    def withdraw(self, key: int) -> None:
        """A region is there no longer: what is being written to it is refused from now on."""
        for number, message in list(self._messages.items()):
            if self._memory.named(message.key) == key and not isinstance(message, InboundSend):
                self.inbound.stop(number, message, int(ReturnCode.BAD_MKEY))

    # -- what ends, and time -----------------------------------------------------------------

    def message_end(self, pdc: Context, message: ReturnData, now: int) -> None:
        """Data that was sent back has been acknowledged, or its PDC has failed."""
        self._access.return_data_end(message)

    def _abandoned(self, message: InboundMessage, why: str) -> None:
        if isinstance(message, InboundSend):
            self.sends.fail(message, why)

    def forget(self, pdc_id: int) -> None:
        """The PDC is gone, and with it what was half received on it."""
        self.inbound.forget(pdc_id)

    def next_deadline(self) -> int | None:
        """Return when :meth:`on_timer` must be called (ns), or ``None``."""
        first, second = self.inbound.next_deadline(), self.sends.deferrals.next_deadline()
        if first is None or second is None:
            return second if first is None else first
        return min(first, second)

    def on_timer(self, now: int) -> None:
        """Give up what has waited for too long."""
        self._time.now = now
        self.inbound.on_timer(now)
        self.sends.deferrals.on_timer(now)
