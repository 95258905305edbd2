"""The base of all endpoints: bindings, name, posting, completions."""

from __future__ import annotations

from uet.api.address_vector import ADDR_UNSPEC, AddressVector, ProviderAddress
from uet.api.completion_queue import (
    CompletionQueue,
    Counter,
    CqEntry,
    CqErrEntry,
    error_number,
)
from uet.api.driver import ServedDomain
from uet.api.flags import ApiError, EndpointType, Flag, Order
from uet.api.memory_region import MemoryRegion
from uet.api.posted import Posted
from uet.profiles import FepCapability
from uet.ses.address import Address
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.transport import Completion, Request

_QUEUES = Flag.TRANSMIT | Flag.RECV
_COUNTED = Flag.SEND | Flag.RECV | Flag.READ | Flag.WRITE | Flag.REMOTE_WRITE


class ActiveEndpoint:
    """The life of an endpoint.  :class:`uet.api.Endpoint` adds the operations."""

    def __init__(
        self, domain: ServedDomain, address: Address, kind: EndpointType, msg_order: Order
    ) -> None:
        self.domain = domain
        self.address = address
        self.type = kind
        self.msg_order = msg_order
        if kind is EndpointType.DGRAM:
            if msg_order:
                raise ApiError("datagrams are not ordered; leave msg_order out, or use RDM")
            self._delivery = "uud"
        else:
            self._delivery = "rod" if msg_order else "rud"
        self._av: AddressVector | None = None
        self._transmit: CompletionQueue | None = None
        self._receive: CompletionQueue | None = None
        self._counters: list[tuple[Flag, Counter]] = []
        self._receives: dict[Posted, None] = {}  # in the order of posting
        self._enabled = False
        self._closed = False

    # -- life ----------------------------------------------------------------------------------

    def bind(self, to: AddressVector | CompletionQueue | Counter, flags: Flag = Flag.NONE) -> None:
        """Use this address vector, queue or counter: ``fi_ep_bind``.

        A queue takes completions of what is initiated here (:attr:`Flag.TRANSMIT`), of receives
        and remote writes (:attr:`Flag.RECV`), or both; a counter counts operations of the kinds
        in ``flags``: SEND, RECV, READ, WRITE, REMOTE_WRITE.
        """
        if isinstance(to, AddressVector):
            self._av = to
            return
        if to.domain is not self.domain:
            raise ApiError("the queue or counter belongs to another domain; open one in this")
        if isinstance(to, CompletionQueue):
            if not flags & _QUEUES or flags & ~_QUEUES:
                raise ApiError("bind a completion queue with TRANSMIT, RECV or both of them")
            if Flag.TRANSMIT in flags:
                self._transmit = to
            if Flag.RECV in flags:
                self._receive = to
        else:
            if not flags & _COUNTED or flags & ~_COUNTED:
                raise ApiError("a counter counts SEND, RECV, READ, WRITE or REMOTE_WRITE")
            self._counters.append((flags, to))

    def enable(self) -> None:
        """Take requests from peers and from the application: ``fi_enable``."""
        self._check_open()
        if self._av is None:
            raise ApiError("the endpoint has no address vector; bind one first")
        if self._transmit is None or self._receive is None:
            raise ApiError("the endpoint lacks a completion queue; bind for TRANSMIT and RECV")
        self._enabled = True
        self.domain.fep.target.set_enabled(True, self.address)

    def getname(self) -> ProviderAddress:
        """Return what peers insert into their address vectors: ``fi_getname``."""
        config, address = self.domain.config, self.address
        return ProviderAddress(
            address=config.address,
            job_id=address.job_id,
            pid_on_fep=address.pid_on_fep,
            resource_index=address.resource_index,
            initiator_id=config.initiator_id,
            relative=address.relative,
            profiles=config.profiles,
        )

    def cancel(self, context: object) -> bool:
        """Take back the first receive that was posted with ``context``: ``fi_cancel``.

        It completes with the error CANCELLED.  False if there is none, or if a message has
        matched it already; what has been sent cannot be taken back.

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> b.endpoint.recv(bytearray(8), context="unwanted")
        >>> b.endpoint.cancel("unwanted")
        True
        >>> b.cq.wait()
        Traceback (most recent call last):
        ...
        uet.api.completion_queue.ErrorAvailable: CANCELLED; take the entry with readerr()
        >>> b.cq.readerr().op_context
        'unwanted'
        """
        target = self.domain.fep.target
        for posted in self._receives:
            if posted.op_context == context and target.cancel_receive(posted, self.address):
                self.domain.dispatch()
                return True
        return False

    def close(self) -> None:
        """Refuse peers' requests from now on (DISABLED) and post nothing more: ``fi_close``.

        Receives that wait are cancelled.  The domain closes the PDCs.
        """
        self._check_open()
        target = self.domain.fep.target
        for posted in list(self._receives):
            target.cancel_receive(posted, self.address)
        self.domain.dispatch()
        target.set_enabled(False, self.address)
        self._enabled = False
        self._closed = True
        self.domain.forget(self.address)

    def _check_open(self) -> None:
        if self._closed:
            raise ApiError("the endpoint is closed; open another one")

    # -- posting -------------------------------------------------------------------------------

    def _peer(
        self, fi_addr: int, capability: FepCapability = FepCapability.NONE, what: str = ""
    ) -> ProviderAddress:
        """The address of a handle; :class:`ApiError` if either side's profiles lack something."""
        self._check_open()
        if not self._enabled or self._av is None:
            raise ApiError("the endpoint is not enabled; bind what it needs and call enable()")
        peer = self._av.lookup(fi_addr)
        self._need(capability, what, peer)
        return peer

    def _need(self, capability: FepCapability, what: str, peer: ProviderAddress) -> None:
        config = self.domain.config
        if capability not in config.capabilities:
            raise ApiError(
                f"{what} needs {capability.name}, which the profile {' + '.join(config.profiles)}"
                " does not have; add a profile that has it"
            )
        if peer.lacks(capability):
            raise ApiError(
                f"{what} needs {capability.name}, which the profile"
                f" {' + '.join(peer.profiles or ())} of the peer {peer.address} does not have"
            )

    def _need_reliable(self, what: str) -> None:
        if self.type is EndpointType.DGRAM:
            raise ApiError(f"a DGRAM endpoint carries datagrams only; open an RDM one for {what}")

    def _check_flags(self, flags: Flag, allowed: Flag, what: str) -> None:
        if flags & ~allowed:
            raise ApiError(f"{what} knows no flag {flags & ~allowed!r}; leave it out")

    def _rma_delivery(self, flags: Flag, peer: ProviderAddress, key: int) -> str:
        """The delivery mode of an operation on memory."""
        if Flag.RUDI not in flags:
            return self._delivery
        self._need(FepCapability.RUDI, "the flag RUDI", peer)
        if not key & IDEMPOTENT_SAFE:
            raise ApiError(
                f"RUDI may repeat what it carries, and the memory key {key:#x} is not marked"
                " idempotent-safe; register the region with idempotent=True"
            )
        return "rudi"

    def _posted(self, context: object, flags: Flag, *, silent: bool = False) -> Posted:
        return Posted(endpoint=self, op_context=context, flags=flags, silent=silent)

    def _post(self, request: Request) -> None:
        self.domain.fep.post(request)

    # -- completions ---------------------------------------------------------------------------

    def completed(self, posted: Posted, completion: Completion) -> None:
        """An operation has ended.  Called by the domain."""
        if posted.buf is not None:
            self._received(posted, completion)
            return
        self._count(posted.flags, completion.error)
        queue = self._transmit
        assert queue is not None
        if completion.error is not None:
            queue.push(
                CqErrEntry(
                    op_context=posted.op_context,
                    flags=posted.flags,
                    err=error_number(completion.error),
                    error=completion.error,
                )
            )
        elif not posted.silent:
            queue.push(
                CqEntry(op_context=posted.op_context, flags=posted.flags, len=completion.length)
            )

    def _received(self, posted: Posted, completion: Completion) -> None:
        assert posted.buf is not None
        flags, start, length = posted.flags, completion.offset or 0, completion.length
        if posted.least_space is not None:
            used = length if completion.used is None else completion.used
            posted.taken = max(posted.taken, start + used)
            posted.done += used
            full = len(posted.buf) - posted.taken < posted.least_space
            if completion.error == "CANCELLED" or (full and posted.done == posted.taken):
                flags |= Flag.MULTI_RECV
                self._receives.pop(posted, None)
        else:
            self._receives.pop(posted, None)
        if completion.header_data is not None:
            flags |= Flag.REMOTE_CQ_DATA
        self._count(flags, completion.error)
        entry = CqEntry(
            op_context=posted.op_context,
            flags=flags,
            len=length,
            buf=posted.buf[start : start + length],
            data=completion.header_data or 0,
            tag=completion.tag or 0,
            src_addr=self._source(completion),
        )
        self._push_received(entry, completion.error)

    def remotely_written(self, region: MemoryRegion, completion: Completion) -> None:
        """A peer's write has brought data for the queue.  Called by the domain."""
        flags = Flag.RMA | Flag.REMOTE_WRITE | Flag.REMOTE_CQ_DATA
        start = completion.offset or 0
        self._count(flags, completion.error)
        entry = CqEntry(
            op_context=None,
            flags=flags,
            len=completion.length,
            buf=region.memory[start : start + completion.length],
            data=completion.header_data or 0,
            src_addr=self._source(completion),
        )
        self._push_received(entry, completion.error)

    def _push_received(self, entry: CqEntry, error: str | None) -> None:
        queue = self._receive
        if queue is None:
            return
        if error is None:
            queue.push(entry)
            return
        queue.push(
            CqErrEntry(
                op_context=entry.op_context,
                flags=entry.flags,
                len=entry.len,
                buf=entry.buf,
                data=entry.data,
                tag=entry.tag,
                src_addr=entry.src_addr,
                err=error_number(error),
                error=error,
            )
        )

    def _source(self, completion: Completion) -> int:
        if self._av is None:
            return ADDR_UNSPEC
        return self._av.find(completion.peer, completion.initiator)

    def _count(self, flags: Flag, error: str | None) -> None:
        for kinds, counter in self._counters:
            if kinds & flags & _COUNTED:
                counter.add(error is not None)
