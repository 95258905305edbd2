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
from emulator.dataplane.switch.virtual_state import DEPTH, DROPPED, NOW, PASSED, PEAK

_WORD: Final = 8
_BINS: Final = int(BINS)
_QUEUES: Final = len(Queue)
_LOW: Final = int(Queue.LOW)
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


class PortDepths:
    """Octets in the queues of one port, whose words in ``words`` begin at ``at``.

    They are those words, for whoever takes off what has left, until somebody has this do so alone:
    from then on the words get what there is when they are looked at.
    """

    __slots__ = ("_at", "_depths", "_noted", "_peak", "_unwritten", "_words", "alone")

    def __init__(self, unwritten: list[PortDepths], words: memoryview, at: int) -> None:
        self._unwritten, self._words, self._at = unwritten, words, at
        self._noted = False
        #: nobody else writes the depths
        self.alone = False
        self._depths: vec[i64] = vec[i64]([0] * _QUEUES)
        #: of the low queue, since it was written
        self._peak: i64 = 0

    def of(self, queue: i64) -> i64:
        """Return the depth of ``queue``."""
        if self.alone:
            return self._depths[queue]
        depth: i64 = self._words[self._at + DEPTH + queue]
        return depth

    def put(self, queue: i64, deeper: i64) -> None:
        """Let ``queue`` be ``deeper``, by a packet that it has taken."""
        if self.alone:
            self._note()
            self._depths[queue] = deeper
            if queue == _LOW and deeper > self._peak:
                self._peak = deeper
            return
        words, at = self._words, self._at
        words[at + DEPTH + queue] = deeper
        if queue == _LOW and deeper > words[at + PEAK]:
            words[at + PEAK] = deeper

    def take_off(self, queue: i64, octets: i64) -> None:
        """Take ``octets`` off ``queue``."""
        if self.alone:
            self._note()
            self._depths[queue] -= octets
        else:
            self._words[self._at + DEPTH + queue] -= octets

    def _note(self) -> None:
        if not self._noted:
            self._noted = True
            self._unwritten.append(self)

    def keep(self, alone: bool) -> None:
        """Keep the depths ``alone``, or in the words."""
        self.write()
        self.alone = alone
        self.read()

    def read(self) -> None:
        """Take the depths from the words, which somebody has written."""
        if self.alone:
            for queue in range(_QUEUES):
                self._depths[queue] = self._words[self._at + DEPTH + queue]

    def write(self) -> None:
        """Write the depths into the words, and the peak."""
        if not self._noted:
            return
        self._noted = False
        words, at = self._words, self._at
        for queue in range(_QUEUES):
            words[at + DEPTH + queue] = self._depths[queue]
        if self._peak > words[at + PEAK]:
            words[at + PEAK] = self._peak
        self._peak = 0


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
