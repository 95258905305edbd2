"""Reads and fetched values: data in its place, whatever way it comes (UES 3.5.20.1)."""

import random

import pytest

from tests.harness.uet.carriage import (
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
from tests.uet.ses.initiator.test_outbound import atomic, cswap, read, write
from uet.pds.semantics import ACCEPTED, Answer, Response
from uet.wire import headers
from uet.wire.codes import AtomicOpcode, Datatype, NextHeader, ReturnCode

NO_MATCH, DISABLED_GEN = ReturnCode.NO_MATCH, ReturnCode.DISABLED_GEN
SECOND = 1_000 * MS


def code_of(answer: Answer) -> int:
    assert isinstance(answer, Response)
    return int(headers.SES_RESPONSE.values(answer.octets)["return_code"])


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


@pytest.mark.parametrize("missing", [0, 1])
def test_data_that_is_there_settles_a_read_whose_pdc_fails(missing: int) -> None:
    request = read(3 * MTU)
    bench = Bench()
    bench.post(request)
    message = bench.take()
    for k in range(3 - missing):
        bench.data(message, k * MTU, b"x" * MTU)
    bench.end(message, error="RTO_RETRIES_EXHAUSTED")
    (completion,) = bench.completions
    assert completion.error == ("RTO_RETRIES_EXHAUSTED" if missing else None)
    bench.assert_nothing_left()


@pytest.mark.parametrize("first", [2, 3])
def test_a_read_that_begins_again_keeps_what_it_has(first: int) -> None:
    """The peer may have withdrawn the memory by then, as all of it had been read."""
    request = read(3 * MTU)
    bench = Bench()
    bench.post(request)
    message = bench.take()
    for k in range(first):
        bench.data(message, k * MTU, bytes([k]) * MTU)
    bench.end(message, error="CLOSING")
    if first < 3:
        again = bench.take()
        bench.data(again, 2 * MTU, bytes([2]) * MTU)
        bench.answer(again, 0, response(ReturnCode.BAD_MKEY, message_id=again.id))
        bench.answer(again, 1, response(ReturnCode.BAD_MKEY, message_id=again.id))
        bench.end(again)
    assert [c.error for c in bench.completions] == [None]
    assert bytes(request.memory) == b"".join(bytes([k]) * MTU for k in range(3))
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
    # Nobody waits for these: the rest of what has failed looks like it, and counts as not read.
    unknown = bench.data(message, 0, b"x" * MTU, read_request_message_id=999)
    assert code_of(unknown) == ReturnCode.CANCELLED
    assert code_of(bench.data(other, 0, b"x" * 5)) == ReturnCode.CANCELLED
    stranger = FakePdc(44, ELSEWHERE, "rud")
    assert code_of(bench.data(message, 0, b"x" * MTU, pdc=stranger)) == ReturnCode.CANCELLED
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
    assert code_of(give(messages[0].psn, b"late" * 25)) == ReturnCode.CANCELLED
    assert code_of(give(4_999, b"none" * 25)) == ReturnCode.CANCELLED
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


def test_timers_that_do_not_count_are_thrown_out() -> None:
    """A read whose data came in time leaves nothing for its timer to hold on to."""
    bench = Bench()
    for _ in range(1_000):
        bench.post(read(5))
        message = bench.take()
        bench.end(message)
        bench.data(message, 0, bytes(5))
    heap = bench.initiator._timers._heap  # noqa: SLF001  memory alone
    assert len(heap) <= 65
    bench.assert_nothing_left()
