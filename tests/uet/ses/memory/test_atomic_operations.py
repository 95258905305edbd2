"""Atomic operations against an oracle that knows only Python's integers and fractions."""

import random
import struct
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.examples import examples
from tests.harness.uet.atomic_oracle import (
    FLOATS,
    NO_PAIRS,
    PAIRS,
    WITH_COMPARE,
    Number,
    in_memory,
    oracle,
    same,
    size,
    triples,
)
from uet.ses.memory.atomic_operations import (
    ByteOrder,
    execute,
    reverse_order,
    size_of,
    supported,
)
from uet.wire.codes import AtomicOpcode as Op
from uet.wire.codes import Datatype as Type
from uet.wire.codes import ReturnCode


def run(
    op: Op, kind: Type, octets: tuple[bytes, bytes, bytes], byteorder: ByteOrder
) -> tuple[bytes, bytes]:
    """Execute it; the new and the original value, big-endian."""
    target, operand, compare = octets
    memory = bytearray(in_memory(kind, target, byteorder))
    code, original = execute(
        op,
        kind,
        memoryview(memory),
        operand,
        compare if op in WITH_COMPARE else None,
        byteorder=byteorder,
    )
    assert code == ReturnCode.OK
    return in_memory(kind, bytes(memory), byteorder), original


@pytest.mark.parametrize(("op", "kind"), PAIRS, ids=lambda value: value.name)
def test_every_pair(op: Op, kind: Type) -> None:
    """One element: edges, ties, denormal numbers, in either byte order."""
    for number, octets in enumerate(triples(op, kind, 60)):
        after, original = run(op, kind, octets, ("little", "big")[number % 2])
        assert original == octets[0]
        expected = oracle(op, kind, octets)
        assert same(kind, after, expected), (*map(bytes.hex, octets), after.hex(), expected.hex())


@pytest.mark.parametrize(("op", "kind"), PAIRS, ids=lambda value: value.name)
def test_several_elements(op: Op, kind: Type) -> None:
    """An operation on an array is the operation on each of its elements."""
    rows = list(triples(op, kind, 7))
    target, operand, compare = (b"".join(column) for column in zip(*rows, strict=True))
    after, original = run(op, kind, (target, operand, compare), "little")
    assert original == target
    assert same(kind, after, b"".join(oracle(op, kind, row) for row in rows))


@pytest.mark.parametrize(("op", "kind"), NO_PAIRS, ids=lambda value: value.name)
def test_pairs_that_do_not_exist(op: Op, kind: Type) -> None:
    """Bits of floating-point numbers, order of complex ones."""
    octets = memoryview(bytearray(b"\x3c" * size(kind)))
    assert not supported(op, kind)
    assert execute(op, kind, octets, bytes(octets), bytes(octets)) == (
        ReturnCode.AMO_UNSUPPORTED_DT,
        b"",
    )
    assert octets == b"\x3c" * size(kind)


def test_tables_are_complete() -> None:
    assert {(op, kind) for op in Op for kind in Type if supported(op, kind)} == set(PAIRS)
    for kind in Type:
        assert kind.size in (None, size(kind))
    for unknown in (-1, len(Type), 0xE0, 0xFF):
        assert size_of(unknown) is None
        assert not supported(Op.SUM, unknown)
        assert not supported(0x15 + abs(unknown), Type.UINT64)


@pytest.mark.conformance("C-207")
@pytest.mark.parametrize(
    ("op", "kind", "length", "operand", "offset", "code"),
    [
        (0x15, Type.UINT64, 8, 8, 0, ReturnCode.AMO_UNSUPPORTED_OP),
        (0xFF, 0xFF, 7, 1, 1, ReturnCode.AMO_UNSUPPORTED_OP),
        (-1, Type.UINT64, 8, 8, 0, ReturnCode.AMO_UNSUPPORTED_OP),
        (Op.SUM, 0x12, 7, 1, 1, ReturnCode.AMO_UNSUPPORTED_DT),
        (Op.SUM, -1, 8, 8, 0, ReturnCode.AMO_UNSUPPORTED_DT),
        (Op.SUM, Type.UINT64, 8, 4, 1, ReturnCode.AMO_UNSUPPORTED_SIZE),
        (Op.SUM, Type.UINT64, 8, 16, 0, ReturnCode.AMO_UNSUPPORTED_SIZE),
        (Op.SUM, Type.UINT64, 8, 0, 0, ReturnCode.AMO_UNSUPPORTED_SIZE),
        (Op.SUM, Type.UINT64, 0, 0, 0, ReturnCode.AMO_UNSUPPORTED_SIZE),
        (Op.SUM, Type.UINT32, 6, 6, 0, ReturnCode.AMO_UNSUPPORTED_SIZE),
        (Op.READ, Type.UINT32, 6, 0, 0, ReturnCode.AMO_UNSUPPORTED_SIZE),
        (Op.READ, Type.UINT32, 8, 4, 0, ReturnCode.AMO_UNSUPPORTED_SIZE),
        (Op.CSWAP, Type.UINT32, 4, 4, 0, ReturnCode.AMO_UNSUPPORTED_SIZE),  # no compare value
        (Op.SUM, Type.UINT64, 8, 8, 4, ReturnCode.AMO_UNALIGNED),
        (Op.READ, Type.INT128, 16, 0, 8, ReturnCode.AMO_UNALIGNED),
        (Op.SUM, Type.FLOAT_COMPLEX, 8, 8, 2, ReturnCode.AMO_UNALIGNED),
        (Op.SUM, Type.FLOAT_COMPLEX, 8, 8, 4, ReturnCode.OK),
        (Op.SUM, Type.UINT8, 1, 1, 3, ReturnCode.OK),
        (Op.READ, Type.UINT32, 8, 0, 4, ReturnCode.OK),
        (Op.READ, Type.UINT32, 8, 8, 4, ReturnCode.OK),
    ],
)
def test_refusals(op: int, kind: int, length: int, operand: int, offset: int, code: int) -> None:
    """Operation, type, size, alignment: the first that is wrong decides, and nothing changes."""
    target = memoryview(bytearray(b"\x01" * length))
    result, original = execute(op, kind, target, b"\x01" * operand, offset=offset)
    assert result == code
    if code != ReturnCode.OK:
        assert target == b"\x01" * length
        assert original == b""


def test_read_needs_no_write_access() -> None:
    target = memoryview(bytes.fromhex("0100000002000000"))
    assert execute(Op.READ, Type.UINT32, target, b"") == (
        ReturnCode.OK,
        bytes.fromhex("0000000100000002"),
    )


def test_nan_keeps_its_payload_where_it_is_copied() -> None:
    """A signalling NaN written or swapped in is the same one in memory."""
    nan = bytes.fromhex("7f800123")
    for op in (Op.WRITE, Op.CSWAP):
        target = bytearray(4)
        execute(op, Type.FLOAT, memoryview(target), nan, bytes(4) if op == Op.CSWAP else None)
        assert target[::-1] == nan


def test_min_and_max_take_only_what_is_strictly_less_or_greater() -> None:
    """Zeros are equal whatever their signs, and a NaN is neither: the target stays."""
    zero, minus_zero, nan = bytes(4), bytes.fromhex("80000000"), bytes.fromhex("7fc00000")
    for op in (Op.MIN, Op.MAX):
        for target, operand in (
            (zero, minus_zero),
            (minus_zero, zero),
            (zero, nan),
            (nan, zero),
        ):
            assert run(op, Type.FLOAT, (target, operand, b""), "big")[0] == target


@pytest.mark.parametrize("op", [Op.SUM, Op.DIFF, Op.PROD])
def test_bfloat16_rounds_as_if_once(op: Op) -> None:
    """Where single precision on the way could come to a tie: unlike sums, denormal products."""
    choose = random.Random(16)
    form = FLOATS[Type.BF16]
    for _ in range(1500):
        exponent = choose.randint(-70, -60)
        other = choose.randint(-138, -128) - exponent
        if op != Op.PROD:
            other = exponent - choose.randint(0, 28)
        left, right = (
            form.encode(
                Number(choose.random() < 0.5, choose.randint(128, 255) * Fraction(2) ** (e - 7))
            )
            for e in (exponent, other)
        )
        after, _ = run(op, Type.BF16, (left, right, b""), "big")
        assert after == oracle(op, Type.BF16, (left, right, b"")), (left.hex(), right.hex())


@given(
    st.sampled_from(["<Q", "<q", "<i", "<H", "<b"]),
    st.sampled_from([Op.SUM, Op.DIFF, Op.PROD, Op.BXOR, Op.MIN, Op.MAX]),
    st.data(),
)
@examples(150)
def test_integers_against_struct(code: str, op: Op, data: st.DataObject) -> None:
    """Any values, any number of elements: arithmetic modulo the width."""
    kind = {"Q": Type.UINT64, "q": Type.INT64, "i": Type.INT32, "H": Type.UINT16, "b": Type.INT8}[
        code[1]
    ]
    bits = 8 * size(kind)
    low = -(1 << bits - 1) if code[1].islower() else 0
    numbers = st.integers(low, low + (1 << bits) - 1)
    pairs = data.draw(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=9))
    pack = struct.Struct(f"<{len(pairs)}{code[1]}").pack
    memory = bytearray(pack(*(a for a, _ in pairs)))
    before = bytes(memory)
    operand = reverse_order(kind, pack(*(b for _, b in pairs)))
    assert execute(op, kind, memoryview(memory), operand) == (
        ReturnCode.OK,
        reverse_order(kind, before),
    )
    function: Callable[[int, int], int] = {
        Op.SUM: lambda a, b: a + b,
        Op.DIFF: lambda a, b: a - b,
        Op.PROD: lambda a, b: a * b,
        Op.BXOR: lambda a, b: a ^ b,
        Op.MIN: lambda a, b: min(a, b),
        Op.MAX: lambda a, b: max(a, b),
    }[op]
    assert memory == pack(*((function(a, b) - low) % (1 << bits) + low for a, b in pairs))
