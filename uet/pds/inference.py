"""Packets taken for lost before their timer says so (UES 3.5.15, out-of-order count).

A packet counts as lost once the destination has so many newer ones that it cannot just have been
overtaken: one and a half windows' worth where packets are sprayed over paths, a handful where all
take the same path.  A retransmission is judged by what was sent after it.
"""

from __future__ import annotations

from collections import OrderedDict

from uet.pds.psn import HALF, MASK
from uet.pds.window import SendWindow

_WINDOWS, _LEAST_PACKETS = 1.5, 5


class LossInference:
    """Watches one send window; every packet's transmission is judged once."""

    __slots__ = ("_again", "_judged", "_newest", "_one_path", "_window")

    def __init__(self, window: SendWindow, start_psn: int, *, one_path: bool) -> None:
        self._window = window
        self._one_path = one_path
        self._newest = (start_psn - 1) & MASK  # of the PSNs known to have arrived
        self._judged = start_psn  # first transmissions of those before it are settled
        # PSN -> first one sent after its last retransmission, in the order of sending
        self._again: OrderedDict[int, int] = OrderedDict()

    def arrived(self, psn: int) -> None:
        """The destination has ``psn``."""
        if 0 < ((psn - self._newest) & MASK) < HALF:
            self._newest = psn

    def sent_again(self, psn: int) -> None:
        """``psn`` was sent once more."""
        self._again.pop(psn, None)
        self._again[psn] = self._window.next

    def lost(self, packets_in_window: float) -> list[int]:
        """PSNs whose last transmission is lost, as is known by now."""
        window, judged = self._window, self._judged
        newer = _LEAST_PACKETS
        if not self._one_path:
            newer = max(newer, int(_WINDOWS * packets_in_window))
        end = (self._newest - newer) & MASK
        psns = []
        if ((judged - window.base) & MASK) >= HALF:
            judged = window.base
        while ((end - judged) & MASK) < HALF:
            if self._is_missing(judged):
                psns.append(judged)
            judged = (judged + 1) & MASK
        self._judged = judged
        while self._again:
            psn, following = next(iter(self._again.items()))
            if ((end - following) & MASK) >= HALF:
                break
            del self._again[psn]
            if self._is_missing(psn):
                psns.append(psn)
        return psns

    def _is_missing(self, psn: int) -> bool:
        return self._window.is_open(psn) and not self._window.is_delivered(psn)
