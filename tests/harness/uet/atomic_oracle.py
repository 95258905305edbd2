"""Define what atomic operations do, told with Python's integers and fractions only."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from uet.ses.memory.atomic_operations import (
    ByteOrder,
    reverse_order,
    size_of,
)
from uet.wire.codes import CSWAP_OPCODES
from uet.wire.codes import AtomicOpcode as Op
from uet.wire.codes import Datatype as Type

ORDERS: dict[int, Callable[[Fraction, Fraction], bool]] = {
    Op.CSWAP_LE: lambda a, b: a <= b,
    Op.CSWAP_LT: lambda a, b: a < b,
    Op.CSWAP_GE: lambda a, b: a >= b,
    Op.CSWAP_GT: lambda a, b: a > b,
}


#: Beyond every format.
BEYOND = Fraction(1 << 20000)


def scaled(above: int, below: int, power: int) -> tuple[int, int]:
    """Return a fraction times a power of two: what a quotient of Fractions takes long for."""
    return above << max(power, 0), below << max(-power, 0)


@dataclass(frozen=True)
class Float:
    """A binary floating-point format: octets, exponent bits, fraction bits, where the 1 is."""

    size: int
    exponent: int
    fraction: int
    explicit: bool = False  # the integer bit is stored (80-bit extended)

    @property
    def bias(self) -> int:
        return (1 << self.exponent - 1) - 1

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.explicit + self.fraction

    def decode(self, octets: bytes) -> Number:
        word = int.from_bytes(octets, "big") & (1 << self.bits) - 1
        fraction = word & (1 << self.fraction) - 1
        exponent = word >> self.fraction + self.explicit & (1 << self.exponent) - 1
        negative = bool(word >> self.bits - 1)
        if exponent == (1 << self.exponent) - 1:
            return Number(negative, None, nan=bool(fraction))
        if exponent:
            fraction |= 1 << self.fraction
        power = max(exponent, 1) - self.bias - self.fraction
        return Number(negative, Fraction(*scaled(fraction, 1, power)))

    def encode(self, number: Number) -> bytes:
        """Round to nearest, ties to even."""
        top = (1 << self.exponent) - 1
        exponent, fraction = top, int(number.nan) << self.fraction - 1
        if number.magnitude is not None:
            exponent, fraction = self._round(number.magnitude, top)
        word = int(number.negative) << self.exponent
        word = (word | exponent) << self.explicit | (self.explicit and exponent > 0)
        return (word << self.fraction | fraction).to_bytes(self.size, "big")

    def _round(self, magnitude: Fraction, top: int) -> tuple[int, int]:
        lowest = 1 - self.bias - self.fraction
        power = lowest
        if magnitude:
            length = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
            power = max(lowest, length - self.fraction - 2)
        while True:
            above, below = scaled(magnitude.numerator, magnitude.denominator, -power)
            units, left = divmod(above, below)
            units += 2 * left > below or (2 * left == below and units % 2)  # ties to even
            if units < 2 << self.fraction:
                break
            power += 1
        exponent = power - lowest + (units >> self.fraction)
        if exponent >= top:
            return top, 0
        return exponent, units & (1 << self.fraction) - 1


@dataclass(frozen=True)
class Number:
    """Sign and magnitude; without magnitude infinite, or no number."""

    negative: bool
    magnitude: Fraction | None
    nan: bool = False

    def __bool__(self) -> bool:
        return self.magnitude is None or self.magnitude != 0

    @property
    def value(self) -> Fraction:
        """To compare with; infinity is beyond every format."""
        size = BEYOND if self.magnitude is None else self.magnitude
        return -size if self.negative else size

    def __neg__(self) -> Number:
        return Number(not self.negative, self.magnitude, self.nan)

    def __add__(self, other: Number) -> Number:
        if self.nan or other.nan:
            return NAN
        if self.magnitude is None or other.magnitude is None:
            if self.magnitude is other.magnitude and self.negative != other.negative:
                return NAN
            return self if self.magnitude is None else other
        total = self.value + other.value
        both = self.negative and other.negative
        return Number(total < 0 or (total == 0 and both), abs(total))

    def __mul__(self, other: Number) -> Number:
        negative = self.negative != other.negative
        if (
            self.nan
            or other.nan
            or (None in (self.magnitude, other.magnitude) and not (bool(self) and bool(other)))
        ):
            return NAN
        if self.magnitude is None or other.magnitude is None:
            return Number(negative, None)
        return Number(negative, self.magnitude * other.magnitude)


NAN = Number(False, None, nan=True)
ONE, ZERO = Number(False, Fraction(1)), Number(False, Fraction(0))

LONG = (
    Float(16, 15, 63, explicit=True) if np.finfo(np.longdouble).nmant == 63 else Float(16, 15, 112)
)
FLOATS = {
    Type.FLOAT: Float(4, 8, 23),
    Type.DOUBLE: Float(8, 11, 52),
    Type.BF16: Float(2, 8, 7),
    Type.FP16: Float(2, 5, 10),
    Type.LONG_DOUBLE: LONG,
    Type.FLOAT_COMPLEX: Float(4, 8, 23),
    Type.DOUBLE_COMPLEX: Float(8, 11, 52),
    Type.LONG_DOUBLE_COMPLEX: LONG,
}
COMPLEX = {Type.FLOAT_COMPLEX, Type.DOUBLE_COMPLEX, Type.LONG_DOUBLE_COMPLEX}
BITS = {Op.BOR, Op.BAND, Op.BXOR, Op.MSWAP}
ORDERED = {Op.MIN, Op.MAX, *ORDERS}
WITH_COMPARE = {*CSWAP_OPCODES, Op.MSWAP}
PAIRS = [
    (op, kind)
    for op in Op
    for kind in Type
    if not (op in BITS and kind in FLOATS) and not (op in ORDERED and kind in COMPLEX)
]
NO_PAIRS = [(op, kind) for op in Op for kind in Type if (op, kind) not in PAIRS]


def integer_oracle(op: Op, kind: Type, octets: tuple[bytes, bytes, bytes]) -> bytes:
    size = len(octets[0])
    signed = kind.name.startswith("INT")
    target, operand, compare = (int.from_bytes(o, "big", signed=signed) for o in octets)
    after = {
        Op.MIN: min(target, operand),
        Op.MAX: max(target, operand),
        Op.SUM: target + operand,
        Op.DIFF: target - operand,
        Op.PROD: target * operand,
        Op.LOR: int(bool(target) or bool(operand)),
        Op.LAND: int(bool(target) and bool(operand)),
        Op.LXOR: int(bool(target) != bool(operand)),
        Op.BOR: target | operand,
        Op.BAND: target & operand,
        Op.BXOR: target ^ operand,
        Op.READ: target,
        Op.INVAL: target,
        Op.WRITE: operand,
        Op.CSWAP: operand if compare == target else target,
        Op.CSWAP_NE: operand if compare != target else target,
        Op.CSWAP_LE: operand if compare <= target else target,
        Op.CSWAP_LT: operand if compare < target else target,
        Op.CSWAP_GE: operand if compare >= target else target,
        Op.CSWAP_GT: operand if compare > target else target,
        Op.MSWAP: operand & compare | target & ~compare,
    }[op]
    return (after % (1 << 8 * size)).to_bytes(size, "big")


def float_oracle(op: Op, kind: Type, octets: tuple[bytes, bytes, bytes]) -> bytes:
    form = FLOATS[kind]
    parts = [[form.decode(o[at : at + form.size]) for at in range(0, len(o), form.size)]
             for o in octets]  # fmt: skip
    target, operand, compare = parts
    n = len(target)

    def rounded(number: Number) -> Number:
        return form.decode(form.encode(number))

    if op in (Op.READ, Op.INVAL, Op.WRITE):
        return octets[op == Op.WRITE]
    if op in (Op.SUM, Op.DIFF):
        sign = -1 if op == Op.DIFF else 1
        return b"".join(
            form.encode(a + (b if sign > 0 else -b)) for a, b in zip(target, operand, strict=True)
        )
    if op == Op.PROD:
        if n == 1:
            return form.encode(target[0] * operand[0])
        (a, b), (c, d) = target, operand
        real = rounded(a * c) + -rounded(b * d)
        return form.encode(real) + form.encode(rounded(a * d) + rounded(b * c))
    if op in (Op.LOR, Op.LAND, Op.LXOR):
        left, right = any(target), any(operand)
        truth = {Op.LOR: left or right, Op.LAND: left and right, Op.LXOR: left != right}[op]
        return form.encode(ONE if truth else ZERO) + form.encode(ZERO) * (n - 1)
    if op in (Op.MIN, Op.MAX):
        (a,), (b,) = target, operand
        less = b.value < a.value if op == Op.MIN else b.value > a.value
        return octets[not (a.nan or b.nan) and less]
    no_number = any(number.nan for number in compare + target)
    if op in ORDERS:
        return octets[not no_number and ORDERS[op](compare[0].value, target[0].value)]
    equal = not no_number and [c.value for c in compare] == [t.value for t in target]
    return octets[equal == (op == Op.CSWAP)]


def oracle(op: Op, kind: Type, octets: tuple[bytes, bytes, bytes]) -> bytes:
    return (float_oracle if kind in FLOATS else integer_oracle)(op, kind, octets)


def same(kind: Type, left: bytes, right: bytes) -> bool:
    """Equal octets, but one NaN is as good as another."""
    form = FLOATS.get(kind)
    if form is None or left == right:
        return left == right
    return all(
        left[at : at + form.size] == right[at : at + form.size]
        or (
            form.decode(left[at : at + form.size]).nan
            and form.decode(right[at : at + form.size]).nan
        )
        for at in range(0, len(left), form.size)
    )


# -- values --------------------------------------------------------------------------------------


def size(kind: Type) -> int:
    octets = size_of(kind)
    assert octets is not None
    return octets


@cache
def edges(kind: Type) -> Sequence[bytes]:
    """Elements (of a complex number: halves) that operations trip over."""
    form = FLOATS.get(kind)
    if form is None:
        n = size(kind)
        words = (0, 1, 2, (1 << 8 * n) - 1, 1 << 8 * n - 1, (1 << 8 * n - 1) - 1)
        return [word.to_bytes(n, "big") for word in words]
    lowest, tiny = 1 - form.bias - form.fraction, 1 - form.bias
    values = [Fraction(0), Fraction(1), Fraction(3, 2), Fraction(2) ** lowest]
    values += [Fraction(2) ** tiny, Fraction(2) ** tiny - Fraction(2) ** lowest]
    values += [(2 - Fraction(2) ** -form.fraction) * Fraction(2) ** form.bias]
    numbers = [Number(negative, value) for value in (*values, None) for negative in (False, True)]
    signalling = int.from_bytes(form.encode(Number(True, None)), "big") | 1
    return [*map(form.encode, numbers), form.encode(NAN), signalling.to_bytes(form.size, "big")]


def element(kind: Type, choose: random.Random) -> bytes:
    """An edge, or anything; both exponents near each other, so that bits get lost in sums."""
    form = FLOATS.get(kind)
    if form is None:
        return choose.choice(edges(kind)) if choose.random() < 0.4 else choose.randbytes(size(kind))

    def part() -> bytes:
        if choose.random() < 0.3:
            return choose.choice(edges(kind))
        exponent = choose.choice(
            (1 - form.bias, -(form.bias // 2), 0, form.bias // 2, form.bias)
        ) + choose.randint(-form.fraction - 2, form.fraction + 2)
        digits = choose.getrandbits(form.fraction + 1) | 1 << form.fraction
        number = Fraction(digits) * Fraction(2) ** (exponent - form.fraction)
        return form.encode(Number(choose.random() < 0.5, number))

    return part() + (part() if kind in COMPLEX else b"")


def triples(op: Op, kind: Type, count: int) -> Iterator[tuple[bytes, bytes, bytes]]:
    choose = random.Random(f"{op} {int(kind)}")
    for _ in range(count):
        target, operand = element(kind, choose), element(kind, choose)
        compare = choose.choice((target, element(kind, choose)))
        yield target, operand, compare


def in_memory(kind: Type, octets: bytes, byteorder: ByteOrder) -> bytes:
    return reverse_order(kind, octets) if byteorder == "little" else octets
