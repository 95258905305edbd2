"""Writes, reads and atomic operations at a target (UES 3.4.1)."""

import random
from typing import Any

import pytest

from tests.harness.uet.deliveries import (
    KEY,
    MTU,
    REGION,
    Packet,
    TargetBench,
    atomic,
    medium,
    parts,
    read,
    read_data,
    refused,
    small,
    std,
)
from uet.compatibility import Compatibility
from uet.pds.semantics import ACCEPTED, Response
from uet.ses.memory.operands import pack_operands
from uet.wire import headers
from uet.wire.codes import AtomicOpcode, Datatype, Opcode, ResponseOpcode, ReturnCode

SYNC_WRITE, SYNC_ATOMIC = 0x10, 0x11


# -- write ---------------------------------------------------------------------------------------


@pytest.mark.conformance("C-071")
@pytest.mark.parametrize("opcode", [Opcode.WRITE, Opcode.SEND, Opcode.TAGGED_SEND])
@pytest.mark.parametrize("seed", range(4))
def test_packets_in_any_order(opcode: Opcode, seed: int) -> None:
    """Complete when every octet is there, whichever packet is last; also the first one."""
    bench = TargetBench()
    data = random.Random(seed).randbytes(20 * 100 - 30)
    memory = bench.memory
    bits = KEY
    if opcode != Opcode.WRITE:
        memory = bench.receive(len(data), tag=KEY if opcode == Opcode.TAGGED_SEND else None)
    packets = parts(opcode, data, size=100, match_bits=bits, hd=1, header_data=0xFEED, message_id=0)
    first = packets.pop(0)
    random.Random(seed).shuffle(packets)
    packets.insert(len(packets) if seed < 2 else seed, first)
    for packet in packets:
        assert bench.completions == []
        assert bench.give(packet) == ACCEPTED
    assert memory[: len(data)] == data
    (completion,) = bench.completions
    assert (completion.length, completion.header_data) == (len(data), 0xFEED)
    assert completion.kind == ("remote_write" if opcode == Opcode.WRITE else "receive")
    assert completion.error is None
    assert bench.counters["rx_messages"] == 1
    assert not bench.target.inbound.messages


@pytest.mark.conformance("C-206")
@pytest.mark.parametrize("opcode", [Opcode.WRITE, Opcode.SEND])
@pytest.mark.parametrize("size", [3, 3000])
def test_delivery_complete(opcode: Opcode, size: int) -> None:
    """The packet that completes the message is answered in so many words, the others are not."""
    bench = TargetBench()
    bench.receive()
    bits = KEY if opcode == Opcode.WRITE else 0
    *others, last = parts(opcode, bytes(size), match_bits=bits, dc=1)
    assert [bench.give(packet) for packet in others] == [ACCEPTED] * len(others)
    stated = read(bench.give(last))
    assert (stated.code, stated.opcode, stated.modified) == (
        ReturnCode.OK,
        ResponseOpcode.RESPONSE,
        size,
    )
    assert stated.guaranteed


def test_short_writes() -> None:
    bench = TargetBench()
    assert bench.give(medium(Opcode.WRITE, b"medium", match_bits=KEY, buffer_offset=3)) == ACCEPTED
    assert bench.give(small(Opcode.WRITE, b"small", buffer_offset=20)) == ACCEPTED
    assert bench.memory[3:9] == b"medium"
    assert bench.memory[20:25] == b"small"
    packet = medium(Opcode.WRITE, b"data", match_bits=KEY, hd=1, header_data=9)
    assert bench.give(packet) == ACCEPTED
    assert [(c.header_data, c.offset, c.length) for c in bench.completions] == [(9, 0, 4)]
    refused(bench, small(Opcode.WRITE, b"x", resource_index=0x124), ReturnCode.BAD_MKEY)
    refused(bench, small(Opcode.WRITE, b"x", job_id=2), ReturnCode.BAD_JOB_ID)
    refused(bench, small(Opcode.WRITE, b"x", pid_on_fep=2), ReturnCode.UNDELIVERABLE)
    refused(bench, small(Opcode.SEND, b"x"), ReturnCode.UNDELIVERABLE)
    refused(bench, small(Opcode.SEND, b"x", resource_index=15), ReturnCode.UNSUPPORTED_OP)


def test_octets_that_come_twice_and_strangers() -> None:
    bench = TargetBench()
    first = std(Opcode.WRITE, b"a" * 50, at=50, total=200, match_bits=KEY)
    assert bench.give(first) == ACCEPTED
    for at, size, fields in (
        (60, 50, {}),
        (10, 50, {}),
        (25, 100, {}),
        (180, 50, {}),
        (2**32 - 1, 50, {}),
        (100, 50, {"buffer_offset": 1}),
        (100, 50, {"total": 201}),
        (100, 50, {"match_bits": 8}),
        (100, 50, {"opcode": Opcode.SEND}),
        (100, 50, {"job_id": 2}),
    ):
        given = {"opcode": Opcode.WRITE, "total": 200, "match_bits": KEY} | fields
        opcode = given.pop("opcode")
        refused(bench, std(opcode, b"b" * size, at=at, **given), ReturnCode.OP_VIOLATION)
    assert bench.give(std(Opcode.WRITE, b"c" * 100, at=100, total=200, match_bits=KEY)) == ACCEPTED
    assert bench.give(std(Opcode.WRITE, b"d" * 50, total=200, match_bits=KEY)) == ACCEPTED
    assert bench.memory[:200] == b"d" * 50 + b"a" * 50 + b"c" * 100
    assert not bench.target.inbound.messages


@pytest.mark.conformance("C-079")
def test_later_packets_of_a_refused_message_draw_the_same_code() -> None:
    """Though by then the key is known; the next message of that identifier is judged afresh."""
    bench = TargetBench()
    packets = parts(Opcode.WRITE, bytes(range(250)) * 10, match_bits=5)
    refused(bench, packets[1], ReturnCode.BAD_MKEY)
    memory = bytearray(4096)
    bench.register(memory, 5)
    refused(bench, packets[0], ReturnCode.BAD_MKEY)
    refused(bench, packets[2], ReturnCode.BAD_MKEY)
    assert memory == bytes(4096)
    for packet in packets:
        assert bench.give(packet) == ACCEPTED
    assert memory[:2500] == bytes(range(250)) * 10


def test_an_initiator_error_ends_the_message() -> None:
    bench = TargetBench()
    into = bench.receive(context="r")
    packets = parts(Opcode.SEND, b"z" * 2500)
    assert bench.give(packets[0]) == ACCEPTED
    marked = std(Opcode.SEND, b"z" * 1024, at=1024, total=2500, eom=0, ie=1)
    refused(bench, marked, ReturnCode.INITIATOR_ERR)
    refused(bench, packets[2], ReturnCode.INITIATOR_ERR)
    assert into[1024:] == bytes(4096 - 1024)
    assert [(c.context, c.error, c.length) for c in bench.completions] == [
        ("r", "INITIATOR_ERR", 1024)
    ]


# -- read ----------------------------------------------------------------------------------------


def filled(**parameters: Any) -> TargetBench:
    bench = TargetBench(**parameters)
    bench.memory[:] = random.Random(5).randbytes(REGION)
    return bench


@pytest.mark.conformance("C-074")
@pytest.mark.parametrize("size", [1, 15, 16])
def test_little_data_comes_in_the_answer(size: int) -> None:
    bench = filled()
    packet = std(Opcode.READ, total=size, match_bits=KEY, buffer_offset=100, message_id=7, eom=0)
    answer = bench.give(packet)
    assert isinstance(answer, Response)
    fields, data = read_data(answer)
    assert data == bench.memory[100 : 100 + size]
    assert (fields["read_request_message_id"], fields["modified_length"]) == (7, size)
    assert (fields["message_offset"], fields["job_id"]) == (0, 1)
    assert bench.pdc.posted == []
    assert bench.initiator.served == []
    assert answer.known is not None
    answer.known()  # its initiator has said so
    assert bench.initiator.served == [(KEY, 100, size)]


@pytest.mark.conformance("C-073")
@pytest.mark.parametrize("size", [17, MTU, MTU + 1, 2500, 2 * MTU + 10])
def test_more_data_comes_by_the_return_direction(size: int) -> None:
    """All of it, the last octets too, however few; one message for each request."""
    bench = filled()
    cut = range(0, size, MTU)
    for at in reversed(cut):
        packet = std(
            Opcode.READ,
            at=at or None,
            total=size,
            match_bits=KEY,
            buffer_offset=9,
            message_id=7,
            **({"payload_length": min(MTU, size - at)} if at else {}),
        )
        assert bench.give(packet) == ACCEPTED
    assert bench.initiator.served == []
    returned = bench.returned
    assert [fields["message_offset"] for fields, _ in returned] == list(reversed(cut))
    assert b"".join(data for _, data in reversed(returned)) == bench.memory[9 : 9 + size]
    for fields, data in returned:
        assert fields["read_request_message_id"] == 7
        assert (fields["modified_length"], fields["payload_length"]) == (size, len(data))
    assert sorted(bench.initiator.served) == [(KEY, 9 + at, min(MTU, size - at)) for at in cut]


@pytest.mark.parametrize(("make", "key"), [(medium, KEY), (small, None)])
def test_short_reads_are_named_by_their_psn(make: Any, key: int | None) -> None:
    bench = filled()
    fields = {"buffer_offset": 40} | ({} if key is None else {"match_bits": key})
    named, data = read_data(bench.give(make(Opcode.READ, request_length=8, **fields)))
    assert data == bench.memory[40:48]
    assert named["original_request_psn"] == bench.psn
    assert bench.give(make(Opcode.READ, request_length=500, **fields)) == ACCEPTED
    ((named, data),) = bench.returned
    assert data == bench.memory[40:540]
    assert named["original_request_psn"] == bench.psn
    packet = make(Opcode.READ, request_length=MTU + 1, **fields)
    refused(bench, packet, ReturnCode.OP_VIOLATION)


@pytest.mark.parametrize(
    "packet",
    [
        std(Opcode.READ, b"x", total=100, match_bits=KEY),
        std(Opcode.READ, at=50, total=100, payload_length=51, match_bits=KEY),
        std(Opcode.READ, at=50, total=100, payload_length=0, match_bits=KEY),
        std(Opcode.READ, at=0, total=4000, payload_length=MTU + 1, match_bits=KEY),
    ],
)
def test_reads_that_make_no_sense(packet: Packet) -> None:
    refused(TargetBench(), packet, ReturnCode.OP_VIOLATION)


def test_a_read_of_nothing() -> None:
    assert TargetBench().give(std(Opcode.READ, match_bits=KEY)) == ACCEPTED


# -- atomic operations ---------------------------------------------------------------------------


def test_atomics() -> None:
    """Operands are big-endian on the wire, the memory is little-endian."""
    bench = TargetBench()
    bench.memory[8:16] = (1000).to_bytes(8, "little")
    extension, operand = atomic()
    place = {"match_bits": KEY, "buffer_offset": 8}
    assert bench.give(std(Opcode.ATOMIC, operand, extension=extension, **place)) == ACCEPTED
    assert bench.memory[8:16] == (1005).to_bytes(8, "little")
    fields, data = read_data(
        bench.give(std(Opcode.FETCHING_ATOMIC, operand, extension=extension, **place))
    )
    assert data == (1005).to_bytes(8, "big")
    assert (fields["modified_length"], fields["read_request_message_id"]) == (8, 1)
    swap, _ = atomic(AtomicOpcode.CSWAP, 5, 1010)
    for original in (1010, 5):
        packet = std(Opcode.FETCHING_ATOMIC, extension=swap, total=32, **place)
        fields, data = read_data(bench.give(packet))
        assert data == original.to_bytes(8, "big")
        assert fields["modified_length"] == 32
    assert bench.memory[8:16] == (5).to_bytes(8, "little")
    fields, data = read_data(
        bench.give(small(Opcode.FETCHING_ATOMIC, operand, extension=extension, buffer_offset=8))
    )
    assert (data, fields["original_request_psn"]) == ((5).to_bytes(8, "big"), bench.psn)
    stated = read(bench.give(std(Opcode.ATOMIC, operand, extension=extension, dc=1, **place)))
    assert (stated.code, stated.modified) == (ReturnCode.OK, 8)


def test_results_too_long_for_an_answer() -> None:
    bench = filled()
    words = random.Random(3).randbytes(64)
    extension, operand = pack_operands(AtomicOpcode.BXOR, Datatype.UINT64, words)
    before = bytes(bench.memory[:64])
    packet = std(Opcode.FETCHING_ATOMIC, operand, extension=extension, match_bits=KEY)
    assert bench.give(packet) == ACCEPTED
    ((_, data),) = bench.returned
    assert b"".join(data[k : k + 8][::-1] for k in range(0, 64, 8)) == before
    assert bench.memory[:64] == bytes(a ^ b for a, b in zip(before, words, strict=True))


@pytest.mark.conformance("C-207")
@pytest.mark.parametrize(
    ("word", "operand", "offset", "code"),
    [
        ((0x20, Datatype.UINT64), 8, 0, ReturnCode.AMO_UNSUPPORTED_OP),
        ((AtomicOpcode.SUM, 0x40), 8, 0, ReturnCode.AMO_UNSUPPORTED_DT),
        ((AtomicOpcode.BOR, Datatype.DOUBLE), 8, 0, ReturnCode.AMO_UNSUPPORTED_DT),
        ((AtomicOpcode.SUM, Datatype.UINT64), 7, 0, ReturnCode.AMO_UNSUPPORTED_SIZE),
        ((AtomicOpcode.SUM, Datatype.UINT64), 8, 4, ReturnCode.AMO_UNALIGNED),
    ],
)
def test_atomics_that_cannot_be(
    word: tuple[int, int], operand: int, offset: int, code: ReturnCode
) -> None:
    extension = headers.SES_ATOMIC.encode(*word)
    for opcode in (Opcode.ATOMIC, Opcode.FETCHING_ATOMIC):
        packet = std(
            opcode, bytes(operand), extension=extension, match_bits=KEY, buffer_offset=offset
        )
        refused(filled(), packet, code)


def test_swaps_come_with_fetching() -> None:
    bench = TargetBench(profiles=("ai_base",))
    extension, operand = atomic()
    assert bench.give(std(Opcode.ATOMIC, operand, extension=extension, match_bits=KEY)) == ACCEPTED
    swap, _ = atomic(AtomicOpcode.CSWAP, 5, 1010)
    packet = std(Opcode.ATOMIC, extension=swap, total=32, match_bits=KEY)
    refused(bench, packet, ReturnCode.AMO_UNSUPPORTED_OP)


def test_atomics_on_a_tagged_receive() -> None:
    bench = TargetBench()
    into = bench.receive(8, tag=77, context="sum")
    into[:] = (40).to_bytes(8, "little")
    extension, operand = atomic(operand=2)
    packet = std(Opcode.TSEND_FETCH_ATOMIC, operand, extension=extension, match_bits=77)
    refused(
        bench,
        std(Opcode.TSEND_ATOMIC, operand, extension=extension, match_bits=78),
        ReturnCode.NO_MATCH,
    )
    bad = headers.SES_ATOMIC.encode(0x20, Datatype.UINT64)
    refused(
        bench,
        std(Opcode.TSEND_ATOMIC, operand, extension=bad, match_bits=77),
        ReturnCode.AMO_UNSUPPORTED_OP,
    )
    _, data = read_data(bench.give(packet))
    assert data == (40).to_bytes(8, "big")
    assert into == (42).to_bytes(8, "little")
    assert [(c.context, c.length, c.tag, c.error) for c in bench.completions] == [
        ("sum", 8, 77, None)
    ]
    refused(bench, packet, ReturnCode.NO_MATCH)


# -- synchronised operations of the reference provider -------------------------------------------


def sync(group: int, count: int) -> bytes:
    return group.to_bytes(2, "big") + count.to_bytes(2, "big")


def test_synchronised_operations() -> None:
    """Reported once all members of a group have arrived, in whatever order."""
    bench = TargetBench(compatibility=Compatibility(sync_operations=True))
    extension, operand = atomic()
    members = [
        std(SYNC_WRITE, b"a" * 700, extension=sync(4, 0), match_bits=KEY),
        std(
            SYNC_WRITE,
            b"b" * 700,
            extension=sync(4, 3),
            match_bits=KEY,
            buffer_offset=700,
            hd=1,
            header_data=77,
            message_id=2,
        ),
        std(
            SYNC_ATOMIC,
            operand,
            extension=sync(4, 3) + extension,
            match_bits=KEY,
            buffer_offset=1400,
            message_id=3,
        ),
    ]
    for order in ((0, 1, 2), (2, 1, 0)):
        bench.completions.clear()
        for k in order:
            assert bench.completions == []
            assert bench.give(members[k]) == ACCEPTED
        (done,) = bench.completions
        assert (done.kind, done.length, done.header_data) == ("remote_write", 1408, 77)
    assert bench.memory[:1400] == b"a" * 700 + b"b" * 700
    assert int.from_bytes(bench.memory[1400:1408], "little") == 10
    refused(bench, std(SYNC_WRITE, match_bits=KEY), ReturnCode.OP_VIOLATION)
    refused(bench, std(SYNC_ATOMIC, b"123", match_bits=KEY), ReturnCode.OP_VIOLATION)


def test_a_synchronised_write_of_several_packets() -> None:
    bench = TargetBench(compatibility=Compatibility(sync_operations=True))
    extension = sync(1, 1)
    first = std(SYNC_WRITE, b"a" * MTU, total=1500, extension=extension, match_bits=KEY, eom=0)
    second = std(SYNC_WRITE, b"b" * 476, at=MTU, total=1500, extension=extension, match_bits=KEY)
    assert bench.give(second) == ACCEPTED
    assert bench.give(first) == ACCEPTED
    assert bench.memory[:1500] == b"a" * MTU + b"b" * 476
    assert [c.length for c in bench.completions] == [1500]
