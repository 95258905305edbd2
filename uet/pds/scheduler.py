"""The scheduler of an endpoint: which PDC may send next, and when each must be polled.

Congestion control contexts, and so peers, are served round robin, packet by packet: with several
packets to one peer in a row the bursts of many senders would meet at its port.  PDCs of one context
share its window and its credit by deficit round robin: each may send a quantum of octets before the
next one follows, whatever stopped the last one: the limit of a call, the window, credit.  Requests
and return data take part alike.

Idle PDCs, and those that wait for an answer or for a window, are not looked at: something that
happens to them wakes them, or their deadline does.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

from uet.congestion.context import CongestionContext
from uet.pds.pdc import Pdc, PdcState
from uet.pds.source import EVERYTHING, FINISHED, HELD
from uet.transport import Frame
from uet.tss.secure_domain import SealError

#: Full packets that a PDC sends before another one of its context follows.
QUANTUM_PACKETS: Final = 4
#: So often a call looks at those that others have woken; what is left has a deadline, which is now.
_MOST_ROUNDS: Final = 8
_CLOSED: Final = PdcState.CLOSED  # bound once, for the data path
#: Stale timers are swept out when there are so many, and twice as many as at the last time.
_LEAST_SWEPT: Final = 256


class PdcScheduler:
    """Serves the PDCs of one endpoint; ``packet`` is a full packet's nominal size (UES 3.6.12)."""

    def __init__(self, packet: int) -> None:
        self._packet = packet
        self._quantum = QUANTUM_PACKETS * packet
        #: something may have changed for them
        self.woken: dict[Pdc, None] = {}
        self.contexts: deque[CongestionContext] = deque()  # in which somebody may send
        self._served: dict[Pdc, None] = {}  # whose deadline may have changed
        #: (deadline or earlier, number, PDC): all but the earliest of a PDC are stale
        self.timers: list[tuple[int, int, Pdc]] = []
        self._number = 0
        self._sweep_at = _LEAST_SWEPT
        #: the PDC that raised the newest error
        self.raised: Pdc | None = None

    def wake(self, pdc: Pdc) -> None:
        """Wake ``pdc``, which has something to do, or whose context has."""
        self.woken[pdc] = None

    def forget(self, pdc: Pdc) -> None:
        """Forget a closed PDC; the room of its packets in flight goes to others."""
        self.woken.pop(pdc, None)
        self._served.pop(pdc, None)
        pdc.due = pdc.wakes_at = None
        context = pdc.peer.congestion
        if pdc.queued:
            pdc.queued = False
            context.line.remove(pdc)
        self._offer(context)

    def _offer(self, context: CongestionContext) -> None:
        if context.line and not context.offered:
            context.offered = True
            self.contexts.append(context)

    # -- who sends -------------------------------------------------------------------------------

    def serve(self, out: list[Frame], now: int, limit: int) -> None:
        """Append what is due and what may leave, until ``out`` has ``limit`` frames."""
        timers = self.timers
        if not self.contexts and not self.woken and not (timers and timers[0][0] <= now):
            return
        for _ in range(_MOST_ROUNDS):
            while timers and timers[0][0] <= now and len(out) < limit:
                at, _, pdc = heapq.heappop(timers)
                if pdc.wakes_at == at:
                    pdc.wakes_at = None
                    self.woken[pdc] = None
            if self.woken:
                self._attend(out, now, limit)
            if self.contexts:
                self._send(out, now, limit)
            if self._served or self.woken:
                self._keep_deadlines()
            # What one has done may let another one act at once.
            if len(out) >= limit:
                break
            timers = self.timers
            if not (self.woken or (timers and timers[0][0] <= now)):
                break

    def _attend(self, out: list[Frame], now: int, limit: int) -> None:
        """Let each PDC that was woken send what leaves at once, and queue it for the rest."""
        woken = self.woken
        while woken and len(out) < limit:
            pdc = next(iter(woken))
            del woken[pdc]
            try:
                pdc.attend(out, now, limit)
            except SealError as error:
                pdc.fail(error.reason.upper(), now, notify=False)
            except Exception:
                self.raised = pdc
                raise
            if pdc.state is _CLOSED:
                continue
            self._served[pdc] = None
            context = pdc.peer.congestion
            if not pdc.queued and pdc.source.has_unsent:
                pdc.queued = True
                pdc.deficit = 0
                context.line.append(pdc)
            if context.line and not context.offered:  # an answer may have opened its window
                context.offered = True
                self.contexts.append(context)

    def _send(self, out: list[Frame], now: int, limit: int) -> None:  # noqa: C901  the way of a packet, without calls
        contexts = self.contexts
        while contexts and len(out) < limit:
            context = contexts[0]
            line = context.line
            if not line:
                self._leave(context)
                continue
            pdc: Pdc = line[0]
            if pdc.deficit <= 0:
                pdc.deficit += self._quantum
            alone, rivals = len(line) == 1, len(contexts) > 1
            octets = 1 if rivals else EVERYTHING if alone else pdc.deficit  # 1: a packet
            flow = pdc.source.flow
            before = flow.unsettled
            keeps_deadline = before > 0 and pdc.keeps_deadline(now)
            try:
                stop = pdc.send(out, now, limit, octets)
            except SealError as error:
                pdc.fail(error.reason.upper(), now, notify=False)
            except Exception:
                self.raised = pdc
                raise
            if pdc.state is _CLOSED:
                continue
            if not keeps_deadline or stop == FINISHED:
                self._served[pdc] = None
            sent = flow.unsettled - before
            pdc.deficit -= sent
            if stop == FINISHED:
                line.pop(0)
                pdc.queued = False
            elif pdc.deficit <= 0:
                if alone:
                    pdc.deficit = 0
                else:
                    line.append(line.pop(0))
            if stop == HELD:
                self._leave(context)
                if context.credit is not None:  # all of them have become in need of it
                    self._served.update(dict.fromkeys(line))
            elif not line:
                self._leave(context)
            elif rivals:
                context.deficit -= sent
                if 0 < sent > context.deficit:  # another such packet does not fit
                    context.deficit += self._packet
                    contexts.rotate(-1)

    def _leave(self, context: CongestionContext) -> None:
        """Remove the context at the head, as none of its PDCs can send."""
        self.contexts.remove(context)  # the first
        context.offered = False

    # -- when ------------------------------------------------------------------------------------

    def _keep_deadlines(self) -> None:
        """Find out when those that were served, or could not be, must be looked at again."""
        for pdc in self._served:
            self._keep_deadline(pdc)
        self._served.clear()
        for pdc in self.woken:
            self._keep_deadline(pdc)
        if len(self.timers) > self._sweep_at:
            self.timers = [timer for timer in self.timers if timer[2].wakes_at == timer[0]]
            heapq.heapify(self.timers)
            self._sweep_at = max(_LEAST_SWEPT, 2 * len(self.timers))

    def _keep_deadline(self, pdc: Pdc) -> None:
        pdc.due = due = pdc.next_deadline() if pdc.has_work() else None
        if due is not None and (pdc.wakes_at is None or due < pdc.wakes_at):
            self._push(due, pdc)

    def _push(self, due: int, pdc: Pdc) -> None:
        pdc.wakes_at = due
        self._number += 1
        heapq.heappush(self.timers, (due, self._number, pdc))

    def next_deadline(self) -> int | None:
        """Return the earliest deadline of a PDC (ns)."""
        if self.woken:
            for pdc in self.woken:
                self._keep_deadline(pdc)
        timers = self.timers
        while timers:
            at, _, pdc = timers[0]
            if pdc.wakes_at == at:
                if pdc.due == at:
                    return at
                pdc.wakes_at = None
            heapq.heappop(timers)
            if pdc.wakes_at is None and pdc.due is not None:
                self._push(pdc.due, pdc)
        return None
