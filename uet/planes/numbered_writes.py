"""Writes that their target reports, numbered so that each of them is reported once.

A write with header data gives its target a completion, and a fabric interface may have to deliver
one in several stripes. It may also have to issue it again over another plane, when the first one
has died with the acknowledgement.  The target must recognise the stripes of one write, and a write
that it has reported already.  Neither may such a write be placed again: its target may use the
memory for something else by then. So may its source, as it can have learned that from what the
target sent next.  All that stands in the memory key, as keys between fabric interfaces are assigned
by the interfaces themselves (UES Table 2-13: 63..56 flags, 55..48 vendor bits, 47..0 RKEY)::

    63    56 55     52 51     48 47                   24 23                    0
    [ flags ][stripes-1][ stripe ][  number of the write ][  what was registered  ]

A write without header data, a read and an atomic operation carry the registered key alone.

Numbers of the writes to one peer count up from a random start.  A sender has none open that is
:data:`WINDOW` or more behind the newest. So a target that remembers twice as many forgets none that
may come again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from uet.ses.memory.registered_memory import KEY_BITS

#: Low bits of a memory key that name what is registered.
REGION_BITS = 24
NUMBER_BITS = 24
MOST_STRIPES = 16
WINDOW = 4096
_REGION = (1 << REGION_BITS) - 1
_NUMBER = (1 << NUMBER_BITS) - 1
_STRIPE_AT = REGION_BITS + NUMBER_BITS
_COUNT_AT = _STRIPE_AT + 4
_FLAGS = (1 << KEY_BITS) - (1 << 56)
_OURS = (1 << 56) - (1 << REGION_BITS)


def is_plain(key: int) -> bool:
    """Return whether the bits are free that number a write."""
    return not key & _OURS


@dataclass(frozen=True, slots=True)
class Label:
    """Stripe ``stripe`` (from 0) of ``stripes`` of the write ``number``."""

    number: int
    stripe: int = 0
    stripes: int = 1

    def on(self, key: int) -> int:
        """The memory key that carries it to the region ``key``."""
        return (
            key
            | (self.stripes - 1) << _COUNT_AT
            | self.stripe << _STRIPE_AT
            | self.number << REGION_BITS
        )


def split_key(key: int) -> tuple[int, Label]:
    """The registered key and the label of a write that has arrived with ``key``."""
    label = Label(
        number=key >> REGION_BITS & _NUMBER,
        stripe=key >> _STRIPE_AT & 0xF,
        stripes=(key >> _COUNT_AT & 0xF) + 1,
    )
    return key & (_FLAGS | _REGION), label


class Numbers:
    """The numbers of the writes to one peer: at the sender."""

    __slots__ = ("_next", "_open")

    def __init__(self, first: int) -> None:
        self._next = first & _NUMBER
        self._open: dict[int, None] = {}

    def take(self) -> int | None:
        """The next number; ``None`` while the oldest that is open is too far behind."""
        number = self._next
        oldest = next(iter(self._open), number)
        if (number - oldest) & _NUMBER >= WINDOW:
            return None
        self._next = number + 1 & _NUMBER
        self._open[number] = None
        return number

    def give_back(self, number: int) -> None:
        """Give back the number of a write that has ended, well or not."""
        del self._open[number]


@dataclass(slots=True)
class _Stripes:
    arrived: int = 0  # a bit for each
    offset: int = 0
    length: int = 0


class Reported:
    """The writes of one peer, at the target."""

    __slots__ = ("_attempts", "_done", "_partial")

    def __init__(self) -> None:
        self._attempts: OrderedDict[tuple[int, int], list[int]] = OrderedDict()
        self._done: OrderedDict[int, None] = OrderedDict()
        self._partial: OrderedDict[int, _Stripes] = OrderedDict()

    def take(self, label: Label, offset: int, length: int) -> tuple[int, int] | None:
        """A stripe of ``length`` octets at ``offset`` has been placed.

        Offset and length of the whole write, if that is complete now and to be reported; else
        ``None``.
        """
        number = label.number
        if number in self._done:
            return None
        if label.stripes > 1:
            write = self._partial.get(number)
            if write is None:
                write = self._partial[number] = _Stripes(offset=offset)
                if len(self._partial) > 2 * WINDOW:  # of writes that their sender has given up
                    self._partial.popitem(last=False)
            if write.arrived >> label.stripe & 1:
                return None
            write.arrived |= 1 << label.stripe
            write.offset = min(write.offset, offset)
            write.length += length
            if write.arrived != (1 << label.stripes) - 1:
                return None
            del self._partial[number]
            offset, length = write.offset, write.length
        self._done[number] = None
        if len(self._done) > 2 * WINDOW:
            self._done.popitem(last=False)
        return offset, length

    def begin(self, label: Label, plane: int) -> bool:
        """A stripe begins to arrive by ``plane``; whether it is to be placed."""
        if self.has(label):
            return False
        place = label.number, label.stripe
        self._attempts.setdefault(place, []).append(plane)
        if len(self._attempts) > 2 * WINDOW * MOST_STRIPES:  # of writes that were given up
            self._attempts.popitem(last=False)
        return True

    def attempts(self, label: Label) -> Sequence[int]:
        """The planes by which a stripe that has been placed had begun to arrive."""
        return self._attempts.pop((label.number, label.stripe), ())

    def has(self, label: Label) -> bool:
        """Return whether the stripe has been placed before."""
        write = self._partial.get(label.number)
        return label.number in self._done or (
            write is not None and bool(write.arrived >> label.stripe & 1)
        )
