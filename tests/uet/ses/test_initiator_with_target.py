"""Initiator and target of two endpoints, with a perfect PDS between them that reorders at will."""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any

import pytest

from tests.harness.uet.carriage import MS, MTU
from uet.config import FepConfig
from uet.pds.semantics import LATER, NO_ROOM, Answer, Outbound, Response
from uet.ses.facilities import Facilities
from uet.ses.initiator.initiator import Initiator
from uet.ses.initiator.outbound import OutboundMessage
from uet.ses.memory.registered_memory import OPTIMIZED, MemoryTable, RegisteredRegion
from uet.ses.target.rma_target import ReturnData
from uet.ses.target.target import Target
from uet.timekeeper import Timekeeper
from uet.transport import (
    AtomicRequest,
    Completion,
    NoOperationRequest,
    ReadRequest,
    ReceiveRequest,
    Request,
    SendRequest,
    WriteRequest,
)
from uet.wire.codes import AtomicOpcode, Datatype

A, B = "10.0.1.1", "10.0.1.2"
KEY = OPTIMIZED | 0x123
SIZE = 20_000


class End:
    """One end of a PDC, or of what takes its place in connectionless modes."""

    def __init__(self, wire: Wire, number: int, address: str, delivery: str) -> None:
        self.wire = wire
        self.id = number
        self.locks = 0
        self.address = address  # the peer's
        self.delivery = delivery
        self.ordered = delivery == "rod"
        self.queue: deque[Outbound] = deque()
        self.failure: str | None = None
        self.psn = 1_000 * number
        self.late: dict[int, tuple[Outbound, int]] = {}
        self.other: End = self

    @property
    def backlog(self) -> int:
        return len(self.queue)

    def post(self, message: Outbound) -> None:
        self.queue.append(message)

    def respond(self, psn: int, response: Answer) -> None:
        message, index = self.late.pop(psn)
        self.wire.answers.append((self.other, message, index, response))


class Side:
    """An endpoint without its lower half."""

    def __init__(self, wire: Wire, address: str, peer: str, seed: int, **parameters: Any) -> None:
        parameters.setdefault("payload_mtu", MTU)
        parameters.setdefault("restart_time", MS)
        neighbours = {peer: "02:00:00:00:00:02"}
        config = FepConfig(
            address=address, mac="02:00:00:00:00:01", neighbours=neighbours, **parameters
        )
        self.wire = wire
        self.address = address
        self.done: list[Completion] = []
        self.counters: Counter[str] = Counter()
        self.memory = MemoryTable()
        self.region = bytearray(SIZE)
        region = RegisteredRegion(memory=memoryview(self.region), key=KEY, writable=True, job_id=1)
        self.memory.register(region)
        self.ends: dict[str, End] = {}
        self.time = Timekeeper()
        facilities = Facilities(
            config=config,
            memory=self.memory,
            complete=self.done.append,
            counters=self.counters,
            rng=random.Random(seed),
            time=self.time,
        )
        self.initiator = Initiator(facilities, self)
        self.target = Target(facilities, self.initiator)

    def carry(self, message: Outbound, peer: str, delivery: str) -> End:
        end = self.ends.get(delivery)
        if end is None:
            end = self.ends[delivery] = self.wire.connect(self.address, peer, delivery)
        end.post(message)
        return end

    def clock(self, now: int) -> None:
        self.time.now = now

    def deadlines(self) -> list[int]:
        both = (self.initiator.next_deadline(), self.target.next_deadline())
        return [due for due in both if due is not None]


class Wire:
    """Every packet arrives once and is answered once, in any order that its mode allows."""

    def __init__(self, seed: int, **parameters: Any) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.ends: list[End] = []
        self.flight: list[tuple[End, Outbound, int, int, bytes]] = []
        self.answers: list[tuple[End, Outbound, int, Answer]] = []
        self.a = Side(self, A, B, seed, **parameters)
        self.b = Side(self, B, A, seed + 1, **parameters)
        self.sides = {A: self.a, B: self.b}

    def connect(self, near: str, far: str, delivery: str) -> End:
        here = End(self, len(self.ends) + 1, far, delivery)
        there = End(self, len(self.ends) + 2, near, delivery)
        here.other, there.other = there, here
        self.ends += [here, there]
        return here

    def run(self, *, horizon: int = 10_000 * MS) -> None:
        """Until nothing is left to happen, or to wait for before the horizon."""
        while True:
            while self._step():
                pass
            due = min((d for s in self.sides.values() for d in s.deadlines()), default=horizon)
            if due >= horizon:
                return
            self.now = due
            for side in self.sides.values():
                side.clock(due)
                side.initiator.on_timer(due)
                side.target.on_timer(due)

    def _step(self) -> bool:
        sending = [end for end in self.ends if end.queue]
        actions = [self._send] * bool(sending) + [self._arrive] * bool(self.flight)
        actions += [self._answer] * bool(self.answers)
        if actions:
            self.rng.choice(actions)()
        return bool(actions)

    def _send(self) -> None:
        end = self.rng.choice([end for end in self.ends if end.queue])
        message = end.queue[0]
        index = message.sent
        header, payload = message.packet(index)
        end.psn += 1
        if not index and isinstance(message, OutboundMessage):
            message.psn = end.psn
        message.sent += 1
        if message.sent == message.packets:
            end.queue.popleft()
        self.flight.append((end, message, index, end.psn, header + bytes(payload)))

    def _arrive(self) -> None:
        at = self.rng.randrange(len(self.flight))
        end = self.flight[at][0]
        if end.ordered:
            at = next(k for k, entry in enumerate(self.flight) if entry[0] is end)
        end, message, index, psn, octets = self.flight.pop(at)
        there = self.sides[end.address]
        packet = memoryview(octets)
        answer: Answer | None
        if message.next_header > 3:
            answer = there.initiator.deliver_data(end.other, psn, message.next_header, packet, 0)
        elif end.delivery in ("rudi", "uud"):
            answer = there.target.deliver_connectionless(
                end.delivery, end.other.address, message.next_header, packet, 0
            )
        else:
            answer = there.target.deliver(end.other, psn, message.next_header, packet, 0)
        if answer == NO_ROOM:
            self.flight.insert(at, (end, message, index, psn, octets))
        elif answer == LATER:
            end.other.late[psn] = message, index
        else:
            self.answers.append((end, message, index, answer or 0))

    def _answer(self) -> None:
        at = self.rng.randrange(len(self.answers))
        end, message, index, answer = self.answers.pop(at)
        message.acknowledged += 1
        if isinstance(answer, Response):
            message.answered(index, answer.next_header, memoryview(answer.octets))
        if message.acknowledged == message.packets:
            if end.queue and end.queue[0] is message:
                end.queue.popleft()
            here = self.sides[end.other.address]
            if isinstance(message, ReturnData):
                here.target.message_end(end, message, self.now)
            else:
                here.initiator.message_end(end, message, self.now)

    def assert_all_over(self) -> None:
        for side in self.sides.values():
            assert side.initiator.open_messages == 0
        assert [end.locks for end in self.ends] == [0] * len(self.ends)


def outcome(side: Side, *kinds: str) -> list[tuple[str, int, str | None]]:
    return [(c.kind, c.length, c.error) for c in side.done if not kinds or c.kind in kinds]


def octets(length: int) -> bytes:
    return random.Random(length).randbytes(length)


SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("delivery", ["rud", "rod", "rudi"])
@pytest.mark.parametrize("optimized", [False, True])
def test_writes_and_reads(seed: int, delivery: str, optimized: bool) -> None:
    wire = Wire(seed, optimized_headers=optimized)
    key = KEY
    if delivery == "rudi":
        key = KEY | 1 << 63
        region = RegisteredRegion(
            memory=memoryview(wire.b.region), key=key, writable=True, job_id=1
        )
        wire.b.memory.unregister(KEY)
        wire.b.memory.register(region)
    data = octets(7_000)
    where: dict[str, Any] = {"peer": B, "key": key, "delivery": delivery}
    wire.a.initiator.post(WriteRequest(payload=memoryview(data), offset=100, **where))
    wire.a.initiator.post(WriteRequest(payload=memoryview(data)[:50], offset=9_000, **where))
    wire.run()
    assert outcome(wire.a) == [("write", 7_000, None), ("write", 50, None)] or (
        outcome(wire.a) == [("write", 50, None), ("write", 7_000, None)]
    )
    assert bytes(wire.b.region[100:7_100]) == data
    memories = [memoryview(bytearray(n)) for n in (7_000, 900, 12, 0)]
    for memory in memories:
        wire.a.initiator.post(ReadRequest(memory=memory, offset=100, **where))
    wire.run()
    assert all(error is None for _, _, error in outcome(wire.a, "read"))
    assert [bytes(memory) for memory in memories] == [data[: m.nbytes] for m in memories]
    wire.assert_all_over()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("optimized", [False, True])
def test_atomics_are_fetched_as_they_lie_in_memory(seed: int, optimized: bool) -> None:
    wire = Wire(seed, optimized_headers=optimized, delivery="rod")
    wire.b.region[8:16] = (1000).to_bytes(8, "little")
    results = [memoryview(bytearray(8)) for _ in range(2)]
    fields: dict[str, Any] = {
        "peer": B,
        "key": KEY,
        "offset": 8,
        "datatype": Datatype.UINT64,
        "operand": (5).to_bytes(8, "little"),
    }
    post = wire.a.initiator.post
    post(AtomicRequest(operation=AtomicOpcode.SUM, **fields))
    post(AtomicRequest(operation=AtomicOpcode.SUM, result=results[0], **fields))
    compare = (1010).to_bytes(8, "little")
    post(AtomicRequest(operation=AtomicOpcode.CSWAP, compare=compare, result=results[1], **fields))
    many = memoryview(bytearray(64))
    post(
        AtomicRequest(
            peer=B, key=KEY, offset=0, operation=AtomicOpcode.READ, datatype=Datatype.UINT64,
            operand=b"", result=many,
        )
    )  # fmt: skip
    post(NoOperationRequest(peer=B))
    wire.run()
    assert sorted(outcome(wire.a)) == [
        ("atomic", 8, None),
        ("atomic", 8, None),
        ("atomic", 8, None),
        ("atomic", 64, None),
        ("no_op", 0, None),
    ]
    assert [int.from_bytes(r, "little") for r in results] == [1005, 1010]
    assert int.from_bytes(many[8:16], "little") == 5
    assert int.from_bytes(wire.b.region[8:16], "little") == 5
    wire.assert_all_over()


@pytest.mark.conformance("C-080")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("delivery", "protocol"),
    [
        ("rud", "eager"),
        ("rod", "eager"),
        ("rud", "rendezvous"),
        ("rod", "rendezvous"),
        ("rud", "deferrable"),
    ],
)
@pytest.mark.parametrize("posted", ["before", "after"])
@pytest.mark.parametrize("unexpected", ["refuse", "keep"])
def test_sends(seed: int, delivery: str, protocol: str, posted: str, unexpected: str) -> None:
    """Whenever the receive is posted, the message gets there, once."""
    wire = Wire(
        seed, delivery=delivery, eager_size=2_500, unexpected=unexpected, restart_time=10 * MS
    )
    data = octets(7_000)
    memories = {length: bytearray(length) for length in (7_000, 300)}

    def receive() -> None:
        for tag, length in ((1, 7_000), (2, 300)):
            wire.b.target.post_receive(
                ReceiveRequest(memory=memoryview(memories[length]), tag=tag, context=length)
            )

    def send() -> None:
        for tag, length in ((1, 7_000), (2, 300)):
            wire.a.initiator.post(
                SendRequest(
                    peer=B, payload=memoryview(data)[:length], tag=tag, header_data=length,
                    protocol=protocol, context=length,
                )
            )  # fmt: skip

    if posted == "before":
        receive()
        send()
    else:
        send()
        wire.run(horizon=5 * MS)
        receive()
    wire.run(horizon=1_000 * MS)
    assert sorted(outcome(wire.a)) == [("send", 300, None), ("send", 7_000, None)]
    assert sorted((c.length, c.header_data, c.error) for c in wire.b.done) == [
        (300, 300, None),
        (7_000, 7_000, None),
    ]
    assert {length: bytes(m) for length, m in memories.items()} == {
        length: data[:length] for length in memories
    }
    if protocol == "deferrable":
        again = 2 * (posted == "after")
        assert wire.a.counters["tx_messages_deferred"] == again
        assert wire.a.counters["tx_message_restarts"] == again
        # Permission comes on a PDC that the target has opened.
        assert wire.b.counters["tx_messages"] == again == 2 * len(wire.b.ends)
    elif protocol == "rendezvous":
        assert wire.b.counters["rx_read_octets"] == 7_000 - 2_500
    wire.assert_all_over()


@pytest.mark.conformance("C-075", "C-076")
@pytest.mark.parametrize("seed", SEEDS)
def test_ordered_sends_stay_in_order_through_refusals(seed: int) -> None:
    """No receive is posted at first; then one at a time, to whose first message comes next."""
    wire = Wire(seed, delivery="rod", restart_time=10 * MS, max_restarts=30)
    for k in range(6):
        wire.a.initiator.post(SendRequest(peer=B, payload=memoryview(bytes([k]) * (k * 700 + 1))))
    memories = [bytearray(SIZE) for _ in range(6)]
    wire.run(horizon=5 * MS)
    for k, memory in enumerate(memories):
        wire.b.target.post_receive(ReceiveRequest(memory=memoryview(memory), context=k))
        wire.run(horizon=(k + 1) * 10 * MS)
    wire.run(horizon=10_000 * MS)
    assert [c.error for c in wire.a.done] == [None] * 6
    assert [(c.context, c.length) for c in wire.b.done] == [(k, k * 700 + 1) for k in range(6)]
    assert [memory[0] for memory in memories] == list(range(6))
    assert wire.a.counters["tx_message_restarts"] > 0
    wire.assert_all_over()


def test_a_receive_that_never_comes() -> None:
    wire = Wire(1, delivery="rod", max_restarts=2)
    for k in range(3):
        wire.a.initiator.post(SendRequest(peer=B, payload=memoryview(bytes(3_000)), context=k))
    wire.run()
    assert [c.context for c in wire.a.done] == [0, 1, 2]
    assert {c.error for c in wire.a.done} <= {"NO_MATCH", "DISABLED_GEN"}
    wire.assert_all_over()


@pytest.mark.conformance("C-059", "C-060")
def test_datagrams() -> None:
    wire = Wire(3)
    memory = bytearray(MTU)
    wire.b.target.post_receive(ReceiveRequest(memory=memoryview(memory)))
    requests: list[Request] = [
        SendRequest(peer=B, payload=memoryview(octets(MTU)), delivery="uud") for _ in range(3)
    ]
    for request in requests:
        wire.a.initiator.post(request)
    wire.run()
    assert outcome(wire.a) == [("datagram", MTU, None)] * 3
    assert outcome(wire.b) == [("receive", MTU, None)]
    assert bytes(memory) == octets(MTU)


@pytest.mark.conformance("C-078")
def test_refused_accesses() -> None:
    wire = Wire(2)
    post = wire.a.initiator.post
    data = memoryview(bytes(3_000))
    post(WriteRequest(peer=B, key=1, offset=0, payload=data, context="BAD_MKEY"))
    post(WriteRequest(peer=B, key=KEY, offset=SIZE - 1_500, payload=data, context="BAD_ADDR"))
    memory = memoryview(bytearray(3_000))
    post(ReadRequest(peer=B, key=1, offset=0, memory=memory, context="BAD_MKEY"))
    post(ReadRequest(peer=B, key=KEY, offset=SIZE - 1_500, memory=memory, context="BAD_ADDR"))
    wire.run()
    assert [c.error for c in wire.a.done] == [c.context for c in wire.a.done]
    assert len(wire.a.done) == 4
    assert not any(wire.b.region)
    wire.assert_all_over()
