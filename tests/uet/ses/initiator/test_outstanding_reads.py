"""READs bound what they have asked for, and a busy target is given time (UES 3.5.15, 3.5.20)."""

import pytest

from tests.harness.uet.exchange import KEY, MS, Exchange, Side, Wire
from uet.pds.semantics import NO_ROOM, Answer, Context
from uet.ses.initiator.operation import READ_AHEAD, OutstandingReads
from uet.ses.memory.registered_memory import RegisteredRegion
from uet.transport import Completion, ReadRequest, WriteRequest

SIZE = 16_384


def read_all(exchange: Exchange, reads: int, size: int, **fields: str) -> list[Completion]:
    """Post so many READs; their completions."""
    a, b = exchange.sides
    network = exchange.network
    done = network.completions[a.address]
    for number in range(reads):
        memory = memoryview(bytearray(size))
        a.fep.post(
            ReadRequest(peer=b.address, key=KEY, offset=0, memory=memory, context=number, **fields)
        )
    assert network.run(lambda: len(done) == reads, horizon_ns=60_000 * MS), exchange.story()
    return done


def most_queued(side: Side) -> int:
    return max((pdc.backlog for pdc in side.fep.table.by_id.values()), default=0)


@pytest.mark.conformance("C-201")
@pytest.mark.parametrize("delivery", ["rud", "rod"])
@pytest.mark.parametrize(("reads", "size"), [(90, SIZE), (1_200, 17)])
def test_any_number_of_reads_ends_well_on_a_slow_link(reads: int, size: int, delivery: str) -> None:
    """The target has never more to remember than what one may have asked for."""
    exchange = Exchange(Wire(), 1, max_nack_retx_cnt=5, rto_init_time=20 * MS)
    exchange.network.ns_per_octet = 8
    a, b = exchange.sides
    most = 0

    def look(frame: bytes, now: int) -> list[bytes]:
        nonlocal most
        most = max(most, most_queued(b))
        return [frame]

    exchange.network.tap = look
    done = read_all(exchange, reads, size, delivery=delivery)
    assert {c.error for c in done} == {None}
    assert not b.fep.counters().get("tx_nacks")
    assert 0 < most <= 2 * READ_AHEAD
    (stream,) = a.fep.initiator.streams.values()
    assert (stream.reads.packets, stream.reads.octets) == (0, 0)
    assert a.fep.initiator.open_messages == 0


@pytest.mark.parametrize("most", [1, 5_000, 40_000])
def test_the_bound_is_a_parameter(most: int) -> None:
    """Whatever it is, each READ has its turn; what is larger waits for itself only."""
    exchange = Exchange(Wire(), 1, max_read_octets=most)
    exchange.network.ns_per_octet = 8
    a, _ = exchange.sides
    under_way = 0

    def look(frame: bytes, now: int) -> list[bytes]:
        nonlocal under_way
        for stream in a.fep.initiator.streams.values():
            under_way = max(under_way, stream.reads.octets)
        return [frame]

    exchange.network.tap = look
    assert {c.error for c in read_all(exchange, 20, 9_000)} == {None}
    assert min(9 * 1_024, max(1_024, most // 2)) <= under_way <= max(1_024, most + most // 2)


@pytest.mark.parametrize("delivery", ["rud", "rod"])
def test_what_asks_for_nothing_need_not_wait(delivery: str) -> None:
    """A WRITE behind many READs overtakes them, unless it is ordered."""
    exchange = Exchange(Wire(), 1, max_read_octets=SIZE)
    exchange.network.ns_per_octet = 8
    a, b = exchange.sides
    for number in range(50):
        memory = memoryview(bytearray(SIZE))
        a.fep.post(
            ReadRequest(peer=b.address, key=KEY, offset=0, memory=memory, context=number,
                 delivery=delivery)
        )  # fmt: skip
    payload = memoryview(b"short")
    a.fep.post(
        WriteRequest(peer=b.address, key=KEY, offset=0, payload=payload, context="write",
              delivery=delivery)
    )  # fmt: skip
    network = exchange.network
    done = network.completions[a.address]
    assert network.run(lambda: len(done) == 51, horizon_ns=60_000 * MS), exchange.story()
    place = [c.context for c in done].index("write")
    assert place == 50 if delivery == "rod" else place < 10


def test_reads_that_fail_make_room_for_others() -> None:
    """Refused, unanswered or cut off: what they had asked for is not under way any more."""
    exchange = Exchange(Wire(), 1, max_read_octets=SIZE)
    a, b = exchange.sides
    b.fep.memory.register(
        RegisteredRegion(memory=memoryview(bytearray(SIZE)), key=9, writable=True, readable=False)
    )
    for number in range(40):
        memory = memoryview(bytearray(SIZE))
        key = 9 if number % 2 else KEY
        a.fep.post(ReadRequest(peer=b.address, key=key, offset=0, memory=memory, context=number))
    network = exchange.network
    done = network.completions[a.address]
    assert network.run(lambda: len(done) == 40, horizon_ns=60_000 * MS), exchange.story()
    assert {c.context: c.error for c in done} == {
        number: "PERM_VIOLATION" if number % 2 else None for number in range(40)
    }
    (stream,) = a.fep.initiator.streams.values()
    assert (stream.reads.packets, stream.reads.octets) == (0, 0)


def test_what_fits() -> None:
    reads = OutstandingReads(10_000, 1_000)
    assert reads.ahead == 10
    assert reads.fits(1_000, 1_000)
    reads.change(0, 100, 1_000)  # of them ten at once
    assert (reads.packets, reads.octets) == (10, 10_000)
    assert not reads.fits(1, 1)
    reads.change(100, 11, 1_000)
    assert not reads.fits(1, 1)
    reads.change(11, 6, 1_000)
    assert reads.fits(4, 1_000)
    assert not reads.fits(5, 1_000)
    reads.change(6, 5, 1_000)
    assert reads.fits(9, 1_000)  # half of it is free
    reads.change(5, 0, 1_000)
    assert (reads.packets, reads.octets) == (0, 0)
    many = OutstandingReads(1 << 40, 1_000)
    assert many.ahead == READ_AHEAD
    many.change(0, READ_AHEAD - 1, 1)
    assert many.fits(1, 1)
    assert not many.fits(2, 1)


@pytest.mark.conformance("C-202")
@pytest.mark.parametrize("delivery", ["rud", "rod"])
@pytest.mark.parametrize("busy", [15, 16])
def test_a_busy_target_has_time(busy: int, delivery: str) -> None:
    """NACK_Retx_Time is doubled each time: 0.5 + 1 + 2 + 4 + 8 ms, and a round trip for each."""
    exchange = Exchange(Wire(), 1, max_nack_retx_cnt=5, nack_retx_time=MS // 2)
    a, b = exchange.sides
    network = exchange.network
    deliver = b.fep.deliver

    def refuse_while_busy(
        pdc: Context, psn: int, next_header: int, packet: memoryview, at: int
    ) -> Answer:
        return NO_ROOM if network.now < busy * MS else deliver(pdc, psn, next_header, packet, at)

    b.fep.deliver = refuse_while_busy
    payload = memoryview(b"x" * 100)
    a.fep.post(WriteRequest(peer=b.address, key=KEY, offset=0, payload=payload, delivery=delivery))
    done = network.completions[a.address]
    assert network.run(lambda: bool(done), horizon_ns=1_000 * MS)
    assert [c.error for c in done] == [None if busy == 15 else "NACK_RETRIES_EXHAUSTED"]
    assert b.fep.counters()["tx_nacks"] == 5 + (busy == 16)
