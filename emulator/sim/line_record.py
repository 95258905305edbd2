"""Octets that NICs have sent, and time that pauses have stopped ports: memory of all workers.

The worker that serves a line writes; the driver reads between two windows, when all stand still.
Pages are shared with the processes that are forked later.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from emulator.dataplane.switch.joined_ports import JoinedPorts
from emulator.sim.event_queue import PS, EventQueue
from emulator.sim.line import MAC_CONTROL, Departures, Line
from topologies.model import CableEnd, Topology

#: Words of a port: octets on the wire that have left; ps that it was paused; ps since when it is, 0
#: if it is not.
_SENT, _PAUSED, _SINCE = range(3)
_WORDS = 3
_WORD_BYTES = 8


class _Sent(Departures):
    """Counts the octets that have left ``line``, for the word at ``at`` of ``words``."""

    __slots__ = ("_at", "_line", "_octets", "_words")

    def __init__(self, line: Line, words: memoryview, at: int) -> None:
        self._line, self._words, self._at = line, words, at
        #: what the word does not have yet
        self._octets = 0

    def left(self, queue: int, octets: int, origin: int) -> None:
        if queue != MAC_CONTROL and not self._line.cut:
            self._octets += octets

    def write(self) -> None:
        if self._octets:
            self._words[self._at] += self._octets
            self._octets = 0


class LineRecord:
    """The record of ``ends``, in their order: ``names`` are ``node:port``."""

    def __init__(self, ends: Sequence[CableEnd]) -> None:
        self.names = [str(end) for end in ends]
        self._sent: list[_Sent] = []
        self._at = {end: number * _WORDS for number, end in enumerate(ends)}
        #: what other processes note, where this process has not all ports
        self.joined: JoinedPorts | None = None
        self._words = memoryview(mmap.mmap(-1, max(1, len(ends)) * _WORDS * _WORD_BYTES)).cast("q")

    @classmethod
    def of(cls, topology: Topology) -> LineRecord:
        """Return a record of all ports of ``topology``."""
        return cls([end for link in topology.links for end in link.ends])

    def sent(self, line: Line) -> Departures:
        """Return what ``line`` tells of each frame that has left it; MAC control is not counted.

        It is for lines of NICs: a switch counts its own frames.
        """
        sent = _Sent(line, self._words, self._at[line.end] + _SENT)
        self._sent.append(sent)
        return sent

    def write(self) -> None:
        """Let the driver see what lines of this process have sent."""
        for sent in self._sent:
            sent.write()

    def stop(self, end: CableEnd, events: EventQueue) -> Callable[[bool], None]:
        """Return what is called when a pause stops the port ``end``, or lets it go on."""
        words, at = self._words, self._at[end]

        def changed(stopped: bool) -> None:
            if stopped:
                words[at + _SINCE] = events.now
            elif words[at + _SINCE]:
                words[at + _PAUSED] += events.now - words[at + _SINCE]
                words[at + _SINCE] = 0

        return changed

    def values(self, now_ps: int) -> npt.NDArray[np.int64]:
        """Return a row for each port at ``now_ps``: octets sent, and ns that it was paused."""
        self.write()
        words = np.frombuffer(self._words, np.int64)[: len(self.names) * _WORDS]
        table = words.reshape(-1, _WORDS)
        since = table[:, _SINCE]
        paused = table[:, _PAUSED] + np.where(since > 0, now_ps - since, 0)
        own: npt.NDArray[np.int64] = np.column_stack((table[:, _SENT], paused // PS))
        return own if self.joined is None else self.joined.rows(self.names, own)
