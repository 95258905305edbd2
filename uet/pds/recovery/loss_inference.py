"""Packets inferred to be lost before their timers expire (UES 3.5.15, out-of-order count).

A packet counts as lost once the destination has so many newer ones that it cannot just have been
overtaken. Where all packets take the same path a handful is enough.  Where they are sprayed over
paths, the slowest of these decides: the packet must also be older than any path has taken of late.
A retransmission is judged by what was sent after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from uet.pds.psn import HALF, MASK
from uet.pds.window import SendWindow

LEAST_PACKETS = 5
_ALWAYS = 1 << 62


class LossInference:
    """Watches one send window, and judges every packet's transmission once."""

    __slots__ = ("_again", "_judged", "_newest", "_one_path", "_window")

    def __init__(self, window: SendWindow, start_psn: int, *, one_path: bool) -> None:
        self._window = window
        self._one_path = one_path
        self._newest = (start_psn - 1) & MASK  # of the PSNs known to have arrived
        self._judged = start_psn  # first transmissions of those before it are settled
        # PSN -> first one sent after its last retransmission, in the order of sending
        self._again: OrderedDict[int, int] = OrderedDict()

    def restart(self, start_psn: int) -> None:
        """Begin anew at ``start_psn``, with nothing sent and nothing arrived."""
        self._newest = (start_psn - 1) & MASK
        self._judged = start_psn
        self._again.clear()

    def arrived(self, psn: int) -> None:
        """Record that the destination has ``psn``."""
        if 0 < ((psn - self._newest) & MASK) < HALF:
            self._newest = psn

    def sent_again(self, psn: int) -> None:
        """Record that ``psn`` was sent once more."""
        self._again.pop(psn, None)
        self._again[psn] = self._window.next

    def lost(self, newer: int, sent_at: Sequence[int] = (0,), latest: int = _ALWAYS) -> list[int]:
        """Return the PSNs whose last transmission is lost, as is known by now.

        So many ``newer`` ones have arrived, and on several paths it left at ``latest`` or before
        (ns).  ``sent_at`` is a ring of as many slots as a power of two.
        """
        window, judged, mask = self._window, self._judged, len(sent_at) - 1
        if self._one_path or newer < LEAST_PACKETS:
            newer = LEAST_PACKETS
        if self._one_path:
            latest = _ALWAYS
        end = (self._newest - newer) & MASK
        psns = []
        if ((judged - window.base) & MASK) >= HALF:
            judged = window.base
        while ((end - judged) & MASK) < HALF:
            if self._is_missing(judged):
                if sent_at[judged & mask] > latest:
                    break
                psns.append(judged)
            judged = (judged + 1) & MASK
        self._judged = judged
        while self._again:
            psn, following = next(iter(self._again.items()))
            if ((end - following) & MASK) >= HALF or sent_at[psn & mask] > latest:
                break
            del self._again[psn]
            if self._is_missing(psn):
                psns.append(psn)
        return psns

    def _is_missing(self, psn: int) -> bool:
        return self._window.is_open(psn) and not self._window.is_delivered(psn)
