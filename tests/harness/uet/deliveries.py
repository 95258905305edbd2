"""A target without a PDS or an initiator: the test hands it packets and reads its answers.

::

    bench = TargetBench()
    bench.receive(100)
    assert bench.give(std(Opcode.SEND, b"hello")) == ACCEPTED
    assert bench.completions[0].length == 5
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from uet.config import FepConfig
from uet.pds.semantics import ACCEPTED, Answer, Outbound, Response
from uet.ses.address import Address
from uet.ses.facilities import Facilities
from uet.ses.memory.operands import pack_operands
from uet.ses.memory.registered_memory import MemoryTable, RegisteredRegion
from uet.ses.target.rma_target import ReturnData
from uet.ses.target.target import Target
from uet.timekeeper import Timekeeper
from uet.transport import Completion, ReceiveRequest
from uet.wire import headers
from uet.wire.codes import (
    DEFERRABLE_OPCODES,
    AtomicOpcode,
    Datatype,
    NextHeader,
    Opcode,
    ResponseList,
    ResponseOpcode,
    ReturnCode,
)

HERE, THERE, ELSEWHERE = "10.0.1.1", "10.0.1.2", "10.0.1.3"
MTU = 1024
MS = 1_000_000
SECOND = 1_000_000_000
KEY = 0x1234
SMALL_KEY = 1 << 62 | 0x123
SAFE_KEY = 1 << 63 | 0x77
REGION = 8_192

#: next header, SES header and payload
Packet = tuple[int, bytes]


def std(
    opcode: int,
    payload: Any = b"",
    *,
    at: Any = None,
    total: Any = None,
    extension: Any = b"",
    **fields: Any,
) -> Packet:
    """A standard request; with ``at`` a continuation that says how many octets it carries."""
    base: dict[str, int] = {
        "opcode": opcode,
        "rel": 1,
        "eom": 1,
        "message_id": 1,
        "job_id": 1,
        "resource_index": 15,
        "initiator": 16,
        "request_length": len(payload) if total is None else total,
    }
    som, nosom = headers.SES_STD_SOM, headers.SES_STD_NOSOM
    if opcode in DEFERRABLE_OPCODES:
        som, nosom = headers.SES_DEFERRABLE_SOM, headers.SES_DEFERRABLE_NOSOM
    if opcode == Opcode.DEFERRABLE_RTR:
        som = headers.SES_RTR_SOM
    if at is None:
        header = som.encode(som=1, **base | fields)
    else:
        more = {"message_offset": at, "payload_length": len(payload)} | fields
        header = nosom.encode(som=0, **base | more)
    return int(NextHeader.REQUEST_STD), header + extension + payload


def medium(opcode: int, payload: Any = b"", *, extension: Any = b"", **fields: Any) -> Packet:
    """A medium request."""
    base = {
        "opcode": opcode,
        "rel": 1,
        "eom": 1,
        "som": 1,
        "job_id": 1,
        "resource_index": 15,
        "initiator": 16,
        "request_length": len(payload),
    }
    header = headers.SES_MEDIUM_HD if fields.get("hd") else headers.SES_MEDIUM
    return int(NextHeader.REQUEST_MEDIUM), header.encode(**base | fields) + extension + payload


def small(opcode: int, payload: Any = b"", *, extension: Any = b"", **fields: Any) -> Packet:
    """A small request on the region that index 0x123 names."""
    base = {
        "opcode": opcode,
        "rel": 1,
        "eom": 1,
        "som": 1,
        "job_id": 1,
        "resource_index": 0x123,
        "request_length": len(payload),
    }
    header = headers.SES_SMALL.encode(**base | fields)
    return int(NextHeader.REQUEST_SMALL), header + extension + payload


def parts(opcode: int, data: bytes, *, size: int = MTU, **fields: int) -> list[Packet]:
    """A whole message, cut into packets of ``size`` octets."""
    cut = range(0, len(data), size) or range(1)
    hd = {name: fields.pop(name) for name in ("hd", "header_data") if name in fields}
    last = cut[-1]
    return [
        std(
            opcode,
            data[at : at + size],
            at=at or None,
            total=len(data),
            eom=int(at == last),
            **fields,
            **({} if at else hd),
        )
        for at in cut
    ]


@dataclass
class FakePdc:
    """A PDC that keeps what is posted on it."""

    id: int = 1
    address: str = THERE
    ordered: bool = False
    locks: int = 0
    failure: str | None = None
    posted: list[Outbound] = field(default_factory=list)

    @property
    def backlog(self) -> int:
        return len(self.posted)

    def post(self, message: Outbound) -> None:
        self.posted.append(message)

    def respond(self, psn: int, response: Answer) -> None:
        raise AssertionError("this target answers at once")


@dataclass
class FakeInitiator:
    """Hold what the target asked of the initiator of its own endpoint."""

    restarts: list[tuple[str, int, int]] = field(default_factory=list)
    requested: list[tuple[str, Address, int, int, str]] = field(default_factory=list)
    fetches: list[tuple[str, Address, int, int, memoryview, Callable[[str | None], None]]] = field(
        default_factory=list
    )
    served: list[tuple[int, int, int]] = field(default_factory=list)
    declined: list[tuple[str, Address, int, int, int]] = field(default_factory=list)
    declines_heard: list[tuple[int, str]] = field(default_factory=list)

    def on_restart(
        self,
        peer: str,
        initiator_token: int,
        target_token: int,
        message_id: int = 0,
        job_id: int = 0,
    ) -> Answer:
        self.restarts.append((peer, initiator_token, target_token))
        return ACCEPTED

    def request_restart(
        self, peer: str, address: Address, initiator_token: int, target_token: int, delivery: str
    ) -> None:
        self.requested.append((peer, address, initiator_token, target_token, delivery))

    def fetch(
        self,
        peer: str,
        address: Address,
        key: int,
        offset: int,
        memory: memoryview,
        ended: Callable[[str | None], None],
    ) -> None:
        self.fetches.append((peer, address, key, offset, memory, ended))

    def on_served(self, key: int, offset: int, length: int, by: object = None) -> None:
        self.served.append((key, offset, length))

    def on_read_refused(self, key: int, by: object) -> None:
        """Note nothing: a refused read leaves nothing to do here."""

    def decline(self, peer: str, address: Address, key: int, offset: int, length: int) -> None:
        self.declined.append((peer, address, key, offset, length))

    def on_declined(self, key: int, peer: str) -> None:
        self.declines_heard.append((key, peer))


@dataclass(frozen=True)
class Said:
    """A response, read."""

    opcode: ResponseOpcode
    code: ReturnCode
    unexpected: bool
    message_id: int
    generation: int
    modified: int
    guaranteed: bool


def read(answer: Answer | None) -> Said:
    """A response without data."""
    assert isinstance(answer, Response)
    assert answer.next_header == NextHeader.RESPONSE
    values = headers.SES_RESPONSE.values(answer.octets)
    assert len(answer.octets) == headers.SES_RESPONSE.size
    assert values["version"] == 0
    return Said(
        ResponseOpcode(values["opcode"]),
        ReturnCode(values["return_code"]),
        values["list"] == ResponseList.OVERFLOW,
        values["message_id"],
        values["ri_generation"],
        values["modified_length"],
        answer.guaranteed,
    )


def read_data(answer: Answer | None) -> tuple[dict[str, int], bytes]:
    """Fields and data of a response with data."""
    assert isinstance(answer, Response)
    assert answer.guaranteed
    return split_data(answer.next_header, answer.octets)


def split_data(next_header: int, octets: bytes) -> tuple[dict[str, int], bytes]:
    header = {
        int(NextHeader.RESPONSE_DATA): headers.SES_RESPONSE_DATA,
        int(NextHeader.RESPONSE_DATA_SMALL): headers.SES_RESPONSE_DATA_SMALL,
    }[next_header]
    values = header.values(octets)
    data = octets[header.size :]
    assert values["payload_length"] == len(data)
    assert (values["opcode"], values["return_code"]) == (2, 1)
    return values, data


class TargetBench:
    """A target, its region of memory, and time."""

    def __init__(self, **parameters: Any) -> None:
        parameters.setdefault("payload_mtu", MTU)
        self.config = FepConfig(address=HERE, mac="02:00:00:00:00:01", **parameters)
        self.memory = bytearray(REGION)
        self.table = MemoryTable()
        for key in (KEY, SMALL_KEY, SAFE_KEY):
            self.register(self.memory, key)
        self.initiator = FakeInitiator()
        self.completions: list[Completion] = []
        self.counters: Counter[str] = Counter()
        self.time = Timekeeper()
        facilities = Facilities(
            config=self.config,
            memory=self.table,
            complete=self.completions.append,
            counters=self.counters,
            rng=random.Random(1),
            time=self.time,
        )
        self.target = Target(facilities, self.initiator)
        self.pdc = FakePdc()
        self.psn = 1000

    def register(self, memory: bytearray, key: int, **rights: Any) -> None:
        rights.setdefault("writable", True)
        self.table.register(RegisteredRegion(memory=memoryview(memory), key=key, **rights))

    def give(self, packet: Packet, pdc: FakePdc | None = None) -> Answer:
        """Deliver a packet, with something before it that is not SES."""
        self.psn += 1
        next_header, octets = packet
        return self.target.deliver(
            pdc or self.pdc, self.psn, next_header, memoryview(b"pds." + octets), 4
        )

    def connectionless(self, delivery: str, packet: Packet) -> Response | None:
        next_header, octets = packet
        return self.target.deliver_connectionless(
            delivery, THERE, next_header, memoryview(octets), 0
        )

    def receive(self, size: int = 4096, **fields: Any) -> bytearray:
        """Post a receive; its memory."""
        memory = bytearray(size)
        self.target.post_receive(ReceiveRequest(memory=memoryview(memory), **fields))
        return memory

    def wait(self, ns: int) -> None:
        """Let time pass, with the timers that are due."""
        end = self.time.now + ns
        while (deadline := self.target.next_deadline()) is not None and deadline <= end:
            self.target.on_timer(deadline)
            after = self.target.next_deadline()
            assert after is None or after > deadline, "a deadline that does not move on"
        self.time.now = end

    @property
    def returned(self) -> list[tuple[dict[str, int], bytes]]:
        """Return what was sent back on the PDC, and taken from it now."""
        found = []
        for message in self.pdc.posted:
            assert isinstance(message, ReturnData)
            assert message.packets == 1
            header, data = message.packet(0)
            assert message.packet(0) == (header, data)
            found.append(split_data(message.next_header, header + bytes(data)))
            self.target.message_end(self.pdc, message, self.time.now)
        self.pdc.posted.clear()
        return found


def refused(
    bench: TargetBench, packet: Packet, code: ReturnCode, pdc: FakePdc | None = None
) -> Any:
    """The packet draws ``code``, guaranteed, and changes nothing."""
    before = bytes(bench.memory)
    stated = read(bench.give(packet, pdc))
    assert (stated.opcode, stated.code) == (ResponseOpcode.RESPONSE, code)
    assert stated.guaranteed
    assert (stated.modified, stated.unexpected) == (0, False)
    assert bench.memory == before
    return stated


def atomic(operation: int = AtomicOpcode.SUM, operand: int = 5, compare: int | None = None) -> Any:
    other = None if compare is None else compare.to_bytes(8, "little")
    return pack_operands(operation, Datatype.UINT64, operand.to_bytes(8, "little"), other)
