"""The wire form of posted requests: opcode, header format, addressing (UES 3.4, 2.2).

:func:`plan` judges a request before anything is queued.  What no packet could carry, or what the
endpoint's profiles leave out, is a :class:`MessageError` of one sentence.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any, Final, Protocol

from uet.config import DELIVERY_MODES, FepConfig
from uet.pds.semantics import Context, Outbound
from uet.profiles import FepCapability
from uet.ses.address import Address
from uet.ses.arrival import SYNC_ATOMIC, SYNC_WRITE
from uet.ses.memory.atomic_operations import AtomicError, size_of
from uet.ses.memory.operands import pack_operands
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE, OPTIMIZED
from uet.ses.target.rma_target import SYNC_HEADER
from uet.transport import (
    AtomicRequest,
    NoOperationRequest,
    ReadRequest,
    Request,
    SendRequest,
    WriteRequest,
)
from uet.wire.codes import (
    CSWAP_OPCODES,
    DEFERRABLE_OPCODES,
    RENDEZVOUS_OPCODES,
    NextHeader,
    Opcode,
    SemanticControl,
)

MAX_MESSAGE: Final = 2**32 - 2  # octets, as the UEC reference provider bounds it
#: Both operand fields of a compare-and-swap count as its request length.
_CSWAP_LENGTH: Final = 32
_SHORT_LENGTH: Final = 1 << 14  # small and medium headers have 14 bits for the length
#: The part of an optimized key that a small header can name (UES Table 2-13): 12 bits.
_SMALL_KEY: Final = 0xFFF
_KEY_PROPER: Final = (1 << 62) - 1
_STD: Final = int(NextHeader.REQUEST_STD)
_MEDIUM: Final = int(NextHeader.REQUEST_MEDIUM)
_SMALL: Final = int(NextHeader.REQUEST_SMALL)
_RMA: Final = frozenset({Opcode.WRITE, Opcode.READ, Opcode.ATOMIC, Opcode.FETCHING_ATOMIC})
#: Always with a standard header: they need its tokens or its message id.
_STANDARD_ONLY: Final = frozenset(
    {
        *RENDEZVOUS_OPCODES,
        *DEFERRABLE_OPCODES,
        Opcode.DEFERRABLE_RTR,
        Opcode.DATAGRAM_SEND,
        SYNC_WRITE,
        SYNC_ATOMIC,
    }
)
_CHANGES_NOTHING: Final = frozenset({Opcode.READ, Opcode.NO_OP, Opcode.DEFERRABLE_RTR})
_WRITE: Final = int(Opcode.WRITE)
_UINT64_END: Final = 1 << 64
_OPTIONAL: Final = frozenset({"header_data", "tag"})
_PROTOCOLS: Final = (None, "eager", "rendezvous", "deferrable")
#: Opcodes of a send by protocol, untagged and tagged.
_SENDS: Final = {
    "eager": (Opcode.SEND, Opcode.TAGGED_SEND),
    "deferrable": (Opcode.DEFERRABLE_SEND, Opcode.DEFERRABLE_TSEND),
    "rendezvous": (Opcode.RENDEZVOUS_SEND, Opcode.RENDEZVOUS_TSEND),
}


_NOTHING: Final = memoryview(b"")


class MessageError(ValueError):
    """A request cannot be carried out as posted."""


@dataclass(slots=True, kw_only=True)
class MessagePlan:
    """The fields that all packets of a message share in every attempt.

    ``length`` is the request length of the header. ``span`` is how many octets its packets share
    out (a read carries none of those that it requests; a rendezvous send only the eager part).
    ``memory`` is where returned data goes.
    """

    kind: str
    peer: str
    delivery: str
    address: Address
    opcode: int
    initiator: int
    length: int
    span: int = 0
    payload: memoryview | bytes = b""
    #: rendezvous: the message that the payload is the beginning of
    whole: memoryview = _NOTHING
    #: octets that its completion names, where ``length`` counts something else
    touched: int | None = None
    memory: memoryview | None = None
    #: a fetched element's type: results arrive big-endian, ``None`` means octets as they are
    datatype: int | None = None
    buffer_offset: int = 0
    match_bits: int = 0
    header_data: int | None = None
    delivery_complete: bool = False
    extension: bytes = b""
    #: IE: something went wrong here, and the message is sent only to report that
    initiator_error: bool = False
    #: EOM marks its packet where it has but one
    single_eom: bool = True
    restart_tokens: tuple[int, int] = (0, 0)
    next_header: int = _STD
    context: object = None

    @property
    def reported(self) -> int:
        """Octets that a complete message has moved."""
        return self.length if self.touched is None else self.touched

    @property
    def is_repeatable(self) -> bool:
        """Return whether nobody notices if it is carried out twice: where order does not count.

        So it is with what changes nothing, and with WRITEs to a region whose key marks it as
        idempotent, unless they are announced.
        """
        if self.delivery != "rud":
            return False
        if self.opcode == Opcode.WRITE:
            return self.header_data is None and bool(self.match_bits & IDEMPOTENT_SAFE)
        return self.opcode in _CHANGES_NOTHING

    @property
    def has_id(self) -> bool:
        """Return whether its header holds a message id that must be one of its own (UES 3.4.1)."""
        return self.next_header == _STD and self.opcode != Opcode.DATAGRAM_SEND


def check_octets(memory: memoryview, name: str, *, writable: bool = False) -> None:
    """Raise :class:`MessageError` unless ``memory`` is a flat view that one message can cover."""
    if memory.ndim != 1 or memory.itemsize != 1 or not memory.contiguous:
        raise MessageError(f"{name} must be a flat view of octets: use .cast('B')")
    if memory.nbytes > MAX_MESSAGE:
        raise MessageError(f"{memory.nbytes} octets exceed the largest message of {MAX_MESSAGE}")
    if writable and memory.readonly:
        raise MessageError(f"{name} is read-only; give memory that can be written")


def _check_numbers(request: Any, *names: str) -> None:
    for name in names:
        value = getattr(request, name)
        if (type(value) is int and 0 <= value < _UINT64_END) or (
            value is None and name in _OPTIONAL
        ):
            continue
        try:
            fits = 0 <= index(value) < 1 << 64
        except TypeError:
            fits = False
        if not fits:
            raise MessageError(f"{name} is {value!r}; it must be a number that fits into 64 bits")


def _need(config: FepConfig, held: FepCapability, capability: FepCapability, what: str) -> None:
    if capability not in held:
        profiles = " + ".join(config.profiles) or "(none)"
        raise MessageError(
            f"{what} needs {capability.name}, which the profile {profiles} does not have;"
            " add a profile that has it"
        )


def plan(request: Request, config: FepConfig, held: FepCapability, home: Address) -> MessagePlan:
    """Return how ``request`` goes out; ``home`` is the resource of requests that name none.

    Raises :class:`MessageError`.
    """
    delivery = request.delivery or config.delivery
    if delivery not in DELIVERY_MODES:
        raise MessageError(f"delivery is {delivery!r}; choose one of {', '.join(DELIVERY_MODES)}")
    address = home if request.destination is None else request.destination
    if not isinstance(address, Address):
        raise MessageError(f"destination is {address!r}; give a uet.ses.address.Address")
    if delivery == "uud" and not isinstance(request, SendRequest):
        raise MessageError("delivery 'uud' carries datagrams only: post a Send, or use 'rud'")
    if delivery == "rudi":
        _need(config, held, FepCapability.RUDI, "delivery 'rudi'")
        if not isinstance(request, WriteRequest | ReadRequest):
            raise MessageError("delivery 'rudi' repeats what it carries: post a Write or a Read")
    maker = _MAKERS.get(type(request))
    if maker is None:
        raise MessageError(f"{type(request).__name__} is no request that this endpoint knows")
    made = maker(request, config, held, delivery, address)
    if config.optimized_headers and FepCapability.OPTIMIZED_HEADERS in held:
        _optimize(made, config.payload_mtu)
    return made


def _write(
    request: WriteRequest, config: FepConfig, held: FepCapability, delivery: str, address: Address
) -> MessagePlan:
    check_octets(request.payload, "payload")
    _check_numbers(request, "key", "offset", "header_data")
    if delivery == "rudi" and request.header_data is not None:
        raise MessageError("a write with header data is not idempotent: use 'rud', not 'rudi'")
    length = request.payload.nbytes
    group = _synchronisation(request.synchronise, config)
    return MessagePlan(
        kind="write",
        peer=request.peer,
        delivery=delivery,
        address=address,
        opcode=SYNC_WRITE if group else _WRITE,
        extension=group,
        initiator=config.initiator_id,
        length=length,
        span=length,
        payload=request.payload,
        buffer_offset=request.offset,
        match_bits=request.key,
        header_data=request.header_data,
        delivery_complete=request.delivery_complete,
        context=request.context,
    )


def _read(
    request: ReadRequest, config: FepConfig, held: FepCapability, delivery: str, address: Address
) -> MessagePlan:
    _need(config, held, FepCapability.READ, "a read")
    check_octets(request.memory, "memory", writable=True)
    _check_numbers(request, "key", "offset")
    return read_plan(
        request.peer, delivery, address, request.key, request.offset, request.memory, config,
        context=request.context,
    )  # fmt: skip


def read_plan(
    peer: str,
    delivery: str,
    address: Address,
    key: int,
    offset: int,
    memory: memoryview,
    config: FepConfig,
    *,
    context: object = None,
) -> MessagePlan:
    """Plan a read for the application or a rendezvous (UES 3.4)."""
    return MessagePlan(
        kind="read",
        peer=peer,
        delivery=delivery,
        address=address,
        opcode=int(Opcode.READ),
        initiator=config.initiator_id,
        length=memory.nbytes,
        span=memory.nbytes,
        memory=memory,
        single_eom=not config.compatibility.single_read_without_eom,
        buffer_offset=offset,
        match_bits=key,
        context=context,
    )


def _send(
    request: SendRequest, config: FepConfig, held: FepCapability, delivery: str, address: Address
) -> MessagePlan:
    check_octets(request.payload, "payload")
    _check_numbers(request, "tag", "header_data")
    length = request.payload.nbytes
    if request.protocol not in _PROTOCOLS:
        raise MessageError(
            f"protocol is {request.protocol!r}; choose 'eager', 'rendezvous' or 'deferrable'"
        )
    kind = "send"
    span = length
    if delivery == "uud":
        _check_datagram(request, config)
        kind = "datagram"
        as_send = config.compatibility.datagrams_as_send
        opcode = Opcode.SEND if as_send else Opcode.DATAGRAM_SEND
    else:
        tagged = request.tag is not None
        if tagged:
            _need(config, held, FepCapability.TAGGED_SEND, "a tagged send")
        protocol = request.protocol or _choose(length, config, held, delivery)
        if protocol == "rendezvous":
            _need(config, held, FepCapability.RENDEZVOUS, "a rendezvous send")
            span = min(length, config.eager_size)
        elif protocol == "deferrable":
            _need(config, held, FepCapability.DEFERRABLE, "a deferrable send")
            if delivery != "rud":
                raise MessageError("a deferrable send restarts out of order: use delivery 'rud'")
        if not length:
            protocol = "eager"  # there is nothing to keep back
        opcode = _SENDS[protocol][tagged]
    return MessagePlan(
        kind=kind,
        peer=request.peer,
        delivery=delivery,
        address=address,
        opcode=int(opcode),
        initiator=config.initiator_id,
        length=length,
        span=span,
        payload=request.payload[:span],
        whole=request.payload,
        match_bits=request.tag or 0,
        header_data=request.header_data,
        delivery_complete=request.delivery_complete,
        context=request.context,
    )


def _check_datagram(request: SendRequest, config: FepConfig) -> None:
    if request.tag is not None:
        raise MessageError("a datagram has no tag: use delivery 'rud' for tagged sends")
    if request.protocol not in (None, "eager"):
        raise MessageError("a datagram goes at once: leave protocol out")
    if request.delivery_complete:
        raise MessageError("a datagram is never answered: leave delivery_complete out")
    if request.payload.nbytes > config.payload_mtu:
        raise MessageError(
            f"a datagram of {request.payload.nbytes} octets exceeds the payload MTU of"
            f" {config.payload_mtu}"
        )


def _choose(length: int, config: FepConfig, held: FepCapability, delivery: str) -> str:
    """Return the protocol of a send without one: the highest threshold reached decides."""
    best, protocol = -1, "eager"
    for name, threshold, possible in (
        ("deferrable", config.deferrable_threshold, FepCapability.DEFERRABLE in held),
        ("rendezvous", config.rendezvous_threshold, FepCapability.RENDEZVOUS in held),
    ):
        if not possible or threshold is None or not best < threshold <= length:
            continue
        if name == "rendezvous" or delivery == "rud":
            best, protocol = threshold, name
    return protocol


def _synchronisation(group: tuple[int, int] | None, config: FepConfig) -> bytes:
    """The extension header of a synchronised operation, nothing of any other."""
    if group is None:
        return b""
    if not config.compatibility.sync_operations:
        raise MessageError(
            "synchronised operations are an extension that UES 1.0 does not have: switch on the"
            " compatibility sync_operations"
        )
    try:
        return SYNC_HEADER.pack(*group)
    except (struct.error, TypeError):
        raise MessageError(
            f"synchronise is {group!r}; give a group and a number of members below 65536"
        ) from None


#: Opcodes by (tagged, fetching).
_ATOMIC_OPCODES: Final = {
    (False, False): int(Opcode.ATOMIC),
    (False, True): int(Opcode.FETCHING_ATOMIC),
    (True, False): int(Opcode.TSEND_ATOMIC),
    (True, True): int(Opcode.TSEND_FETCH_ATOMIC),
}


def _atomic(
    request: AtomicRequest, config: FepConfig, held: FepCapability, delivery: str, address: Address
) -> MessagePlan:
    result = request.result
    if result is None:
        _need(config, held, FepCapability.ATOMIC, "an atomic operation")
    else:
        _need(config, held, FepCapability.FETCHING_ATOMIC, "a fetching atomic operation")
        check_octets(result, "result", writable=True)
    if request.tag is not None:
        _need(config, held, FepCapability.TSEND_ATOMIC, "a tagged atomic operation")
    _check_numbers(request, "key", "offset", "tag")
    size = size_of(request.datatype) or 1
    try:
        extension, payload = pack_operands(
            request.operation,
            request.datatype,
            request.operand,
            request.compare,
            sem_ctl=int(SemanticControl.COHERENT),
        )
    except (AtomicError, ValueError) as error:
        raise MessageError(str(error)) from None
    touched = len(request.operand) or (size if result is None else result.nbytes)
    if result is not None and (result.nbytes != touched or not touched or touched % size):
        raise MessageError(
            f"result has {result.nbytes} octets; it must hold what the operation covers"
        )
    if max(len(payload), touched) > config.payload_mtu:
        raise MessageError(f"an atomic operation is one packet of {config.payload_mtu} octets")
    opcode = _ATOMIC_OPCODES[request.tag is not None, result is not None]
    group = _synchronisation(request.synchronise, config)
    if group:
        if opcode != Opcode.ATOMIC:
            raise MessageError("synchronise is for atomics without result and tag, and for writes")
        opcode, extension = SYNC_ATOMIC, group + extension
    length = _CSWAP_LENGTH if request.operation in CSWAP_OPCODES else len(payload) or touched
    return MessagePlan(
        kind="atomic",
        peer=request.peer,
        delivery=delivery,
        address=address,
        opcode=opcode,
        initiator=config.initiator_id,
        length=length,
        span=len(payload),
        payload=payload,
        touched=touched,
        memory=result,
        datatype=request.datatype,
        buffer_offset=request.offset,
        match_bits=request.key if request.tag is None else request.tag,
        extension=extension,
        context=request.context,
    )


def _no_operation(
    request: NoOperationRequest,
    config: FepConfig,
    held: FepCapability,
    delivery: str,
    address: Address,
) -> MessagePlan:
    return MessagePlan(
        kind="no_op",
        peer=request.peer,
        delivery=delivery,
        address=address,
        opcode=int(Opcode.NO_OP),
        initiator=config.initiator_id,
        length=0,
        context=request.context,
    )


def restart_plan(
    peer: str, delivery: str, address: Address, tokens: tuple[int, int], config: FepConfig
) -> MessagePlan:
    """DEFERRABLE_RTR: the message of these (initiator's, target's) tokens has a buffer now.

    UES 3.4; the plan has them in the order of the wire.
    """
    if config.compatibility.target_restart_token_first:
        tokens = tokens[::-1]
    return MessagePlan(
        kind="restart_request",
        peer=peer,
        delivery=delivery,
        address=address,
        opcode=int(Opcode.DEFERRABLE_RTR),
        initiator=config.initiator_id,
        length=0,
        restart_tokens=tokens,
    )


def _optimize(made: MessagePlan, mtu: int) -> None:
    """Choose the smallest header that holds all fields (UES 3.4, optimized headers)."""
    if (
        made.span > mtu
        or made.length >= _SHORT_LENGTH
        or made.opcode in _STANDARD_ONLY
        or made.delivery == "uud"
    ):
        return
    rma = made.opcode in _RMA
    key = made.match_bits
    if rma and key & OPTIMIZED and key & _KEY_PROPER <= _SMALL_KEY and made.header_data is None:
        made.next_header = _SMALL
    elif made.header_data is None or not made.buffer_offset:
        made.next_header = _MEDIUM  # header data has the place of the buffer offset


_MAKERS: Final[dict[type, Callable[..., MessagePlan]]] = {
    WriteRequest: _write,
    ReadRequest: _read,
    SendRequest: _send,
    AtomicRequest: _atomic,
    NoOperationRequest: _no_operation,
}


class Carrier(Protocol):
    """Finds the PDC, or the connectionless sender, for a message."""

    def carry(self, message: Outbound, peer: str, delivery: str) -> Context | None:
        """Queue ``message`` to ``peer`` in a delivery mode (``"rud"``, ``"rod"``, ...).

        ``None``: no PDC is free now; nothing was queued, and the endpoint signals when to try again
        (:meth:`uet.ses.initiator.initiator.Initiator.start_waiting`).
        """
        ...
