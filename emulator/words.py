"""64-bit words as C has them: their sums and products lose what lies beyond.

Compiled, an ``i64`` is a word of the processor: a product wraps, and no number in memory is made.
Interpreted it is an ``int`` of any size.  Arithmetic is the same in both as long as each result
that may lie beyond goes through :func:`wrapped`.  A right shift keeps the sign: mask what comes in.

In compiled modules a factor of an ``int`` product has to stay within 0 to 2^30.  Others Python
multiplies, and the process ends if a signal's handler raises meanwhile: such factors have to be
``i64``, or those of ``operator.mul``, whose caller gets the exception.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

_HALF: Final = 0xFFFF_FFFF
_SIGN: Final = 0x8000_0000
_BELOW_SIGN: Final = 0x7FFF_FFFF_FFFF_FFFF


def wrapped(number: i64) -> i64:
    """Return the word, -2^63 to 2^63 - 1, that equals ``number`` modulo 2^64."""
    return ((number >> 32 & _HALF ^ _SIGN) - _SIGN) << 32 | number & _HALF


def word_of(number: int) -> i64:
    """Return :func:`wrapped` of an ``int`` of any size, such as a word without a sign."""
    return i64(number & _BELOW_SIGN) - (i64(number >> 63 & 1) << 63)


def unsigned(word: i64) -> int:
    """Return the number, 0 to 2^64 - 1, that equals ``word`` modulo 2^64."""
    return int(word >> 32 & _HALF) << 32 | int(word & _HALF)


#: SplitMix64's increment and multipliers (Steele, Lea, Flood 2014)
_INCREMENT: Final = word_of(0x9E37_79B9_7F4A_7C15)
_FIRST: Final = word_of(0xBF58_476D_1CE4_E5B9)
_SECOND: Final = word_of(0x94D0_49BB_1331_11EB)


def mixed(number: i64) -> i64:
    """Return 64 bits of which each depends on every bit of ``number`` (SplitMix64's finalizer)."""
    number = wrapped(number + _INCREMENT)
    number = wrapped((number ^ number >> 30 & 0x3_FFFF_FFFF) * _FIRST)
    number = wrapped((number ^ number >> 27 & 0x1F_FFFF_FFFF) * _SECOND)
    return number ^ number >> 31 & 0x1_FFFF_FFFF
