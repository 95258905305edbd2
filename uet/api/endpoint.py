"""Endpoints: bindings, operations, completions (``fi_endpoint``, ``fi_msg``, ``fi_rma``...)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from uet.api.address_vector import ADDR_UNSPEC, AddressVector, ProviderAddress
from uet.api.completion_queue import (
    CompletionQueue,
    Counter,
    CqEntry,
    CqErrEntry,
    error_number,
)
from uet.api.flags import ApiError, EndpointType, Flag, Order
from uet.profiles import FepCapability
from uet.ses.address import Address
from uet.ses.memory.atomic_operations import size_of, supported
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.transport import (
    AtomicRequest,
    Completion,
    ReadRequest,
    ReceiveRequest,
    Request,
    SendRequest,
    WriteRequest,
)
from uet.wire.codes import CSWAP_OPCODES, AtomicOpcode, Datatype

if TYPE_CHECKING:
    from uet.api.domain import Domain, MemoryRegion

_QUEUES = Flag.TRANSMIT | Flag.RECV
_COUNTED = Flag.SEND | Flag.RECV | Flag.READ | Flag.WRITE | Flag.REMOTE_WRITE


@dataclass(frozen=True, slots=True)
class _Operation:
    """What the requests of one kind have in common."""

    name: str
    request: type[Request]
    #: of its completion
    kind: Flag
    #: flags that a caller may give
    allowed: Flag = Flag.NONE
    #: what the profiles of both sides must have
    capability: FepCapability = FepCapability.NONE
    #: a DGRAM endpoint does not have this
    reliable: str = ""


_RMA = "remote memory access"
_SEND = _Operation(
    "a send", SendRequest, Flag.SEND | Flag.MSG, Flag.INJECT | Flag.DELIVERY_COMPLETE
)
_TAGGED_SEND = _Operation(
    "a tagged send",
    SendRequest,
    Flag.SEND | Flag.TAGGED,
    Flag.INJECT | Flag.DELIVERY_COMPLETE,
    FepCapability.TAGGED_SEND,
    "tagged messages",
)
_WRITE = _Operation(
    "a write",
    WriteRequest,
    Flag.RMA | Flag.WRITE,
    Flag.INJECT | Flag.DELIVERY_COMPLETE | Flag.RUDI,
    reliable=_RMA,
)
_READ = _Operation("a read", ReadRequest, Flag.RMA | Flag.READ, Flag.RUDI, FepCapability.READ, _RMA)
_ATOMIC = _Operation(
    "an atomic operation",
    AtomicRequest,
    Flag.ATOMIC | Flag.WRITE,
    capability=FepCapability.ATOMIC,
    reliable="atomic operations",
)
_FETCHING_ATOMIC = _Operation(
    "a fetching atomic operation",
    AtomicRequest,
    Flag.ATOMIC | Flag.READ,
    capability=FepCapability.FETCHING_ATOMIC,
    reliable="atomic operations",
)


@dataclass(slots=True, eq=False, kw_only=True)
class Posted:
    """An operation under way; it is the context that the FEP gives back."""

    endpoint: Endpoint
    op_context: object
    #: of its completion
    flags: Flag
    #: memory of a receive
    buf: memoryview | None = None
    #: injected ones complete in silence, unless they fail
    silent: bool = False
    #: multi-receive: least space for another message, octets taken, and octets completed
    least_space: int | None = None
    taken: int = 0
    done: int = 0


def octets(buf: object) -> memoryview:
    """``buf`` as a flat view of octets, without a copy; :class:`ApiError` if it cannot be."""
    try:
        view = memoryview(buf)  # type: ignore[arg-type]
        return view.cast("B")
    except TypeError:
        raise ApiError(
            f"a buffer is contiguous memory such as a bytearray or an array, not {buf!r}"
        ) from None


class Endpoint:
    """One resource index of one process; made by :meth:`uet.api.Domain.endpoint`.

    Operations post and return.  How they end stands in the completion queues and counters that are
    bound to the endpoint. Nothing moves until somebody waits on one or reads it.  What could never
    be carried out, or what the profiles of either side leave out, raises a ``ValueError`` of one
    sentence when it is posted.

    >>> from uet.api.loopback import pair
    >>> a, b = pair(profiles=("ai_base",))
    >>> a.endpoint.read(bytearray(8), a.peer, 0, 1)
    Traceback (most recent call last):
    ...
    uet.api.flags.ApiError: a read needs READ, which the profile ai_base does not have; add a \
profile that has it

    A DGRAM endpoint sends datagrams (UUD): nobody confirms them, and they complete when they
    have left.

    >>> from uet.api import EndpointType
    >>> a, b = pair(EndpointType.DGRAM)
    >>> b.endpoint.recv(bytearray(100))
    >>> a.endpoint.send(b"hello", a.peer)
    >>> a.cq.wait()[0].len, bytes(b.cq.wait()[0].buf)
    (5, b'hello')
    """

    #: ``FI_OPT_MIN_MULTI_RECV``: a multi-receive ends when fewer octets than these are left
    min_multi_recv = 64

    def __init__(
        self, domain: Domain, address: Address, kind: EndpointType, msg_order: Order
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

    # -- opening and closing -------------------------------------------------------------------

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

    # -- messages (fi_msg, fi_tagged) ------------------------------------------------------------
    #
    # Sends meet a receive which the peer has posted.  Buffers must not change until the operation
    # completes.  The configuration decides from which lengths sends become deferrable or
    # rendezvous ones.

    def send(
        self, buf: object, dest_addr: int, context: object = None, *, flags: Flag = Flag.NONE
    ) -> None:
        """A message for the next receive of ``dest_addr``: ``fi_send`` (SES SEND).

        >>> from uet.api import Flag
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> memory = bytearray(16)
        >>> b.endpoint.recv(memory)
        >>> a.endpoint.send(b"hello", a.peer, context=1, flags=Flag.DELIVERY_COMPLETE)
        >>> a.cq.wait()[0].op_context
        1
        >>> entry = b.cq.wait()[0]
        >>> bytes(entry.buf), entry.src_addr == b.peer
        (b'hello', True)
        """
        self._send(buf, dest_addr, None, None, context, flags)

    def senddata(
        self,
        buf: object,
        data: int,
        dest_addr: int,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """A message that brings 64 bits for the peer's completion: ``fi_senddata``.

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> b.endpoint.recv(bytearray(16))
        >>> a.endpoint.senddata(b"hello", 0xC0FFEE, a.peer)
        >>> hex(b.cq.wait()[0].data)
        '0xc0ffee'
        """
        self._send(buf, dest_addr, None, data, context, flags)

    def inject(self, buf: object, dest_addr: int) -> None:
        """A message whose buffer may be used again at once: ``fi_inject``.

        At most one payload MTU.  It completes in silence; only its failure is reported.

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> memory, message = bytearray(5), bytearray(b"hello")
        >>> b.endpoint.recv(memory)
        >>> a.endpoint.inject(message, a.peer)
        >>> message[:] = b"-----"
        >>> b.cq.wait()[0].len, bytes(memory)
        (5, b'hello')
        >>> a.cq.wait()
        []
        """
        self._send(buf, dest_addr, None, None, None, Flag.INJECT, silent=True)

    def tsend(
        self,
        buf: object,
        dest_addr: int,
        tag: int,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """A message for the first receive that its 64-bit tag fits: ``fi_tsend`` (TAGGED_SEND).

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> b.endpoint.trecv(bytearray(16), tag=1, context="one")
        >>> b.endpoint.trecv(bytearray(16), tag=2, context="two")
        >>> a.endpoint.tsend(b"hello", a.peer, 2)
        >>> entry = b.cq.wait()[0]
        >>> entry.op_context, entry.tag, bytes(entry.buf)
        ('two', 2, b'hello')
        """
        self._send(buf, dest_addr, tag, None, context, flags)

    def tsenddata(
        self,
        buf: object,
        data: int,
        dest_addr: int,
        tag: int,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """A tagged message that brings 64 bits for the peer's completion: ``fi_tsenddata``.

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> b.endpoint.trecv(bytearray(16), tag=2)
        >>> a.endpoint.tsenddata(b"hello", 11, a.peer, 2)
        >>> b.cq.wait()[0].data
        11
        """
        self._send(buf, dest_addr, tag, data, context, flags)

    def tinject(self, buf: object, dest_addr: int, tag: int) -> None:
        """A tagged message whose buffer may be used again at once: ``fi_tinject``.

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> b.endpoint.trecv(bytearray(16), tag=2)
        >>> a.endpoint.tinject(b"hello", a.peer, 2)
        >>> bytes(b.cq.wait()[0].buf)
        b'hello'
        """
        self._send(buf, dest_addr, tag, None, None, Flag.INJECT, silent=True)

    def recv(
        self,
        buf: object,
        src_addr: int = ADDR_UNSPEC,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """Memory for an untagged message, from ``src_addr`` only if given: ``fi_recv``.

        With :attr:`Flag.MULTI_RECV` it takes message after message until fewer than
        ``min_multi_recv`` octets are left; the completion that has the flag is the last.

        >>> from uet.api import Flag
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> b.endpoint.recv(bytearray(100), flags=Flag.MULTI_RECV)
        >>> a.endpoint.send(b"the first of both", a.peer)
        >>> a.endpoint.send(b"and the second, after which less than 64 are left", a.peer)
        >>> entries = []
        >>> while len(entries) < 2:
        ...     entries += b.cq.wait()
        >>> [(entry.len, Flag.MULTI_RECV in entry.flags) for entry in entries]
        [(17, False), (49, True)]
        """
        self._recv(buf, src_addr, None, 0, context, flags)

    def trecv(
        self,
        buf: object,
        src_addr: int = ADDR_UNSPEC,
        tag: int = 0,
        ignore: int = 0,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """Memory for a message whose tag equals ``tag``, bits in ``ignore`` aside: ``fi_trecv``.

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> b.endpoint.trecv(bytearray(16), tag=0x100, ignore=0xFF)
        >>> a.endpoint.tsend(b"hello", a.peer, 0x142)
        >>> hex(b.cq.wait()[0].tag)
        '0x142'
        """
        self._recv(buf, src_addr, tag, ignore, context, flags)

    def _send(
        self,
        buf: object,
        dest_addr: int,
        tag: int | None,
        data: int | None,
        context: object,
        flags: Flag,
        *,
        silent: bool = False,
    ) -> None:
        operation = _SEND if tag is None else _TAGGED_SEND
        peer = self._checked(operation, dest_addr, flags)
        self._post(
            operation,
            peer,
            context,
            silent=silent,
            payload=self._payload(buf, flags),
            tag=tag,
            header_data=data,
            delivery_complete=Flag.DELIVERY_COMPLETE in flags,
        )

    def _recv(
        self, buf: object, src_addr: int, tag: int | None, ignore: int, context: object, flags: Flag
    ) -> None:
        self._check_open()
        self._check_flags(flags, Flag.MULTI_RECV, "a receive")
        if tag is not None:
            self._need_reliable(_TAGGED_SEND)
        source = None
        if src_addr != ADDR_UNSPEC:
            source = self._peer(src_addr)
        memory = octets(buf)
        multi = Flag.MULTI_RECV in flags
        posted = Posted(
            endpoint=self,
            op_context=context,
            flags=Flag.RECV | (Flag.MSG if tag is None else Flag.TAGGED),
            buf=memory,
            least_space=self.min_multi_recv if multi else None,
        )
        self._receives[posted] = None
        try:
            self.domain.fep.target.post_receive(
                ReceiveRequest(
                    memory=memory,
                    tag=tag,
                    ignore=ignore,
                    initiator=None if source is None else source.initiator_id,
                    peer=None if source is None else source.address,
                    least_space=posted.least_space,
                    context=posted,
                ),
                self.address,
            )
        except ValueError:
            del self._receives[posted]
            raise

    # -- a peer's memory (fi_rma) ----------------------------------------------------------------
    #
    # ``addr`` counts octets from the start of the peer's region named by ``key``.

    def write(
        self,
        buf: object,
        dest_addr: int,
        addr: int,
        key: int,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """Put ``buf`` into the peer's memory: ``fi_write`` (SES WRITE).

        The peer gets no notification of it.  With :attr:`Flag.RUDI` no PDC is used; the region must
        have been registered as idempotent.

        >>> from uet.api import Flag
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> memory = bytearray(10)
        >>> region = b.domain.mr_reg(memory, idempotent=True)
        >>> a.endpoint.write(b"hello", a.peer, 5, region.key, flags=Flag.RUDI)
        >>> a.cq.wait()[0].len, bytes(memory[5:])
        (5, b'hello')
        """
        self._write(buf, dest_addr, addr, key, None, context, flags)

    def writedata(
        self,
        buf: object,
        data: int,
        dest_addr: int,
        addr: int,
        key: int,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """Write with 64 bits for a completion at the peer when all is placed: ``fi_writedata``.

        >>> from uet.api import Flag
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> region = b.domain.mr_reg(bytearray(10_000))
        >>> a.endpoint.writedata(bytes(9_000), 42, a.peer, 0, region.key)
        >>> entry = b.cq.wait()[0]
        >>> entry.data, entry.len, Flag.REMOTE_WRITE in entry.flags
        (42, 9000, True)
        """
        self._write(buf, dest_addr, addr, key, data, context, flags)

    def inject_write(self, buf: object, dest_addr: int, addr: int, key: int) -> None:
        """A write whose buffer may be used again at once: ``fi_inject_write``.

        At most one payload MTU.  It completes in silence; only its failure is reported.

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> memory = bytearray(5)
        >>> a.endpoint.inject_write(b"hello", a.peer, 0, b.domain.mr_reg(memory).key)
        >>> a.cq.wait(), bytes(memory)
        ([], b'hello')
        """
        self._write(buf, dest_addr, addr, key, None, None, Flag.INJECT, silent=True)

    def read(
        self,
        buf: object,
        src_addr: int,
        addr: int,
        key: int,
        context: object = None,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        """Fill ``buf`` from the peer's memory: ``fi_read`` (SES READ, one per payload MTU).

        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> region = b.domain.mr_reg(bytearray(b"hello world"))
        >>> memory = bytearray(5)
        >>> a.endpoint.read(memory, a.peer, 6, region.key)
        >>> a.cq.wait()[0].len, bytes(memory)
        (5, b'world')
        """
        peer = self._checked(_READ, src_addr, flags)
        self._post(
            _READ,
            peer,
            context,
            delivery=self._rma_delivery(flags, peer, key),
            key=key,
            offset=addr,
            memory=octets(buf),
        )

    def _write(
        self,
        buf: object,
        dest_addr: int,
        addr: int,
        key: int,
        data: int | None,
        context: object,
        flags: Flag,
        *,
        silent: bool = False,
    ) -> None:
        peer = self._checked(_WRITE, dest_addr, flags)
        self._post(
            _WRITE,
            peer,
            context,
            silent=silent,
            delivery=self._rma_delivery(flags, peer, key),
            key=key,
            offset=addr,
            payload=self._payload(buf, flags),
            header_data=data,
            delivery_complete=Flag.DELIVERY_COMPLETE in flags,
        )

    # -- atomic operations (fi_atomic) -----------------------------------------------------------
    #
    # Buffers hold whole elements of one type, little-endian, as the target's memory does; there are
    # as many as fit into one payload MTU, and one for a compare-and-swap.  ``addr`` must be a
    # multiple of the element's size.

    def atomic(
        self,
        buf: object,
        dest_addr: int,
        addr: int,
        key: int,
        datatype: Datatype,
        op: AtomicOpcode,
        context: object = None,
    ) -> None:
        """``target = target op buf``, element by element: ``fi_atomic`` (SES ATOMIC).

        >>> from uet.api import AtomicOpcode, Datatype
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> memory = bytearray((40).to_bytes(8, "little"))
        >>> region = b.domain.mr_reg(memory)
        >>> two = (2).to_bytes(8, "little")
        >>> a.endpoint.atomic(two, a.peer, 0, region.key, Datatype.UINT64, AtomicOpcode.SUM)
        >>> a.cq.wait()[0].len, int.from_bytes(memory, "little")
        (8, 42)
        """
        self._atomic(buf, None, None, dest_addr, addr, key, datatype, op, context)

    def fetch_atomic(
        self,
        buf: object,
        result: object,
        dest_addr: int,
        addr: int,
        key: int,
        datatype: Datatype,
        op: AtomicOpcode,
        context: object = None,
    ) -> None:
        """Run an atomic operation and fetch the original value: ``fi_fetch_atomic``.

        The value goes to ``result``.

        :attr:`AtomicOpcode.READ` (``FI_ATOMIC_READ``) goes with an empty ``buf``.

        >>> from uet.api import AtomicOpcode, Datatype
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> memory = bytearray((40).to_bytes(8, "little"))
        >>> key, before = b.domain.mr_reg(memory).key, bytearray(8)
        >>> two = (2).to_bytes(8, "little")
        >>> a.endpoint.fetch_atomic(
        ...     two, before, a.peer, 0, key, Datatype.UINT64, AtomicOpcode.SUM
        ... )
        >>> a.cq.wait()[0].len
        8
        >>> int.from_bytes(before, "little"), int.from_bytes(memory, "little")
        (40, 42)
        """
        self._atomic(buf, None, result, dest_addr, addr, key, datatype, op, context)

    def compare_atomic(  # noqa: PLR0913  libfabric's arguments
        self,
        buf: object,
        compare: object,
        result: object,
        dest_addr: int,
        addr: int,
        key: int,
        datatype: Datatype,
        op: AtomicOpcode,
        context: object = None,
    ) -> None:
        """Replace the target by ``buf`` where ``compare`` selects it: ``fi_compare_atomic``.

        The CSWAP operations compare it with the target, MSWAP takes it as a mask.  ``result``
        gets the original value.

        >>> from uet.api import AtomicOpcode, Datatype
        >>> from uet.api.loopback import pair
        >>> a, b = pair()
        >>> memory = bytearray((40).to_bytes(4, "little"))
        >>> key, before = b.domain.mr_reg(memory).key, bytearray(4)
        >>> new, expected = (42).to_bytes(4, "little"), (40).to_bytes(4, "little")
        >>> a.endpoint.compare_atomic(
        ...     new, expected, before, a.peer, 0, key, Datatype.INT32, AtomicOpcode.CSWAP
        ... )
        >>> a.cq.wait()[0].len
        4
        >>> int.from_bytes(before, "little"), int.from_bytes(memory, "little")
        (40, 42)
        """
        self._atomic(buf, compare, result, dest_addr, addr, key, datatype, op, context)

    def atomicvalid(self, datatype: Datatype, op: AtomicOpcode) -> int:
        """Return how many elements one operation takes, 0 if there is none: ``fi_atomicvalid``.

        >>> from uet.api import AtomicOpcode, Datatype
        >>> from uet.api.loopback import pair
        >>> a, b = pair(payload_mtu=4096)
        >>> a.endpoint.atomicvalid(Datatype.UINT64, AtomicOpcode.SUM)
        512
        >>> a.endpoint.atomicvalid(Datatype.DOUBLE, AtomicOpcode.BOR)
        0
        """
        size = size_of(datatype)
        if size is None or not supported(op, datatype):
            return 0
        if op in CSWAP_OPCODES:
            return 1 if size <= 16 else 0
        room = self.domain.config.payload_mtu
        return room // (2 * size if op == AtomicOpcode.MSWAP else size)

    def _atomic(  # noqa: PLR0913  libfabric's arguments
        self,
        buf: object,
        compare: object,
        result: object,
        dest_addr: int,
        addr: int,
        key: int,
        datatype: Datatype,
        op: AtomicOpcode,
        context: object,
    ) -> None:
        operation = _ATOMIC if result is None else _FETCHING_ATOMIC
        self._need_reliable(operation)
        if result is None and op in (AtomicOpcode.READ, AtomicOpcode.INVAL):
            raise ApiError(f"{op.name} only fetches; use fetch_atomic")
        self._post(
            operation,
            self._checked(operation, dest_addr, Flag.NONE),
            context,
            key=key,
            offset=addr,
            operation=int(op),
            datatype=int(datatype),
            operand=bytes(octets(buf)),
            compare=None if compare is None else bytes(octets(compare)),
            result=None if result is None else octets(result),
        )

    # -- posting -------------------------------------------------------------------------------

    def _checked(self, operation: _Operation, fi_addr: int, flags: Flag) -> ProviderAddress:
        """Return the peer of an operation; :class:`ApiError` if it cannot be carried out."""
        self._check_flags(flags, operation.allowed, operation.name)
        self._need_reliable(operation)
        peer = self._peer(fi_addr)
        self._need(operation.capability, operation.name, peer)
        return peer

    def _post(
        self,
        operation: _Operation,
        peer: ProviderAddress,
        context: object,
        /,
        *,
        silent: bool = False,
        delivery: str | None = None,
        **parameters: object,
    ) -> None:
        posted = Posted(endpoint=self, op_context=context, flags=operation.kind, silent=silent)
        self.domain.fep.post(
            operation.request(
                peer=peer.address,
                destination=peer.destination,
                delivery=delivery or self._delivery,
                context=posted,
                **parameters,
            )
        )

    def _peer(self, fi_addr: int) -> ProviderAddress:
        """Return the address of a handle."""
        self._check_open()
        if not self._enabled or self._av is None:
            raise ApiError("the endpoint is not enabled; bind what it needs and call enable()")
        return self._av.lookup(fi_addr)

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

    def _need_reliable(self, operation: _Operation) -> None:
        if operation.reliable and self.type is EndpointType.DGRAM:
            raise ApiError(
                f"a DGRAM endpoint carries datagrams only; open an RDM one for {operation.reliable}"
            )

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

    def _payload(self, buf: object, flags: Flag) -> memoryview:
        view = octets(buf)
        if Flag.INJECT not in flags:
            return view
        limit = self.domain.config.payload_mtu
        if view.nbytes > limit:
            raise ApiError(
                f"{view.nbytes} octets are too many to inject; at most one payload MTU of {limit}"
            )
        return memoryview(bytes(view))

    # -- completions ---------------------------------------------------------------------------

    def completed(self, posted: Posted, completion: Completion) -> None:
        """An operation has ended.  Called by the domain."""
        if posted.buf is not None:
            self._received(posted, posted.buf, completion)
            return
        error = completion.error
        self._count(posted.flags, error)
        if error is not None or not posted.silent:
            length = completion.length if error is None else 0
            entry = CqEntry(op_context=posted.op_context, flags=posted.flags, len=length)
            _push(self._transmit, entry, error)

    def _received(self, posted: Posted, buf: memoryview, completion: Completion) -> None:
        flags, start, length = posted.flags, completion.offset or 0, completion.length
        if posted.least_space is not None:
            used = length if completion.used is None else completion.used
            posted.taken = max(posted.taken, start + used)
            posted.done += used
            full = len(buf) - posted.taken < posted.least_space
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
            buf=buf[start : start + length],
            data=completion.header_data or 0,
            tag=completion.tag or 0,
            src_addr=self._source(completion),
        )
        _push(self._receive, entry, completion.error)

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
        _push(self._receive, entry, completion.error)

    def _source(self, completion: Completion) -> int:
        if self._av is None:
            return ADDR_UNSPEC
        return self._av.find(completion.peer, completion.initiator)

    def _count(self, flags: Flag, error: str | None) -> None:
        for kinds, counter in self._counters:
            if kinds & flags & _COUNTED:
                counter.add(error is not None)


def _push(queue: CompletionQueue | None, entry: CqEntry, error: str | None) -> None:
    if queue is None:
        return
    if error is not None:
        values = {field.name: getattr(entry, field.name) for field in fields(entry)}
        entry = CqErrEntry(**values, err=error_number(error), error=error)
    queue.push(entry)
