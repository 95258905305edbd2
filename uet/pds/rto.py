"""Retransmission timers: when a packet counts as lost (UES 3.5.15).

The timer runs from a packet's last transmission; RTO = RTO_Init_Time * 2^retries.  Packets that
were sent once time out in the order of their PSNs, so one cursor over the window serves them all;
only the few that were sent again need the heap.
"""

from __future__ import annotations

import heapq
from typing import Final

from uet.pds.window import MASK, NO_PSNS, SendWindow

#: 15 means unlimited for Max_RTO_Retx_Cnt, 31 for Max_NACK_Retx_Cnt (UES Table 3-28).
UNLIMITED_RTO: Final = 15
UNLIMITED_NACK: Final = 31

#: Where the doubling of NACK_Retx_Time stops, which goes on for as long as the target is busy.
_MOST_NACK_DOUBLINGS: Final = 5
#: Where the doubling stops: the largest count that is a limit.
_MOST_DOUBLINGS: Final = UNLIMITED_RTO - 1
_NOT_RUNNING: Final = -1
#: The heap of a window that has never had one; nobody puts anything in.
_EMPTY: Final[list[tuple[int, int]]] = []


def nack_delay(nack_retx_time: int, refusals: int) -> int:
    """Return how long to wait after so many refusals of one packet (ns).

    NACK_Retx_Time, and as RTO does twice as long each time: with Max_NACK_Retx_Cnt at its default
    a busy target has 31 times that before the PDC is given up.
    """
    return nack_retx_time << min(refusals - 1, _MOST_NACK_DOUBLINGS)


def rto_interval(rto: int, timeouts: int, *, constant: bool = False) -> int:
    """Return the RTO after so many time-outs (ns): doubled by each, unless it is ``constant``."""
    return rto if constant else rto << min(timeouts, _MOST_DOUBLINGS)


class RetransmissionTimer:
    """Keeps the deadlines of one send window's open packets.

    ``size`` is how many slots its rings have at first, a power of two.
    """

    __slots__ = (
        "_again",
        "_constant",
        "_cursor",
        "_deadline",
        "_mask",
        "_window",
        "resent",
        "rto",
        "sent_at",
        "timeouts",
    )

    def __init__(self, window: SendWindow, size: int, rto: int, *, constant: bool = False) -> None:
        self._window = window
        self._mask = size - 1
        self._cursor = window.base
        self._constant = constant
        self._again = _EMPTY  # (deadline, psn) of what was sent again
        self._deadline: list[int] = []  # the valid one of them
        self.rto = rto
        self.sent_at: list[int] = []
        self.resent: list[bool] = []
        self.timeouts: list[int] = []

    def open(self) -> None:
        """Make the rings, before the first packet leaves."""
        size = self._mask + 1
        self._deadline = [_NOT_RUNNING] * size
        self.sent_at = [0] * size
        self.resent = [False] * size
        self.timeouts = [0] * size

    def grow(self) -> None:
        """Double the rings, before one more packet leaves than they have slots."""
        for ring in (self._deadline, self.sent_at, self.timeouts):
            ring.extend(ring)
        self.resent.extend(self.resent)
        self._mask = len(self.sent_at) - 1

    def restart(self) -> None:
        """Forget all that runs: the window has other PSNs now."""
        self._cursor = self._window.base
        self._again.clear()
        self.open()

    def sent(self, psn: int, now: int) -> None:
        """Record a first transmission."""
        slot = psn & self._mask
        self.sent_at[slot] = now
        self.resent[slot] = False
        self.timeouts[slot] = 0

    def sent_again(self, psn: int, now: int) -> None:
        """Record a retransmission, or an ACK_REQ in its place."""
        slot = psn & self._mask
        self.sent_at[slot] = now
        self.resent[slot] = True
        deadline = now + self.interval(self.timeouts[slot])
        self._deadline[slot] = deadline
        if self._again is _EMPTY:
            self._again = []
        heapq.heappush(self._again, (deadline, psn))

    def interval(self, timeouts: int) -> int:
        """Return the RTO after so many that were in vain (ns)."""
        return rto_interval(self.rto, timeouts, constant=self._constant)

    def _first(self) -> tuple[int, int] | None:
        """Return the oldest open packet that was sent once, as (deadline, PSN)."""
        window = self._window
        base, end, cursor, mask = window.base, window.next, self._cursor, self._mask
        if (cursor - base) & MASK > (end - base) & MASK:
            cursor = base
        resent, done = self.resent, window.done
        while cursor != end:
            if not resent[cursor & mask] and not done >> ((cursor - base) & MASK) & 1:
                self._cursor = cursor
                return self.sent_at[cursor & mask] + self.rto, cursor
            cursor = (cursor + 1) & MASK
        self._cursor = cursor
        return None

    def _second(self) -> tuple[int, int] | None:
        """Return the earliest deadline of packets sent again, with its PSN."""
        heap = self._again
        while heap:
            deadline, psn = heap[0]
            if self._window.is_open(psn) and self._deadline[psn & self._mask] == deadline:
                return deadline, psn
            heapq.heappop(heap)
        return None

    def next_deadline(self) -> int | None:
        """Return the earliest deadline (ns)."""
        base = self._window.base
        if not self._again and base != self._window.next and not self.resent[base & self._mask]:
            return self.sent_at[base & self._mask] + self.rto  # the base of a window is open
        first = self._first()
        second = self._second() if self._again else None
        if first is None:
            return None if second is None else second[0]
        return first[0] if second is None or first[0] <= second[0] else second[0]

    def expired(self, now: int) -> list[int]:
        """Return the PSNs whose timer has run out, each once; the caller resends or gives up."""
        psns: list[int] = []
        while (first := self._first()) is not None and first[0] <= now:
            self._expire(first[1], psns)
        while (second := self._second()) is not None and second[0] <= now:
            heapq.heappop(self._again)
            self._expire(second[1], psns)
        return psns

    def _expire(self, psn: int, psns: list[int]) -> None:
        slot = psn & self._mask
        self.timeouts[slot] += 1
        self.resent[slot] = True
        self._deadline[slot] = _NOT_RUNNING
        psns.append(psn)


class RetransmissionQueue:
    """Keeps the PSNs to send again, each once, oldest request first; some only from a time on.

    ``in_order``: none leaves before an older one that is delayed, as its destination would refuse
    it.  PSNs whose response is known by then are passed over.
    """

    __slots__ = ("_delayed", "_due", "_in_order", "_ready", "_start", "_window", "members")

    def __init__(self, window: SendWindow, start_psn: int, *, in_order: bool = False) -> None:
        self._window = window
        self._start = start_psn
        self._in_order = in_order
        self._ready: list[int] = []  # a heap of distances from the start, which do not wrap
        self._delayed = _EMPTY  # those that are not in `_ready` yet
        self._due: dict[int, int] = {}  # in order: from when on those of `_ready` may leave
        #: the PSNs in it
        self.members = NO_PSNS

    def restart(self, start_psn: int) -> None:
        """Empty the queue; PSNs count from ``start_psn`` on."""
        self._start = start_psn
        self._ready.clear()
        self._delayed.clear()
        self._due.clear()
        self.members.clear()

    def add(self, psn: int, due: int, now: int) -> None:
        """Queue ``psn`` for ``due``; ignored while it is queued already."""
        if psn in self.members:
            return
        if self.members is NO_PSNS:
            self.members = set()
        self.members.add(psn)
        if due > now:
            if not self._in_order:
                if self._delayed is _EMPTY:
                    self._delayed = []
                heapq.heappush(self._delayed, (due, psn))
                return
            self._due[psn] = due
        heapq.heappush(self._ready, (psn - self._start) & MASK)

    def head(self, now: int) -> int | None:
        """Return the oldest PSN that may be sent again now."""
        while self._delayed and self._delayed[0][0] <= now:
            psn = heapq.heappop(self._delayed)[1]
            heapq.heappush(self._ready, (psn - self._start) & MASK)
        while self._ready:
            psn = (self._start + self._ready[0]) & MASK
            if not self._window.is_open(psn):
                self.pop()
                continue
            if self._due and psn in self._due:
                if self._due[psn] > now:
                    return None
                del self._due[psn]
            return psn
        return None

    def pop(self) -> int:
        """Take what :meth:`head` showed."""
        psn = (self._start + heapq.heappop(self._ready)) & MASK
        self.members.remove(psn)
        if self._due:
            self._due.pop(psn, None)
        return psn

    def __bool__(self) -> bool:
        return bool(self.members)

    def __contains__(self, psn: int) -> bool:
        return psn in self.members

    def __len__(self) -> int:
        return len(self.members)

    def next_deadline(self) -> int | None:
        """Return when a delayed PSN falls due; ``None`` if :meth:`head` shows one already."""
        if self._due and self._ready:
            return self._due.get((self._start + self._ready[0]) & MASK)
        return self._delayed[0][0] if self._delayed else None
