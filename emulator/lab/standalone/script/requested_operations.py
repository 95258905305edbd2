"""Operations of an initiator: phrases and scripts as requests with expectations.

A phrase such as ``write:3000,offset=4k,count=3`` and a script's object ``{"op": "write", "size":
3000, "offset": 4096, "count": 3}`` have the same meaning.
"""

from __future__ import annotations

import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from emulator.errors import UserError
from emulator.lab.standalone.script.contents import (
    encode,
    must_fit,
    pattern,
    type_of,
)
from emulator.lab.standalone.script.phrases import check_names, duration, ip, number, phrase, switch
from topologies.advice import question
from uet import transport
from uet.config import DELIVERY_MODES
from uet.pds.pdc import PdcState
from uet.ses.address import Address
from uet.ses.memory.atomic_operations import NO_OPERAND, WITH_COMPARE, size_of
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.transport import ReadRequest, Request, WriteRequest
from uet.wire.codes import AtomicOpcode, Datatype, NackCode, ReturnCode

if TYPE_CHECKING:
    from emulator.lab.standalone.uet_endpoint import WatchedEndpoint


#: Errors of this end: what no peer has answered.
_OWN: Final = ("TIMEOUT", "RTO_RETRIES_EXHAUSTED", "NACK_RETRIES_EXHAUSTED", "PDC_CLOSED",
               "CLOSE_REQ_TIMEOUT", "READ_TIMEOUT", "RENDEZVOUS_TIMEOUT", "RESTART_TIMEOUT",
               "MALFORMED_RESPONSE", "REFUSED_HERE", "TSS_COUNTER_EXHAUSTED", "TSS_NEEDS_SSI",
               "TSS_UNKNOWN_CLIENT")  # fmt: skip
_NO_ERRORS: Final = ("NULL", "OK")
#: Reserved return codes are named by number.
_NUMBERED: Final = re.compile(r"RETURN_CODE_0X[0-9A-F]{2}")


def known_errors() -> tuple[str, ...]:
    """Own errors, SES return codes, NACK codes."""
    codes = (code.name for code in ReturnCode if code.name not in _NO_ERRORS)
    return (*_OWN, *codes, *(code.name for code in NackCode))


#: Without bit 63 there may be such a region, or not.
_NO_SAFE_REGION = (ReturnCode.OP_VIOLATION.name, ReturnCode.BAD_MKEY.name)


def error_name(text: str, what: str) -> str:
    """The error of that name, with or without ``RC_``.  Raises :class:`UserError`."""
    known = known_errors()
    name = text.strip().upper().removeprefix("RC_")
    if name in known:
        return name
    if _NUMBERED.fullmatch(name):
        return f"RETURN_CODE_0x{name[-2:].lower()}"
    listed = f"choose one of {', '.join(known)}"
    hint = question(name, known, otherwise=listed, likeness=0.5)
    raise UserError(f"{what} is {text!r}, which no operation ends with; {hint}")


def explanation(request: Request, error: str | None, delivery: str) -> str | None:
    """Return what a user of RUDI can do about a refusal.

    ``delivery`` is what the request leaves open.
    """
    if (
        not isinstance(request, ReadRequest | WriteRequest)
        or (request.delivery or delivery) != "rudi"
    ):
        return None
    if error == ReturnCode.OP_VIOLATION.name and not request.key & IDEMPOTENT_SAFE:
        return (
            "the region is not idempotent-safe, as RUDI wants it; offer it with --region"
            " KEY:SIZE,idempotent and say idempotent here"
        )
    if error in _NO_SAFE_REGION and request.key & IDEMPOTENT_SAFE:
        return (
            f"the peer has no idempotent-safe region {request.key:#x}, which RUDI asks for with"
            " bit 63 set; offer it with --region KEY:SIZE,idempotent"
        )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest(Request):
    """Send a PROBE on an open PDC to ``peer``, and have it answered within ``wait`` ns.

    A PROBE that is lost is not sent again (UES 3.5.16).
    """

    wait: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Request):
    """Open a PDC by a NOOP, or a NEGOTIATION; with a PDC there already, it goes on that."""

    ordered: bool
    negotiate: bool


class Pending(ABC):
    """An operation of the PDS under way.

    ``deadline`` (ns) is when it is given up; ``None``: its PDC decides that.
    """

    deadline: int | None = None

    @abstractmethod
    def outcome(self, now: int) -> tuple[bool, str | None]:
        """Return whether it has ended, and by which error."""


class _Probe(Pending):
    deadline: int

    def __init__(self, endpoint: WatchedEndpoint, request: ProbeRequest, now: int) -> None:
        self._endpoint, self._before = endpoint, endpoint.counts["rx_probe_acks"]
        if not endpoint.probe(request.peer):
            raise ValueError(
                f"no PDC to {request.peer} is open here; let an open, or another operation, go"
                " before"
            )
        self.deadline = now + request.wait

    def outcome(self, now: int) -> tuple[bool, str | None]:
        if self._endpoint.counts["rx_probe_acks"] > self._before:
            return True, None
        return now >= self.deadline, "TIMEOUT"


class _Opening(Pending):
    def __init__(self, endpoint: WatchedEndpoint, request: Open) -> None:
        pdc = endpoint.open_pdc(request.peer, ordered=request.ordered, negotiate=request.negotiate)
        if pdc is None:
            raise ValueError(f"there is no room for a PDC to {request.peer}")
        self._endpoint, self._pdc = endpoint, pdc
        self._psn = pdc.source.window.next - 1 & 0xFFFF_FFFF

    def outcome(self, now: int) -> tuple[bool, str | None]:
        pdc = self._pdc
        error = self._endpoint.failures.get(pdc.id)
        if error is not None:
            return True, error
        if not pdc.source.window.is_open(self._psn) and pdc.peer_id:
            return True, None
        return pdc.state is PdcState.CLOSED, "PDC_CLOSED"


def begun(endpoint: WatchedEndpoint, request: ProbeRequest | Open, now: int) -> Pending:
    """Send what belongs to no request.  Raises ``ValueError`` if it cannot be sent."""
    if isinstance(request, ProbeRequest):
        return _Probe(endpoint, request, now)
    return _Opening(endpoint, request)


#: The key under which a target registers its memory by default.
DEFAULT_KEY: Final = 0x4000_0000_0000_0123
_COMMON = ("size", "count", "peer", "delivery", "job_id", "pid_on_fep", "resource_index",
           "absolute", "error", "after")  # fmt: skip
_RMA = ("key", "offset", "step")
_DATA = ("pattern", "index", "header_data", "dc")
_ATOMIC = ("operation", "type", "operand", "compare", "tag", "tag_step")
#: The operations of UET, and the fields of each.
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "write": (*_COMMON, *_RMA, *_DATA, "synchronise", "idempotent"),
    "read": (*_COMMON, *_RMA, "expect", "index", "idempotent"),
    "send": (*_COMMON, *_DATA, "protocol"),
    "tsend": (*_COMMON, *_DATA, "protocol", "tag", "tag_step"),
    "datagram": (*_COMMON, "pattern", "index", "header_data"),
    "atomic": (*_COMMON, *_RMA, *_ATOMIC, "synchronise"),
    "fetch": (*_COMMON, *_RMA, *_ATOMIC, "expect"),
    "noop": _COMMON,
    "open": ("count", "peer", "delivery", "negotiate", "after", "error"),
    "probe": ("count", "peer", "wait", "after", "error"),
}
_SHORT: Final = {"hd": "header_data", "length": "size", "data": "pattern", "ri": "resource_index",
                 "pid": "pid_on_fep", "job": "job_id", "sync": "synchronise"}  # fmt: skip
_PROTOCOLS: Final = ("eager", "rendezvous", "deferrable")
#: Atomic operations that have a verb of their own.
_VERBS: Final = ("cswap", "cswap_ne", "cswap_le", "cswap_lt", "cswap_ge", "cswap_gt", "mswap")


@dataclass(slots=True)
class Message:
    """One request to be posted, and what must come of it.

    ``memory`` is where a read's or fetch's data comes, ``expected`` the octets that must be there
    then (``None``: any), ``error`` the name of the error it must end with (``None``: none).
    ``after`` ns it is posted at the earliest, counted from the first one.
    """

    name: str
    request: transport.Request
    size: int
    memory: memoryview | None = None
    expected: bytes | None = None
    error: str | None = None
    after: int = 0
    datatype: Datatype | None = None
    stated: dict[str, object] = field(default_factory=dict)
    number: int = 0
    posted_at: int = 0


@dataclass(frozen=True, slots=True)
class Around:
    """Defaults of an operation: its peer, its delivery, and the seed of random data.

    ``delivery`` is the endpoint's own delivery mode.  ``fields`` are the operations there are, with
    the fields of each; ``error`` takes the name of an error, and what to call the place it is in.
    No message has more than ``longest`` octets.
    """

    peer: str
    peers: Sequence[str]
    home: Address
    key: int = DEFAULT_KEY
    seed: int = 0
    delivery: str = "rud"
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: FIELDS)
    error: Callable[[str, str], str] = error_name
    longest: int = 2**32 - 2


def messages_of(phrases: Sequence[str], script: str | None, around: Around) -> list[Message]:
    """Every message, in the order of posting.  Raises :class:`UserError`."""
    items: list[tuple[Mapping[str, Any], str]] = [(_as_item(text), text) for text in phrases]
    if script is not None:
        for index, item in enumerate(_read_script(script), 1):
            where = f"{'standard input' if script == '-' else script}, operation {index}"
            items.append((item if isinstance(item, dict) else _text_item(item, where), where))
    out: list[Message] = []
    for item, where in items:
        out.extend(_Maker(item, where, around).messages())
    for place, message in enumerate(out):
        message.number = place
    return out


def _as_item(text: str) -> dict[str, Any]:
    reported = phrase(text)
    item: dict[str, Any] = {"op": reported.head}
    if reported.size is not None:
        item["operation" if reported.head in ("atomic", "fetch") else "size"] = reported.size
    for name, value in reported.fields.items():
        name = _SHORT.get(name, name)
        if name in item:
            raise UserError(f"{text!r} says {name} twice; leave one out")
        item[name] = value
    return item


def _text_item(item: object, where: str) -> dict[str, Any]:
    if not isinstance(item, str):
        raise UserError(f"{where} is neither an object nor a phrase; write for example write:3000")
    return _as_item(item)


def _read_script(source: str) -> list[Any]:
    where = "standard input" if source == "-" else source
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise UserError(f"{where} is not text in UTF-8; give a JSON script") from None
    if not text.strip():
        raise UserError(f"{where} holds no operations; give a list of objects with an op each")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise UserError(f"{where} is not a JSON script: {fault}; correct it") from None
    if isinstance(data, dict):
        data = data.get("operations", [data] if "op" in data else None)
    if not isinstance(data, list) or not data:
        raise UserError(f"{where} holds no operations; give a list of objects with an op each")
    return data


class _Maker:
    def __init__(self, item: Mapping[str, Any], where: str, around: Around) -> None:
        item = {_SHORT.get(str(name), str(name)): value for name, value in item.items()}
        self._where = where.rstrip(":")
        self._around = around
        verb = str(item.pop("op", ""))
        if verb in _VERBS:
            item.setdefault("operation", verb)
            verb = "fetch"
        fields = around.fields
        if verb not in fields:
            verbs = ("cswap", "mswap") if fields is FIELDS else ("cswap",)
            known = ", ".join((*fields, *verbs))
            raise UserError(f"{where}: there is no operation {verb!r}; choose {known}")
        check_names(item, fields[verb], f"{where}: {verb}")
        self._verb, self._item = verb, item

    def _number(self, name: str, default: int, *, low: int = 0, high: int = 2**64 - 1) -> int:
        value = self._item.get(name)
        if value is None:
            return default
        return number(value, f"{self._where}: {name}", low=low, high=high)

    def _maybe(self, name: str) -> int | None:
        return None if self._item.get(name) is None else self._number(name, 0)

    def _switch(self, name: str, default: bool = False) -> bool:
        value = self._item.get(name)
        return default if value is None else switch(value, f"{self._where}: {name}")

    def _octets(self, name: str, size: int, place: int) -> bytes:
        rule = pattern(str(self._item.get(name, "reference")), f"{self._where}: {name}")
        return rule.octets(size, place, self._around.seed)

    def _first(self) -> int:
        return self._number("index", 0, high=2**32)

    def _list(self, name: str) -> list[object]:
        """Values written as a list, or with slashes between them."""
        value = self._item.get(name)
        if value is None:
            return []
        return list(value if isinstance(value, list) else str(value).split("/"))

    def messages(self) -> Iterator[Message]:
        count = self._number("count", 1, low=1, high=100_000)
        error = self._item.get("error")
        if error is not None:
            error = self._around.error(str(error), f"{self._where}: error")
        after = duration(self._item.get("after", 0), f"{self._where}: after")
        if "size" in self._item:
            must_fit(count * self._size() * (2 if "expect" in self._item else 1), self._where)
        for index in range(count):
            message = self._message(index)
            message.error, message.after = error, after
            message.stated["peer"] = message.request.peer
            yield message

    # -- parts of a request --------------------------------------------------------------------

    def _peer(self) -> str:
        around = self._around
        peer = ip(self._item.get("peer", around.peer), f"{self._where}: peer")
        if peer not in around.peers:
            raise UserError(f"{self._where}: {peer} is no peer; name it with --peer too")
        return peer

    def _route(self) -> dict[str, Any]:
        home = self._around.home
        delivery = self._item.get("delivery")
        if delivery is not None and delivery not in DELIVERY_MODES:
            known = ", ".join(DELIVERY_MODES)
            raise UserError(f"{self._where}: delivery is {delivery!r}; choose one of {known}")
        try:
            to = Address(
                job_id=self._number("job_id", home.job_id),
                pid_on_fep=self._number("pid_on_fep", home.pid_on_fep),
                resource_index=self._number("resource_index", home.resource_index),
                relative=not self._switch("absolute", not home.relative),
            )
        except ValueError as fault:
            raise UserError(f"{self._where}: {fault}") from None
        return {"peer": self._peer(), "delivery": delivery, "destination": to}

    def _place(self, index: int, size: int) -> dict[str, Any]:
        step = self._number("step", size)
        key = self._number("key", self._around.key)
        by_rudi = (self._item.get("delivery") or self._around.delivery) == "rudi"
        ours = self._verb in ("read", "write")
        if ours and self._switch("idempotent", by_rudi and key == DEFAULT_KEY):
            key |= IDEMPOTENT_SAFE
        return {
            "key": key,
            "offset": self._number("offset", 0) + index * step,
        }

    def _payload(self, index: int, size: int) -> memoryview:
        return memoryview(self._octets("pattern", size, self._first() + index))

    def _size(self) -> int:
        if self._item.get("size") in (None, ""):
            example = "size=8" if self._verb in ("atomic", "fetch") else f"{self._verb}:3000"
            raise UserError(f"{self._where}: say how many octets, for example {example}")
        return self._number("size", 0, high=self._around.longest)

    # -- each kind of request ------------------------------------------------------------------

    def _message(self, index: int) -> Message:
        match self._verb:
            case "noop":
                return Message("noop", transport.NoOperationRequest(**self._route()), 0)
            case "read":
                return self._read(index)
            case "write":
                size = self._size()
                place = self._place(index, size)
                write = transport.WriteRequest(
                    **self._route(),
                    **place,
                    payload=self._payload(index, size),
                    header_data=self._maybe("header_data"),
                    delivery_complete=self._switch("dc"),
                    synchronise=self._group(),
                )
                return Message("write", write, size, stated=_reported(place, write.header_data))
            case "atomic" | "fetch":
                return self._atomic(index)
            case "open":
                return self._open()
            case "probe":
                wait = duration(self._item.get("wait", "1s"), f"{self._where}: wait")
                return Message("probe", ProbeRequest(peer=self._peer(), wait=wait), 0)
        return self._send(index)

    def _open(self) -> Message:
        delivery = str(self._item.get("delivery", "rud"))
        if delivery not in ("rud", "rod"):
            raise UserError(f"{self._where}: delivery is {delivery!r}; PDCs are for rud or rod")
        negotiate = self._switch("negotiate")
        request = Open(peer=self._peer(), ordered=delivery == "rod", negotiate=negotiate)
        by = "negotiation" if negotiate else "noop"
        return Message("open", request, 0, stated={"delivery": delivery, "by": by})

    def _group(self) -> tuple[int, int] | None:
        """The group, and the number of its members, of ``synchronise=GROUP/COUNT``."""
        words = self._list("synchronise")
        if not words:
            return None
        what = f"{self._where}: synchronise"
        if len(words) != 2:
            raise UserError(
                f"{what} is GROUP/COUNT: COUNT is the number of the group's members in the last of"
                " them, and 0 in the others"
            )
        group, members = (number(word, what, high=0xFFFF) for word in words)
        return group, members

    def _read(self, index: int) -> Message:
        size = self._size()
        place = self._place(index, size)
        memory = memoryview(bytearray(size))
        place_of, unchecked = self._first() + index, self._item.get("expect") is None
        expected = None if unchecked else self._octets("expect", size, place_of)
        read = transport.ReadRequest(**self._route(), **place, memory=memory)
        return Message("read", read, size, memory, expected, stated=_reported(place, None))

    def _send(self, index: int) -> Message:
        size = self._size()
        route = self._route()
        tag = self._tag(index) if self._verb == "tsend" else None
        protocol = self._item.get("protocol")
        if protocol not in (None, *_PROTOCOLS):
            raise UserError(
                f"{self._where}: protocol is {protocol!r}; choose one of {', '.join(_PROTOCOLS)}"
            )
        if self._verb == "datagram":
            route["delivery"] = route["delivery"] or "uud"
        send = transport.SendRequest(
            **route,
            payload=self._payload(index, size),
            tag=tag,
            header_data=self._maybe("header_data"),
            protocol=protocol,
            delivery_complete=self._switch("dc"),
        )
        stated: dict[str, object] = {} if tag is None else {"tag": f"{tag:#x}"}
        return Message(self._verb, send, size, stated=stated | _reported({}, send.header_data))

    def _tag(self, index: int) -> int:
        return self._number("tag", 0) + index * self._number("tag_step", 1)

    def _atomic(self, index: int) -> Message:
        item, where = self._item, self._where
        name = str(item.get("operation") or "").upper()
        if not name:
            raise UserError(f"{where}: say which operation, for example {self._verb}:sum")
        if name not in AtomicOpcode.__members__:
            known = ", ".join(member.lower() for member in AtomicOpcode.__members__)
            raise UserError(
                f"{where}: there is no atomic operation {name.lower()!r}; choose {known}"
            )
        opcode = AtomicOpcode[name]
        datatype = type_of(str(item.get("type", "uint64")))
        if datatype is None or (width := size_of(datatype)) is None:
            known = ", ".join(member.lower() for member in Datatype.__members__)
            raise UserError(f"{where}: there is no type {item.get('type')!r}; choose {known}")
        operands = self._list("operand")
        if not operands and opcode not in NO_OPERAND:
            raise UserError(f"{where}: {name.lower()} needs {_what(opcode)}; add operand=5")
        compare = self._list("compare")
        if not compare and opcode in WITH_COMPARE:
            raise UserError(f"{where}: {name.lower()} needs {_what(opcode)}; add compare=7")
        if compare and opcode not in WITH_COMPARE:
            raise UserError(
                f"{where}: compare=... goes with the cswap operations and mswap only; leave it out"
            )
        operand = encode(datatype, operands, f"{where}: operand")
        size = self._number("size", len(operand) or width)
        place = self._place(index, 0)  # one word, again and again, unless there is a step
        tag = self._tag(index) if "tag" in item else None
        if tag is not None:
            if "key" in item:
                raise UserError(
                    f"{where}: a tag names a receive and a key a region; leave one of them out"
                )
            del place["key"]
        fetches = self._verb == "fetch"
        memory = memoryview(bytearray(size)) if fetches else None
        request = transport.AtomicRequest(
            **self._route(),
            **place,
            operation=int(opcode),
            datatype=int(datatype),
            operand=operand,
            compare=encode(datatype, compare, f"{where}: compare") if compare else None,
            result=memory,
            tag=tag,
            synchronise=self._group(),
        )
        stated: dict[str, object] = {"operation": name.lower(), **_reported(place, None)}
        if tag is not None:
            stated["tag"] = f"{tag:#x}"
        message = Message(self._verb, request, size, memory, datatype=datatype, stated=stated)
        expect = encode(datatype, self._list("expect"), f"{where}: expect")
        if expect:
            at = index * size if len(expect) > size else 0
            message.expected = expect[at : at + size]
        return message


def _what(opcode: AtomicOpcode) -> str:
    return "compare and operand" if opcode in WITH_COMPARE else "an operand"


def _reported(place: Mapping[str, int], header_data: int | None) -> dict[str, object]:
    stated: dict[str, object] = {}
    if place:
        stated = {"offset": place["offset"]}
    if "key" in place:
        stated = {"key": f"{place['key']:#x}", **stated}
    if header_data is not None:
        stated["header_data"] = f"{header_data:#x}"
    return stated
