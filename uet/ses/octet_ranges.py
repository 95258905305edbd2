"""Sets of octets of a message, held as sorted ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class OctetRanges:
    """A set of octets, as sorted ranges that are disjoint and do not touch.

    With packets nearly in order it is one range.
    """

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        #: where each range begins, and behind which octet it ends
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add the octets from ``start`` up to ``end``, some of which may be there."""
        if end <= start:
            return
        starts, ends = self.starts, self.ends
        first, last = bisect_left(ends, start), bisect_right(starts, end)
        if first < last:
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]

    def place(self, start: int, end: int, most_gaps: int) -> bool:
        """Add octets of which none is there; return False, and add none, if that is not so.

        Return False also if more than ``most_gaps`` gaps would be left.
        """
        starts, ends = self.starts, self.ends
        if ends and ends[-1] == start > starts[-1]:  # behind all others: so it is with most
            ends[-1] = end
            return True
        at = bisect_left(starts, start)
        joins_left = at > 0 and ends[at - 1] == start
        if (at > 0 and ends[at - 1] > start) or (at < len(starts) and starts[at] < end):
            return False
        joins_right = at < len(starts) and starts[at] == end
        if joins_left and joins_right:
            ends[at - 1] = ends.pop(at)
            starts.pop(at)
        elif joins_left:
            ends[at - 1] = end
        elif joins_right:
            starts[at] = start
        elif len(starts) > most_gaps:
            return False
        else:
            starts.insert(at, start)
            ends.insert(at, end)
        return True

    def include(self, other: OctetRanges) -> None:
        """Add the octets of ``other``."""
        for start, end in zip(other.starts, other.ends, strict=True):
            self.add(start, end)

    def covers(self, start: int, end: int) -> bool:
        """Return whether all octets from ``start`` up to ``end`` are there."""
        at = bisect_right(self.starts, start) - 1
        return end <= start or (at >= 0 and self.ends[at] >= end)
