"""Octets that a lossless buffer counts and no queue has any more.

A frame that is lost between its admission and the other end of the cable (an interface is taken
down, its queue is emptied by hand) is never given back: the port that it came in by would ask for
pauses for ever.  What has not moved for a while although nothing holds it back is such a remnant.
"""

from __future__ import annotations

from collections.abc import Mapping

#: How long (s of the machine) a buffer has to stand still at least.
STILL_S = 3.0


class Remnants:
    """Finds remnants in what is read now and then of the buffers of all ports."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, float]] = {}

    def find(self, held: Mapping[int, int], stopped: Mapping[int, bool], now_s: float) -> list[int]:
        """The ports whose buffers are to be reckoned empty.

        ``held`` are octets by port; ``stopped`` says whether some queue of the port's switch may
        not send now, so that nothing can be told.
        """
        found = []
        for port, octets in held.items():
            before = self._since.get(port)
            if not octets or stopped[port]:
                self._since.pop(port, None)
            elif before is None or before[0] != octets:
                self._since[port] = octets, now_s
            elif now_s - before[1] >= STILL_S:
                del self._since[port]
                found.append(port)
        return found
