"""PFC headroom: the octets of a lossless buffer that must be free when a pause is sent.

Until the other end has stopped, this keeps arriving at a port that requests a pause:

* the link's rate for as long as the request travels and its effect comes back (the cable twice),
  the two interfaces that the request passes, and the other end's response to it;
* what was in this switch's pipeline, where no buffer counts it yet;
* a frame that stands in front of the request at this end, the request itself, and a frame that the
  other end had begun.

That is the sum of IEEE 802.1Q annex on buffer requirements for PFC, and the pipeline.  The two
device delays are the upper bounds that the standards allow, in bit times by link rate (IEEE 802.3
31B.3.7 and annex 31B). Vendors' design guides quote them; a rate between two rows has the *time* of
the row below it. No silicon gets slower with the port that it is built for.
"""

from __future__ import annotations

from emulator.dataplane.switch.pfc.pause_frame import WIRE_OCTETS
from topologies.ethernet import PACKET_OVERHEAD_OCTETS

_G = 10**9
#: link rate (bit/s) -> bit times
RESPONSE = (
    (10 * _G, 30_720),
    (25 * _G, 40_960),
    (40 * _G, 60_416),
    (100 * _G, 201_728),
    (400 * _G, 463_360),
)
INTERFACE = ((10 * _G, 8_192), (40 * _G, 24_576), (100 * _G, 122_880))


def device_ns(rate_bps: int) -> int:
    """The most that interfaces and the response of the other end may take: ns."""
    return round(_time_ns(RESPONSE, rate_bps) + 2 * _time_ns(INTERFACE, rate_bps))


def headroom_bytes(
    rate_bps: int,
    delay_ns: int,
    mtu: int,
    *,
    lossless_mtu: int | None = None,
    response_ns: int = 0,
    pipeline_ns: int = 0,
) -> int:
    """Octets on the wire that arrive after a pause was requested, at most.

    ``delay_ns`` is the cable's, one way; ``mtu`` the largest IP packet of any class,
    ``lossless_mtu`` of the lossless one if that is less.  Devices take what the standards allow, or
    ``response_ns`` if that is more.  ``pipeline_ns`` is the switch's latency before admission.
    """
    duration = 2 * delay_ns + max(device_ns(rate_bps), response_ns) + pipeline_ns
    travelling = -(-rate_bps * duration // (8 * 10**9))
    ahead = mtu + PACKET_OVERHEAD_OCTETS
    begun = (mtu if lossless_mtu is None else lossless_mtu) + PACKET_OVERHEAD_OCTETS
    return travelling + ahead + WIRE_OCTETS + begun


def reaction_ns(delay_ns: int, *, response_ns: int = 0) -> int:
    """Return the time from sending a pause until no frame arrives any more in the emulator (ns).

    The cable twice, and ``response_ns`` for the devices.  The request itself goes ahead of all
    frames here: the time of the one that it would have had to wait for is what the emulator may be
    late by (:func:`allowance_ns`).
    """
    return 2 * delay_ns + response_ns


def allowance_ns(rate_bps: int, mtu: int) -> int:
    """Return how late (ns) a pause may take effect here while the computed headroom suffices."""
    return (mtu + PACKET_OVERHEAD_OCTETS) * 8 * 10**9 // rate_bps


def _time_ns(bounds: tuple[tuple[int, int], ...], rate_bps: int) -> float:
    known = [row for row in bounds if row[0] <= rate_bps] or [bounds[0]]
    rate, bit_times = known[-1]
    return bit_times * 1e9 / rate
