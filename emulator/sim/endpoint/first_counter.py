"""Packet counters of secure domains begin at the time, so that no restart repeats one (UES 3.7).

A counter that comes twice under one key gives AES-GCM's key stream away (RFC 5116 section 3.1).
An endpoint that keeps no state takes the time: the clock advances by :data:`COUNTERS_PER_SECOND`,
more packets than a software endpoint sends, so whatever was counted before lies behind.
"""

from __future__ import annotations

import time

#: Packets a second that an endpoint may send on average from its start to its restart.
COUNTERS_PER_SECOND = 1 << 18
#: Bits of the start: the upper half of the 48 is a server's with SSIs.  They last for 17 years,
#: and no key may live longer.
_BITS = 47


def first_counter(unix_ns: int | None = None) -> int:
    """The first packet counter of an endpoint that starts now, or at ``unix_ns``.

    A key must be replaced where the host's clock is set back by more than the endpoint was down.
    """
    now = time.time_ns() if unix_ns is None else unix_ns
    return now * COUNTERS_PER_SECOND // 10**9 % (1 << _BITS)
