"""The responder's memory for selective repeat: packets that came early, and gaps.

Newer NICs resend single packets, in ways that their makers do not publish.  This model stays within
the format of RC: NAK 0x60 names one missing PSN, and for both ends it means this one only, not all
behind it.  A missing packet is named once a packet ``tolerance`` PSNs behind it has arrived, since
paths may reorder; and again if one that was named later arrives before it, and then another
``tolerance`` PSNs.
"""

from __future__ import annotations

from itertools import takewhile

#: Operation, whether it requests an ACK, octets from the extension headers on, payload in them;
#: and whether the payload has been placed already, and is not among them.
Kept = tuple[int, bool, bytes, int, bool]


class Early:
    """Packets of a queue pair that came before their turn; PSNs do not wrap here."""

    __slots__ = ("_kept", "_named", "_next", "_overtaken", "_tolerance", "_window", "highest")

    def __init__(self, window: int, tolerance: int) -> None:
        self._window = window
        self._tolerance = tolerance
        self._kept: dict[int, Kept] = {}
        self._named: dict[int, None] = {}  # missing ones, in the order they were named
        self._overtaken: dict[int, int] = {}  # of these: the newest PSN when that was seen
        self._next = 0  # all below are here or named
        #: the newest PSN that has arrived early
        self.highest = -1

    def fits(self, expected: int, psn: int) -> bool:
        """Return whether a packet lies in the window."""
        return psn < expected + self._window

    def keep(self, psn: int, packet: Kept) -> None:
        """Keep a packet that fits."""
        self._kept[psn] = packet
        if psn > self.highest:
            self.highest = psn

    def lost(self, expected: int) -> list[int]:
        """The PSNs that now count as lost."""
        found = []
        end = self.highest - self._tolerance
        if self._overtaken:
            found = [psn for psn, seen in self._overtaken.items() if seen <= end]
            for psn in found:
                del self._overtaken[psn], self._named[psn]
                self._named[psn] = None
        psn = max(self._next, expected)
        while psn < end:
            if psn not in self._kept:
                found.append(psn)
                self._named[psn] = None
            psn += 1
        self._next = psn
        return found

    def filled(self, psn: int) -> None:
        """A missing packet has arrived: those named before it may have been lost again."""
        if psn not in self._named:
            return
        for named in takewhile(lambda named: named != psn, self._named):
            self._overtaken.setdefault(named, self.highest)
        del self._named[psn]
        self._overtaken.pop(psn, None)

    def skip(self, first: int, end: int) -> None:
        """A READ stood for the PSNs from ``first`` up to ``end`` too: no packet will have them."""
        for psn in range(first, min(end, self.highest + 1)):
            self._kept.pop(psn, None)
            self._named.pop(psn, None)
            self._overtaken.pop(psn, None)

    def pop(self, psn: int) -> Kept | None:
        """The packet with this PSN, if it is here."""
        return self._kept.pop(psn, None)
