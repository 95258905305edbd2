"""Octets that a lossless buffer counts and no queue has any more.

A frame may be lost between its admission and the other end of the cable: an interface is taken
down, or its queue is emptied by hand. Such a frame is never given back: the port that it came in by
would request pauses for ever.  What has not moved for a while although nothing holds it back is
such a remnant. Faults that pull a cable leave none
(:meth:`emulator.dataplane.switch.pauses.Pauses.free`).

That while is longer than a switch whose buffers are full needs to empty them by one port: as long
a frame may wait behind those of other ports, and the buffer that it counts in stands still.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from emulator.dataplane.clock import Dilation
from emulator.dataplane.switch.pfc.pause_state import PauseRules

#: How long (s of the machine) a buffer has to stand still at least.
STILL_S = 3.0
#: Times that a switch needs to empty its buffers: other classes may take some of the link.
TIME_LIMIT = 2


def still_s(switches: Iterable[Iterable[PauseRules]], dilation: float) -> float:
    """Return how long a buffer may stand still on a fabric of these switches (s of the machine).

    Each of ``switches`` is given by the rules of its ports.
    """
    longest = 0.0
    for switch in switches:
        ports = list(switch)
        octets = sum(rules.ceiling_bytes for rules in ports)
        longest = max(longest, octets * 8 / min(rules.rate_bps for rules in ports))
    return max(STILL_S, Dilation(dilation).host_ns(TIME_LIMIT * longest))


class Remnants:
    """Finds remnants in what is read now and then of the buffers of all ports.

    ``still_s`` is how long (s of the machine) one of them has to stand still.
    """

    def __init__(self, still_s: float = STILL_S) -> None:
        self._still_s = still_s
        self._since: dict[int, tuple[int, float]] = {}

    def find(self, held: Mapping[int, int], stopped: Mapping[int, bool], now_s: float) -> list[int]:
        """The ports whose buffers are to be reckoned empty.

        ``held`` are octets by port; ``stopped``: some queue of the port's switch may not send now,
        so that there is no evidence.
        """
        found = []
        for port, octets in held.items():
            before = self._since.get(port)
            if not octets or stopped[port]:
                self._since.pop(port, None)
            elif before is None or before[0] != octets:
                self._since[port] = octets, now_s
            elif now_s - before[1] >= self._still_s:
                del self._since[port]
                found.append(port)
        return found
