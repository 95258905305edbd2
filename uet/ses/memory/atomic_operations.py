"""Atomic memory operations: what they do to a target (UES 3.4).

The operations are those of libfabric's ``fi_atomic``, element by element: ``target = target op
operand``, and for the compare family ``if compare op target: target = operand`` (so ``CSWAP_LT``
swaps where the compare value is less than the target).  ``MIN`` and ``MAX`` replace the target only
by what is strictly less or greater. ``MSWAP`` takes the operand's bits where those of the compare
value are set. Logical operations leave 0 or 1 of the type.  ``READ`` and ``INVAL`` change nothing:
there is no cache here whose copy could be invalidated.

Integers wrap.  Floating point is IEEE 754 with round to nearest even, and never traps: NaN,
infinities, underflow and inexact results are stored as they come, with return code OK, so the
four AMO_FP codes are not used.  A NaN is unequal to all and neither less nor greater; it is true.
Complex numbers have no order, floating-point numbers no bits.  A complex product is the textbook
one, each step rounded.

Operands and results are big-endian here, as on the wire (:mod:`uet.ses.memory.operands`); a complex
number is its real part, then its imaginary one.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:  # most endpoints never carry out what needs numpy
    from numpy.typing import NDArray

from uet.wire.codes import CSWAP_OPCODES, AtomicOpcode, Datatype, ReturnCode

ByteOrder = Literal["little", "big"]
Octets = bytes | memoryview
#: target, operand and compare value (the last two big-endian), byte order of the target; returns
#: the original value, big-endian
_Run = Callable[[memoryview, Octets, Octets, ByteOrder], bytes]

_OK = int(ReturnCode.OK)
_BAD_OPERATION = (int(ReturnCode.AMO_UNSUPPORTED_OP), b"")
_BAD_DATATYPE = (int(ReturnCode.AMO_UNSUPPORTED_DT), b"")
_BAD_SIZE = (int(ReturnCode.AMO_UNSUPPORTED_SIZE), b"")
_UNALIGNED = (int(ReturnCode.AMO_UNALIGNED), b"")


class AtomicError(ValueError):
    """An atomic request cannot be made as requested."""


class _Type(NamedTuple):
    """The layout of a datatype in memory: ``components`` units of ``unit`` octets each."""

    unit: int
    kind: str  # "i" integer, "f" floating point, "b" bfloat16
    components: int = 1
    signed: bool = False
    dtype: str = ""  # numpy's name of one unit; none for 128-bit integers
    padding: int = 0  # octets of a unit that mean nothing, at its most significant end

    @property
    def size(self) -> int:
        return self.unit * self.components


def _integer_type(size: int, signed: bool) -> _Type:
    dtype = f"{'i' if signed else 'u'}{size}" if size <= 8 else ""
    return _Type(size, "i", signed=signed, dtype=dtype)


_TYPES: dict[int, _Type] = {
    Datatype.INT8: _integer_type(1, True),
    Datatype.UINT8: _integer_type(1, False),
    Datatype.INT16: _integer_type(2, True),
    Datatype.UINT16: _integer_type(2, False),
    Datatype.INT32: _integer_type(4, True),
    Datatype.UINT32: _integer_type(4, False),
    Datatype.INT64: _integer_type(8, True),
    Datatype.UINT64: _integer_type(8, False),
    Datatype.INT128: _integer_type(16, True),
    Datatype.UINT128: _integer_type(16, False),
    Datatype.FLOAT: _Type(4, "f", dtype="f4"),
    Datatype.DOUBLE: _Type(8, "f", dtype="f8"),
    Datatype.FLOAT_COMPLEX: _Type(4, "f", 2, dtype="f4"),
    Datatype.DOUBLE_COMPLEX: _Type(8, "f", 2, dtype="f8"),
    Datatype.BF16: _Type(2, "b", dtype="u2"),
    Datatype.FP16: _Type(2, "f", dtype="f2"),
}
# The size of a long double is the implementation's: here the platform's, if it is a wider one
# than a double and not a pair of them (80 bits in 16 octets on x86-64, 128 on most others).
_ONE = bytes(ctypes.c_longdouble(1))
_PADDED = _ONE[:10] == bytes.fromhex("0000000000000080ff3f")
if len(_ONE) == 16 and (_PADDED or _ONE[14:] == b"\xff\x3f"):
    _PADDING = 6 if _PADDED else 0
    _TYPES[Datatype.LONG_DOUBLE] = _Type(16, "f", dtype="f16", padding=_PADDING)
    _TYPES[Datatype.LONG_DOUBLE_COMPLEX] = _Type(16, "f", 2, dtype="f16", padding=_PADDING)

_ARITHMETIC: dict[int, Callable[[Any, Any], Any]] = {
    AtomicOpcode.SUM: operator.add,
    AtomicOpcode.DIFF: operator.sub,
    AtomicOpcode.PROD: operator.mul,
}
_LOGICAL: dict[int, Callable[[Any, Any], Any]] = {  # on truth values
    AtomicOpcode.LOR: operator.or_,
    AtomicOpcode.LAND: operator.and_,
    AtomicOpcode.LXOR: operator.xor,
}
_BITWISE: dict[int, Callable[[Any, Any], Any]] = {
    AtomicOpcode.BOR: operator.or_,
    AtomicOpcode.BAND: operator.and_,
    AtomicOpcode.BXOR: operator.xor,
}
_EXTREME: dict[int, Callable[[Any, Any], Any]] = {  # operand op target
    AtomicOpcode.MIN: operator.lt,
    AtomicOpcode.MAX: operator.gt,
}
_COMPARE: dict[int, Callable[[Any, Any], Any]] = {  # compare value op target
    AtomicOpcode.CSWAP: operator.eq,
    AtomicOpcode.CSWAP_NE: operator.ne,
    AtomicOpcode.CSWAP_LE: operator.le,
    AtomicOpcode.CSWAP_LT: operator.lt,
    AtomicOpcode.CSWAP_GE: operator.ge,
    AtomicOpcode.CSWAP_GT: operator.gt,
}
#: Operations that need no operand, and those that take a compare value or mask.
NO_OPERAND = frozenset({int(AtomicOpcode.READ), int(AtomicOpcode.INVAL)})
WITH_COMPARE = frozenset({*CSWAP_OPCODES, int(AtomicOpcode.MSWAP)})
_MEANS_EQUAL = (operator.eq, operator.ne)


def supported(operation: int, datatype: int) -> bool:
    """Return whether there is such an operation on such a type.

    What :func:`execute` carries out.
    """
    kind = _TYPES.get(datatype)
    if kind is None:
        return False
    if operation in _BITWISE or operation == AtomicOpcode.MSWAP:
        return kind.kind == "i"
    if operation in _EXTREME or (operation in _COMPARE and _COMPARE[operation] not in _MEANS_EQUAL):
        return kind.components == 1
    return 0 <= operation < len(AtomicOpcode)


def size_of(datatype: int) -> int | None:
    """Octets of one element in memory and on the wire; ``None`` if the type is not supported."""
    kind = _TYPES.get(datatype)
    return None if kind is None else kind.size


def execute(
    operation: int,
    datatype: int,
    target: memoryview,
    operand: Octets,
    compare: Octets | None = None,
    *,
    offset: int = 0,
    byteorder: ByteOrder = "little",
) -> tuple[int, bytes]:
    """Carry out an operation on all of ``target``; its return code, and what was there before.

    ``operand`` and ``compare`` (the mask of ``MSWAP``) are as long as the target, and like the
    result big-endian; ``READ`` and ``INVAL`` may go without.  ``byteorder`` is that of the
    target.  ``offset`` is where the target starts in its region: it must be a multiple of the
    size of an integer, floating-point number or half of a complex one.  On any return code but
    OK the target is unchanged and the result empty.

    An operation that exists, but not on this type, is AMO_UNSUPPORTED_DT (UES 3.4, return codes).
    """
    if not 0 <= operation < len(_PLANS):
        return _BAD_OPERATION
    plan = _PLANS[operation].get(datatype)
    if plan is None:
        return _BAD_DATATYPE
    size, alignment, one, many = plan
    length = len(target)
    if not length or length % size:
        return _BAD_SIZE
    if len(operand) != length and (len(operand) or operation not in NO_OPERAND):
        return _BAD_SIZE
    if compare is None:
        if operation in WITH_COMPARE:
            return _BAD_SIZE
        compare = b""
    elif len(compare) != length:
        return _BAD_SIZE
    if offset % alignment:
        return _UNALIGNED
    run = one if length == size else many
    return _OK, run(target, operand, compare, byteorder)


def reverse_order(datatype: int, octets: Octets) -> bytes:
    """Turn elements from little-endian to big-endian, or back.

    Raises :class:`AtomicError` for a type without a size here, or a fraction of an element.
    """
    kind = _TYPES.get(datatype)
    if kind is None:
        raise AtomicError(f"datatype {datatype:#x} is not supported; use one of Datatype")
    if len(octets) % kind.size:
        raise AtomicError(f"{len(octets)} octets are not whole elements of {kind.size} octets")
    return _reverse(kind.unit, octets)


def _reverse(unit: int, octets: Octets) -> bytes:
    if len(octets) == unit:
        return bytes(octets)[::-1]
    if unit == 1:
        return bytes(octets)
    import numpy as np

    return np.frombuffer(octets, "u1").reshape(-1, unit)[:, ::-1].tobytes()


# -- one integer ---------------------------------------------------------------------------------


def _on_integers(operation: int) -> Callable[[int, int, int], int]:
    """The new value of target, operand and compare value, not yet cut to its width."""
    if operation in _ARITHMETIC or operation in _BITWISE:
        function = _ARITHMETIC.get(operation) or _BITWISE[operation]
        return lambda target, operand, compare: function(target, operand)
    if operation in _LOGICAL:
        logical = _LOGICAL[operation]
        return lambda target, operand, compare: int(logical(target != 0, operand != 0))
    if operation in _EXTREME:
        beats = _EXTREME[operation]
        return lambda target, operand, compare: operand if beats(operand, target) else target
    if operation in _COMPARE:
        holds = _COMPARE[operation]
        return lambda target, operand, compare: operand if holds(compare, target) else target
    if operation == AtomicOpcode.MSWAP:
        return lambda target, operand, mask: (operand & mask) | (target & ~mask)
    return lambda target, operand, compare: operand  # WRITE


def _one_integer(operation: int, kind: _Type) -> _Run:
    size, signed = kind.unit, kind.signed
    mask = (1 << 8 * size) - 1
    value = _on_integers(operation)
    from_bytes = int.from_bytes

    def run(target: memoryview, operand: Octets, compare: Octets, byteorder: ByteOrder) -> bytes:
        before = from_bytes(target, byteorder, signed=signed)
        after = value(
            before,
            from_bytes(operand, "big", signed=signed),
            from_bytes(compare, "big", signed=signed),
        )
        target[:] = (after & mask).to_bytes(size, byteorder)
        return (before & mask).to_bytes(size, "big")

    return run


def _each(size: int, one: _Run) -> _Run:
    """Element by element, for integers wider than numpy's."""

    def run(target: memoryview, operand: Octets, compare: Octets, byteorder: ByteOrder) -> bytes:
        return b"".join(
            one(
                target[at : at + size],
                operand[at : at + size],
                compare[at : at + size],
                byteorder,
            )
            for at in range(0, len(target), size)
        )

    return run


# -- arrays, and all floating point --------------------------------------------------------------


def _load(kind: _Type, octets: Octets, byteorder: ByteOrder) -> NDArray[Any]:
    """Values to compute with: one per element, or a row of two for a complex one."""
    import numpy as np

    values: NDArray[Any] = np.frombuffer(octets, np.dtype(kind.dtype).newbyteorder(byteorder))
    if kind.kind == "b":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.reshape(-1, 2) if kind.components == 2 else values


def _store(kind: _Type, target: memoryview, values: NDArray[Any], byteorder: ByteOrder) -> None:
    import numpy as np

    if kind.kind == "b":
        values = _to_bfloat16(values)
    memory = np.frombuffer(target, np.dtype(kind.dtype).newbyteorder(byteorder))
    memory[:] = values.reshape(-1)
    if kind.padding:
        raw = np.frombuffer(target, "u1").reshape(-1, kind.unit)
        if byteorder == "little":
            raw[:, -kind.padding :] = 0
        else:
            raw[:, : kind.padding] = 0


def _to_bfloat16(values: NDArray[Any]) -> NDArray[Any]:
    """Single precision to the nearest bfloat16, ties to even, as bits.

    The values have been rounded once already, with 24 bits.  That many spoil no sum or product of
    numbers of 8 bits, for which 2 * 8 + 2 would do. Denormal products of them are exact.
    """
    import numpy as np

    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def _product(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Return the product of complex numbers by parts.

    numpy's own may fuse steps, depending on the processor.
    """
    import numpy as np

    a, b, c, d = left[:, 0], left[:, 1], right[:, 0], right[:, 1]
    return np.stack((a * c - b * d, a * d + b * c), axis=1)


def _values(operation: int, kind: _Type) -> Callable[..., NDArray[Any]]:
    """The operations that make a new value."""
    if operation == AtomicOpcode.PROD and kind.components == 2:
        return lambda target, operand, compare: _product(target, operand)
    if operation == AtomicOpcode.MSWAP:
        return lambda target, operand, mask: (operand & mask) | (target & ~mask)
    if operation in _LOGICAL:
        logical = _LOGICAL[operation]
        if kind.components == 1:
            return lambda target, operand, compare: logical(target != 0, operand != 0) * 1.0

        def parts(target: NDArray[Any], operand: NDArray[Any], _: NDArray[Any]) -> NDArray[Any]:
            import numpy as np

            truth = logical((target != 0).any(axis=1), (operand != 0).any(axis=1))
            return np.stack((truth * 1.0, np.zeros(len(truth))), axis=1)

        return parts
    function = _ARITHMETIC.get(operation) or _BITWISE[operation]
    return lambda target, operand, compare: function(target, operand)


def _choices(operation: int, kind: _Type) -> Callable[..., NDArray[Any]]:
    """The operations that keep the target or take the operand: where they take it."""
    if operation in _EXTREME:
        beats = _EXTREME[operation]
        return lambda target, operand, compare: beats(operand, target)
    holds = _COMPARE[operation]
    if kind.components == 1:
        return lambda target, operand, compare: holds(compare, target)
    if operation == AtomicOpcode.CSWAP:
        return lambda target, operand, compare: (compare == target).all(axis=1)
    return lambda target, operand, compare: (compare != target).any(axis=1)


def _many(operation: int, kind: _Type) -> _Run:
    chooses = operation in _EXTREME or operation in _COMPARE
    function = _choices(operation, kind) if chooses else _values(operation, kind)
    unit, element = kind.unit, f"V{kind.size}"

    def run(target: memoryview, operand: Octets, compare: Octets, byteorder: ByteOrder) -> bytes:
        import numpy as np

        little = byteorder == "little"
        original = _reverse(unit, target) if little else bytes(target)
        with np.errstate(all="ignore"):
            outcome = function(
                _load(kind, target, byteorder),
                _load(kind, operand, "big"),
                _load(kind, compare, "big"),
            )
            if not chooses:
                _store(kind, target, outcome, byteorder)
                return original
        # Copied as octets: a NaN keeps its payload.
        new = np.frombuffer(_reverse(unit, operand) if little else operand, element)
        np.frombuffer(target, element)[outcome] = new[outcome]
        return original

    return run


def _copy(kind: _Type, *, write: bool) -> _Run:
    unit = kind.unit

    def run(target: memoryview, operand: Octets, compare: Octets, byteorder: ByteOrder) -> bytes:
        little = byteorder == "little"
        original = _reverse(unit, target) if little else bytes(target)
        if write:
            target[:] = _reverse(unit, operand) if little else operand
        return original

    return run


def _plan(operation: int, kind: _Type) -> tuple[int, int, _Run, _Run]:
    """Size, alignment, and what to run on one element and on several."""
    if operation in NO_OPERAND or operation == AtomicOpcode.WRITE:
        one = many = _copy(kind, write=operation == AtomicOpcode.WRITE)
    elif kind.kind == "i":
        one = _one_integer(operation, kind)
        many = _many(operation, kind) if kind.dtype else _each(kind.size, one)
    else:
        one = many = _many(operation, kind)
    return kind.size, kind.unit, one, many


_PLANS = [
    {
        int(datatype): _plan(operation, kind)
        for datatype, kind in _TYPES.items()
        if supported(operation, datatype)
    }
    for operation in range(len(AtomicOpcode))
]
