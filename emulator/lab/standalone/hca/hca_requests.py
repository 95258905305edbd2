"""The operations of RoCEv2 in the words of ``uetemu fep``, and what they are at a peer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from emulator.errors import UserError
from emulator.lab.standalone.hca.card import Card
from emulator.lab.standalone.script.requested_operations import Message
from emulator.rocev2.memory import ADDRESS_BITS, KEY_BITS
from emulator.rocev2.wire.codes import BthOperation
from topologies.advice import question
from uet.transport import AtomicRequest, ReadRequest, Request, SendRequest, WriteRequest
from uet.wire.codes import AtomicOpcode, Datatype

_COMMON = ("size", "count", "error", "after")
_RMA = ("key", "offset", "step")
_DATA = ("pattern", "index", "header_data")
#: The fields of each operation.
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "write": (*_COMMON, *_RMA, *_DATA),
    "read": (*_COMMON, *_RMA, "expect", "index"),
    "send": (*_COMMON, *_DATA),
    "fetch": (*_COMMON, *_RMA, "operation", "operand", "compare", "expect"),
}
#: The two atomics of IBA 9.4.5, by their names among those of UET.
_ATOMICS: Final = {
    AtomicOpcode.SUM: BthOperation.FETCH_ADD,
    AtomicOpcode.CSWAP: BthOperation.COMPARE_SWAP,
}
#: How work can end, as verbs call it.
_ERRORS: Final = (
    "LOC_LEN_ERR", "WR_FLUSH_ERR", "BAD_RESP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR",
    "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "REFUSED_HERE",
)  # fmt: skip
#: Stands for the peer and its region, which are not known before cards are exchanged.
ANY_PEER = "0.0.0.0"
THE_REGION = 1 << KEY_BITS


def error_name(text: str, what: str) -> str:
    """The error of that name.  Raises :class:`UserError`."""
    name = text.strip().upper().removeprefix("IBV_WC_")
    if name in _ERRORS:
        return name
    listed = f"choose one of {', '.join(_ERRORS)}"
    hint = question(name, _ERRORS, otherwise=listed, likeness=0.5)
    raise UserError(f"{what} is {text!r}, which no operation ends with; {hint}")


def must_be_possible(message: Message) -> None:
    """Raise :class:`UserError` for what RoCEv2 does not have, whoever the peer is."""
    request, what = message.request, f"operation {message.number} ({message.name})"
    if isinstance(request, AtomicRequest) and request.operation not in _ATOMICS:
        name = AtomicOpcode(request.operation).name.lower()
        raise UserError(f"{what}: RoCEv2 has no {name}; its atomics are fetch:sum and cswap")
    if isinstance(request, WriteRequest | SendRequest) and (request.header_data or 0) >> 32:
        raise UserError(
            f"{what}: header_data is {request.header_data:#x}; an immediate has 32 bits"
        )


def at_peer(message: Message, peer: Card) -> None:
    """Aim it at the peer's queue pair and, unless it names another one, region.

    Raises :class:`UserError` if there is no such region, or no such address.
    """
    aim: dict[str, object] = {"peer": peer.address, "destination": None, "delivery": None}
    request: Request = message.request
    if isinstance(request, WriteRequest | ReadRequest | AtomicRequest):
        key, offset = request.key, request.offset
        if key == THE_REGION:
            if peer.rkey is None:
                raise UserError(
                    f"operation {message.number} ({message.name}) is for the peer's memory, and its"
                    " card names none; let it register a region, or say --peer-rkey"
                )
            key, offset = peer.rkey, peer.vaddr + offset
        if key >> KEY_BITS or offset >> ADDRESS_BITS:
            raise UserError(
                f"operation {message.number} ({message.name}): R_Keys have {KEY_BITS} bits and"
                f" addresses {ADDRESS_BITS}, and it has {key:#x} and {offset:#x}"
            )
        aim |= {"key": key, "offset": offset}
        message.stated |= {"key": f"{key:#x}", "offset": offset}
    if isinstance(request, AtomicRequest):
        aim |= {"operation": int(_ATOMICS[AtomicOpcode(request.operation)])}
        aim |= {"datatype": int(Datatype.UINT64)}
    message.stated["peer"] = peer.address
    message.request = replace(request, **aim)  # type: ignore[arg-type]
