"""Whole transfers between two endpoints, over clean and hostile wires."""

import random
from typing import Any

import pytest

from emulator.rocev2.connection.send_invalidate import SendInvalidate
from emulator.rocev2.wire.codes import BthOperation
from tests.harness.rocev2.ends import HERE, HERE6, KEY, THERE, THERE6, done, ends, pair
from tests.harness.uet.network import Impairment
from uet.transport import (
    AtomicRequest,
    ReadRequest,
    ReceiveRequest,
    Request,
    SendRequest,
    WriteRequest,
)

WIRES = {
    "clean": Impairment(),
    "lossy": Impairment(loss=0.03),
    "reordering": Impairment(jitter_ns=3_000),
    "duplicating": Impairment(duplicate=0.1),
    "corrupting": Impairment(corrupt=0.05),
    "all at once": Impairment(loss=0.02, duplicate=0.03, corrupt=0.02, jitter_ns=1_500),
}
RECOVERIES = [
    {"recovery": "go_back_n"},
    {"recovery": "selective_repeat"},
    {"recovery": "selective_repeat", "reorder_tolerance": 8, "reorder_window": 64},
    {"recovery": "selective_repeat", "reorder_tolerance": 8, "placement": "direct"},
]
LENGTHS = (0, 1, 1023, 1024, 1025, 2048, 2049, 40_000)


def blob(length: int, seed: int = 0) -> memoryview:
    return memoryview(bytearray(random.Random(seed * 1_000_003 + length).randbytes(length)))


@pytest.mark.parametrize("seed", [1, 8, 20, 26])
@pytest.mark.parametrize("recovery", RECOVERIES, ids=["gbn", "sr", "sr tolerant", "direct"])
@pytest.mark.parametrize("wire", WIRES)
def test_everything_arrives(wire: str, recovery: dict[str, Any], seed: int) -> None:
    """Writes, sends, reads and atomics, mixed on three queue pairs, in both directions."""
    network = pair(
        WIRES[wire], seed=seed, qps=3, endless_receives=True,
        max_rd_atomic=4, retry_cnt=7, **recovery,
    )  # fmt: skip
    rng = random.Random(seed)
    addresses = (HERE, THERE)
    memories, sources, fetched, counters = [], [], [], []
    received: list[dict[object, memoryview]] = []
    area = 1 << 16
    for end, hca in enumerate(ends(network)):
        memory = memoryview(bytearray(len(LENGTHS) * area + 8))
        hca.register(memory, key=KEY)
        readable = blob(area, seed=end)
        hca.register(readable, key=KEY + 1, writable=False)
        memories.append(memory)
        sources.append(readable)
        received.append({n: memoryview(bytearray(area)) for n in range(len(LENGTHS))})
        for number, buffer in received[end].items():
            hca.post_receive(ReceiveRequest(memory=buffer, context=number))
    for end, hca in enumerate(ends(network)):
        peer = addresses[1 - end]
        requests: list[Request] = []
        results = []
        for number, length in enumerate(LENGTHS):
            payload = blob(length, seed=10 + end)
            requests.append(
                WriteRequest(peer=peer, key=KEY, offset=number * area, payload=payload,
                      header_data=number << 16 | length, context=("w", number))
            )  # fmt: skip
            into = memoryview(bytearray(length))
            results.append(into)
            requests.append(
                ReadRequest(peer=peer, key=KEY + 1, offset=7, memory=into, context=("r", number))
            )
            requests.append(SendRequest(peer=peer, payload=payload, context=("s", number)))
            requests.append(
                AtomicRequest(peer=peer, key=KEY, offset=len(LENGTHS) * area, datatype=0,
                       operation=BthOperation.FETCH_ADD, operand=(1).to_bytes(8, "little"),
                       result=memoryview(bytearray(8)), context=("a", number))
            )  # fmt: skip
        fetched.append(results)
        rng.shuffle(requests)
        for request in requests:
            hca.post(request)
        counters.append([r.result or b"" for r in requests if isinstance(r, AtomicRequest)])
    requested = len(LENGTHS) * 4
    own = ("write", "read", "send", "atomic")
    assert network.run(
        lambda: all(sum(len(done(network, end, k)) for k in own) == requested for end in (0, 1)),
        horizon_ns=10**10,
    ), [dict(e.counters()) for e in network.endpoints.values()]
    network.settle()
    for end in (0, 1):
        assert {c.error for c in network.completions[addresses[end]]} == {None}
        for number, length in enumerate(LENGTHS):
            begin = number * area
            assert memories[end][begin : begin + length] == blob(length, seed=11 - end)
            assert fetched[end][number] == sources[1 - end][7 : 7 + length]
        notices = {(c.header_data, c.offset, c.length) for c in done(network, end, "remote_write")}
        assert notices == {(n << 16 | size, n * area, size) for n, size in enumerate(LENGTHS)}
        assert len(done(network, end, "remote_write")) == len(LENGTHS)
        arrived = [
            bytes(received[end][c.context][: c.length]) for c in done(network, end, "receive")
        ]
        assert sorted(arrived) == sorted(bytes(blob(size, seed=11 - end)) for size in LENGTHS)
        values = sorted(int.from_bytes(view, "little") for view in counters[end])
        assert values == list(range(len(LENGTHS)))
    for hca in ends(network):
        hca.close()
        assert hca.closed
    if wire == "lossy":
        assert any(hca.counts["tx_retransmitted_packets"] for hca in ends(network))
    if wire == "corrupting":
        assert any(hca.counts["rx_drop_bad_icrc"] for hca in ends(network))


def test_over_ipv6() -> None:
    network = pair(ipv6=True)
    here, there = ends(network)
    memory = memoryview(bytearray(5000))
    there.register(memory, key=KEY)
    here.post(WriteRequest(peer=THERE6, key=KEY, offset=0, payload=blob(5000)))
    network.settle()
    assert [c.error for c in done(network, 0, "write")] == [None]
    assert memory == blob(5000)
    assert there.config.neighbours == {HERE6: here.config.mac}


def test_a_send_with_invalidate() -> None:
    network = pair()
    here, there = ends(network)
    there.register(memoryview(bytearray(100)), key=KEY)
    buffer = memoryview(bytearray(10))
    there.post_receive(ReceiveRequest(memory=buffer))
    here.post(SendInvalidate(peer=THERE, payload=memoryview(b"gone"), invalidate=KEY))
    network.settle()
    assert bytes(buffer[:4]) == b"gone"
    assert KEY not in there.memory


@pytest.mark.parametrize("wire", ["clean", "lossy", "reordering"])
def test_unreliable_connections_lose_whole_messages_only(wire: str) -> None:
    network = pair(WIRES[wire], service="uc", endless_receives=True, qps=2)
    here, there = ends(network)
    area, count = 4096, 60
    memory = memoryview(bytearray(area * count))
    there.register(memory, key=KEY)
    for number in range(count):
        here.post(
            WriteRequest(
                peer=THERE,
                key=KEY,
                offset=number * area,
                delivery="uc",
                header_data=number,
                payload=blob(3_000, seed=number),
            )
        )
    network.settle()
    assert [c.error for c in done(network, 0, "write")] == [None] * count
    numbers = [c.header_data for c in done(network, 1, "remote_write")]
    for whole in numbers:
        assert whole is not None
        assert memory[whole * area : whole * area + 3_000] == blob(3_000, seed=whole)
    assert len(set(numbers)) == len(numbers)
    if wire == "clean":
        assert len(numbers) == count
    else:
        assert len(numbers) < count
    if wire == "lossy":
        assert numbers
    assert there.counts["tx_acks"] == there.counts["tx_naks"] == 0
