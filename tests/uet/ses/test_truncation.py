"""A message longer than its receive, whichever of the two is there first (UES 3.4.1)."""

from typing import Any

import pytest

from tests.harness.uet.exchange import MS, Exchange, Wire
from uet.compatibility import Compatibility
from uet.transport import AtomicRequest, Completion, ReceiveRequest, SendRequest
from uet.wire.codes import AtomicOpcode, Datatype

LONG, SHORT = 3_000, 100
LEFT = Compatibility(long_send_leaves_receive=True)
#: An ordered PDC has no deferrable sends.
WAYS = (
    ("eager", "rud"),
    ("eager", "rod"),
    ("rendezvous", "rud"),
    ("rendezvous", "rod"),
    ("deferrable", "rud"),
)


def ends(exchange: Exchange, side: int) -> list[tuple[object, int, str | None]]:
    completions: list[Completion] = exchange.network.completions[exchange.sides[side].address]
    return [(c.context, c.length, c.error) for c in completions]


def run(exchange: Exchange, ms: int) -> None:
    network = exchange.network
    network.run(lambda: False, horizon_ns=network.now + ms * MS)


@pytest.mark.parametrize("tag", [None, 7])
@pytest.mark.parametrize(("protocol", "delivery"), WAYS)
@pytest.mark.parametrize("message_first", [False, True])
def test_the_receive_may_stay_posted(
    message_first: bool, protocol: str, tag: int | None, delivery: str
) -> None:
    """The UEC reference provider leaves it to the next message that fits."""
    exchange = Exchange(Wire(), 1, unexpected="keep", second={"compatibility": LEFT})
    a, b = exchange.sides
    memory = bytearray(SHORT)
    receive = ReceiveRequest(memory=memoryview(memory), tag=tag, context="R")
    if not message_first:
        b.fep.post_receive(receive)
    for context, length in (("long", LONG), ("short", SHORT)):
        a.fep.post(
            SendRequest(
                peer=b.address, payload=memoryview(context.encode() * length)[:length], tag=tag,
                context=context, delivery=delivery,
                protocol=protocol if context == "long" else "eager",
            )
        )  # fmt: skip
        run(exchange, 3)
    if message_first:
        b.fep.post_receive(receive)
    run(exchange, 20_000)
    assert ends(exchange, 1) == [("R", SHORT, None)]
    assert memory == (b"short" * SHORT)[:SHORT]
    told = {"eager": None, "rendezvous": "INITIATOR_ERR"} if message_first else {}
    assert ("long", LONG, told.get(protocol, "UNSUPPORTED_SIZE")) in ends(exchange, 0)


@pytest.mark.conformance("C-085")
@pytest.mark.parametrize("tag", [None, 7])
@pytest.mark.parametrize(("protocol", "delivery"), WAYS)
@pytest.mark.parametrize("message_first", [False, True])
def test_the_receive_ends_with_the_true_length(
    message_first: bool, protocol: str, tag: int | None, delivery: str
) -> None:
    """The receive is used up, the next message has the next one, and a waiting sender knows."""
    exchange = Exchange(Wire(), 1, unexpected="keep")
    a, b = exchange.sides
    memory = [bytearray(SHORT) for _ in range(2)]

    def post_receives() -> None:
        for number, into in enumerate(memory):
            b.fep.post_receive(
                ReceiveRequest(memory=memoryview(into), tag=tag, context=f"R{number}")
            )

    if not message_first:
        post_receives()
    for context, length in (("long", LONG), ("short", SHORT)):
        payload = memoryview(context.encode() * length)[:length]
        fields: dict[str, Any] = {"protocol": protocol if context == "long" else "eager"}
        a.fep.post(
            SendRequest(
                peer=b.address,
                payload=payload,
                tag=tag,
                context=context,
                delivery=delivery,
                **fields,
            )
        )
        run(exchange, 3)
    if message_first:
        post_receives()
    run(exchange, 20_000)
    assert ends(exchange, 1) == [("R0", LONG, "UNSUPPORTED_SIZE"), ("R1", SHORT, None)]
    assert memory[0] == bytes(SHORT)
    assert memory[1] == (b"short" * SHORT)[:SHORT]
    # An eager message that was kept had been answered before.
    kept = message_first and protocol == "eager"
    error = None if kept else "UNSUPPORTED_SIZE"
    if message_first and protocol == "rendezvous":
        error = "INITIATOR_ERR"  # of the reads that it waits for
    assert sorted(ends(exchange, 0), key=str) == [("long", LONG, error), ("short", SHORT, None)]
    assert exchange.network.now < 4_000 * MS + 20_000 * MS
    assert not b.fep.target.sends.kept
    assert not len(a.fep.initiator.peer_handles)


@pytest.mark.conformance("C-085")
def test_what_is_still_coming_of_a_kept_message_is_refused() -> None:
    """Its receive was posted while its packets arrive, and is too short."""
    exchange = Exchange(Wire(), 1, unexpected="keep")
    a, b = exchange.sides
    exchange.network.ns_per_octet = 8  # it takes a while to arrive
    payload = memoryview(bytes(64 * 1024))
    a.fep.post(SendRequest(peer=b.address, payload=payload, context="S"))
    network = exchange.network
    assert network.run(lambda: bool(b.fep.target.sends.kept), horizon_ns=10 * MS)
    b.fep.post_receive(ReceiveRequest(memory=memoryview(bytearray(SHORT)), context="R"))
    run(exchange, 100)
    assert ends(exchange, 1) == [("R", 64 * 1024, "UNSUPPORTED_SIZE")]
    assert ends(exchange, 0) == [("S", 64 * 1024, "UNSUPPORTED_SIZE")]
    assert not b.fep.target.inbound.refused


@pytest.mark.parametrize("message_first", [False, True])
def test_a_multi_receive_goes_on(message_first: bool) -> None:
    """Too long a message takes nothing of it."""
    exchange = Exchange(Wire(), 1, unexpected="keep")
    a, b = exchange.sides
    memory = bytearray(250)
    multi = ReceiveRequest(memory=memoryview(memory), least_space=100, context="M")
    if not message_first:
        b.fep.post_receive(multi)
    for context, length in (("a", 100), ("b", 200), ("c", 60)):
        payload = memoryview(context.encode() * length)
        a.fep.post(SendRequest(peer=b.address, payload=payload, context=context))
        run(exchange, 3)
    if message_first:
        b.fep.post_receive(multi)
    run(exchange, 100)
    assert ends(exchange, 1) == [("M", 100, None), ("M", 200, "UNSUPPORTED_SIZE"), ("M", 60, None)]
    assert memory == b"a" * 100 + b"c" * 60 + bytes(90)


@pytest.mark.conformance("C-085")
@pytest.mark.parametrize("fetch", [False, True])
def test_a_tagged_atomic_longer_than_its_receive(fetch: bool) -> None:
    exchange = Exchange(Wire(), 1)
    a, b = exchange.sides
    memory = [bytearray(8), bytearray(16)]
    for number, into in enumerate(memory):
        b.fep.post_receive(ReceiveRequest(memory=memoryview(into), tag=3, context=f"R{number}"))
    for context in ("long", "again"):
        a.fep.post(
            AtomicRequest(peer=b.address, operation=AtomicOpcode.SUM, datatype=Datatype.UINT64,
                   operand=bytes([1]) + bytes(7) + bytes([2]) + bytes(7), key=0, offset=0, tag=3,
                   result=memoryview(bytearray(16)) if fetch else None, context=context)
        )  # fmt: skip
        run(exchange, 20)
    assert ends(exchange, 1) == [("R0", 16, "UNSUPPORTED_SIZE"), ("R1", 16, None)]
    assert ends(exchange, 0) == [("long", 16, "UNSUPPORTED_SIZE"), ("again", 16, None)]
    assert memory[0] == bytes(8)
    assert sorted(memory[1]) == [0] * 14 + [1, 2]


def test_a_datagram_that_does_not_fit_leaves_the_receive() -> None:
    exchange = Exchange(Wire(), 1)
    a, b = exchange.sides
    memory = bytearray(SHORT)
    b.fep.post_receive(ReceiveRequest(memory=memoryview(memory), context="R"))
    for length in (SHORT + 1, SHORT):
        a.fep.post(SendRequest(peer=b.address, payload=memoryview(b"x" * length), delivery="uud"))
        run(exchange, 3)
    assert ends(exchange, 1) == [("R", SHORT, None)]
    assert b.fep.counters()["rx_datagrams_dropped"] == 1
