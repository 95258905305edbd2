"""Test what each operation looks like on the wire (UES 3.4.1, Tables 3-8 to 3-10)."""

import random
from typing import Any

import pytest

from tests.harness.uet.carriage import (
    ELSEWHERE,
    MTU,
    OPTIMIZED_KEY,
    THERE,
    Bench,
    packets,
    response,
)
from uet.compatibility import REFERENCE_PROVIDER, STANDARD
from uet.ses.address import Address
from uet.ses.initiator.requests import MessageError
from uet.transport import (
    AtomicRequest,
    NoOperationRequest,
    ReadRequest,
    Request,
    SendRequest,
    WriteRequest,
)
from uet.wire.codes import AtomicOpcode, Datatype, NextHeader, Opcode, ReturnCode

KEY = 0x1234
TAGGED_OPCODES = (Opcode.TAGGED_SEND, Opcode.RENDEZVOUS_TSEND)
STD, MEDIUM, SMALL = NextHeader.REQUEST_STD, NextHeader.REQUEST_MEDIUM, NextHeader.REQUEST_SMALL
TAG = 0x1122_3344_5566_7788


def write(data: bytes = b"hello", **more: Any) -> WriteRequest:
    return WriteRequest(
        **{"peer": THERE, "key": KEY, "offset": 77, "payload": memoryview(data), **more}
    )


def read(octets: int, **more: Any) -> ReadRequest:
    memory = memoryview(bytearray(octets))
    return ReadRequest(**{"peer": THERE, "key": KEY, "offset": 77, "memory": memory, **more})


def send(data: bytes = b"hello", **more: Any) -> SendRequest:
    return SendRequest(**{"peer": THERE, "payload": memoryview(data), **more})


def atomic(**more: Any) -> AtomicRequest:
    fields: dict[str, Any] = {
        "peer": THERE,
        "key": KEY,
        "offset": 8,
        "operation": AtomicOpcode.SUM,
        "datatype": Datatype.UINT64,
        "operand": (5).to_bytes(8, "little"),
    }
    return AtomicRequest(**{**fields, **more})


def cswap(**more: Any) -> AtomicRequest:
    return atomic(
        operation=AtomicOpcode.CSWAP,
        compare=(1000).to_bytes(8, "little"),
        result=memoryview(bytearray(8)),
        **more,
    )


def first(request: Request, **parameters: Any) -> Any:
    bench = Bench(**parameters)
    bench.post(request)
    (packet,) = packets(bench.take())
    return packet


# -- segmentation --------------------------------------------------------------------------------

LENGTHS = [0, 1, MTU - 1, MTU, MTU + 1, 2 * MTU, 3 * MTU, 5 * MTU - 7]


@pytest.mark.conformance("C-070")
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("opcode", "make"),
    [
        (Opcode.WRITE, lambda data: write(data, header_data=0xABCD)),
        (Opcode.SEND, lambda data: send(data, header_data=0xABCD)),
        (Opcode.TAGGED_SEND, lambda data: send(data, tag=TAG, header_data=0xABCD)),
        (
            Opcode.DEFERRABLE_SEND,
            lambda data: send(data, protocol="deferrable", header_data=0xABCD),
        ),
        (
            Opcode.RENDEZVOUS_TSEND,
            lambda data: send(data, protocol="rendezvous", tag=TAG, header_data=0xABCD),
        ),
    ],
)
def test_segmentation(opcode: Opcode, make: Any, length: int) -> None:
    """max(1, ceil(N / MTU)) packets; som first, eom last; only the last may be short."""
    data = random.Random(length).randbytes(length)
    bench = Bench()
    bench.post(make(data))
    seen = packets(bench.take())
    assert len(seen) == max(1, -(-length // MTU))
    assert [p.som for p in seen] == [1] + [0] * (len(seen) - 1)
    assert [p.eom for p in seen] == [0] * (len(seen) - 1) + [1]
    assert all(len(p.payload) == MTU for p in seen[:-1])
    assert b"".join(p.payload for p in seen) == data
    if not length and opcode != Opcode.WRITE:  # nothing to keep back: a plain send
        opcode = Opcode.SEND if seen[0].match_bits == 0 else Opcode.TAGGED_SEND
    for k, p in enumerate(seen):
        assert (p.opcode, p.rel, p.version, p.dc, p.ie) == (opcode, 1, 0, 0, 0)
        assert p.message_id == seen[0].message_id != 0
        assert (p.job_id, p.pid_on_fep, p.resource_index, p.initiator) == (1, 0, 15, 16)
        assert p.request_length == length
        if k:
            assert (p.message_offset, p.payload_length) == (k * MTU, len(p.payload))
        else:
            assert (p.hd, p.header_data) == (1, 0xABCD)
        if opcode == Opcode.WRITE:
            assert (p.buffer_offset, p.match_bits) == (77, KEY)
        else:
            tagged = opcode in TAGGED_OPCODES
            assert p.match_bits == (TAG if tagged else 0)


@pytest.mark.conformance("C-072")
@pytest.mark.parametrize("length", LENGTHS)
def test_a_read_asks_once_per_mtu(length: int) -> None:
    bench = Bench()
    bench.post(read(length), read(1))
    seen = packets(bench.take())
    assert len(seen) == max(1, -(-length // MTU))
    assert len({p.message_id for p in seen}) == 1
    assert [p.som for p in seen] == [1] + [0] * (len(seen) - 1)
    assert [p.eom for p in seen] == [0] * (len(seen) - 1) + [1]
    for k, p in enumerate(seen):
        assert (p.opcode, p.buffer_offset, p.match_bits) == (Opcode.READ, 77, KEY)
        assert (p.request_length, p.payload) == (length, b"")
        if k:
            assert (p.message_offset, p.payload_length) == (k * MTU, min(MTU, length - k * MTU))
    (other,) = packets(bench.take())
    assert other.message_id != seen[0].message_id


def test_delivery_complete_and_addressing() -> None:
    """Every packet says it, and says where to."""
    there = Address(job_id=0xABCDE, pid_on_fep=37, resource_index=683, relative=False)
    bench = Bench(initiator_id=0x1001)
    bench.post(write(bytes(3 * MTU), delivery_complete=True, destination=there))
    for p in packets(bench.take()):
        assert (p.dc, p.rel, p.job_id, p.pid_on_fep) == (1, 0, 0xABCDE, 37)
        assert (p.resource_index, p.initiator) == (683, 0x1001)


# -- operations of one packet --------------------------------------------------------------------


@pytest.mark.conformance("C-060")
def test_a_datagram_is_one_packet_without_an_id() -> None:
    bench = Bench()
    bench.post(*(send(bytes([k]) * MTU, delivery="uud") for k in range(3)))
    for k in range(3):
        (p,) = packets(message := bench.take())
        assert (p.opcode, p.message_id, message.id) == (Opcode.DATAGRAM_SEND, 0, 0)
        assert (p.som, p.eom, p.payload) == (1, 1, bytes([k]) * MTU)
        bench.end(message)
    assert [(c.kind, c.length, c.error) for c in bench.completions] == [("datagram", MTU, None)] * 3
    bench.assert_nothing_left()


def test_atomics() -> None:
    p = first(atomic())
    assert (p.opcode, p.buffer_offset, p.match_bits) == (Opcode.ATOMIC, 8, KEY)
    assert (p.atomic_opcode, p.atomic_datatype) == (AtomicOpcode.SUM, Datatype.UINT64)
    assert (p.som, p.eom, p.request_length, p.payload) == (1, 1, 8, (5).to_bytes(8, "big"))
    p = first(atomic(result=memoryview(bytearray(8))))
    assert p.opcode == Opcode.FETCHING_ATOMIC
    p = first(cswap())
    assert (p.compare_value, p.swap_value, p.payload) == (1000, 5, b"")


def test_no_operation() -> None:
    p = first(NoOperationRequest(peer=THERE))
    assert (p.opcode, p.som, p.eom, p.request_length, p.payload) == (Opcode.NO_OP, 1, 1, 0, b"")


# -- rendezvous and deferrable -------------------------------------------------------------------


@pytest.mark.parametrize("tag", [None, TAG])
def test_rendezvous_sends_its_eager_part_only(tag: int | None) -> None:
    """Every packet says how much comes eagerly and where the rest can be read."""
    data = random.Random(3).randbytes(9 * MTU)
    bench = Bench(eager_size=2 * MTU + 5, pid_on_fep=3)
    bench.post(send(data, protocol="rendezvous", tag=tag))
    seen = packets(bench.take())
    assert [p.eom for p in seen] == [0, 0, 1]
    assert b"".join(p.payload for p in seen) == data[: 2 * MTU + 5]
    for p in seen:
        assert p.opcode == (Opcode.RENDEZVOUS_SEND if tag is None else Opcode.RENDEZVOUS_TSEND)
        assert (p.request_length, p.eager_length) == (9 * MTU, 2 * MTU + 5)
        assert (p.read_pid_on_fep, p.read_resource_index) == (3, 15)
        region = bench.memory.find(p.read_memory_key)
        assert region is not None
        assert not region.writable
        assert bytes(region.memory[p.read_offset :]) == data[2 * MTU + 5 :]


def test_the_protocol_follows_the_length() -> None:
    thresholds = {"deferrable_threshold": 2_000, "rendezvous_threshold": 5_000}
    for length, delivery, opcode in (
        (1_999, "rud", Opcode.SEND),
        (2_000, "rud", Opcode.DEFERRABLE_SEND),
        (4_999, "rod", Opcode.SEND),
        (5_000, "rud", Opcode.RENDEZVOUS_SEND),
        (5_000, "rod", Opcode.RENDEZVOUS_SEND),
    ):
        bench = Bench(**thresholds)
        bench.post(send(bytes(length), delivery=delivery))
        assert packets(bench.take())[0].opcode == opcode, (length, delivery)
    bench = Bench(**thresholds)
    bench.post(send(bytes(9_000), protocol="eager"))
    assert packets(bench.take())[0].opcode == Opcode.SEND
    # What the profile lacks is not chosen.
    for profile, opcode in (("ai_full", Opcode.DEFERRABLE_SEND), ("ai_base", Opcode.SEND)):
        bench = Bench(profiles=(profile,), **thresholds)
        bench.post(send(bytes(9_000)))
        assert packets(bench.take())[0].opcode == opcode


def test_restart_tokens_have_the_place_of_the_buffer_offset() -> None:
    bench = Bench()
    bench.post(*(send(bytes(2 * MTU), protocol="deferrable") for _ in range(2)))
    tokens = []
    for message in (bench.take(), bench.take()):
        seen = packets(message)
        assert {p.target_restart_token for p in seen} == {0}
        assert len({p.initiator_restart_token for p in seen}) == 1
        tokens.append(seen[0].initiator_restart_token)
    assert len({0, *tokens}) == 3


def test_restart_request() -> None:
    bench = Bench()
    there = Address(pid_on_fep=4)
    bench.initiator.request_restart(THERE, there, 0xAAAA, 0xBBBB, "rud")
    (p,) = packets(message := bench.take())
    assert (p.opcode, p.som, p.eom, p.payload) == (Opcode.DEFERRABLE_RTR, 1, 1, b"")
    assert (p.rtr_initiator_restart_token, p.rtr_target_restart_token) == (0xAAAA, 0xBBBB)
    assert (p.pid_on_fep, p.initiator, p.request_length) == (4, 16, 0)
    bench.end(message)
    assert bench.completions == []
    bench.assert_nothing_left()


# -- giving up -----------------------------------------------------------------------------------


def test_msg_error_takes_the_place_of_the_rest() -> None:
    bench = Bench()
    bench.post(write(bytes(10 * MTU)))
    message = bench.take(sent=3)
    bench.answer(message, 1, response(ReturnCode.BAD_ADDR))
    assert message.packets == 4
    p = packets(message)[3]
    assert (p.opcode, p.som, p.eom) == (Opcode.MSG_ERROR, 0, 1)
    assert (p.message_offset, p.payload_length, p.payload) == (3 * MTU, 0, b"")
    # Packets already sent are the same as before, and further refusals change nothing.
    assert len(packets(message)[2].payload) == MTU
    bench.answer(message, 2, response(ReturnCode.BAD_MKEY))
    bench.end(message)
    (done,) = bench.completions
    assert (done.error, done.length) == ("BAD_ADDR", 10 * MTU)
    bench.assert_nothing_left()


def test_no_msg_error_when_all_is_sent() -> None:
    bench = Bench()
    bench.post(write(bytes(3 * MTU)))
    message = bench.take()
    bench.answer(message, 1, response(ReturnCode.BAD_ADDR))
    assert message.packets == 3
    assert {p.opcode for p in packets(message)} == {Opcode.WRITE}


def test_no_msg_error_without_a_pdc() -> None:
    bench = Bench(delivery="rudi")
    bench.post(write(bytes(10 * MTU)))
    message = bench.take(sent=3)
    bench.answer(message, 1, response(ReturnCode.BAD_ADDR))
    assert message.packets == 10
    bench.end(message)
    assert [c.error for c in bench.completions] == ["BAD_ADDR"]


# -- short headers -------------------------------------------------------------------------------


def test_short_headers_where_they_say_everything() -> None:
    small: dict[str, Any] = {"key": OPTIMIZED_KEY}
    for request, kind in (
        (write(**small), SMALL),
        (read(MTU, **small), SMALL),
        (atomic(**small), SMALL),
        (cswap(**small), SMALL),
        (write(key=1 << 62 | 1 << 63 | 0xFFF), SMALL),
        (write(key=1 << 62 | 0x1000), MEDIUM),  # the index has 12 bits
        (write(), MEDIUM),
        (write(header_data=5), STD),  # the offset's place is taken
        (write(header_data=5, offset=0), MEDIUM),
        (write(header_data=5, offset=0, **small), MEDIUM),
        (send(header_data=5), MEDIUM),
        (send(tag=TAG), MEDIUM),
        (NoOperationRequest(peer=THERE), MEDIUM),
        (write(bytes(MTU + 1), **small), STD),
        (read(MTU + 1, **small), STD),
        (send(protocol="deferrable"), STD),
        (send(protocol="rendezvous"), STD),
        (send(delivery="uud"), STD),
    ):
        bench = Bench(optimized_headers=True)
        bench.post(request)
        message = bench.take()
        assert message.next_header == kind, request
        p = packets(message)[0]
        assert (p.job_id, p.pid_on_fep, p.rel) == (1, 0, 1)
        if kind != STD:
            assert message.id == 0
            assert (p.som, p.eom) == (1, 1)
        if kind == SMALL:
            assert isinstance(request, WriteRequest | ReadRequest | AtomicRequest)
            assert p.resource_index == request.key & 0xFFF
            assert p.buffer_offset == request.offset
        elif kind == MEDIUM:
            assert p.resource_index == 15
            assert p.initiator == 16
            if p.hd:
                assert p.header_data == 5


def test_datagrams_keep_the_standard_header() -> None:
    for compatibility in (STANDARD, REFERENCE_PROVIDER):
        bench = Bench(optimized_headers=True, compatibility=compatibility)
        bench.post(send(delivery="uud"))
        assert bench.take().next_header == STD


def test_short_headers_are_off_by_default_and_without_the_capability() -> None:
    bench = Bench()
    bench.post(write(key=OPTIMIZED_KEY))
    assert bench.take().next_header == STD
    bench = Bench(optimized_headers=True, profiles=("ai_base",))
    bench.post(write(key=OPTIMIZED_KEY))
    assert bench.take().next_header == STD


# -- the reference provider's own octets ---------------------------------------------------------

RP_PACKETS: list[tuple[Request, list[str]]] = [
    (
        cswap(key=OPTIMIZED_KEY, offset=0),
        [
            "040b0000000000010000000f000000000000000000000010400000000000012300000000000000000000"
            "00200d070200000000000000000000000000000003e800000000000000000000000000000005"
        ],
    ),
    (
        atomic(key=OPTIMIZED_KEY, offset=0),
        [
            "030b0000000000010000000f000000000000000000000010400000000000012300000000000000000000"
            "000802070200"
        ],
    ),
    (
        read(2500, key=OPTIMIZED_KEY, offset=0),
        [
            "02090000000000010000000f000000000000000000000010400000000000012300000000000000000000"
            "09c4",
            "02080000000000010000000f000000000000000000000010400000000000012300000400000004000000"
            "09c4",
            "020a0000000000010000000f0000000000000000000000104000000000000123000001c4000008000000"
            "09c4",
        ],
    ),
    (
        write(bytes(1500), key=OPTIMIZED_KEY, offset=0, header_data=0xA1A2A3A4A5A6A7A8),
        [
            "010d0000000000010000000f0000000000000000000000104000000000000123a1a2a3a4a5a6a7a80000"
            "05dc",
            "010a0000000000010000000f0000000000000000000000104000000000000123000001dc000004000000"
            "05dc",
        ],
    ),
    (
        send(bytes(200), header_data=0xA1A2A3A4A5A6A7A8),
        [
            "050f0000000000010000000f0000000000000000000000100000000000000000a1a2a3a4a5a6a7a80000"
            "00c8"
        ],
    ),
    (
        send(bytes(2500), tag=TAG, delivery="rod"),
        [
            "09090000000000010000000f000000000000000000000010112233445566778800000000000000000000"
            "09c4",
            "09080000000000010000000f000000000000000000000010112233445566778800000400000004000000"
            "09c4",
            "090a0000000000010000000f0000000000000000000000101122334455667788000001c4000008000000"
            "09c4",
        ],
    ),
    (
        send(bytes(700), delivery="uud"),
        [
            "050b0000000000010000000f000000000000000000000010000000000000000000000000000000000000"
            "02bc"
        ],
    ),
]


@pytest.mark.parametrize(("request_", "octets"), RP_PACKETS)
def test_octets_of_the_reference_provider(request_: Request, octets: list[str]) -> None:
    """Headers as its captures have them."""
    bench = Bench(compatibility=REFERENCE_PROVIDER)
    bench.post(request_)
    message = bench.take()
    assert [message.packet(k)[0].hex() for k in range(message.packets)] == octets


# -- what cannot be posted -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "parameters", "says"),
    [
        (read(5), {"profiles": ("ai_base",)}, r"read needs READ.*profile ai_base"),
        (send(tag=1), {"profiles": ("ai_base",)}, r"needs TAGGED_SEND.*ai_base"),
        (cswap(), {"profiles": ("ai_base",)}, r"needs FETCHING_ATOMIC.*ai_base"),
        (send(protocol="deferrable"), {"profiles": ("hpc",)}, r"needs DEFERRABLE.*hpc"),
        (send(protocol="rendezvous"), {"profiles": ("ai_full",)}, r"needs RENDEZVOUS.*ai_full"),
        (write(delivery="rudi"), {"profiles": ("ai_full",)}, r"'rudi' needs RUDI.*ai_full"),
        (write(delivery="rudi", header_data=1), {}, "header data is not idempotent"),
        (send(delivery="rudi"), {}, "post a Write or a Read"),
        (atomic(delivery="rudi"), {}, "post a Write or a Read"),
        (write(delivery="uud"), {}, "datagrams only"),
        (send(delivery="uud", tag=1), {}, "no tag"),
        (send(delivery="uud", protocol="deferrable"), {}, "leave protocol out"),
        (send(delivery="uud", delivery_complete=True), {}, "never answered"),
        (send(bytes(MTU + 1), delivery="uud"), {}, "exceeds the payload MTU of 1024"),
        (send(delivery="rod", protocol="deferrable"), {}, "use delivery 'rud'"),
        (send(protocol="quick"), {}, "protocol is 'quick'"),
        (write(delivery="tcp"), {}, "delivery is 'tcp'"),
        (write(destination="there"), {}, "give a uet.ses.address.Address"),
        (write(key=1 << 64), {}, "key is .* 64 bits"),
        (write(key=None), {}, "key is None; it must be a number"),
        (write(offset=1.5), {}, "offset is 1.5"),
        (send(header_data=-1), {}, "header_data is -1"),
        (read(5, memory=memoryview(bytes(5))), {}, "memory is read-only"),
        (write(payload=memoryview(bytes(8)).cast("I")), {}, "flat view of octets"),
        (atomic(operand=b""), {}, "needs an operand"),
        (atomic(datatype=0x77), {}, "not supported"),
        (cswap(operand=bytes(16)), {}, "same length"),
        (atomic(result=memoryview(bytearray(4))), {}, "result has 4 octets"),
        (atomic(operand=bytes(2 * MTU)), {}, "one packet"),
        (Request(peer=THERE), {}, "Request is no request"),
    ],
)
def test_what_cannot_be_carried_out(
    request_: Request, parameters: dict[str, Any], says: str
) -> None:
    """One sentence, and nothing is left behind."""
    bench = Bench(**parameters)
    with pytest.raises(MessageError, match=says):
        bench.post(request_)
    assert bench.waiting == []
    bench.assert_nothing_left()


def test_datagrams_work_in_every_profile() -> None:
    bench = Bench(profiles=("ai_base",))
    bench.post(send(delivery="uud"), write(), send(), atomic(), NoOperationRequest(peer=ELSEWHERE))
    assert len(bench.waiting) == 5
