"""Signals of acknowledgements for congestion control, in octets and ns (UES 3.6.13, Table 3-74).

Counters on the wire wrap and have units; none of it goes further than here.
"""

from __future__ import annotations

from typing import Final

from uet.wire.codes import (
    BYTE_COUNT_UNIT,
    OOO_COUNT_NONE,
    SERVICE_TIME_OVERFLOW,
    SERVICE_TIME_UNIT_NS,
)

#: ``rcvd_bytes``, ``credit`` and ``credit_target`` have 24 bits, in units of 256 octets.
COUNT_MASK: Final = 0xFF_FFFF
COUNT_HALF: Final = 0x80_0000
_UNIT: Final = BYTE_COUNT_UNIT
_OVERFLOW: Final = SERVICE_TIME_OVERFLOW
_UNIT_NS: Final = SERVICE_TIME_UNIT_NS

#: There is no RTT sample.
NO_SAMPLE: Final = -1


def units(octets: int) -> int:
    """Octets as a counter of 24 bits, rounded up."""
    return -(-octets // _UNIT) & COUNT_MASK


def ahead(a: int, b: int) -> int:
    """Return how many units the counter ``a`` lies after ``b``: signed, -2^23 .. 2^23 - 1."""
    difference = (a - b) & COUNT_MASK
    return difference - COUNT_MASK - 1 if difference & COUNT_HALF else difference


class ReceivedOctets:
    """The ``rcvd_bytes`` that a PDC's destination has reported so far (UES 3.6.13.4)."""

    __slots__ = ("newest",)

    def __init__(self) -> None:
        #: the counter on the wire that was reported last
        self.newest = 0

    def advance(self, counter: int) -> int:
        """New octets since the newest report; 0 for an ACK that was overtaken by another."""
        difference = (counter - self.newest) & COUNT_MASK
        if difference >= COUNT_HALF:
            return 0
        self.newest = counter
        return difference * _UNIT


def service_time(field: int) -> int:
    """Return the destination's service time (ns); ``NO_SAMPLE`` beyond the field's range.

    0 means that it was not measured, and is taken for no time at all.
    """
    return NO_SAMPLE if field == _OVERFLOW else field * _UNIT_NS


def rtt_sample(
    now: int, sent_at: int, transmissions: int, resent: int, service_field: int = 0
) -> int:
    """The RTT that an answer shows (ns), or ``NO_SAMPLE``.

    ``sent_at`` is the last one of so many ``transmissions`` of the packet, ``resent`` the answer's
    RETX flag.  It must be known which transmission is answered: the only one, or the second of
    two.  A NACK has no service time.
    """
    if service_field == _OVERFLOW or transmissions != (2 if resent else 1):
        return NO_SAMPLE
    rtt = now - sent_at - service_field * _UNIT_NS
    return rtt if rtt > 0 else NO_SAMPLE


def out_of_order(field: int) -> int | None:
    """Return the packets that the destination holds above its CACK; ``None`` if not reported."""
    return None if field == OOO_COUNT_NONE else field


def congestion_penalty(held: int, capacity: int) -> int:
    """``rcv_cwnd_pend`` for a receive buffer that holds so much of its capacity (0..127).

    None below a quarter, all above three quarters; the curve between is this implementation's
    (UES 3.6.13.6 leaves it open).
    """
    if capacity <= 0 or 4 * held <= capacity:
        return 0
    return min(127, 127 * (4 * held - capacity) // (2 * capacity))
