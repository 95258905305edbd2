"""A fixed window of one bandwidth-delay product: no reaction to congestion at all.

It keeps a non-blocking path full and no more, which is what a first look at a fabric needs; on
an oversubscribed one it shows what congestion control is for.
"""

from __future__ import annotations

from uet.congestion import base


class FixedWindow(base.CongestionControl):
    """At most ``window`` octets in flight."""

    __slots__ = ("inflight", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.inflight = 0

    def room(self) -> int:
        return self.window - self.inflight

    @property
    def window_octets(self) -> int:
        return self.window

    def on_send(self, size: int, now: int) -> None:
        self.inflight += size

    def on_delivered(self, size: int, now: int) -> None:
        self.inflight -= size

    def on_lost(self, size: int, now: int) -> None:
        self.inflight -= size

    def want_ack(self, trigger: int) -> bool:
        return self.window < 2 * trigger


base.register("fixed", FixedWindow)
