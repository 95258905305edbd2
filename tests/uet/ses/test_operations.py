"""Every operation between two whole endpoints, over a network that does its worst."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.harness.uet.network import Impairment, Network, endpoint
from uet.ses.memory.registered_memory import OPTIMIZED
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
MS = 1_000_000
SIZE = 50_000
NETWORKS = {
    "perfect": Impairment(),
    "reordering": Impairment(jitter_ns=5_000),
    "lossy": Impairment(loss=0.05, duplicate=0.05, jitter_ns=5_000),
}


class Pair:
    """Two endpoints, the second with a region and with memory for what is sent to it."""

    def __init__(self, impairment: Impairment, seed: int, **parameters: Any) -> None:
        parameters = {"payload_mtu": 1024, "eager_size": 2_500, "restart_time": MS, **parameters}
        self.a = endpoint(A, seed=seed, **parameters)
        self.b = endpoint(B, seed=seed + 1, **parameters)
        self.region = bytearray(SIZE)
        self.b.register(memoryview(self.region), key=KEY)
        self.network = Network({A: self.a, B: self.b}, random.Random(seed), impairment)

    def run(self, here: int, there: int = 0) -> list[Completion]:
        """Until so many completions have come on each side; those of the first endpoint."""
        done = self.network.completions
        assert self.network.run(
            lambda: len(done[A]) >= here and len(done[B]) >= there, horizon_ns=20_000 * MS
        ), (done, self.a.counters(), self.b.counters())
        return done[A]


@pytest.fixture(params=NETWORKS, ids=str)
def impairment(request: pytest.FixtureRequest) -> Impairment:
    return NETWORKS[request.param]


def octets(length: int) -> bytes:
    return random.Random(length).randbytes(length)


@pytest.mark.parametrize("delivery", ["rud", "rod"])
@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_memory(impairment: Impairment, delivery: str, optimized: bool, seed: int) -> None:
    """Writes, reads of every size, and atomic operations."""
    pair = Pair(impairment, seed, optimized_headers=optimized)
    data = octets(9_000)
    where: dict[str, Any] = {"peer": B, "key": KEY, "delivery": delivery}
    pair.a.post(WriteRequest(payload=memoryview(data), offset=8, **where))
    pair.a.post(WriteRequest(payload=memoryview(data)[:700], offset=20_000, **where))
    assert [c.error for c in pair.run(2)] == [None] * 2
    assert bytes(pair.region[8:9_008]) == data
    assert bytes(pair.region[20_000:20_700]) == data[:700]
    memories = [memoryview(bytearray(n)) for n in (9_000, 900, 12, 0)]
    for memory in memories:
        pair.a.post(ReadRequest(memory=memory, offset=8, **where))
    results = [memoryview(bytearray(8)) for _ in range(20)]
    for result in results:
        pair.a.post(
            AtomicRequest(
                offset=40_000, operation=AtomicOpcode.SUM, datatype=Datatype.UINT64,
                operand=(5).to_bytes(8, "little"), result=result, **where,
            )
        )  # fmt: skip
    pair.a.post(NoOperationRequest(peer=B, delivery=delivery))
    assert [c.error for c in pair.run(27)] == [None] * 27
    assert [bytes(memory) for memory in memories] == [data[: m.nbytes] for m in memories]
    fetched = [int.from_bytes(result, "little") for result in results]
    assert sorted(fetched) == list(range(0, 100, 5))
    if delivery == "rod":
        assert fetched == sorted(fetched)


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
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_sends(
    impairment: Impairment, delivery: str, protocol: str, early: bool, seed: int
) -> None:
    """Whether the receives are posted before the messages come or after."""
    pair = Pair(impairment, seed, delivery=delivery, max_restarts=10)
    data = octets(9_000)
    lengths = (9_000, 700, 1)
    memories = [bytearray(length) for length in lengths]
    sends: list[Request] = [
        SendRequest(
            peer=B, payload=memoryview(data)[:length], tag=length, header_data=length,
            protocol=protocol,
        )
        for length in lengths
    ]  # fmt: skip
    if not early:
        for send in sends:
            pair.a.post(send)
        pair.network.run(lambda: False, horizon_ns=MS)
    for memory in memories:
        pair.b.post_receive(ReceiveRequest(memory=memoryview(memory), tag=len(memory)))
    if early:
        for send in sends:
            pair.a.post(send)
    assert [c.error for c in pair.run(3, 3)] == [None] * 3
    received = pair.network.completions[B]
    assert {(c.tag, c.length, c.header_data, c.error) for c in received} == {
        (length, length, length, None) for length in lengths
    }
    assert [bytes(memory) for memory in memories] == [data[:length] for length in lengths]
