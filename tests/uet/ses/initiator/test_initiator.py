"""Test what the initiator makes of responses; message ids; who waits for whom (UES 3.4)."""

import random
from typing import Any

import pytest

from tests.harness.uet.carriage import (
    ELSEWHERE,
    MS,
    MTU,
    THERE,
    Bench,
    data_in_ack,
    response,
)
from tests.uet.ses.initiator.test_outbound import KEY, atomic, cswap, read, send, write
from uet.compatibility import REFERENCE_PROVIDER
from uet.transport import NoOperationRequest
from uet.wire.codes import NextHeader, ResponseList, ReturnCode

NO_MATCH, DISABLED_GEN = ReturnCode.NO_MATCH, ReturnCode.DISABLED_GEN
SECOND = 1_000 * MS


# -- the plain case ------------------------------------------------------------------------------


def test_default_responses_complete_everything_without_data() -> None:
    bench = Bench()
    bench.post(write(context=1), send(context=2), atomic(context=3), NoOperationRequest(peer=THERE))
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
        bench.post(NoOperationRequest(peer=THERE))
    assert {message.id for message in bench.waiting} == set(range(1, 65_536))
    bench.post(write(peer=ELSEWHERE, context="late"), send(delivery="uud"))
    assert len(bench.waiting) == 65_536  # a datagram needs none
    assert bench.counters["post_waits_for_id"] == 1
    freed = bench.waiting[1_000]
    bench.waiting.clear()
    bench.end(freed)
    (late,) = bench.waiting
    assert (late.id, late.plan.context) == (freed.id, "late")
    assert not bench.initiator.waiting


def test_an_id_comes_back_however_its_message_ends() -> None:
    bench = Bench(inbound_message_idle_time=1_000)
    for _ in range(65_534):
        bench.post(NoOperationRequest(peer=ELSEWHERE))
    bench.waiting.clear()
    for ending in ("data", "time", "pdc"):
        bench.post(read(5))
        message = bench.take()
        bench.post(write(peer=ELSEWHERE))
        bench.end(message)
        assert bench.waiting == []
        if ending == "data":
            bench.data(message, 0, bytes(5))
        elif ending == "time":
            bench.wait(1_000)
        else:
            bench.initiator.pdc_closed(bench.pdcs[THERE, "rud"])
        assert [waiting.id for waiting in bench.waiting] == [message.id], ending
        bench.end(bench.take())


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
    assert [int(message.plan.payload[0]) for message in bench.waiting] == [0, 1, 2]
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
