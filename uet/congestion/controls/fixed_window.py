"""A fixed window of one bandwidth-delay product, without congestion control.

It keeps a non-blocking path full and no more; on an oversubscribed one it shows what congestion
control is for.
"""

from __future__ import annotations

from uet.congestion.control_registry import CONTROLS, CongestionControl, Tuning
from uet.congestion.signals import NO_SAMPLE


class FixedWindow:
    """A window of at most ``window`` octets in flight."""

    __slots__ = ("inflight", "window_octets")

    def __init__(self, window: int) -> None:
        self.window_octets = window
        self.inflight = 0

    def room(self) -> int:
        """Return how many octets may be sent now; the last packet may go beyond it."""
        return self.window_octets - self.inflight

    def wants_ack(self, trigger: int) -> bool:
        """Return whether the window is too small to wait until ``trigger`` octets are coalesced."""
        return self.window_octets < 2 * trigger

    def on_ack(
        self,
        octets: int,
        marked: bool,
        rtt: int,
        now: int,
        penalty: int = 0,
        restore: bool = False,
    ) -> None:
        """Take ``octets`` off those in flight, as they have arrived; nothing else matters."""
        self.inflight -= octets

    def on_report(self, octets: int) -> None:
        """Take ``octets`` off those in flight, as they have arrived."""
        self.inflight -= octets

    def on_nack(self, size: int, code: int, now: int, rtt: int = NO_SAMPLE) -> None:
        """A packet was refused."""
        self.inflight -= size

    def on_probe(self, rtt: int) -> None:
        """Nothing."""

    def on_loss(self, size: int) -> None:
        """A packet is taken to be lost."""
        self.inflight -= size


def _window(tuning: Tuning, now: int) -> FixedWindow:
    return FixedWindow(tuning.fixed_window)


CONTROLS.register(
    CongestionControl(
        name="none", meaning="a window of one bandwidth-delay product", window=_window
    )
)
