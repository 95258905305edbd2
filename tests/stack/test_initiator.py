"""What the initiator makes of responses, return data, restarts and time (UES 3.4)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.stack.carriage import (
    ELSEWHERE,
    MS,
    MTU,
    OPTIMIZED_KEY,
    THERE,
    Bench,
    FakePdc,
    data_in_ack,
    packets,
    response,
    small_data,
)
from tests.stack.test_outbound import KEY, atomic, cswap, read, send, write
from uet.compatibility import REFERENCE_PROVIDER
from uet.pds.semantics import ACCEPTED, Answer, Response
from uet.ses.address import Address
from uet.ses.operation import Coverage
from uet.ses.outbound import OutboundMessage
from uet.transport import NoOperation
from uet.wire import headers
from uet.wire.codes import AtomicOpcode, Datatype, NextHeader, Opcode, ResponseList, ReturnCode

NO_MATCH, DISABLED_GEN = ReturnCode.NO_MATCH, ReturnCode.DISABLED_GEN
SECOND = 1_000 * MS


def code_of(answer: Answer) -> int:
    assert isinstance(answer, Response)
    return int(headers.SES_RESPONSE.values(answer.octets)["return_code"])


def generation(message: OutboundMessage) -> int:
    (value,) = {p.ri_generation for p in packets(message)}
    return int(value)


# -- the plain case ------------------------------------------------------------------------------


def test_default_responses_complete_everything_without_data() -> None:
    bench = Bench()
    bench.post(write(context=1), send(context=2), atomic(context=3), NoOperation(peer=THERE))
    assert bench.initiator.open_messages == 4
    for _ in range(4):
        bench.end(bench.take())
    assert [(c.kind, c.length, c.context, c.error) for c in bench.completions] == [
        ("write", 5, 1, None),
        ("send", 5, 2, None),
        ("atomic", 8, 3, None),
        ("no_op", 0, None, None),
    ]
    bench.assert_nothing_left()


@pytest.mark.parametrize("request_", [write(bytes(5_000)), read(5_000), cswap(), send(tag=3)])
def test_what_pds_gives_up_fails(request_: Any) -> None:
    bench = Bench()
    bench.post(request_)
    bench.end(bench.take(), error="RTO_RETRIES_EXHAUSTED")
    assert [c.error for c in bench.completions] == ["RTO_RETRIES_EXHAUSTED"]
    bench.assert_nothing_left()


def test_a_truncated_send_tells_how_much_was_taken() -> None:
    """RC_OK with a smaller modified length is success of that many octets; a target that does
    not allow truncation says TOO_LONG instead."""
    bench = Bench()
    bench.post(send(bytes(2_500)))
    message = bench.take()
    for index in range(3):
        bench.answer(message, index, response(modified_length=1_500))
    bench.end(message)
    bench.post(send(bytes(2_500)))
    message = bench.take()
    bench.answer(message, 0, response(ReturnCode.TOO_LONG))
    bench.end(message)
    assert [(c.length, c.error) for c in bench.completions] == [(1_500, None), (2_500, "TOO_LONG")]


def test_an_unexpected_message_that_was_kept_is_complete() -> None:
    bench = Bench()
    bench.post(send(bytes(500)))
    message = bench.take()
    bench.answer(message, 0, response(list=ResponseList.OVERFLOW, modified_length=500))
    bench.end(message)
    assert [(c.length, c.error) for c in bench.completions] == [(500, None)]


def test_hostile_responses_are_counted() -> None:
    bench = Bench()
    bench.post(write())
    message = bench.take()
    message.answered(0, NextHeader.RESPONSE, memoryview(b"short"))
    bench.end(message)
    bench.post(write())
    message = bench.take()
    bench.answer(message, 0, data_in_ack(message.id, b"data that nobody asked for"))
    bench.end(message)
    bench.answer(message, 0, response(ReturnCode.BAD_ADDR))
    assert [c.error for c in bench.completions] == ["MALFORMED_RESPONSE"] * 2
    assert bench.counters["rx_responses_malformed"] == 2
    assert bench.counters["rx_responses_of_ended_message"] == 1


def test_an_unknown_return_code_keeps_its_number() -> None:
    bench = Bench()
    bench.post(write())
    message = bench.take()
    bench.answer(message, 0, response(0x3A))
    bench.end(message)
    assert [c.error for c in bench.completions] == ["RETURN_CODE_0x3a"]


# -- reads ---------------------------------------------------------------------------------------


@pytest.mark.conformance("C-071")
@pytest.mark.parametrize("acknowledged_first", [True, False])
def test_a_read_is_complete_when_every_octet_is_placed(acknowledged_first: bool) -> None:
    data = random.Random(1).randbytes(3 * MTU + 100)
    request = read(len(data))
    bench = Bench()
    bench.post(request)
    message = bench.take()
    pdc = bench.pdcs[THERE, "rud"]
    if acknowledged_first:
        bench.end(message)
    for k in (3, 1, 2, 0):
        assert (bench.completions, pdc.locks) == ([], 1)
        assert bench.data(message, k * MTU, data[k * MTU : (k + 1) * MTU]) == ACCEPTED
    if not acknowledged_first:
        assert (bench.completions, pdc.locks) == ([], 1)
        bench.end(message)
    assert [(c.kind, c.length, c.error) for c in bench.completions] == [("read", len(data), None)]
    assert bytes(request.memory) == data
    bench.assert_nothing_left()


@pytest.mark.conformance("C-050")
def test_each_read_and_fetch_locks_its_pdc() -> None:
    bench = Bench()
    bench.post(read(10), read(10), cswap(), write(), read(10, peer=ELSEWHERE))
    assert bench.pdcs[THERE, "rud"].locks == 3
    assert bench.pdcs[ELSEWHERE, "rud"].locks == 1
    messages = [bench.take() for _ in range(5)]
    bench.answer(messages[0], 0, data_in_ack(messages[0].id, bytes(10)))
    bench.end(messages[0])
    bench.end(messages[1], error="PDC_FAILED")
    assert bench.pdcs[THERE, "rud"].locks == 1


def test_data_that_cannot_be_right_changes_nothing() -> None:
    bench = Bench()
    request = read(2 * MTU + 10)
    bench.post(request, write())
    message = bench.take()
    other = bench.take()
    bench.end(message)
    before = bytes(request.memory)
    for offset, octets in ((5, MTU), (0, MTU - 1), (2 * MTU, 11), (3 * MTU, 0), (3 * MTU, 5)):
        answer = bench.data(message, offset, b"x" * octets)
        assert code_of(answer) == ReturnCode.OP_VIOLATION
    assert code_of(bench.data(message, 0, b"x" * MTU, payload_length=5)) == ReturnCode.OP_VIOLATION
    pdc = bench.pdcs[THERE, "rud"]
    for cut in (0, 5, headers.SES_RESPONSE_DATA.size - 1):
        answer = bench.initiator.deliver_data(
            pdc, 5, NextHeader.RESPONSE_DATA, memoryview(bytes(cut)), 0
        )
        assert code_of(answer) == ReturnCode.OP_VIOLATION
    assert bench.counters["rx_read_data_malformed"] == 9
    # Nobody waits for these: the rest of what has failed looks like it.
    assert bench.data(message, 0, b"x" * MTU, read_request_message_id=999) == ACCEPTED
    assert bench.data(other, 0, b"x" * 5) == ACCEPTED
    stranger = FakePdc(44, ELSEWHERE, "rud")
    assert bench.data(message, 0, b"x" * MTU, pdc=stranger) == ACCEPTED
    assert bench.counters["rx_read_data_unknown"] == 3
    assert bytes(request.memory) == before
    assert bench.data(message, 0, b"y" * MTU) == ACCEPTED
    assert bench.data(message, 0, b"z" * MTU) == ACCEPTED
    assert bench.counters["rx_read_data_duplicate"] == 1
    assert bytes(request.memory[:MTU]) == b"y" * MTU
    assert bench.completions == []


@pytest.mark.conformance("C-074")
def test_data_within_the_acks() -> None:
    data = random.Random(2).randbytes(MTU + 12)
    request = read(len(data))
    bench = Bench()
    bench.post(request)
    message = bench.take()
    bench.answer(message, 1, data_in_ack(message.id, data[MTU:], MTU))
    bench.answer(message, 0, data_in_ack(message.id, data[:MTU]))
    bench.end(message)
    assert [(c.length, c.error) for c in bench.completions] == [(len(data), None)]
    assert bytes(request.memory) == data
    bench.assert_nothing_left()


def test_a_read_of_nothing_waits_for_nothing() -> None:
    bench = Bench()
    bench.post(read(0))
    bench.end(bench.take())
    assert [c.error for c in bench.completions] == [None]
    bench.assert_nothing_left()


def test_a_fetched_value_has_the_byte_order_of_the_target() -> None:
    bench = Bench()
    result, pair = memoryview(bytearray(8)), memoryview(bytearray(8))
    bench.post(
        atomic(result=result),
        atomic(operation=AtomicOpcode.READ, datatype=Datatype.INT32, operand=b"", result=pair),
    )
    message = bench.take()
    bench.answer(message, 0, data_in_ack(message.id, (1000).to_bytes(8, "big")))
    bench.end(message)
    message = bench.take()
    assert packets(message)[0].request_length == 8
    bench.end(message)
    values = (1).to_bytes(4, "big") + (2).to_bytes(4, "big")
    assert bench.data(message, 0, values) == ACCEPTED
    assert bytes(result) == (1000).to_bytes(8, "little")
    assert bytes(pair) == (1).to_bytes(4, "little") + (2).to_bytes(4, "little")
    assert [(c.kind, c.length, c.error) for c in bench.completions] == [("atomic", 8, None)] * 2
    bench.assert_nothing_left()


def test_data_of_short_requests_is_told_by_the_psn() -> None:
    bench = Bench(optimized_headers=True)
    reads = [read(100, key=OPTIMIZED_KEY), read(100), read(100, key=OPTIMIZED_KEY)]
    bench.post(*reads)
    messages = [bench.take() for _ in range(3)]
    pdc = bench.pdcs[THERE, "rud"]
    assert pdc.locks == 3

    def give(psn: int, data: bytes) -> Answer:
        octets = memoryview(small_data(data, psn))
        return bench.initiator.deliver_data(pdc, 9, NextHeader.RESPONSE_DATA_SMALL, octets, 0)

    for k in (2, 0):
        bench.end(messages[k])
        assert give(messages[k].psn, bytes([k]) * 100) == ACCEPTED
    assert give(messages[0].psn, b"late" * 25) == ACCEPTED
    assert give(4_999, b"none" * 25) == ACCEPTED
    assert bench.counters["rx_read_data_unknown"] == 2
    in_ack = Response(small_data(b"\1" * 100), next_header=NextHeader.RESPONSE_DATA_SMALL)
    bench.answer(messages[1], 0, in_ack)
    bench.end(messages[1])
    assert [bytes(r.memory) for r in reads] == [bytes([k]) * 100 for k in range(3)]
    assert [c.error for c in bench.completions] == [None] * 3
    bench.assert_nothing_left()


def test_a_failed_read_keeps_its_id_while_data_may_come() -> None:
    """What was asked for and not refused still comes, and goes nowhere."""
    request = read(5 * MTU)
    bench = Bench()
    bench.post(request)
    message = bench.take(sent=3)
    bench.answer(message, 1, response(ReturnCode.BAD_ADDR))
    assert message.packets == 4  # a MSG_ERROR ends it
    bench.end(message)
    assert bench.completions == []
    bench.data(message, 2 * MTU, b"x" * MTU)
    bench.data(message, 4 * MTU, b"x" * MTU)
    assert bench.completions == []
    bench.data(message, 0, b"x" * MTU)
    assert [c.error for c in bench.completions] == ["BAD_ADDR"]
    assert bytes(request.memory) == bytes(5 * MTU)
    bench.assert_nothing_left()


def test_data_that_never_comes() -> None:
    bench = Bench(inbound_message_idle_time=1_000)
    bench.post(read(2 * MTU), read(5))
    messages = [bench.take(), bench.take()]
    for message in messages:
        bench.end(message)
    bench.wait(900)
    bench.data(messages[0], 0, bytes(MTU))
    bench.wait(1_000)
    assert [c.error for c in bench.completions] == ["READ_TIMEOUT"]
    bench.wait(1_899)
    assert len(bench.completions) == 1
    bench.wait(1_900)
    assert [c.error for c in bench.completions] == ["READ_TIMEOUT"] * 2
    bench.assert_nothing_left()


def test_a_pdc_that_ends_takes_its_reads_along() -> None:
    bench = Bench()
    bench.post(read(5), read(5, peer=ELSEWHERE), read(5, delivery="rod"))
    for _ in range(3):
        bench.end(bench.take())
    bench.initiator.pdc_closed(bench.pdcs[THERE, "rud"])
    assert [c.error for c in bench.completions] == ["PDC_CLOSED"]
    assert bench.initiator.open_messages == 2


# -- restarts ------------------------------------------------------------------------------------


@pytest.mark.conformance("C-075")
def test_no_match_is_tried_again_later() -> None:
    """After 50 to 100 ms, doubling, five times; then the error."""
    bench = Bench(restart_time=50 * MS)
    bench.post(send(bytes(3 * MTU), tag=5))
    for attempt in range(6):
        message = bench.take(sent=2)
        bench.answer(message, 0, response(NO_MATCH))
        assert packets(message)[-1].opcode == Opcode.MSG_ERROR
        bench.end(message)
        began = bench.initiator.now
        assert bench.waiting == []
        if attempt < 5:
            due = bench.initiator.next_deadline()
            assert due is not None
            assert 50 * MS << attempt <= due - began <= 100 * MS << attempt
            bench.wait(due - 1)
            assert bench.waiting == []
            bench.wait(due)
    assert [(c.kind, c.error) for c in bench.completions] == [("send", "NO_MATCH")]
    bench.assert_nothing_left()


def test_restarts_differ_in_their_delay() -> None:
    delays = set()
    for seed in range(20):
        bench = Bench(seed=seed)
        bench.post(send())
        message = bench.take()
        bench.answer(message, 0, response(DISABLED_GEN))
        bench.end(message)
        delays.add(bench.initiator.next_deadline())
    assert len(delays) > 10


@pytest.mark.conformance("C-076")
def test_bad_generation_is_tried_again_at_once() -> None:
    bench = Bench()
    address = Address(resource_index=7)
    bench.post(send(bytes(3 * MTU), destination=address))
    message = bench.take(sent=2)
    assert generation(message) == 0
    bench.answer(message, 1, response(ReturnCode.BAD_GENERATION, ri_generation=9))
    bench.end(message)
    again = bench.take()
    assert generation(again) == 9
    assert b"".join(p.payload for p in packets(again)) == bytes(3 * MTU)
    bench.end(again)
    assert [c.error for c in bench.completions] == [None]
    # It is that resource's of that peer, and of no other.
    for where, expected in (
        ({"destination": address}, 9),
        ({"destination": Address(resource_index=8)}, 0),
        ({"destination": address, "peer": ELSEWHERE}, 0),
        ({"destination": address, "tag": 3}, 9),
    ):
        bench.post(send(**where))
        message = bench.take()
        assert generation(message) == expected
        bench.end(message)
    bench.assert_nothing_left()


def test_a_generation_that_never_fits_is_an_error() -> None:
    bench = Bench()
    bench.post(send())
    for k in range(257):
        message = bench.take()
        bench.answer(message, 0, response(ReturnCode.BAD_GENERATION, ri_generation=k % 256))
        bench.end(message)
    assert [c.error for c in bench.completions] == ["BAD_GENERATION"]
    bench.assert_nothing_left()


def test_on_rud_others_go_on() -> None:
    bench = Bench()
    bench.post(send(b"one"), send(b"two"))
    one, two = bench.take(), bench.take()
    bench.answer(one, 0, response(NO_MATCH))
    bench.end(one)
    bench.end(two)
    bench.post(send(b"three"))
    bench.end(bench.take())
    assert len(bench.completions) == 2
    bench.wait(SECOND)
    bench.end(bench.take())
    assert [c.error for c in bench.completions] == [None] * 3
    bench.assert_nothing_left()


def test_a_terminal_refusal_wins() -> None:
    bench = Bench()
    bench.post(send(bytes(3 * MTU)))
    message = bench.take()
    bench.answer(message, 0, response(NO_MATCH))
    bench.answer(message, 1, response(ReturnCode.UNDELIVERABLE))
    bench.end(message)
    assert [c.error for c in bench.completions] == ["UNDELIVERABLE"]
    bench.assert_nothing_left()


def on_the_wire(message: OutboundMessage) -> int:
    """Which of the numbered one-octet sends it is."""
    return int(packets(message)[0].payload[0])


@pytest.mark.parametrize("first_to_end", [0, 1, 2])
def test_on_rod_nothing_overtakes_a_restart(first_to_end: int) -> None:
    """All of the stream waits for the first message, in whatever order the answers come."""
    bench = Bench(delivery="rod")
    bench.post(*(send(bytes([k])) for k in range(3)))
    messages = [bench.take() for _ in range(3)]
    order = [first_to_end] + [k for k in range(3) if k != first_to_end]
    for k in order:
        bench.answer(messages[k], 0, response(DISABLED_GEN if k else NO_MATCH))
        bench.end(messages[k])
    bench.post(send(bytes([3])))
    assert bench.waiting == []
    bench.wait(SECOND)
    assert len(bench.waiting) == 1
    probe = bench.take()
    assert on_the_wire(probe) == 0
    bench.answer(probe, 0, response(ReturnCode.BAD_GENERATION, ri_generation=1))
    bench.end(probe)
    assert len(bench.waiting) == 1
    probe = bench.take()
    assert (on_the_wire(probe), generation(probe)) == (0, 1)
    bench.end(probe)
    rest = [bench.take() for _ in range(3)]
    assert [on_the_wire(message) for message in rest] == [1, 2, 3]
    for message in rest:
        bench.end(message)
    assert [c.error for c in bench.completions] == [None] * 4
    bench.assert_nothing_left()


def test_on_rod_the_next_takes_over_when_the_first_fails() -> None:
    bench = Bench(delivery="rod", max_restarts=1)
    bench.post(*(send(bytes([k])) for k in range(2)))
    messages = [bench.take() for _ in range(2)]
    for message, code in zip(messages, (NO_MATCH, DISABLED_GEN), strict=True):
        bench.answer(message, 0, response(code))
        bench.end(message)
    bench.wait(SECOND)
    message = bench.take()
    assert on_the_wire(message) == 0
    bench.answer(message, 0, response(NO_MATCH))
    bench.end(message)
    assert [c.error for c in bench.completions] == ["NO_MATCH"]
    bench.wait(2 * SECOND)
    message = bench.take()
    assert on_the_wire(message) == 1
    bench.end(message)
    assert [c.error for c in bench.completions] == ["NO_MATCH", None]
    bench.assert_nothing_left()


# -- deferrable sends ----------------------------------------------------------------------------


def deferred(bench: Bench, message: OutboundMessage, index: int = 0) -> None:
    bench.answer(message, index, response(list=ResponseList.OVERFLOW, modified_length=0))


@pytest.mark.conformance("C-080")
def test_a_deferred_send_waits_for_permission() -> None:
    """An empty last packet ends the first attempt; the second begins at 0 with both tokens."""
    data = random.Random(4).randbytes(5 * MTU)
    bench = Bench()
    bench.post(send(data, protocol="deferrable", tag=5))
    message = bench.take(sent=2)
    token = packets(message)[0].initiator_restart_token
    deferred(bench, message)
    last = packets(message)[-1]
    assert (message.packets, last.opcode, last.eom) == (3, Opcode.DEFERRABLE_TSEND, 1)
    assert (last.message_offset, last.payload_length, last.payload) == (2 * MTU, 0, b"")
    assert last.initiator_restart_token == token
    bench.answer(message, 1, response())
    bench.end(message)
    assert (bench.waiting, bench.completions) == ([], [])
    assert bench.initiator.on_restart(THERE, token, 0xBEEF) == ACCEPTED
    again = bench.take()
    seen = packets(again)
    assert b"".join(p.payload for p in seen) == data
    assert {(p.initiator_restart_token, p.target_restart_token) for p in seen} == {(token, 0xBEEF)}
    bench.end(again)
    assert [(c.kind, c.length, c.error) for c in bench.completions] == [("send", 5 * MTU, None)]
    bench.assert_nothing_left()
    assert code_of(bench.initiator.on_restart(THERE, token, 0xBEEF)) == ReturnCode.CANCELLED


def test_permission_before_the_first_attempt_has_ended() -> None:
    bench = Bench()
    bench.post(send(bytes(3 * MTU), protocol="deferrable"))
    message = bench.take()
    token = packets(message)[0].initiator_restart_token
    deferred(bench, message)
    assert bench.initiator.on_restart(THERE, token, 7) == ACCEPTED
    assert bench.waiting == []
    bench.end(message)
    again = bench.take()
    assert packets(again)[0].target_restart_token == 7
    bench.end(again)
    bench.assert_nothing_left()


def test_permission_that_never_comes() -> None:
    bench = Bench(deferred_time=5_000)
    bench.post(send(protocol="deferrable"))
    message = bench.take()
    token = packets(message)[0].initiator_restart_token
    deferred(bench, message)
    bench.end(message)
    bench.wait(4_999)
    assert bench.completions == []
    answer = bench.initiator.on_restart(ELSEWHERE, token, 7, message_id=55, job_id=1)
    assert code_of(answer) == ReturnCode.CANCELLED  # it is another peer's
    assert isinstance(answer, Response)
    assert headers.SES_RESPONSE.values(answer.octets)["message_id"] == 55
    bench.wait(5_000)
    assert [c.error for c in bench.completions] == ["RESTART_TIMEOUT"]
    bench.assert_nothing_left()


def test_a_deferrable_send_that_is_refused() -> None:
    """Without room for one more deferred message the target says NO_MATCH: all over again."""
    bench = Bench()
    bench.post(send(protocol="deferrable"))
    message = bench.take()
    bench.answer(message, 0, response(NO_MATCH))
    bench.end(message)
    bench.wait(SECOND)
    message = bench.take()
    assert packets(message)[0].target_restart_token == 0
    deferred(bench, message)
    bench.end(message)
    assert bench.initiator.open_messages == 1


# -- rendezvous sends ----------------------------------------------------------------------------


def rendezvous(bench: Bench, octets: int = 10_000) -> tuple[OutboundMessage, int]:
    bench.post(send(bytes(octets), protocol="rendezvous"))
    message = bench.take()
    return message, packets(message)[0].read_memory_key


@pytest.mark.parametrize("read_first", [True, False])
def test_rendezvous_is_complete_when_the_rest_was_read(read_first: bool) -> None:
    bench = Bench(eager_size=3_000)
    message, key = rendezvous(bench)
    if not read_first:
        bench.end(message)
    bench.initiator.on_served(key, 6_000, 4_000)
    bench.initiator.on_served(key, 6_000, 4_000)  # twice is not more
    bench.initiator.on_served(key + 1, 3_000, 7_000)
    assert bench.completions == []
    assert bench.memory.find(key) is not None
    bench.initiator.on_served(key, 3_000, 3_000)
    if read_first:
        bench.end(message)
    assert [(c.kind, c.length, c.error) for c in bench.completions] == [("send", 10_000, None)]
    assert bench.memory.find(key) is None
    bench.assert_nothing_left()


def test_a_short_rendezvous_has_no_rest() -> None:
    bench = Bench(eager_size=3_000)
    message, _ = rendezvous(bench, 3_000)
    bench.end(message)
    assert [c.error for c in bench.completions] == [None]
    bench.assert_nothing_left()


def test_a_truncated_rendezvous() -> None:
    bench = Bench(eager_size=3_000)
    message, key = rendezvous(bench)
    bench.answer(message, 0, response(modified_length=5_000))
    bench.end(message)
    bench.initiator.on_served(key, 3_000, 2_000)
    assert [(c.length, c.error) for c in bench.completions] == [(5_000, None)]
    bench.assert_nothing_left()


def test_a_rest_that_nobody_reads() -> None:
    bench = Bench(eager_size=3_000, deferred_time=5_000)
    message, key = rendezvous(bench)
    bench.end(message)
    bench.wait(4_000)
    bench.initiator.on_served(key, 3_000, 1_000)
    bench.wait(8_999)
    assert bench.completions == []
    bench.wait(9_000)
    assert [c.error for c in bench.completions] == ["RENDEZVOUS_TIMEOUT"]
    bench.assert_nothing_left()


def test_fetch_reads_for_the_target_side() -> None:
    outcome: list[str | None] = []
    memory = memoryview(bytearray(2_000))
    bench = Bench(profiles=("ai_base",))
    bench.initiator.fetch(THERE, Address(resource_index=9), 77, 3_000, memory, outcome.append)
    message = bench.take()
    p = packets(message)[0]
    assert (p.opcode, p.resource_index, p.match_bits, p.buffer_offset) == (
        Opcode.READ,
        9,
        77,
        3_000,
    )
    bench.end(message)
    bench.data(message, MTU, b"b" * (2_000 - MTU))
    bench.data(message, 0, b"a" * MTU)
    assert outcome == [None]
    assert bytes(memory) == b"a" * MTU + b"b" * (2_000 - MTU)
    bench.initiator.fetch(THERE, Address(), 77, 0, memory, outcome.append)
    message = bench.take()
    bench.answer(message, 0, response(ReturnCode.BAD_MKEY))
    bench.answer(message, 1, response(ReturnCode.BAD_MKEY))
    bench.end(message)
    assert outcome == [None, "BAD_MKEY"]
    assert bench.completions == []
    bench.assert_nothing_left()


def test_coverage() -> None:
    rng = random.Random(6)
    for _ in range(200):
        coverage, model = Coverage(), set()
        for _ in range(rng.randrange(12)):
            start = rng.randrange(30)
            end = start + rng.randrange(8)
            coverage.add(start, end)
            model.update(range(start, end))
        for start in range(30):
            for end in (start, start + 1, start + 5):
                assert coverage.covers(start, end) == (set(range(start, end)) <= model)


# -- ids and PDCs --------------------------------------------------------------------------------


def test_message_ids_are_unique_over_all_pdcs() -> None:
    bench = Bench()
    for k in range(20):
        bench.post(write(peer=(THERE, ELSEWHERE)[k % 2], delivery=("rud", "rod")[k // 2 % 2]))
    messages = [bench.take() for _ in range(20)]
    assert len({message.id for message in messages}) == 20
    assert all(1 <= message.id <= 65_535 for message in messages)


def test_ids_run_out_and_come_back() -> None:
    bench = Bench()
    for _ in range(65_535):
        bench.post(NoOperation(peer=THERE))
    assert {message.id for message in bench.waiting} == set(range(1, 65_536))
    bench.post(write(peer=ELSEWHERE, context="late"), send(delivery="uud"))
    assert len(bench.waiting) == 65_536  # a datagram needs none
    assert bench.initiator.waiting
    freed = bench.waiting[1_000]
    bench.waiting.clear()
    bench.end(freed)
    bench.initiator.start_waiting()
    (late,) = bench.waiting
    assert (late.id, late.plan.context) == (freed.id, "late")
    assert not bench.initiator.waiting


def test_ids_from_zero() -> None:
    bench = Bench(compatibility=REFERENCE_PROVIDER)
    bench.post(*(write() for _ in range(3)))
    assert [message.id for message in bench.waiting] == [0, 1, 2]
    bench.post(send(delivery="uud"))
    assert bench.waiting[-1].id == 3


def test_one_blocked_peer_holds_up_nobody_else() -> None:
    bench = Bench()
    bench.free[THERE] = False
    bench.post(*(write(bytes([k])) for k in range(3)), write(peer=ELSEWHERE))
    (message,) = bench.waiting
    assert message.plan.peer == ELSEWHERE
    bench.end(bench.take())
    assert bench.initiator.waiting
    bench.initiator.start_waiting()
    assert bench.waiting == []
    bench.free[THERE] = True
    bench.initiator.start_waiting()
    assert [on_the_wire(message) for message in bench.waiting] == [0, 1, 2]
    assert not bench.initiator.waiting


def test_a_message_whose_pdc_ended_unused_goes_elsewhere_in_its_order() -> None:
    bench = Bench()
    request = read(5)
    bench.post(send(b"\0"), request, send(b"\2"))
    first = bench.take()
    unsent = bench.waiting[:]
    bench.waiting.clear()
    for message in unsent:
        del bench.out[message]
        bench.initiator.message_unsent(message)
    assert bench.pdcs[THERE, "rud"].locks == 0
    bench.post(send(b"\3"))
    assert bench.waiting == []
    bench.initiator.start_waiting()
    kinds = [(m.plan.kind, bytes(m.plan.payload)) for m in bench.waiting]
    assert kinds == [("read", b""), ("send", b"\2"), ("send", b"\3")]
    assert bench.pdcs[THERE, "rud"].locks == 1
    bench.end(first)
    assert bench.counters["tx_messages"] == 1


def test_writes_by_rudi_need_no_pdc_lock() -> None:
    data = random.Random(9).randbytes(2 * MTU)
    request = read(len(data), delivery="rudi", key=KEY | 1 << 63)
    bench = Bench()
    bench.post(request, write(delivery="rudi"))
    message = bench.take()
    assert bench.pdcs[THERE, "rudi"].locks == 0
    for k in (1, 0):
        bench.answer(message, k, data_in_ack(message.id, data[k * MTU : (k + 1) * MTU], k * MTU))
    bench.end(message)
    bench.end(bench.take())
    assert bytes(request.memory) == data
    assert [c.error for c in bench.completions] == [None, None]
    bench.assert_nothing_left()
