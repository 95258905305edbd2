"""Test which requests a target refuses, and why: the receive checks in their order (UES 3.4.1)."""

from typing import Any

import pytest

from tests.harness.uet.deliveries import (
    KEY,
    REGION,
    SAFE_KEY,
    SMALL_KEY,
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
from uet.ses.address import Address
from uet.ses.matching import MatchingError
from uet.ses.resources import ResourceError
from uet.transport import ReceiveRequest
from uet.wire.codes import AtomicOpcode, NextHeader, Opcode, ReturnCode

# -- the checks and their order ------------------------------------------------------------------

#: Each field fails one check, in the order of the checks.
FAULTS: list[tuple[dict[str, Any], ReturnCode]] = [
    ({"version": 1}, ReturnCode.UNCOR),
    ({"pid_on_fep": 7}, ReturnCode.UNDELIVERABLE),
    ({"job_id": 9}, ReturnCode.BAD_JOB_ID),
    ({"total": 3}, ReturnCode.OP_VIOLATION),
    ({"ri_generation": 4}, ReturnCode.BAD_GENERATION),
    ({"ie": 1}, ReturnCode.INITIATOR_ERR),
]


@pytest.mark.conformance("C-077", "C-079")
@pytest.mark.parametrize("opcode", [Opcode.WRITE, Opcode.SEND])
@pytest.mark.parametrize("first", range(len(FAULTS)))
def test_the_first_check_that_fails_decides(first: int, opcode: Opcode) -> None:
    bench = TargetBench()
    bench.receive()
    fields: dict[str, Any] = {"match_bits": KEY if opcode == Opcode.WRITE else 0}
    for wrong, _ in FAULTS[first:]:
        fields |= wrong
    refused(bench, std(opcode, b"payload", **fields), FAULTS[first][1])
    assert bench.completions == []


@pytest.mark.conformance("C-205")
def test_disabled_resources_and_generations_have_their_places_in_the_order() -> None:
    bench = TargetBench()
    bench.target.set_enabled(False)
    late = {"total": 3, "ri_generation": 4, "ie": 1}
    refused(bench, std(Opcode.WRITE, b"x" * 7, match_bits=KEY, **late), ReturnCode.DISABLED)
    refused(bench, std(Opcode.WRITE, b"x", match_bits=KEY), ReturnCode.DISABLED)
    refused(bench, std(Opcode.WRITE, b"x", match_bits=KEY, job_id=3), ReturnCode.BAD_JOB_ID)
    bench.target.set_enabled(True)
    bench.pdc.ordered = True
    refused(bench, std(Opcode.SEND, b"x"), ReturnCode.NO_MATCH)
    generation = {"ri_generation": 4, "ie": 1, "match_bits": KEY}
    refused(bench, std(Opcode.WRITE, b"x", **generation), ReturnCode.DISABLED_GEN)
    refused(bench, std(Opcode.WRITE, b"xx", total=1, **generation), ReturnCode.OP_VIOLATION)


@pytest.mark.parametrize("opcode", [0x10, 0x11, 0x2F, 0x30, Opcode.EXTENDED, Opcode.DATAGRAM_SEND])
def test_opcodes_that_nobody_knows(opcode: int) -> None:
    """After all the other common checks; a datagram is nothing for a PDC."""
    bench = TargetBench()
    bench.receive()
    refused(bench, std(opcode, b"x"), ReturnCode.UNSUPPORTED_OP)
    refused(bench, std(opcode, b"x", ie=1), ReturnCode.INITIATOR_ERR)


@pytest.mark.parametrize(
    ("profile", "opcodes"),
    [
        (
            "ai_base",
            {
                Opcode.READ,
                Opcode.FETCHING_ATOMIC,
                Opcode.TAGGED_SEND,
                Opcode.RENDEZVOUS_SEND,
                Opcode.RENDEZVOUS_TSEND,
                Opcode.DEFERRABLE_TSEND,
                Opcode.DEFERRABLE_RTR,
                Opcode.TSEND_ATOMIC,
                Opcode.TSEND_FETCH_ATOMIC,
            },
        ),
        (
            "ai_full",
            {
                Opcode.RENDEZVOUS_SEND,
                Opcode.RENDEZVOUS_TSEND,
                Opcode.TSEND_ATOMIC,
                Opcode.TSEND_FETCH_ATOMIC,
            },
        ),
        ("hpc", {Opcode.DEFERRABLE_RTR}),
    ],
)
def test_what_a_profile_leaves_out(profile: str, opcodes: set[Opcode]) -> None:
    for opcode in Opcode:
        if opcode in (Opcode.DATAGRAM_SEND, Opcode.EXTENDED):
            continue
        bench = TargetBench(profiles=(profile,))
        answer = bench.give(std(opcode, b"x"))
        unsupported = (
            isinstance(answer, Response) and read(answer).code == ReturnCode.UNSUPPORTED_OP
        )
        assert unsupported == (opcode in opcodes), opcode.name


def test_short_headers_need_the_capability() -> None:
    bench = TargetBench(profiles=("ai_base",))
    refused(bench, medium(Opcode.WRITE, b"x", match_bits=KEY), ReturnCode.UNSUPPORTED_OP)
    refused(bench, small(Opcode.WRITE, b"x"), ReturnCode.UNSUPPORTED_OP)


@pytest.mark.conformance("C-078", "C-079")
def test_the_checks_of_memory() -> None:
    """Key, job, rights, range, in this order; for all that touch memory."""
    bench = TargetBench()
    other, closed = bytearray(16), bytearray(16)
    bench.register(other, 5, job_id=2)
    bench.register(closed, 6, writable=False, readable=False)
    extension, operand = atomic()
    for opcode, payload in (
        (Opcode.WRITE, b"12345678"),
        (Opcode.READ, b""),
        (Opcode.ATOMIC, operand),
        (Opcode.FETCHING_ATOMIC, operand),
    ):
        more = extension if "ATOMIC" in opcode.name else b""
        for key, offset, code in (
            (4, 99, ReturnCode.BAD_MKEY),
            (5, 99, ReturnCode.BAD_MKEY),
            (6, 99, ReturnCode.PERM_VIOLATION),
            (KEY, REGION - 7, ReturnCode.BAD_ADDR),
            (KEY, 2**64 - 8, ReturnCode.BAD_ADDR),
        ):
            packet = std(
                opcode, payload, total=8, extension=more, match_bits=key, buffer_offset=offset
            )
            refused(bench, packet, code)
    assert (other, closed) == (bytearray(16), bytearray(16))


def test_rights_are_separate() -> None:
    bench = TargetBench()
    bench.register(bytearray(8), 5, readable=False)
    bench.register(bytearray(8), 6, writable=False)
    assert bench.give(std(Opcode.WRITE, b"x", match_bits=5)) == ACCEPTED
    refused(bench, std(Opcode.READ, total=1, match_bits=5), ReturnCode.PERM_VIOLATION)
    refused(bench, std(Opcode.WRITE, b"x", match_bits=6), ReturnCode.PERM_VIOLATION)
    assert read_data(bench.give(std(Opcode.READ, total=1, match_bits=6)))[1] == b"\0"
    extension, operand = atomic()
    packet = std(Opcode.FETCHING_ATOMIC, operand, extension=extension, match_bits=5)
    refused(bench, packet, ReturnCode.PERM_VIOLATION)  # it reads as well
    packet = std(Opcode.ATOMIC, operand, extension=extension, match_bits=5)
    assert bench.give(packet) == ACCEPTED


def test_a_peer_that_wants_another_code_for_an_overrun() -> None:
    bench = TargetBench(compatibility=Compatibility(region_overrun_is_unsupported_size=True))
    packets = parts(Opcode.WRITE, bytes(5000), match_bits=KEY, buffer_offset=REGION - 4096)
    for packet in packets:
        refused(bench, packet, ReturnCode.UNSUPPORTED_SIZE)
    beyond = std(Opcode.READ, total=5000, match_bits=KEY, buffer_offset=REGION - 4096)
    refused(bench, beyond, ReturnCode.BAD_ADDR)


@pytest.mark.conformance("C-083")
@pytest.mark.parametrize("opcode", [Opcode.WRITE, Opcode.SEND])
def test_lengths_that_contradict_each_other(opcode: Opcode) -> None:
    bench = TargetBench()
    into = bench.receive()
    bits = {"match_bits": KEY if opcode == Opcode.WRITE else 0}
    for packet in (
        std(opcode, bytes(5), at=96, total=100, **bits),
        std(opcode, bytes(5), at=2**32 - 5, total=100, **bits),
        std(opcode, b"12345", total=4, **bits),
        std(opcode, b"12345", at=8, total=100, payload_length=6, **bits),
        std(opcode, b"12345", at=8, total=100, payload_length=4, **bits),
        std(opcode, b"", at=8, total=100, **bits),
        std(opcode, b"", total=100, **bits),
        medium(opcode, b"12345", request_length=6, **bits),
    ):
        refused(TargetBench(), packet, ReturnCode.OP_VIOLATION)
        refused(bench, packet, ReturnCode.OP_VIOLATION)
    assert into == bytes(4096)
    assert bench.completions == []


@pytest.mark.parametrize(
    "octets", [b"", b"\x01", bytes(11), bytes(19), bytes(31), bytes(43), bytes(44)]
)
@pytest.mark.parametrize("next_header", range(8))
def test_headers_cut_short(next_header: int, octets: bytes) -> None:
    bench = TargetBench()
    answer = bench.give((next_header, octets))
    if isinstance(answer, Response):
        assert answer.guaranteed
    for delivery in ("rudi", "uud"):
        bench.connectionless(delivery, (next_header, octets))
    assert bench.memory == bytes(REGION)


def test_extension_headers_cut_short() -> None:
    bench = TargetBench()
    bench.receive()
    for opcode, size in (
        (Opcode.RENDEZVOUS_SEND, 24),
        (Opcode.ATOMIC, 4),
        (Opcode.FETCHING_ATOMIC, 4),
        (Opcode.TSEND_ATOMIC, 4),
    ):
        for short in range(size):
            packet = std(opcode, extension=bytes(short), match_bits=KEY)
            refused(bench, packet, ReturnCode.OP_VIOLATION)
    swap, _ = atomic(AtomicOpcode.CSWAP, 1, 2)
    refused(bench, std(Opcode.ATOMIC, extension=swap[:-1]), ReturnCode.OP_VIOLATION)
    refused(bench, std(Opcode.ATOMIC, extension=swap + b"x"), ReturnCode.OP_VIOLATION)


# -- addressing ----------------------------------------------------------------------------------


@pytest.mark.conformance("C-077")
def test_resources_beside_the_first() -> None:
    bench = TargetBench()
    target = bench.target
    target.add_resource(Address(job_id=1, pid_on_fep=3, resource_index=20))
    target.add_resource(Address(job_id=2, pid_on_fep=3, resource_index=20))
    target.add_resource(Address(job_id=0, pid_on_fep=3, resource_index=20, relative=False))
    with pytest.raises(ResourceError, match="in use"):
        target.add_resource(Address(job_id=2, pid_on_fep=3, resource_index=20))
    with pytest.raises(ResourceError, match="in use"):  # there the job does not address
        target.add_resource(Address(job_id=5, pid_on_fep=3, resource_index=20, relative=False))
    with pytest.raises(ResourceError, match="no resource"):
        target.post_receive(
            ReceiveRequest(memory=memoryview(bytearray(4))), Address(resource_index=1)
        )
    place = {"pid_on_fep": 3, "resource_index": 20}
    buffers = {}
    for name, address in (
        ("one", Address(job_id=1, pid_on_fep=3, resource_index=20)),
        ("two", Address(job_id=2, pid_on_fep=3, resource_index=20)),
        ("absolute", Address(job_id=0, pid_on_fep=3, resource_index=20, relative=False)),
    ):
        buffers[name] = bytearray(8)
        target.post_receive(ReceiveRequest(memory=memoryview(buffers[name]), context=name), address)
    assert bench.give(std(Opcode.SEND, b"two", job_id=2, **place)) == ACCEPTED
    assert bench.give(std(Opcode.SEND, b"abs", job_id=77, rel=0, **place)) == ACCEPTED
    assert bench.give(std(Opcode.SEND, b"one", **place)) == ACCEPTED
    refused(bench, std(Opcode.SEND, b"x", job_id=3, **place), ReturnCode.BAD_JOB_ID)
    refused(bench, std(Opcode.SEND, b"x", rel=0), ReturnCode.UNDELIVERABLE)
    assert [c.context for c in bench.completions] == ["two", "absolute", "one"]
    assert {name: bytes(b[:3]) for name, b in buffers.items()} == {
        "one": b"one",
        "two": b"two",
        "absolute": b"abs",
    }


def test_an_endpoint_with_absolute_addressing() -> None:
    """Any job may come; what it may touch is the memory region's business."""
    bench = TargetBench(relative=False)
    bench.register(bytearray(4), 5, job_id=1)
    assert bench.give(std(Opcode.WRITE, b"x", rel=0, job_id=9, match_bits=KEY)) == ACCEPTED
    assert bench.memory[:1] == b"x"
    refused(bench, std(Opcode.WRITE, b"x", match_bits=KEY), ReturnCode.UNDELIVERABLE)
    packet = std(Opcode.WRITE, b"x", rel=0, job_id=9, match_bits=5)
    refused(bench, packet, ReturnCode.BAD_MKEY)
    assert bench.give(std(Opcode.WRITE, b"x", rel=0, job_id=1, match_bits=5)) == ACCEPTED


# -- receives that cannot be posted --------------------------------------------------------------


def test_receives_that_cannot_be() -> None:
    base = TargetBench(profiles=("ai_base",))
    full = TargetBench(profiles=("ai_full",))
    with pytest.raises(ResourceError, match="TAGGED_SEND"):
        base.receive(tag=1)
    with pytest.raises(ResourceError, match="WILDCARD"):
        full.receive(tag=1, ignore=1)
    with pytest.raises(MatchingError, match="read-only"):
        full.target.post_receive(ReceiveRequest(memory=memoryview(b"constant")))
    full.pdc.ordered = True
    full.give(std(Opcode.SEND, b"x"))
    with pytest.raises(MatchingError):
        full.target.post_receive(ReceiveRequest(memory=memoryview(b"constant")))
    assert full.target.generation(full.pdc.address) == 0  # it is still disabled
    refused(full, std(Opcode.SEND, b"x"), ReturnCode.DISABLED_GEN, full.pdc)


def test_the_answer_to_what_has_no_header_refers_to_nothing() -> None:
    bench = TargetBench()
    stated = read(bench.give((int(NextHeader.NONE), b"octets")))
    assert (stated.code, stated.message_id) == (ReturnCode.OP_VIOLATION, 0)
    assert bench.counters["rx_malformed_requests"] == 1
    assert SMALL_KEY != SAFE_KEY
