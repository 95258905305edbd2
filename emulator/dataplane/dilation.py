"""Dilation: how much slower this machine runs the fabric than it is."""

from __future__ import annotations


class Dilation(float):
    """Host time per fabric time: at 1000 one fabric ns lasts 1000 ns of this machine.

    Rates are the other way round: what a port sends at 400 Gb/s leaves at 400 Mb/s then.
    """

    __slots__ = ()

    def host_ns(self, fabric_ns: float) -> float:
        """Return how long ``fabric_ns`` of fabric time last on this machine (ns)."""
        return fabric_ns * self

    def fabric_ns(self, host_ns: float) -> float:
        """Return the fabric time (ns) that passes in ``host_ns`` of this machine's time."""
        return host_ns / self

    def host_bps(self, fabric_bps: float) -> float:
        """Return the rate (bit/s) at which this machine sends for ``fabric_bps`` of the fabric."""
        return fabric_bps / self

    def fabric_bps(self, host_bps: float) -> float:
        """Return the rate of the fabric (bit/s) for ``host_bps`` of this machine."""
        return host_bps * self
