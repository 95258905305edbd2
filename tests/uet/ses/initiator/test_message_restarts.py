"""Messages that begin again: refusals, deferrable and rendezvous sends (UES 3.4)."""

import random

import pytest

from tests.harness.uet.carriage import (
    ELSEWHERE,
    MS,
    MTU,
    THERE,
    Bench,
    packets,
    response,
)
from tests.harness.uet.exchange import Exchange, Wire
from tests.harness.uet.operations import deferrable_late
from tests.uet.ses.initiator.test_outbound import send
from uet.compatibility import Compatibility
from uet.pds.semantics import ACCEPTED, Answer, Response
from uet.ses.address import Address
from uet.ses.initiator.outbound import OutboundMessage
from uet.ses.octet_ranges import OctetRanges
from uet.wire import headers
from uet.wire.codes import Opcode, ResponseList, ReturnCode

NO_MATCH, DISABLED_GEN = ReturnCode.NO_MATCH, ReturnCode.DISABLED_GEN
SECOND = 1_000 * MS


def code_of(answer: Answer) -> int:
    assert isinstance(answer, Response)
    return int(headers.SES_RESPONSE.values(answer.octets)["return_code"])


def generation(message: OutboundMessage) -> int:
    (value,) = {p.ri_generation for p in packets(message)}
    return int(value)


def on_the_wire(message: OutboundMessage) -> int:
    """Return which of the numbered one-octet sends it is."""
    return int(packets(message)[0].payload[0])


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
        began = bench.time.now
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


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_new_generation_outweighs_other_refusals(order: tuple[int, int]) -> None:
    bench = Bench()
    bench.post(send(bytes(2 * MTU)))
    message = bench.take()
    answers = (response(ReturnCode.BAD_GENERATION, ri_generation=4), response(NO_MATCH))
    for index in order:
        bench.answer(message, index, answers[index])
    bench.end(message)
    assert generation(bench.take()) == 4


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


def test_refusals_for_the_sake_of_an_earlier_message_do_not_count() -> None:
    """Only NO_MATCH for itself uses up the one restart that the second message has."""
    bench = Bench(delivery="rod", max_restarts=1)
    bench.post(*(send(bytes([k])) for k in range(2)))
    messages = [bench.take() for _ in range(2)]
    for message, code in zip(messages, (NO_MATCH, DISABLED_GEN), strict=True):
        bench.answer(message, 0, response(code))
        bench.end(message)
    bench.wait(SECOND)
    bench.end(bench.take())
    for attempt in range(2):
        message = bench.take()
        assert on_the_wire(message) == 1
        bench.answer(message, 0, response(NO_MATCH))
        bench.end(message)
        assert len(bench.completions) == 1 + attempt
        bench.wait(2 * SECOND)
    assert [c.error for c in bench.completions] == [None, "NO_MATCH"]
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


@pytest.mark.conformance("C-080")
@pytest.mark.parametrize("swapped", [False, True])
def test_the_order_of_a_restarts_tokens(swapped: bool) -> None:
    """UES has the initiator's first; the UEC reference provider sends and reads the target's."""
    compatibility = Compatibility(target_restart_token_first=swapped)
    bench = Bench(compatibility=compatibility)
    bench.initiator.request_restart(THERE, Address(), 0xAAAA, 0xBBBB, "rud")
    (p,) = packets(bench.take())
    sent = p.rtr_initiator_restart_token, p.rtr_target_restart_token
    assert sent == ((0xBBBB, 0xAAAA) if swapped else (0xAAAA, 0xBBBB))
    # A send that is really deferred begins again where both ends have one order.
    exchange = Exchange(Wire(), 3, compatibility=compatibility)
    for number, side in enumerate(exchange.sides, 1):
        # Targets count from 0 or 1 too: tokens that are equal would have no order.
        side.fep.initiator.peer_handles._next_token = 1_000 * number  # noqa: SLF001  as after many
        deferrable_late(exchange, side, "rud")
    exchange.prove()
    for side in exchange.sides:
        assert side.fep.counters()["tx_message_restarts"] > 0
        assert side.fep.counters()["rx_restarts_unknown"] == 0


def test_a_deferrable_send_that_is_refused() -> None:
    """Without room for one more deferred message the target says NO_MATCH: all over again."""
    bench = Bench()
    bench.post(send(protocol="deferrable"))
    message = bench.take()
    bench.answer(message, 0, response(NO_MATCH))
    bench.end(message)
    bench.wait(SECOND)
    message = bench.take()
    seen = packets(message)[0]
    assert seen.target_restart_token == 0
    deferred(bench, message)
    bench.end(message)
    bench.initiator.on_restart(THERE, seen.initiator_restart_token, 7)
    message = bench.take()
    assert packets(message)[0].target_restart_token == 7
    # The reservation has run out meanwhile.
    bench.answer(message, 0, response(NO_MATCH))
    bench.end(message)
    bench.wait(2 * SECOND)
    assert packets(bench.take())[0].target_restart_token == 0
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
        coverage = OctetRanges()
        model: set[int] = set()
        for _ in range(rng.randrange(12)):
            start = rng.randrange(30)
            end = start + rng.randrange(8)
            coverage.add(start, end)
            model.update(range(start, end))
        for start in range(30):
            for end in (start, start + 1, start + 5):
                assert coverage.covers(start, end) == (set(range(start, end)) <= model)
