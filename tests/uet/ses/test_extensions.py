"""Requests beyond the everyday ones: tagged atomics, and the provider's synchronised operations."""

import random
from typing import Any

import pytest

from tests.harness.uet.network import Impairment, Network, endpoint
from tests.harness.uet.script import START, Script, rud, write
from uet.compatibility import REFERENCE_PROVIDER
from uet.ses.initiator.operation import READ_AHEAD
from uet.ses.initiator.requests import MessageError
from uet.ses.target import rma_target
from uet.transport import AtomicRequest, ReadRequest, ReceiveRequest, WriteRequest
from uet.wire.codes import AtomicOpcode, Datatype, NackCode, Opcode
from uet.wire.frame import decode_frame

A, B = "10.0.1.1", "10.0.1.2"
KEY = 0x99
SUM: dict[str, Any] = {"operation": AtomicOpcode.SUM, "datatype": Datatype.UINT64}


def network(seed: int, **parameters: Any) -> Network:
    feps = {address: endpoint(address, seed=seed, **parameters) for address in (A, B)}
    return Network(feps, random.Random(seed), Impairment(loss=0.05, jitter_ns=3_000))


def number(value: int) -> bytes:
    return value.to_bytes(8, "little")


@pytest.mark.parametrize("delivery", ["rud", "rod"])
def test_an_atomic_on_the_memory_of_a_receive(delivery: str) -> None:
    """TSEND_ATOMIC and TSEND_FETCH_ATOMIC find their memory by tag."""
    net = network(1)
    here, there = net.endpoints[A], net.endpoints[B]
    memory = bytearray(number(1000) * 2)
    result = bytearray(8)
    for index in range(2):
        there.post_receive(
            ReceiveRequest(memory=memoryview(memory)[8 * index : 8 * index + 8], tag=7 + index)
        )
    here.post(AtomicRequest(peer=B, offset=0, tag=7, operand=number(5), delivery=delivery, **SUM))
    here.post(
        AtomicRequest(
            peer=B, offset=0, tag=8, operand=number(6), result=memoryview(result),
            delivery=delivery, **SUM,
        )
    )  # fmt: skip
    done = net.completions
    assert net.run(lambda: len(done[A]) == 2 and len(done[B]) == 2)
    assert [c.error for c in done[A] + done[B]] == [None] * 4
    assert sorted(c.tag for c in done[B] if c.tag is not None) == [7, 8]
    assert memory == number(1005) + number(1006)
    assert result == number(1000)


def test_a_tagged_atomic_needs_the_profile() -> None:
    net = network(1, profiles=("ai_full",))
    with pytest.raises(MessageError, match="tagged atomic operation"):
        net.endpoints[A].post(AtomicRequest(peer=B, offset=0, tag=7, operand=number(5), **SUM))


def test_the_end_of_a_group_is_reported_once() -> None:
    """Two writes and an atomic that tells how many they are."""
    net = network(2, compatibility=REFERENCE_PROVIDER, delivery="rod", rod_reorder=True)
    memory = bytearray(4096)
    net.endpoints[B].register(memoryview(memory), key=KEY)
    here = net.endpoints[A]
    data = random.Random(2).randbytes(900)
    for offset in (100, 1100):
        here.post(
            WriteRequest(
                peer=B, key=KEY, offset=offset, payload=memoryview(data), synchronise=(3, 0)
            )
        )
    here.post(
        AtomicRequest(peer=B, key=KEY, offset=8, operand=number(5), synchronise=(3, 3), **SUM)
    )
    done = net.completions
    assert net.run(lambda: len(done[A]) == 3 and bool(done[B]))
    net.settle()
    assert [c.error for c in done[A]] == [None] * 3
    assert len(done[B]) == 1
    assert memory[100:1000] == memory[1100:2000] == data
    assert memory[8:16] == number(5)


def test_synchronised_operations_are_asked_for() -> None:
    """They are no part of UES 1.0."""
    net = network(3)
    with pytest.raises(MessageError, match="sync_operations"):
        net.endpoints[A].post(
            WriteRequest(peer=B, key=KEY, offset=0, payload=memoryview(b"x"), synchronise=(1, 1))
        )


@pytest.mark.conformance("C-081")
def test_a_copy_of_a_fetching_atomic_gets_the_first_answer() -> None:
    """Its ACK is lost: the request comes again, memory has changed since, the answer has not."""
    net = network(4)
    net.impairment = Impairment()
    memory, result = bytearray(number(1000)), bytearray(8)
    there = net.endpoints[B]
    there.register(memoryview(memory), key=KEY)
    lost: list[bytes] = []

    def tap(frame: bytes, now: int) -> list[bytes]:
        decoded = decode_frame(frame)
        if decoded.envelope.source == B and not lost:
            assert memory == number(1005)  # carried out, and about to be forgotten
            memory[:] = number(7)  # the application's own change
            lost.append(frame)
            return []
        return [frame]

    net.tap = tap
    net.endpoints[A].post(
        AtomicRequest(
            peer=B, key=KEY, offset=0, operand=number(5), result=memoryview(result), **SUM
        )
    )
    assert net.run(lambda: bool(net.completions[A]))
    assert [c.error for c in net.completions[A]] == [None]
    assert lost
    assert result == number(1000)
    assert memory == number(7)
    assert there.counters()["rx_duplicates"] == 1


def test_a_large_read_asks_for_no_more_than_is_on_its_way() -> None:
    """The target queues what the path can carry, not the whole region."""
    net = network(5, payload_mtu=1024)
    net.impairment = Impairment()
    memory, mine = bytearray(random.Random(5).randbytes(4 << 20)), bytearray(4 << 20)
    there = net.endpoints[B]
    there.register(memoryview(memory), key=KEY)
    net.endpoints[A].post(ReadRequest(peer=B, key=KEY, offset=0, memory=memoryview(mine)))
    most = 0

    def watch() -> bool:
        nonlocal most
        most = max([most, *(pdc.backlog for pdc in there.table.by_id.values())])
        return bool(net.completions[A])

    assert net.run(watch)
    assert [c.error for c in net.completions[A]] == [None]
    assert mine == memory
    assert 0 < most <= READ_AHEAD


def test_a_target_bounds_what_it_queues_for_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many packets are asked for: the rest is refused for now, and nothing is lost."""
    most = 64  # thousands take long to make
    monkeypatch.setattr(rma_target, "MOST_READBACKS", most)
    script = Script(mpr=255, max_ack_data_size=0)
    own = script.establish_target()
    refused = 0
    for k in range(most + 1_200):
        request = write(b"", message_id=k + 1, opcode=Opcode.READ, request_length=32)
        for answer in script.give(rud(START + 1 + k, dpdcid=own, clear=START) / request):
            refused += answer.nack is NackCode.NO_SES_MSG_AVAIL
    assert script.pdc.backlog <= most
    assert refused > 0
