"""Test what never arrives whole ends at both ends, and only once (UES 3.4.1)."""

import pytest

from tests.harness.uet.exchange import KEY, MS, MTU, Exchange, Side, Wire
from uet.transport import Completion, ReceiveRequest, SendRequest, WriteRequest
from uet.wire.codes import Opcode

IDLE = 500 * MS


def ends(exchange: Exchange, side: Side) -> list[tuple[object, int, str | None]]:
    completions: list[Completion] = exchange.network.completions[side.address]
    return [(c.context, c.length, c.error) for c in completions]


def run(exchange: Exchange, ms: int) -> None:
    network = exchange.network
    network.run(lambda: False, horizon_ns=network.now + ms * MS)


@pytest.mark.conformance("C-087")
@pytest.mark.parametrize("delivery", ["rud", "rod"])
@pytest.mark.parametrize("kind", ["send", "write"])
def test_the_rest_of_an_abandoned_message_is_an_error_at_its_initiator(
    kind: str, delivery: str
) -> None:
    """The rest comes late, long after nobody remembers it by time, and ends no other receive."""
    exchange = Exchange(Wire(), 1, max_rto_retx_cnt=15, inbound_message_idle_time=IDLE)
    a, b = exchange.sides
    memory = [bytearray(3 * MTU) for _ in range(2)]
    for number, into in enumerate(memory):
        b.fep.post_receive(ReceiveRequest(memory=memoryview(into), context=f"R{number}"))
    data_packets = 0

    def third_is_lost(frame: bytes, now: int) -> list[bytes]:
        nonlocal data_packets
        if len(frame) <= MTU:
            return [frame]
        data_packets += 1
        return [] if data_packets >= 3 and now < 5 * IDLE else [frame]

    exchange.network.tap = third_is_lost
    payload = memoryview(bytes([1]) * 3 * MTU)
    if kind == "send":
        a.fep.post(SendRequest(peer=b.address, payload=payload, delivery=delivery, context="first"))
    else:
        a.fep.post(
            WriteRequest(peer=b.address, key=KEY, offset=0, payload=payload, header_data=7,
                  delivery=delivery, context="first")
        )  # fmt: skip
    run(exchange, 5_000)
    a.fep.post(
        SendRequest(peer=b.address, payload=memoryview(bytes([2]) * 3 * MTU), delivery=delivery,
             context="second")
    )  # fmt: skip
    run(exchange, 5_000)
    assert ends(exchange, a) == [("first", 3 * MTU, "DROPPED"), ("second", 3 * MTU, None)]
    abandoned = [("R0", 2 * MTU, "ABANDONED")] if kind == "send" else []
    whole = "R1" if kind == "send" else "R0"
    assert ends(exchange, b) == [*abandoned, (whole, 3 * MTU, None)]
    assert memory[int(whole[1])] == bytes([2]) * 3 * MTU
    assert b.fep.counters()["rx_messages_abandoned"] == 1
    assert not b.fep.target.inbound.refused


@pytest.mark.conformance("C-086")
@pytest.mark.parametrize("beyond", [10, 500])
def test_a_rendezvous_is_complete_when_its_rest_is_confirmed(beyond: int) -> None:
    """The reader's own answers never arrive: neither end says that all is well."""
    exchange = Exchange(Wire(), 1, max_rto_retx_cnt=3)
    a, b = exchange.sides
    length = 2_500 + beyond
    memory = bytearray(length)
    b.fep.post_receive(ReceiveRequest(memory=memoryview(memory), context="R"))
    read = False

    def answers_to_the_read_are_lost(frame: bytes, now: int) -> list[bytes]:
        nonlocal read
        request = frame[42] >> 3 in (2, 13) and len(frame) >= 56
        from_b = frame[26:30] == bytes([10, 0, 1, 2])
        read = read or (from_b and request and frame[54] & 63 == Opcode.READ)
        return [] if read and not from_b else [frame]

    exchange.network.tap = answers_to_the_read_are_lost
    a.fep.post(
        SendRequest(
            peer=b.address,
            payload=memoryview(exchange.data(length)),
            protocol="rendezvous",
            context="S",
        )
    )
    run(exchange, 20_000)
    assert ends(exchange, a) == [("S", length, "INITIATOR_ERR")]
    assert ends(exchange, b) == [("R", 2_500, "RTO_RETRIES_EXHAUSTED")]


@pytest.mark.conformance("C-086")
@pytest.mark.parametrize("beyond", [10, 16, 17, 5_000])
def test_a_rendezvous_whose_rest_is_confirmed_late(beyond: int) -> None:
    """CLEAR frees what an ACK carried; the sender has waited for that."""
    exchange = Exchange(Wire(), 1)
    a, b = exchange.sides
    length = 2_500 + beyond
    memory, data = bytearray(length), exchange.data(length)
    b.fep.post_receive(ReceiveRequest(memory=memoryview(memory), context="R"))
    a.fep.post(
        SendRequest(peer=b.address, payload=memoryview(data), protocol="rendezvous", context="S")
    )
    network = exchange.network
    assert network.run(lambda: bool(network.completions[b.address]), horizon_ns=100 * MS)
    assert memory == data
    if beyond <= 16:
        assert ends(exchange, a) == []
    run(exchange, 100)
    assert ends(exchange, a) == [("S", length, None)]
    assert ends(exchange, b) == [("R", length, None)]
