"""Packet sequence numbers of 24 bits that wrap (IBA 9.7.1).

Queue pairs count in ordinary integers and put 24 bits of them on the wire; :func:`unwrap` finds
the integer back.
"""

from __future__ import annotations

from emulator.rocev2.wire.rocev2_codes import PSN_MASK

_HALF = 0x80_0000
_SPACE = PSN_MASK + 1


def add(psn: int, n: int) -> int:
    """``psn + n`` modulo 2^24."""
    return (psn + n) & PSN_MASK


def distance(a: int, b: int) -> int:
    """Return how far ``a`` lies after ``b``: signed, -2^23 .. 2^23 - 1.

    Half of the space is behind.
    """
    d = (a - b) & PSN_MASK
    return d - _SPACE if d & _HALF else d


def after(a: int, b: int) -> bool:
    """Return whether ``a`` is newer than ``b``."""
    return 0 < ((a - b) & PSN_MASK) < _HALF


def unwrap(psn: int, near: int) -> int:
    """The integer nearest to ``near`` whose 24 lower bits are ``psn``; may be negative."""
    d = (psn - near) & PSN_MASK
    return near + d - _SPACE if d & _HALF else near + d
