"""Operands of atomic operations on their way through a packet."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.examples import examples
from tests.harness.uet.atomic_oracle import (
    PAIRS,
    WITH_COMPARE,
    element,
    in_memory,
    size,
)
from uet.ses.memory.atomic_operations import (
    AtomicError,
    ByteOrder,
    execute,
    reverse_order,
)
from uet.ses.memory.operands import pack_operands, unpack_operands
from uet.wire.codes import CSWAP_OPCODES, ReturnCode
from uet.wire.codes import AtomicOpcode as Op
from uet.wire.codes import Datatype as Type


def test_operands_as_a_reference_implementation_sends_them() -> None:
    """ATOMIC SUM of 5 on 1000, FETCHING_ATOMIC CSWAP twice: octets seen on a wire."""
    word = memoryview(bytearray((1000).to_bytes(8, "little")))
    five = (5).to_bytes(8, "little")
    extension, payload = pack_operands(Op.SUM, Type.UINT64, five, sem_ctl=2)
    assert (extension.hex(), payload.hex()) == ("02070200", "0000000000000005")
    request = unpack_operands(extension + payload)
    assert request is not None
    assert request.target_length(8) == 8
    for before in (1000, 1005):
        _, original = execute(request.operation, request.datatype, word, request.operand)
        assert original.hex() == f"{before:016x}"  # the payload of the response with data

    word[:] = (1000).to_bytes(8, "little")
    extension, payload = pack_operands(
        Op.CSWAP, Type.UINT64, five, (1000).to_bytes(8, "little"), sem_ctl=2
    )
    assert payload == b""
    assert extension.hex() == f"0d070200{1000:032x}{5:032x}"
    request = unpack_operands(memoryview(extension))
    assert request is not None
    assert request.target_length(32) == 8  # its message length counts both fields
    for before in (1000, 5):
        code, original = execute(
            request.operation, request.datatype, word, request.operand, request.compare
        )
        assert (code, original.hex()) == (ReturnCode.OK, f"{before:016x}")
    assert word == five


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize(("op", "kind"), PAIRS, ids=lambda value: value.name)
def test_operands_come_out_as_they_went_in(op: Op, kind: Type, byteorder: ByteOrder) -> None:
    choose = random.Random(7)
    elements = 1 if op in CSWAP_OPCODES else 3
    operand, compare = (
        b"".join(in_memory(kind, element(kind, choose), byteorder) for _ in range(elements))
        for _ in range(2)
    )
    given_compare = compare if op in WITH_COMPARE else None
    if op in CSWAP_OPCODES and size(kind) > 16:
        with pytest.raises(AtomicError, match="at most 16 octets"):
            pack_operands(op, kind, operand, given_compare, byteorder=byteorder)
        return
    extension, payload = pack_operands(op, kind, operand, given_compare, byteorder=byteorder)
    assert len(extension) == (36 if op in CSWAP_OPCODES else 4)
    request = unpack_operands(extension + payload)
    assert request is not None
    assert (request.operation, request.datatype, request.sem_ctl) == (op, kind, 0)
    assert in_memory(kind, request.operand, byteorder) == operand
    assert request.target_length(0) == len(operand)
    if request.compare is None:
        assert given_compare is None
    else:
        assert in_memory(kind, request.compare, byteorder) == given_compare


def test_masked_swap_of_two_elements() -> None:
    """Masks before values."""
    extension, payload = pack_operands(
        Op.MSWAP, Type.UINT16, bytes.fromhex("bbaaddcc"), bytes.fromhex("f00f0ff0")
    )
    assert payload.hex() == "0ff0f00faabbccdd"
    request = unpack_operands(extension + payload)
    assert request is not None
    memory = bytearray.fromhex("34127856")
    execute(request.operation, request.datatype, memoryview(memory), request.operand,
            request.compare)  # fmt: skip
    assert memory.hex() == "b41a7dc6"


@pytest.mark.parametrize("length", [0, 3, 4, 35, 37, 44])
def test_compare_and_swap_cut_short_or_too_long(length: int) -> None:
    extension, _ = pack_operands(Op.CSWAP, Type.UINT8, b"\x01", b"\x02")
    assert unpack_operands((extension + bytes(8))[:length]) is None


@given(st.binary(max_size=80), st.integers(0, 32))
@examples(200)
def test_hostile_requests_are_answered(packet: bytes, length: int) -> None:
    """Whatever arrives has a return code, and on an error leaves memory alone."""
    request = unpack_operands(packet)
    if request is None:
        return
    memory = bytearray(range(length))
    code, _ = execute(
        request.operation, request.datatype, memoryview(memory), request.operand, request.compare
    )
    assert code == ReturnCode.OK or memory == bytes(range(length))


@pytest.mark.parametrize(
    ("op", "kind", "operand", "compare", "message"),
    [
        (Op.BOR, Type.FLOAT, bytes(4), None, "is not supported"),
        (0x15, Type.UINT8, bytes(1), None, "is not supported"),
        (Op.SUM, Type.UINT32, b"", None, "needs an operand"),
        (Op.SUM, Type.UINT32, bytes(6), None, "whole elements"),
        (Op.SUM, Type.UINT32, bytes(4), bytes(4), "goes with the CSWAP"),
        (Op.CSWAP, Type.UINT32, bytes(4), None, "goes with the CSWAP"),
        (Op.CSWAP, Type.UINT32, bytes(4), bytes(8), "same length"),
        (Op.CSWAP, Type.UINT32, bytes(8), bytes(8), "one element"),
    ],
)
def test_what_no_packet_carries(
    op: int, kind: int, operand: bytes, compare: bytes | None, message: str
) -> None:
    for byteorder in ("little", "big"):
        with pytest.raises(AtomicError, match=message):
            pack_operands(op, kind, operand, compare, byteorder=byteorder)


def test_order_of_an_unknown_type() -> None:
    with pytest.raises(AtomicError, match="not supported"):
        reverse_order(0x12, bytes(8))
