"""What modelled switches and their ports count, until it is written into the program's tables.

A packet counts in machine words of this process.  Tables are memory that other processes share, and
a number there costs as much as ten here: so they get sums, before anybody looks at them.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from emulator.dataplane.switch.bpf.layout import (
    BINS,
    CLASS_COUNTERS,
    QUEUE_STATE,
    STATE_HEAD,
    Queue,
    TrafficClass,
)
from emulator.dataplane.switch.virtual_state import DROPPED, NOW, PASSED

_WORD: Final = 8
_BINS: Final = int(BINS)
_QUEUES: Final = len(Queue)
_CLASSES: Final = len(TrafficClass)
QUEUES_AT: Final = STATE_HEAD.size // _WORD
QUEUE_WORDS: Final = QUEUE_STATE.size // _WORD
CLASSES_AT: Final = QUEUES_AT + _QUEUES * QUEUE_WORDS
CLASS_WORDS: Final = CLASS_COUNTERS.size // _WORD
#: Words of a queue: its depth, and the largest; the histogram is behind them.
_DEPTH: Final = 0
_DEEPEST: Final = 1
_HISTOGRAM: Final = 2
#: Words of a class.
_PACKETS: Final = 0
_OCTETS: Final = 1


class PortCounts:
    """Counts of one port, whose words in ``words`` begin at ``at``; it joins ``unwritten``."""

    __slots__ = (
        "_at",
        "_bins",
        "_deepest",
        "_depths",
        "_noted",
        "_octets",
        "_packets",
        "_top_bins",
        "_unwritten",
        "_words",
    )

    def __init__(self, unwritten: list[PortCounts], words: memoryview, at: int) -> None:
        self._unwritten, self._words, self._at = unwritten, words, at
        self._noted = False
        #: by queue: its depth as of the last packet, -1 if there was none, and the largest
        self._depths: vec[i64] = vec[i64]([-1] * _QUEUES)
        self._deepest: vec[i64] = vec[i64]([0] * _QUEUES)
        #: packets by the depth that they found, queue by queue, and the last bin that has any
        self._bins: vec[i64] = vec[i64]([0] * (_QUEUES * _BINS))
        self._top_bins: vec[i64] = vec[i64]([-1] * _QUEUES)
        self._packets: vec[i64] = vec[i64]([0] * _CLASSES)
        self._octets: vec[i64] = vec[i64]([0] * _CLASSES)

    def find(self, queue: i64, depth: i64, bin_shift: i64) -> None:
        """Count a packet that finds ``queue`` at ``depth``, which this leaves as it is."""
        if not self._noted:
            self._noted = True
            self._unwritten.append(self)
        bin_ = depth >> bin_shift
        if bin_ >= _BINS:
            bin_ = _BINS - 1
        self._bins[queue * _BINS + bin_] += 1
        if bin_ > self._top_bins[queue]:
            self._top_bins[queue] = bin_
        self._depths[queue] = depth

    def take(self, queue: i64, deeper: i64, number: i64, octets: i64) -> None:
        """Count a packet of class ``number`` that :meth:`find` has counted, and ``queue`` takes."""
        self._depths[queue] = deeper
        if deeper > self._deepest[queue]:
            self._deepest[queue] = deeper
        self._packets[number] += 1
        self._octets[number] += octets

    def write(self) -> None:
        """Write what was counted into the words."""
        self._noted = False
        words, at = self._words, self._at + QUEUES_AT
        for queue in range(_QUEUES):
            depth = self._depths[queue]
            if depth >= 0:
                words[at + _DEPTH] = depth
                if self._deepest[queue] > words[at + _DEEPEST]:
                    words[at + _DEEPEST] = self._deepest[queue]
                self._depths[queue], self._deepest[queue] = -1, 0
                place = queue * _BINS
                for number in range(int(self._top_bins[queue]) + 1):
                    if self._bins[place + number]:
                        words[at + _HISTOGRAM + number] += self._bins[place + number]
                        self._bins[place + number] = 0
                self._top_bins[queue] = -1
            at += QUEUE_WORDS
        for number in range(_CLASSES):
            if self._packets[number]:
                words[at + _PACKETS] += self._packets[number]
                words[at + _OCTETS] += self._octets[number]
                self._packets[number] = self._octets[number] = 0
            at += CLASS_WORDS


class SwitchCounts:
    """Time of a switch and what has passed it, with its words in ``words`` from ``at`` on.

    ``now`` is fabric time (ns) of what arrives; ``passed`` and ``dropped`` are frames since they
    were written.  It joins ``unwritten``.
    """

    __slots__ = ("_at", "_noted", "_unwritten", "_words", "dropped", "now", "passed")

    def __init__(self, unwritten: list[SwitchCounts], words: memoryview, at: int) -> None:
        self._unwritten, self._words, self._at = unwritten, words, at
        self._noted = False
        self.now: i64 = 0
        self.passed = self.dropped = 0

    def begin(self, now: i64) -> None:
        """Let a frame arrive at ``now``."""
        self.now = now
        if not self._noted:
            self._noted = True
            self._unwritten.append(self)

    def write(self) -> None:
        """Write what was counted into the words."""
        self._noted = False
        words, at = self._words, self._at
        words[at + NOW] = self.now
        words[at + PASSED] += self.passed
        words[at + DROPPED] += self.dropped
        self.passed = self.dropped = 0
