"""Pseudo-random numbers of the switch model: ``random.h`` in Python.

The n-th draw of a stream is a function of (seed, stream, n) alone.
"""

from __future__ import annotations

STREAM_MARK, STREAM_FAULT, STREAM_HASH = 1, 2, 3
_MASK = 2**64 - 1


def mixed(number: int) -> int:
    """Return 64 bits of which each depends on every bit of ``number`` (SplitMix64's finalizer)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31


def draw(seed: int, stream: int, number: int) -> int:
    """Return draw ``number`` of ``stream``, 32 bits."""
    return mixed((mixed((seed + stream) & _MASK) + number) & _MASK) >> 32
