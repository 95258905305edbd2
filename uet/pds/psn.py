"""Packet sequence numbers: 32 bits that wrap (serial number arithmetic, RFC 1982)."""

from __future__ import annotations

MASK = 0xFFFF_FFFF
HALF = 0x8000_0000
#: Start_PSN lies in [2^16, 2^31) (UES 3.5.8).
START_FIRST, START_END = 1 << 16, 1 << 31


def add(psn: int, n: int) -> int:
    """``psn + n`` modulo 2^32."""
    return (psn + n) & MASK


def distance(a: int, b: int) -> int:
    """Return how far ``a`` lies after ``b``: signed, -2^31 .. 2^31 - 1."""
    d = (a - b) & MASK
    return d - 0x1_0000_0000 if d & HALF else d


def after(a: int, b: int) -> bool:
    """Return whether ``a`` is newer than ``b``."""
    return 0 < ((a - b) & MASK) < HALF
