"""The limit of data that one stream may have requested and not received.

Were every READ sent as soon as it is posted, its target would have to remember more requests than
it has room for. It would refuse the rest (NO_SES_MSG_AVAIL), and the PDC fails after many refusals.
"""

from __future__ import annotations

from typing import Final

#: Packets of READs that may wait for their data.  As many keep any path busy: the return direction
#: has no more in flight.
READ_AHEAD: Final = 1_024


class OutstandingReads:
    """Packets and octets that are under way to one stream; ``most_octets`` bounds the latter."""

    __slots__ = ("_most_octets", "ahead", "octets", "packets")

    def __init__(self, most_octets: int, mtu: int) -> None:
        self._most_octets = most_octets
        #: packets that one message may have requested
        self.ahead = max(1, min(READ_AHEAD, most_octets // mtu))
        self.packets = 0
        self.octets = 0

    def fits(self, packets: int, unit: int) -> bool:
        """Return whether a message of ``packets`` may begin, each requesting ``unit`` octets.

        A large one does when half of the limit is free, so that the line does not fall idle.
        """
        packets = min(packets, self.ahead)
        return not self.packets or (
            self.packets + min(packets, READ_AHEAD // 2) <= READ_AHEAD
            and self.octets + min(packets * unit, self._most_octets // 2) <= self._most_octets
        )

    def change(self, before: int, after: int, unit: int) -> None:
        """A message waits for ``after`` packets of data instead of ``before``."""
        change = min(after, self.ahead) - min(before, self.ahead)
        self.packets += change
        self.octets += change * unit
