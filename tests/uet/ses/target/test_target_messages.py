"""How messages end at a target, and requests that need no PDC (UES 3.4.1, 3.5.3)."""

import random

import pytest

from tests.harness.uet.deliveries import (
    ELSEWHERE,
    KEY,
    MTU,
    REGION,
    SAFE_KEY,
    SECOND,
    THERE,
    FakePdc,
    TargetBench,
    atomic,
    parts,
    read,
    read_data,
    std,
)
from uet.compatibility import Compatibility
from uet.pds.semantics import ACCEPTED, NO_ROOM
from uet.wire.codes import Opcode, ResponseOpcode, ReturnCode

# -- messages without data, and the end of others ------------------------------------------------


def test_no_op_and_restart() -> None:
    bench = TargetBench()
    assert bench.give(std(Opcode.NO_OP)) == ACCEPTED
    assert read(bench.give(std(Opcode.NO_OP, dc=1))).code == ReturnCode.OK
    packet = std(Opcode.DEFERRABLE_RTR, rtr_initiator_restart_token=3, rtr_target_restart_token=9)
    assert bench.give(packet) == ACCEPTED
    assert bench.initiator.restarts == [(THERE, 3, 9)]


@pytest.mark.conformance("C-089")
def test_a_message_given_up_by_its_initiator() -> None:
    """MSG_ERROR frees it and errors its receive; what is late of it does not begin it anew."""
    bench = TargetBench()
    bench.receive(context="first")
    later = bench.receive(context="later")
    packets = parts(Opcode.SEND, b"q" * 4000)
    error = std(Opcode.MSG_ERROR, at=3 * MTU, total=4000)
    assert bench.give(packets[0]) == ACCEPTED
    assert bench.give(error) == ACCEPTED
    assert [(c.context, c.error, c.length) for c in bench.completions] == [
        ("first", "INITIATOR_ERR", 1024)
    ]
    for packet in (packets[2], packets[1]):
        assert bench.give(packet) == ACCEPTED
    assert later == bytes(4096)
    assert bench.counters["rx_messages_abandoned"] == 1
    assert not bench.target.inbound.refused
    for packet in packets:  # the identifier is free again
        assert bench.give(packet) == ACCEPTED
    assert [c.context for c in bench.completions] == ["first", "later"]


@pytest.mark.conformance("C-089")
def test_the_end_may_overtake_all_of_a_message() -> None:
    bench = TargetBench()
    into = bench.receive()
    packets = parts(Opcode.SEND, b"q" * 4000)
    assert bench.give(std(Opcode.MSG_ERROR, at=2 * MTU, total=4000)) == ACCEPTED
    assert bench.give(packets[1]) == ACCEPTED
    assert bench.give(packets[0]) == ACCEPTED
    assert into == bytes(4096)
    assert not bench.target.inbound.refused
    assert bench.completions == []


@pytest.mark.conformance("C-087")
def test_idle_messages_are_abandoned() -> None:
    """What comes of them later draws DROPPED, however late it is."""
    bench = TargetBench(inbound_message_idle_time=SECOND)
    bench.receive(context="r")
    bench.receive(context="of another message")
    bench.give(parts(Opcode.SEND, bytes(3000))[0])
    bench.give(parts(Opcode.WRITE, bytes(3000), match_bits=KEY, message_id=2)[0])
    bench.give(parts(Opcode.WRITE, bytes(3000), match_bits=9, message_id=3)[0])
    bench.wait(SECOND // 2)
    bench.give(parts(Opcode.WRITE, bytes(3000), match_bits=KEY, message_id=2)[1])
    bench.wait(SECOND // 2)
    assert [(c.context, c.error, c.length) for c in bench.completions] == [("r", "ABANDONED", 1024)]
    assert list(bench.target.inbound.messages) == [(1, 2)]
    bench.wait(SECOND)
    assert not bench.target.inbound.messages
    assert bench.counters["rx_messages_abandoned"] == 2
    assert bench.target.next_deadline() is None
    bench.wait(60 * SECOND)
    before = bytes(bench.memory)
    for packet in parts(Opcode.SEND, b"x" * 3000)[1:]:
        assert read(bench.give(packet)).code == ReturnCode.DROPPED
    last = parts(Opcode.WRITE, b"x" * 3000, match_bits=KEY, message_id=2)[2]
    assert read(bench.give(last)).code == ReturnCode.DROPPED
    for packet in parts(Opcode.WRITE, bytes(3000), match_bits=9, message_id=3)[1:]:
        assert read(bench.give(packet)).code == ReturnCode.BAD_MKEY
    assert bench.memory == before
    assert len(bench.completions) == 1
    assert not bench.target.inbound.refused


@pytest.mark.conformance("C-088")
@pytest.mark.parametrize("ordered", [False, True])
def test_only_som_takes_a_receive(ordered: bool) -> None:
    """Packets before it wait, up to a limit; on an ordered PDC there can be none."""
    bench = TargetBench(inbound_message_idle_time=SECOND)
    bench.pdc.ordered = ordered
    into = bench.receive(context="r")
    packets = parts(Opcode.SEND, b"q" * 4000, dc=1)
    if ordered:
        assert read(bench.give(packets[1])).code == ReturnCode.DROPPED
        assert bench.completions == []
        return
    for packet in (packets[3], packets[1]):
        assert bench.give(packet) == ACCEPTED
    other = parts(Opcode.SEND, b"other", message_id=2)[0]
    assert bench.give(other) == ACCEPTED  # is first to begin, so it has the receive
    assert [(c.context, c.length) for c in bench.completions] == [("r", 5)]
    into = bench.receive(context="s")
    assert bench.give(packets[2]) == ACCEPTED
    stated = read(bench.give(packets[0]))
    assert (stated.code, stated.modified) == (ReturnCode.OK, 4000)  # delivery complete
    assert into[:4000] == b"q" * 4000
    assert not bench.target.inbound.early


def test_a_send_whose_som_never_comes() -> None:
    bench = TargetBench(inbound_message_idle_time=SECOND)
    bench.receive(context="r")
    packets = parts(Opcode.SEND, b"q" * 4000)
    assert bench.give(packets[2]) == ACCEPTED
    bench.wait(2 * SECOND)
    assert bench.counters["rx_messages_abandoned"] == 1
    assert not bench.target.inbound.early
    for packet in (packets[0], packets[1], packets[3]):
        assert read(bench.give(packet)).code == ReturnCode.DROPPED
    assert bench.completions == []
    assert not bench.target.inbound.refused


@pytest.mark.parametrize("order", ["message by message", "packet by packet"])
def test_refused_messages_are_remembered_up_to_a_limit(order: str) -> None:
    """One that the limit pushed out is judged afresh, never ends, and goes with its PDC."""
    bench = TargetBench(max_inbound_messages=3, unexpected="refuse")
    messages = [parts(Opcode.SEND, b"q" * 4000, message_id=number) for number in range(10)]
    for message in messages if order == "message by message" else zip(*messages, strict=True):
        for packet in message:
            bench.give(packet)
            assert len(bench.target.inbound.refused) <= 3
    assert bench.counters["rx_requests_refused"] >= 10
    bench.wait(60 * SECOND)  # what waits for its SOM is given up
    assert bool(bench.target.inbound.refused) == (order == "packet by packet")
    bench.target.forget(1)
    assert not bench.target.inbound.refused
    assert not bench.target.inbound.early


def test_packets_before_som_have_limits() -> None:
    bench = TargetBench(max_inbound_messages=2)
    packets = [parts(Opcode.SEND, b"q" * 4000, message_id=number) for number in (1, 2, 3)]
    assert bench.give(packets[0][1]) == ACCEPTED
    assert bench.give(packets[1][1]) == ACCEPTED
    assert bench.give(packets[2][1]) == NO_ROOM
    bench.receive(context="r")
    bench.receive(context="s")
    for first in (packets[1][0], packets[2][0]):
        assert bench.give(first) == ACCEPTED
    assert bench.give(packets[2][1]) == ACCEPTED
    bench.target.forget(1)
    assert not bench.target.inbound.early
    assert not bench.target.inbound.early_octets


def test_what_came_before_som_must_agree_with_it() -> None:
    bench = TargetBench()
    bench.receive(context="r")
    assert bench.give(parts(Opcode.SEND, b"q" * 4000)[1]) == ACCEPTED
    first = parts(Opcode.SEND, b"q" * 3000)[0]
    assert read(bench.give(first)).code == ReturnCode.OP_VIOLATION
    assert [(c.context, c.error) for c in bench.completions] == [("r", "OP_VIOLATION")]
    assert not bench.target.inbound.early


def test_a_pdc_that_goes_takes_its_messages_along() -> None:
    bench = TargetBench()
    other = FakePdc(id=2, address=ELSEWHERE)
    bench.receive(context="one")
    bench.receive(context="two")
    packets = parts(Opcode.SEND, bytes(2000))
    bench.give(packets[0])
    bench.give(packets[0], other)
    bench.target.forget(1)
    assert [(c.context, c.error) for c in bench.completions] == [("one", "PDC_CLOSED")]
    bench.give(packets[1], other)
    assert [(c.context, c.error, c.peer) for c in bench.completions[1:]] == [
        ("two", None, ELSEWHERE)
    ]


def test_no_room_for_another_message() -> None:
    """A transient lack is no answer, and no receive is used up."""
    bench = TargetBench(max_inbound_messages=2, inbound_message_idle_time=SECOND)
    bench.receive(context="r")
    for number in (1, 2):
        packet = parts(Opcode.WRITE, bytes(2000), match_bits=KEY, message_id=number)[0]
        assert bench.give(packet) == ACCEPTED
    assert bench.give(parts(Opcode.WRITE, bytes(2000), match_bits=KEY, message_id=3)[0]) == NO_ROOM
    assert bench.give(parts(Opcode.SEND, bytes(2000), message_id=3)[0]) == NO_ROOM
    assert bench.give(std(Opcode.SEND, b"whole", message_id=4)) == ACCEPTED
    assert [c.context for c in bench.completions] == ["r"]
    bench.time.now += SECOND
    assert bench.give(parts(Opcode.WRITE, bytes(2000), match_bits=KEY, message_id=3)[0]) == ACCEPTED
    assert list(bench.target.inbound.messages) == [(1, 3)]


# -- connectionless ------------------------------------------------------------------------------


def test_idempotent_requests() -> None:
    """Every copy is executed; data comes in the answer up to a payload MTU."""
    bench = TargetBench()
    data = random.Random(1).randbytes(2500)
    packets = parts(Opcode.WRITE, data, match_bits=SAFE_KEY)
    for packet in [*packets, packets[1], packets[0]]:
        answer = bench.connectionless("rudi", packet)
        stated = read(answer)
        assert (stated.opcode, stated.code) == (ResponseOpcode.DEFAULT_RESPONSE, ReturnCode.OK)
        assert (stated.modified, stated.message_id, stated.guaranteed) == (0, 1, False)
    assert bench.memory[:2500] == data
    for at in (0, 1024, 2048, 1024):
        size = min(MTU, 2500 - at)
        more = {"payload_length": size} if at else {}
        packet = std(Opcode.READ, at=at or None, total=2500, match_bits=SAFE_KEY, **more)
        fields, octets = read_data(bench.connectionless("rudi", packet))
        assert octets == data[at : at + size]
        assert (fields["message_offset"], fields["modified_length"]) == (at, 2500)
    assert not bench.target.inbound.messages


def test_what_is_not_idempotent() -> None:
    bench = TargetBench()
    bench.receive()
    extension, operand = atomic()
    for packet, code in (
        (std(Opcode.WRITE, b"x", match_bits=KEY), ReturnCode.OP_VIOLATION),
        (std(Opcode.READ, total=1, match_bits=KEY), ReturnCode.OP_VIOLATION),
        (std(Opcode.WRITE, b"x", match_bits=SAFE_KEY, hd=1), ReturnCode.OP_VIOLATION),
        (std(Opcode.SEND, b"x"), ReturnCode.OP_VIOLATION),
        (
            std(Opcode.ATOMIC, operand, extension=extension, match_bits=SAFE_KEY),
            ReturnCode.OP_VIOLATION,
        ),
        (std(Opcode.WRITE, b"x", match_bits=8), ReturnCode.BAD_MKEY),
        (std(Opcode.WRITE, b"x", match_bits=SAFE_KEY, job_id=4), ReturnCode.BAD_JOB_ID),
        (std(Opcode.WRITE, b"x", match_bits=SAFE_KEY, ri_generation=4), ReturnCode.BAD_GENERATION),
    ):
        assert read(bench.connectionless("rudi", packet)).code == code
    assert bench.memory == bytes(REGION)
    assert bench.completions == []
    without = TargetBench(profiles=("ai_full",))
    packet = std(Opcode.WRITE, b"x", match_bits=SAFE_KEY)
    assert read(without.connectionless("rudi", packet)).code == ReturnCode.UNSUPPORTED_OP


def test_the_default_response_of_another_provider() -> None:
    switches = Compatibility(modified_length_in_default_response=True)
    bench = TargetBench(compatibility=switches)
    answer = bench.connectionless("rudi", std(Opcode.WRITE, b"four", match_bits=SAFE_KEY))
    assert read(answer).modified == 4


@pytest.mark.parametrize("opcode", [Opcode.SEND, Opcode.DATAGRAM_SEND])
def test_datagrams(opcode: Opcode) -> None:
    """Into a posted receive, or nowhere; nobody is told, and the generation does not count."""
    bench = TargetBench(unexpected="keep")
    for packet in (
        std(opcode, b"nobody waits"),
        std(opcode, b"x", job_id=2),
        std(opcode, b"x", total=2),
        std(opcode, b"x", eom=0),
        std(Opcode.WRITE, b"x", match_bits=KEY),
        std(Opcode.MSG_ERROR),
    ):
        assert bench.connectionless("uud", packet) is None
    assert bench.counters["rx_datagrams_dropped"] == 6
    into = bench.receive(context="d")
    assert bench.connectionless("uud", std(opcode, bytes(5000))) is None
    assert bench.completions == []
    packet = std(opcode, b"hello", ri_generation=9, hd=1, header_data=4)
    assert bench.connectionless("uud", packet) is None
    assert into[:5] == b"hello"
    assert [(c.context, c.length, c.header_data, c.kind) for c in bench.completions] == [
        ("d", 5, 4, "receive")
    ]
    assert bench.memory == bytes(REGION)
