"""Segmentation, placement and the receive checks of the semantic sublayer (UES 3.4.1)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from scapy.packet import Packet

from tests.harness.uet.script import (
    KEY,
    MS,
    MTU,
    REGION,
    START,
    THERE,
    Script,
    Seen,
    ack,
    refusal,
    rud,
    write,
)
from uet.ses.initiator.requests import MessageError
from uet.ses.memory.registered_memory import MemoryRegionError
from uet.wire.codes import AckRequest, NackCode, Opcode, ReturnCode

# -- the source ----------------------------------------------------------------------------------


@pytest.mark.conformance("C-070")
@pytest.mark.parametrize("mtu", [1024, 2048, 4096, 8192])
def test_segmentation(mtu: int) -> None:
    """max(1, ceil(N / MTU)) packets; som first, eom last; only the last may be short."""
    for length in (0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu, 5 * mtu - 7):
        script = Script(payload_mtu=mtu)
        data = random.Random(length).randbytes(length)
        script.post(data, offset=77, header_data=0xABCD, key=5)
        packets = script.take()
        assert len(packets) == max(1, -(-length // mtu))
        assert [p.ses.som for p in packets] == [1] + [0] * (len(packets) - 1)
        assert [p.ses.eom for p in packets] == [0] * (len(packets) - 1) + [1]
        assert all(len(p.payload) == mtu for p in packets[:-1])
        assert b"".join(p.payload for p in packets) == data
        for k, p in enumerate(packets):
            assert (p.ses.opcode, p.ses.rel, p.ses.version) == (Opcode.WRITE, 1, 0)
            assert (p.ses.buffer_offset, p.ses.match_bits, p.ses.request_length) == (77, 5, length)
            assert p.ses.message_id == packets[0].ses.message_id != 0
            assert (p.ses.job_id, p.ses.pid_on_fep, p.ses.resource_index) == (1, 0, 15)
            if k:
                assert (p.ses.message_offset, p.ses.payload_length) == (k * mtu, len(p.payload))
            else:
                assert (p.ses.hd, p.ses.header_data) == (1, 0xABCD)


@pytest.mark.conformance("C-049")
def test_messages_are_not_interleaved() -> None:
    """On one PDC the packets of a message leave before those of the next one."""
    rng = random.Random(8)
    script = Script(window_bytes=5_000, short_message_packets=0)
    script.establish_initiator()
    for k in range(12):
        script.post(bytes(rng.choice((0, 500, 3_000, 9_000))), context=k)
    order: list[tuple[int, int]] = []
    waiting = script.take()
    while waiting:
        order += [(p.psn, p.ses.message_id) for p in waiting if not p.retx]
        request = waiting.pop(rng.randrange(len(waiting)))
        waiting = [p for p in waiting if p.psn != request.psn]
        answered = script.give(ack(request, cack=min([request, *waiting], key=_psn).psn - 1))
        waiting += answered
        order += [(p.psn, p.ses.message_id) for p in answered if not p.retx]
    by_psn = dict(order)
    ids = [by_psn[psn] for psn in sorted(by_psn)]
    assert sorted(by_psn) == list(range(min(by_psn), max(by_psn) + 1))
    seen = [a for a, b in zip(ids, [0, *ids], strict=False) if a != b]
    assert len(seen) == len(set(seen)) == 12


def _psn(seen: Seen) -> int:
    return seen.psn


@pytest.mark.conformance("C-079")
def test_a_refused_message_is_given_up() -> None:
    """One MSG_ERROR tells the target, where not everything has been sent; then the completion."""
    script = Script(window_bytes=3_000, short_message_packets=0)
    script.establish_initiator()
    script.post(bytes(100 * MTU), context="bad")
    script.post(b"good", context="good")
    packets = script.take()
    assert len(packets) == 3
    fields: dict[str, Any] = {"code": ReturnCode.BAD_ADDR, "req": AckRequest.CLEAR}
    (last, good) = script.give(ack(packets[1], cack=packets[0].psn - 1, **fields))
    assert (last.ses.opcode, last.ses.eom, last.ses.som) == (Opcode.MSG_ERROR, 1, 0)
    assert (last.ses.message_offset, last.ses.payload_length, last.payload) == (3 * MTU, 0, b"")
    assert last.ses.message_id == packets[0].ses.message_id
    assert last.ar == 1
    assert good.ses.message_id != last.ses.message_id
    # The other refusals of the same message change nothing more; a lost MSG_ERROR is repeated.
    script.give(ack(packets[0], cack=packets[0].psn - 1, code=ReturnCode.BAD_MKEY))
    script.give(ack(packets[2], cack=packets[0].psn - 1, **fields))
    assert script.completions == []
    again = script.wait(MS)
    assert [(p.psn, p.ses.opcode, p.retx) for p in again] == [
        (last.psn, Opcode.MSG_ERROR, 1),
        (good.psn, Opcode.WRITE, 1),
    ]
    script.give(ack(last))
    script.give(ack(good))
    assert [(c.context, c.error, c.length) for c in script.completions] == [
        ("bad", "BAD_ADDR", 100 * MTU),
        ("good", None, 4),
    ]
    assert script.pdc.peer.congestion.inflight == 0


def test_a_refusal_when_all_is_sent() -> None:
    """No MSG_ERROR: the target has nothing to wait for."""
    script = Script()
    script.establish_initiator()
    script.post(bytes(3 * MTU))
    packets = script.take()
    assert script.give(ack(packets[0], code=ReturnCode.PERM_VIOLATION)) == []
    assert script.completions == []
    assert script.give(ack(packets[2])) == []
    assert [c.error for c in script.completions] == ["PERM_VIOLATION"]


def test_return_codes_without_a_name() -> None:
    script = Script()
    script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    packet = ack(request)
    packet.lastlayer().return_code = 0x3D
    script.give(packet)
    assert [c.error for c in script.completions] == ["RETURN_CODE_0x3d"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"key": -1}, "key is -1"),
        ({"key": 1 << 64}, "64 bits"),
        ({"offset": 1 << 64}, "offset"),
        ({"offset": -5}, "offset is -5"),
        ({"header_data": 1 << 64}, "header_data"),
        ({"peer": "10.9.9.9"}, "10.9.9.9 is not among"),
        ({"peer": "nobody"}, "nobody is not among"),
    ],
)
def test_requests_that_cannot_be_carried_out(fields: dict[str, Any], sentence: str) -> None:
    """They are refused when they are posted, and leave nothing behind."""
    script = Script()
    with pytest.raises(MessageError, match=sentence):
        script.post(b"x", **fields)
    with pytest.raises(MessageError, match="flat view"):
        script.post(memoryview(bytes(16)).cast("I"))  # type: ignore[arg-type]
    assert script.take() == []
    assert script.fep.initiator.open_messages == 0
    assert script.pdcs == []


def test_message_identifiers_are_unique_while_open() -> None:
    """1..65535, each again as soon as its message has ended; more requests wait."""
    script = Script(window_bytes=1)
    script.establish_initiator()
    for k in range(65_540):
        script.post(b"", context=k)
    assert len(script.fep.initiator.ids) == 65_535
    assert script.fep.initiator.ids.find(0) is None
    assert script.fep.initiator.waiting
    (request,) = script.take()
    (after,) = script.give(ack(request))
    script.take()
    assert len(script.fep.initiator.ids) == 65_535
    assert script.fep.initiator.open_messages == 65_539
    assert after.ses.message_id == request.ses.message_id + 1


# -- the target ----------------------------------------------------------------------------------


@pytest.mark.conformance("C-071")
@pytest.mark.parametrize("seed", range(6))
def test_completion_when_all_octets_are_there(seed: int) -> None:
    """In any order of arrival, also with the first packet, which brings the header data, last."""
    script = Script()
    own = script.establish_target()
    parts = 20
    order = list(range(parts))
    random.Random(seed).shuffle(order)
    if seed < 3:
        order.remove(0)
        order.append(0)
    data = random.Random(seed).randbytes(parts * 100 - 30)
    for position, k in enumerate(order):
        fields = {"hd": 1, "header_data": 0xFEED} if not k else {}
        chunk = write(
            data[100 * k : 100 * k + 100], at=100 * k, total=len(data), buffer_offset=5, **fields
        )
        assert script.completions == []
        script.give(rud(START + 1 + k, dpdcid=own) / chunk)
        assert script.memory[5 + 100 * k :][:100][: len(data) - 100 * k] == data[100 * k :][:100]
        assert script.counters["rx_messages"] == 1 + (position == parts - 1)
    (completion,) = script.completions
    assert (completion.kind, completion.peer, completion.key) == ("remote_write", THERE, KEY)
    assert (completion.offset, completion.length) == (5, len(data))
    assert completion.header_data == 0xFEED
    assert script.memory[5 : 5 + len(data)] == data
    assert script.fep.target.inbound.messages == {}


def test_no_completion_without_header_data() -> None:
    script = Script()
    script.give(rud(START, syn=0) / write(b"silent", header_data=7, hd=0))
    assert script.memory[:6] == b"silent"
    assert script.completions == []


def refused(packet: Packet, code: ReturnCode, **parameters: Any) -> Script:
    """Give a request; it is answered with ``code``, guaranteed, and no octet is written."""
    script = Script(**parameters)
    (answer,) = script.give(rud(START, syn=0) / packet)
    assert answer.is_ack
    assert answer.answer is code
    assert (answer.ses.opcode, answer.ses.modified_length) == (1, 0)
    assert answer.req == AckRequest.CLEAR
    assert answer.cack_psn == START - 1
    assert answer.ses.message_id == packet.message_id
    assert script.memory == bytearray(REGION)
    assert script.completions == []
    assert script.fep.target.inbound.messages == {}
    return script


@pytest.mark.conformance("C-077", "C-079")
def test_addressing() -> None:
    """Wrong job, unknown endpoint, absolute addressing, wrong generation; in this order."""
    refused(write(b"x", job_id=2), ReturnCode.BAD_JOB_ID)
    refused(write(b"x", pid_on_fep=1), ReturnCode.UNDELIVERABLE)
    refused(write(b"x", resource_index=14), ReturnCode.UNDELIVERABLE)
    refused(write(b"x", rel=0), ReturnCode.UNDELIVERABLE)
    refused(write(b"x", resource_index=14, job_id=2, ri_generation=1), ReturnCode.UNDELIVERABLE)
    refused(write(b"x", job_id=2, ri_generation=1, match_bits=9), ReturnCode.BAD_JOB_ID)
    refused(write(b"x", ri_generation=1, ie=1), ReturnCode.BAD_GENERATION)
    refused(write(b"x", ie=1, match_bits=9), ReturnCode.INITIATOR_ERR)
    refused(write(b"x", version=1, resource_index=3), ReturnCode.UNCOR)


@pytest.mark.conformance("C-078", "C-079")
def test_memory() -> None:
    """Unknown key, no right to write, out of range."""
    refused(write(b"x", match_bits=KEY + 1), ReturnCode.BAD_MKEY)
    refused(write(b"x"), ReturnCode.PERM_VIOLATION, writable=False)
    for offset, total in (
        (REGION, 1),
        (REGION - 4, 5),
        (2**64 - 1, 1),
        (2**63, 0),
        (0, REGION + 1),
    ):
        packet = write(b"x" if total else b"", buffer_offset=offset)
        packet.request_length = total
        packet.som, packet.eom = 1, int(total <= 1)
        refused(packet, ReturnCode.BAD_ADDR)
    whole = Script()
    (answer,) = whole.give(rud(START, syn=0) / write(b"end", buffer_offset=REGION - 3))
    assert answer.answer is ReturnCode.OK
    assert whole.memory[-3:] == b"end"


@pytest.mark.conformance("C-078")
def test_memory_of_another_job() -> None:
    """A region may be open to one job only (registered below the endpoint's own interface)."""
    from uet.ses.memory.registered_memory import RegisteredRegion

    script = Script()
    other = bytearray(10)
    script.fep.memory.register(
        RegisteredRegion(memory=memoryview(other), key=9, writable=True, job_id=2)
    )
    (answer,) = script.give(rud(START, syn=0) / write(b"x", match_bits=9))
    assert answer.answer is ReturnCode.BAD_MKEY
    assert other == bytes(10)


def test_other_opcodes() -> None:
    for opcode in (Opcode.DATAGRAM_SEND, Opcode.EXTENDED, 0x10, 0x2A):
        refused(write(b"", opcode=opcode), ReturnCode.UNSUPPORTED_OP)
    refused(write(b"x", opcode=Opcode.SEND), ReturnCode.NO_MATCH)


@pytest.mark.conformance("C-083")
def test_lengths_that_contradict_each_other() -> None:
    """Payload beyond the message, more or less than announced, or none where there is some."""
    violation = ReturnCode.OP_VIOLATION
    refused(write(bytes(5), at=96, total=100), violation)
    refused(write(bytes(5), at=2**32 - 5, total=100), violation)
    more = write(b"", at=0, total=4)
    refused(more / b"12345", violation)
    refused(write(b"12345", at=8, total=100, payload_length=6), violation)
    refused(write(b"12345", at=8, total=100, payload_length=4), violation)
    refused(write(b"", at=8, total=100), violation)
    refused(write(b"", at=0, total=100), violation)


def test_parts_that_overlap_or_belong_to_another_message() -> None:
    """Octets that come twice, or a message that changes its address: nothing more is written."""
    script = Script()
    own = script.establish_target()
    first = write(b"a" * 50, at=50, total=200, buffer_offset=1000)
    script.give(rud(START + 1, dpdcid=own) / first)
    for k, other in enumerate(
        (
            write(b"b" * 50, at=60, total=200, buffer_offset=1000),
            write(b"b" * 50, at=10, total=200, buffer_offset=1000),
            write(b"b" * 100, at=25, total=200, buffer_offset=1000),
            write(b"b" * 50, at=100, total=200, buffer_offset=1001),
            write(b"b" * 50, at=100, total=201, buffer_offset=1000),
            write(b"b" * 50, at=100, total=200, buffer_offset=1000, match_bits=8),
        )
    ):
        (answer,) = script.give(rud(START + 2 + k, dpdcid=own) / other)
        assert answer.answer is ReturnCode.OP_VIOLATION
    assert script.memory[1000:1200] == bytes(50) + b"a" * 50 + bytes(100)


def test_a_message_given_up_by_its_initiator() -> None:
    """MSG_ERROR frees what was half received; it is answered OK, known or not."""
    script = Script()
    own = script.establish_target()
    script.give(rud(START + 1, dpdcid=own) / write(bytes(8), at=0, total=100, message_id=3))
    for k in range(2):
        error = write(b"", at=8, total=100, message_id=3, opcode=Opcode.MSG_ERROR, eom=1)
        (answer,) = script.give(rud(START + 2 + k, dpdcid=own, ar=1) / error)
        assert (answer.answer, answer.cack_psn) == (ReturnCode.OK, START + 2 + k)
        assert script.fep.target.inbound.messages == {}
    assert script.counters["rx_messages_abandoned"] == 1
    assert script.completions == []


def test_no_room_for_another_message() -> None:
    """A transient lack is a NACK, not an answer: nothing is marked as received."""
    script = Script(max_inbound_messages=2, inbound_message_idle_time=MS)
    own = script.establish_target()
    parts = [write(bytes(8), at=0, total=100, message_id=k) for k in (1, 2, 3)]
    for k in (0, 1):
        script.give(rud(START + 1 + k, dpdcid=own) / parts[k])
    (nack,) = script.give(rud(START + 3, dpdcid=own) / parts[2])
    assert (nack.nack, nack.nack_psn) == (NackCode.NO_SES_MSG_AVAIL, START + 3)
    assert script.pdc.destination.window.cack == START + 2
    script.now += MS // 2
    script.give(rud(START + 4, dpdcid=own) / write(bytes(8), at=8, total=100, message_id=2))
    script.now += MS // 2
    (answer,) = script.give(rud(START + 3, dpdcid=own, retx=1) / parts[2])  # 1 has been idle
    assert answer.answer is ReturnCode.OK
    assert [key[1] for key in script.fep.target.inbound.messages] == [2, 3]
    assert script.counters["rx_messages_abandoned"] == 1
    (single,) = script.give(rud(START + 5, dpdcid=own, ar=1) / write(b"x", message_id=9))
    assert single.answer is ReturnCode.OK  # which needs no room


def test_a_refused_message_is_retried_by_its_source() -> None:
    """NO_SES_MSG_AVAIL is no refusal of the message."""
    script = Script()
    script.establish_initiator()
    script.post(b"x")
    (request,) = script.take()
    script.give(refusal(request, code=NackCode.NO_SES_MSG_AVAIL))
    (again,) = script.wait(MS)
    script.give(ack(again, retx=1))
    assert [c.error for c in script.completions] == [None]


def test_keys() -> None:
    """Keys are 64 bits and unique; memory must be flat octets, and writable where so announced."""
    script = Script()
    for key, memory, writable, sentence in (
        (KEY, bytearray(4), True, "in use"),
        (1 << 64, bytearray(4), True, "64 bits"),
        (5, bytes(4), True, "read-only"),
        (5, memoryview(bytearray(8)).cast("I"), True, "octets"),
    ):
        with pytest.raises(MemoryRegionError, match=sentence):
            script.fep.register(memoryview(memory), key=key, writable=writable)
    with pytest.raises(MemoryRegionError, match="not registered"):
        script.fep.unregister(77)
    script.fep.unregister(KEY)
    (answer,) = script.give(rud(START, syn=0) / write(b"x"))
    assert answer.answer is ReturnCode.BAD_MKEY


def test_gaps_in_a_message_are_bounded() -> None:
    """More of them than a receive window can have are hostile, and cost no more memory."""
    from uet.ses.target.inbound import MOST_GAPS, InboundMessage

    memory = memoryview(bytearray(200_000))
    message = InboundMessage(memory, word=0, to=0, key=1, offset=0, length=200_000)
    placed = sum(message.place(2 * k, memoryview(b"x")) for k in range(100_000))
    assert placed == len(message.ranges.starts) == MOST_GAPS + 1
    assert message.place(1, memoryview(b"y"))  # filling them still works
    assert len(message.ranges.starts) == MOST_GAPS
