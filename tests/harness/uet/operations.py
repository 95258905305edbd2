"""Define what one endpoint can ask of another, kind by kind, and how to tell that it was done once.

Each function takes an :class:`~tests.harness.uet.exchange.Exchange`, the side that asks and the
delivery mode.  It posts at once or, for what comes late, in ``exchange.later``; what must hold in
the end goes to ``exchange.checks``.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Final

from tests.harness.uet.exchange import KEY, LENGTHS, MTU, Exchange, Posted, Side
from uet.transport import AtomicRequest, NoOperationRequest, ReadRequest, SendRequest, WriteRequest
from uet.wire.codes import AtomicOpcode, Datatype

Operation = Callable[[Exchange, Side, str], None]


def other(exchange: Exchange, side: Side) -> Side:
    return exchange.sides[side is exchange.sides[0]]


# -- registered memory -----------------------------------------------------------------------------


def write_one(exchange: Exchange, side: Side, delivery: str, length: int, **fields: Any) -> int:
    there, data = other(exchange, side), exchange.data(length)
    offset = there.room(length)
    exchange.post(
        side,
        WriteRequest,
        delivery=delivery,
        key=KEY,
        offset=offset,
        payload=memoryview(data),
        **fields,
    )

    def placed() -> None:
        assert there.region[offset : offset + length] == data
        assert there.region[offset + length : offset + length + 8] == bytes(8)

    exchange.checks.append(placed)
    return offset


def write(exchange: Exchange, side: Side, delivery: str) -> None:
    for length in LENGTHS:
        write_one(exchange, side, delivery, length)


def write_complete(exchange: Exchange, side: Side, delivery: str) -> None:
    for length in LENGTHS:
        write_one(exchange, side, delivery, length, delivery_complete=True)


def write_header_data(exchange: Exchange, side: Side, delivery: str) -> None:
    for length in LENGTHS:
        number = exchange.rng.getrandbits(64)
        offset = write_one(exchange, side, delivery, length, header_data=number)
        other(exchange, side).announced.append((number, offset, length))


def _read(exchange: Exchange, side: Side, delivery: str, length: int) -> None:
    there, data, memory = other(exchange, side), exchange.data(length), bytearray(length)
    offset = there.room(length)
    there.region[offset : offset + length] = data
    exchange.post(
        side, ReadRequest, delivery=delivery, key=KEY, offset=offset, memory=memoryview(memory)
    )

    def fetched() -> None:
        assert memory == data

    exchange.checks.append(fetched)


def read_small(exchange: Exchange, side: Side, delivery: str) -> None:
    """Read so little that the data comes in the ACK."""
    for length in (0, 1, 12, 16):
        _read(exchange, side, delivery, length)


def read_large(exchange: Exchange, side: Side, delivery: str) -> None:
    for length in (17, 900, MTU, MTU + 1, 9_000):
        _read(exchange, side, delivery, length)


# -- atomic operations -----------------------------------------------------------------------------


def _atomic(exchange: Exchange, side: Side, delivery: str, offset: int, **fields: Any) -> None:
    exchange.post(
        side,
        AtomicRequest,
        delivery=delivery,
        key=KEY,
        offset=offset,
        datatype=Datatype.UINT64,
        **fields,
    )


def octets(number: int) -> bytes:
    return number.to_bytes(8, "little")


def atomic(exchange: Exchange, side: Side, delivery: str) -> None:
    """Were one of the additions done twice, or not at all, the sum would tell."""
    there = other(exchange, side)
    offset = there.room(8)
    addends = [1 << k for k in range(40)]
    for addend in addends:
        _atomic(
            exchange, side, delivery, offset, operation=AtomicOpcode.SUM, operand=octets(addend)
        )

    def summed() -> None:
        assert there.region[offset : offset + 8] == octets(sum(addends))

    exchange.checks.append(summed)


def fetch(exchange: Exchange, side: Side, delivery: str) -> None:
    """The values seen are those of some order, of the order of posting on an ordered PDC."""
    there = other(exchange, side)
    offset = there.room(8)
    results = [bytearray(8) for _ in range(24)]
    for result in results:
        _atomic(
            exchange, side, delivery, offset, operation=AtomicOpcode.SUM, operand=octets(3),
            result=memoryview(result),
        )  # fmt: skip

    def counted() -> None:
        seen = [int.from_bytes(result, "little") for result in results]
        assert sorted(seen) == list(range(0, 72, 3))
        assert delivery != "rod" or seen == sorted(seen)

    exchange.checks.append(counted)


def fetch_vector(exchange: Exchange, side: Side, delivery: str) -> None:
    """More than an ACK may carry: the values come back on the return direction."""
    there = other(exchange, side)
    offset = there.room(160)
    results = [bytearray(160) for _ in range(6)]
    for result in results:
        _atomic(
            exchange, side, delivery, offset, operation=AtomicOpcode.SUM,
            operand=b"".join(map(octets, range(20))), result=memoryview(result),
        )  # fmt: skip

    def counted() -> None:
        expected = [b"".join(octets(k * times) for k in range(20)) for times in range(7)]
        assert sorted(map(bytes, results)) == sorted(expected[:6])
        assert there.region[offset : offset + 160] == expected[6]

    exchange.checks.append(counted)


def compare_and_swap(exchange: Exchange, side: Side, delivery: str) -> None:
    """Compare and swap: the first one succeeds, and the others see which it was."""
    there = other(exchange, side)
    offset = there.room(8)
    results = [bytearray(8) for _ in range(12)]
    for number, result in enumerate(results, 1):
        _atomic(
            exchange, side, delivery, offset, operation=AtomicOpcode.CSWAP, compare=bytes(8),
            operand=octets(number), result=memoryview(result),
        )  # fmt: skip

    def won() -> None:
        seen = [int.from_bytes(result, "little") for result in results]
        (winner,) = [number for number, value in enumerate(seen, 1) if value == 0]
        assert {*seen} == {0, winner}
        assert there.region[offset : offset + 8] == octets(winner)
        assert delivery != "rod" or winner == 1

    exchange.checks.append(won)


def no_operation(exchange: Exchange, side: Side, delivery: str) -> None:
    for _ in range(4):
        exchange.post(side, NoOperationRequest, delivery=delivery)


# -- sends -----------------------------------------------------------------------------------------


def send(exchange: Exchange, side: Side, delivery: str) -> None:
    """Untagged ones: on an ordered PDC they meet the receives in the order of posting."""
    there = other(exchange, side)
    sent = [exchange.data(2_500) for _ in range(5)]
    posted = [exchange.receive(there, 3_000) for _ in sent]
    for number, data in enumerate(sent):
        exchange.post(
            side, SendRequest, delivery=delivery, payload=memoryview(data), protocol="eager",
            header_data=number or None,
        )  # fmt: skip

    def received() -> None:
        messages = [receive.message for receive in posted]
        assert sorted(messages) == sorted(sent)
        assert delivery != "rod" or messages == sent
        for receive, message in zip(posted, messages, strict=True):
            assert receive.completion.header_data == (sent.index(message) or None)
            assert receive.completion.tag is None

    exchange.checks.append(received)


def _expect(exchange: Exchange, side: Side, data: bytes, tag: int) -> Posted:
    posted = exchange.receive(other(exchange, side), len(data), tag=tag)

    def received() -> None:
        assert posted.message == data
        assert posted.completion.tag == tag
        assert posted.completion.peer == side.address

    exchange.checks.append(received)
    return posted


def _tagged(
    exchange: Exchange, side: Side, delivery: str, protocol: str, *, late: bool, **fields: Any
) -> None:
    """One message of each length, whose receive is posted before, or when it has come."""
    for length in LENGTHS:
        data, tag = exchange.data(length), exchange.tag
        if late:
            exchange.later.append(partial(_expect, exchange, side, data, tag))
        else:
            _expect(exchange, side, data, tag)
        exchange.post(
            side, SendRequest, delivery=delivery, payload=memoryview(data), tag=tag,
            protocol=protocol, **fields,
        )  # fmt: skip


def tagged(exchange: Exchange, side: Side, delivery: str) -> None:
    _tagged(exchange, side, delivery, "eager", late=False)


def tagged_complete(exchange: Exchange, side: Side, delivery: str) -> None:
    _tagged(exchange, side, delivery, "eager", late=False, delivery_complete=True)


def tagged_late(exchange: Exchange, side: Side, delivery: str) -> None:
    """Kept as unexpected where the target does so, else refused and sent again."""
    _tagged(exchange, side, delivery, "eager", late=True)


def wildcard(exchange: Exchange, side: Side, delivery: str) -> None:
    """Receives that take a range of tags: any message fits any of them."""
    there, tag = other(exchange, side), exchange.tag
    sent = {tag | k: exchange.data(1_500 + k) for k in range(6)}
    posted = [exchange.receive(there, 3_000, tag=tag, ignore=0xFF) for _ in sent]
    for each, data in sent.items():
        exchange.post(
            side,
            SendRequest,
            delivery=delivery,
            payload=memoryview(data),
            tag=each,
            protocol="eager",
        )

    def received() -> None:
        tags = [receive.completion.tag for receive in posted]
        assert sorted(t for t in tags if t is not None) == sorted(sent)
        assert delivery != "rod" or tags == list(sent)
        for receive, each in zip(posted, tags, strict=True):
            assert each is not None
            assert receive.message == sent[each]

    exchange.checks.append(received)


def multi_receive(exchange: Exchange, side: Side, delivery: str) -> None:
    """One receive that takes message after message."""
    there, tag = other(exchange, side), exchange.tag
    sent = [exchange.data(1_400) for _ in range(5)]
    posted = exchange.receive(there, 7_100, len(sent), tag=tag, least_space=200)
    for data in sent:
        exchange.post(
            side,
            SendRequest,
            delivery=delivery,
            payload=memoryview(data),
            tag=tag,
            protocol="eager",
        )

    def received() -> None:
        ends = sorted((c.offset or 0, c.length) for c in there.of(posted.context))
        assert all(at + length == after for (at, length), (after, _) in pairwise(ends))
        messages = [bytes(posted.memory[at : at + length]) for at, length in ends]
        assert sorted(messages) == sorted(sent)
        assert delivery != "rod" or messages == sent

    exchange.checks.append(received)


def rendezvous(exchange: Exchange, side: Side, delivery: str) -> None:
    _tagged(exchange, side, delivery, "rendezvous", late=False)


def rendezvous_late(exchange: Exchange, side: Side, delivery: str) -> None:
    _tagged(exchange, side, delivery, "rendezvous", late=True)


def deferrable(exchange: Exchange, side: Side, delivery: str) -> None:
    _tagged(exchange, side, delivery, "deferrable", late=False)


def deferrable_late(exchange: Exchange, side: Side, delivery: str) -> None:
    _tagged(exchange, side, delivery, "deferrable", late=True)


def datagram(exchange: Exchange, side: Side, delivery: str) -> None:
    """Each completes where it was posted; what arrives is whole, and comes once unless copied."""
    there = other(exchange, side)
    sent = [exchange.data(100 + k) for k in range(20)]
    posted = [exchange.receive(there, MTU, 0) for _ in range(3 * len(sent))]
    for data in sent:
        exchange.post(side, SendRequest, delivery=delivery, payload=memoryview(data))

    def received() -> None:
        messages = [r.message for r in posted if there.of(r.context)]
        assert set(messages) <= set(sent)
        if not exchange.network.impairment.duplicate:
            assert len(set(messages)) == len(messages)
        if exchange.is_lossless:
            assert len(set(messages)) == len(sent)

    exchange.checks.append(received)


#: Operations by name, and the delivery modes that carry them.
CARRIED: Final[dict[Operation, tuple[str, ...]]] = {
    write: ("rud", "rod", "rudi"),
    write_complete: ("rud", "rod"),
    write_header_data: ("rud", "rod"),
    read_small: ("rud", "rod", "rudi"),
    read_large: ("rud", "rod", "rudi"),
    atomic: ("rud", "rod"),
    fetch: ("rud", "rod"),
    fetch_vector: ("rud", "rod"),
    compare_and_swap: ("rud", "rod"),
    no_operation: ("rud", "rod"),
    send: ("rud", "rod"),
    tagged: ("rud", "rod"),
    tagged_complete: ("rud", "rod"),
    tagged_late: ("rud", "rod"),
    wildcard: ("rud", "rod"),
    multi_receive: ("rud", "rod"),
    rendezvous: ("rud", "rod"),
    rendezvous_late: ("rud", "rod"),
    deferrable: ("rud",),
    deferrable_late: ("rud",),
    datagram: ("uud",),
}
#: All that a PDC and RUDI carry, in one go; datagrams would take the receives of untagged sends.
TOGETHER: Final = tuple(
    (operation, delivery)
    for operation, deliveries in CARRIED.items()
    for delivery in deliveries
    if delivery != "uud" and not (operation is send and delivery == "rod")
)
