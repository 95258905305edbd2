"""The two windows of one direction of a PDC.

Both keep their per-PSN facts as bits of one integer relative to the window's base. A cumulative
advance, a selective acknowledgement or an out-of-order count is one arithmetic operation, however
wide the window is.
"""

from __future__ import annotations

import enum
from typing import Final

MASK: Final = 0xFFFF_FFFF
HALF: Final = 0x8000_0000
#: Start_PSN lies in [2^16, 2^31) (UES 3.5.8).
START_FIRST: Final = 1 << 16
START_END: Final = 1 << 31


#: A set in which nobody puts anything: what most PDCs have for what hardly ever happens, so that
#: none of them keeps sets of its own.
NO_PSNS: Final[set[int]] = set()


def add(psn: int, n: int) -> int:
    """``psn + n`` modulo 2^32."""
    return (psn + n) & MASK


def distance(a: int, b: int) -> int:
    """Return how far ``a`` lies after ``b``: signed, -2^31 .. 2^31 - 1."""
    d = (a - b) & MASK
    return d - 0x1_0000_0000 if d & HALF else d


def after(a: int, b: int) -> bool:
    """Return whether ``a`` is newer than ``b``."""
    return 0 < ((a - b) & MASK) < HALF


#: PSNs covered by the selective acknowledgement bitmap (UES Table 3-36).
SACK_BITS: Final = 64
_SACK_MASK: Final = (1 << SACK_BITS) - 1


def _run(bits: int) -> int:
    """Return how many of the lowest bits are set without a gap."""
    return (~bits & (bits + 1)).bit_length() - 1


class PsnArrival(enum.Enum):
    """The place of a request's PSN relative to the receive window."""

    NEW = enum.auto()
    DUPLICATE = enum.auto()
    OUTSIDE = enum.auto()


class ReceiveWindow:
    """The window of PSNs that have arrived.

    CACK is the largest PSN up to which every PSN has arrived and every guaranteed-delivery PSN has
    been cleared (UES 3.5.20.2.2); :attr:`base` is the one after it.
    """

    __slots__ = ("base", "guaranteed", "highest", "max_clear", "received", "size")

    def __init__(self, start_psn: int, size: int) -> None:
        self.base = start_psn
        self.size = size
        self.received = 0  # bit i: PSN base + i has arrived
        self.guaranteed = 0  # bit i: its guaranteed-delivery response has not been cleared
        self.highest = (start_psn - 1) & MASK
        self.max_clear = (start_psn - 1) & MASK

    @property
    def cack(self) -> int:
        return (self.base - 1) & MASK

    def classify(self, psn: int) -> PsnArrival:
        """Return where ``psn`` lies (UES 3.5.12, receive rules)."""
        ahead = (psn - self.base) & MASK
        if ahead < self.size:
            return PsnArrival.DUPLICATE if self.received >> ahead & 1 else PsnArrival.NEW
        if ahead >= HALF and MASK + 1 - ahead <= self.size:
            return PsnArrival.DUPLICATE
        return PsnArrival.OUTSIDE

    def accept(self, psn: int, *, guaranteed: bool = False) -> None:
        """Record a PSN that :meth:`classify` called new, and move CACK if it can."""
        ahead = (psn - self.base) & MASK
        if 0 < ((psn - self.highest) & MASK) < HALF:
            self.highest = psn
        if not (ahead or self.received or guaranteed):
            self.base = (psn + 1) & MASK  # in order, as most are
            return
        self.received |= 1 << ahead
        if guaranteed:
            self.guaranteed |= 1 << ahead
        if not ahead:
            self._advance()

    @property
    def first_missing(self) -> int:
        """The lowest PSN that has not arrived; CACK may lie further back."""
        received = self.received
        return (self.base + _run(received)) & MASK if received else self.base

    def hold(self, psn: int, *, guaranteed: bool = False) -> None:
        """Record a PSN without moving CACK: its turn has not come, or it comes with others."""
        ahead = (psn - self.base) & MASK
        if 0 < ((psn - self.highest) & MASK) < HALF:
            self.highest = psn
        self.received |= 1 << ahead
        if guaranteed:
            self.guaranteed |= 1 << ahead

    def advance(self, psn: int) -> None:
        """Everything held before ``psn`` has had its turn: move CACK if it can."""
        limit = (psn - self.base) & MASK
        run = min(_run(self.received & ~self.guaranteed), limit)
        self.base = (self.base + run) & MASK
        self.received >>= run
        self.guaranteed >>= run

    def drop(self, psn: int) -> None:
        """Drop what was held under ``psn``, which counts as not arrived."""
        self.received &= ~(1 << ((psn - self.base) & MASK))

    def release(self, psn: int) -> None:
        """The response to ``psn`` needs no guaranteed delivery after all."""
        ahead = (psn - self.base) & MASK
        if ahead < HALF:
            self.guaranteed &= ~(1 << ahead)
            self._advance()

    def clear(self, psn: int) -> bool:
        """Clear the responses up to ``psn``, which the source has; return whether that was news."""
        run = _run(self.received)
        arrived = (self.base + run - 1 - self.max_clear) & MASK  # nobody has a response to the rest
        if not 0 < ((psn - self.max_clear) & MASK) <= arrived:
            return False
        ahead = (psn - self.base) & MASK
        if ahead < run:
            self.guaranteed = self.guaranteed >> ahead + 1 << ahead + 1
            self._advance()
        self.max_clear = psn
        return True

    def _advance(self) -> None:
        run = _run(self.received & ~self.guaranteed)
        if run:
            self.base = (self.base + run) & MASK
            self.received >>= run
            self.guaranteed >>= run

    @property
    def out_of_order(self) -> int:
        """Packets held above CACK."""
        return self.received.bit_count()

    def sack(self, base: int) -> int:
        """The 64-bit bitmap from PSN ``base`` on; PSNs up to CACK show as received."""
        ahead = (base - self.base) & MASK
        if ahead < HALF:
            return self.received >> ahead & _SACK_MASK
        behind = MASK + 1 - ahead
        if behind >= SACK_BITS:
            return _SACK_MASK
        return (self.received << behind | (1 << behind) - 1) & _SACK_MASK


class SendWindow:
    """The window of sent PSNs that are still open.

    A PSN is *done* when its response is known, *delivered* when a SACK bit reported its arrival.
    :attr:`base` is the lowest PSN that is not done.
    """

    __slots__ = ("base", "delivered", "done", "next")

    def __init__(self, start_psn: int) -> None:
        self.base = start_psn
        self.next = start_psn
        self.done = 0  # bit i: PSN base + i
        self.delivered = 0

    @property
    def outstanding(self) -> int:
        """PSNs from base to the newest sent."""
        return (self.next - self.base) & MASK

    def is_open(self, psn: int) -> bool:
        """Return whether ``psn`` was sent and its response is not known."""
        ahead = (psn - self.base) & MASK
        return ahead < ((self.next - self.base) & MASK) and not self.done >> ahead & 1

    def is_delivered(self, psn: int) -> bool:
        ahead = (psn - self.base) & MASK
        return ahead >= HALF or bool((self.delivered | self.done) >> ahead & 1)

    def finish(self, psn: int) -> None:
        """``psn`` is done; :attr:`base` moves over everything done."""
        ahead = (psn - self.base) & MASK
        self.done |= 1 << ahead
        if not ahead:
            self._slide(0)

    def finish_through(self, psn: int) -> None:
        """Every PSN up to ``psn`` is done."""
        self._slide(((psn - self.base) & MASK) + 1)

    def _slide(self, run: int) -> None:
        done = self.done >> run
        run += (~done & (done + 1)).bit_length() - 1
        self.base = (self.base + run) & MASK
        self.done >>= run
        self.delivered >>= run

    def withdraw(self, psn: int) -> None:
        """Take back the delivery of ``psn``, at its destination's report."""
        self.delivered &= ~(1 << ((psn - self.base) & MASK))

    def sacked(self, base: int, bitmap: int) -> int:
        """Merge a SACK bitmap; bits (relative to :attr:`base`) that are news."""
        outstanding = (self.next - self.base) & MASK
        ahead = (base - self.base) & MASK
        if ahead < outstanding:
            bits = bitmap << ahead
        elif MASK + 1 - ahead < SACK_BITS:
            bits = bitmap >> (MASK + 1 - ahead)
        else:
            return 0  # the future, or all of it known already; also bounds the shift
        bits &= (1 << outstanding) - 1
        news = bits & ~(self.delivered | self.done)
        self.delivered |= news
        return news
