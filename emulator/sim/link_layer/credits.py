"""Credits of one virtual channel (UES 5.2): cells consumed by the sender, freed by the receiver.

Both counts are cyclic and go on for as long as the link is up: an update that is lost is made good
by the next one.  Cells of a frame that was lost on the cable would never be freed.  So the sender
reports what it has consumed (CC_Update), and the receiver frees what never came (CF_Update).
"""

from __future__ import annotations

from collections import Counter, deque

from emulator.dataplane.switch.cable_fitting import CbfcRules
from emulator.dataplane.switch.virtual_state import HELD
from emulator.sim.line import octets_on_wire

#: Counts go on modulo this; the specification's width is not public.
CYCLE = 1 << 32


class CreditSender:
    """The sender's side: ``rules.cells`` of the receiver's buffer, less what is not freed yet."""

    __slots__ = ("_cycle", "_longest", "consumed", "freed", "rules")

    def __init__(self, rules: CbfcRules, longest_bytes: int, cycle: int = CYCLE) -> None:
        self.rules, self._cycle = rules, cycle
        self._longest = rules.cells_of(longest_bytes)
        self.reset()

    def reset(self) -> None:
        self.consumed = self.freed = 0

    @property
    def outstanding(self) -> int:
        """Return how many cells are consumed and not known to be free."""
        return (self.consumed - self.freed) % self._cycle

    @property
    def stopped(self) -> bool:
        """Return whether the credits left do not suffice for the longest frame."""
        return self.rules.cells - self.outstanding < self._longest

    def consume(self, cells: int) -> None:
        """A frame of ``cells`` leaves."""
        self.consumed = (self.consumed + cells) % self._cycle

    def update(self, freed: int) -> None:
        """Take the receiver's count; an older one than known changes nothing."""
        if (freed - self.freed) % self._cycle <= self.outstanding:
            self.freed = freed


class CreditReceiver:
    """The receiver's side: what has come, and what of it has left the buffer."""

    __slots__ = ("_cycle", "_stale", "freed", "received")

    def __init__(self, cycle: int = CYCLE) -> None:
        self._cycle = cycle
        self.received = self.freed = self._stale = 0

    def reset(self) -> None:
        """Count anew; what the buffer still holds was no part of these credits."""
        self._stale += self.held
        self.received = self.freed = 0

    @property
    def held(self) -> int:
        """Return how many cells of frames are in the buffer."""
        return (self.received - self.freed) % self._cycle

    def receive(self, cells: int) -> None:
        """A frame of ``cells`` comes into the buffer."""
        self.received = (self.received + cells) % self._cycle

    def free(self, cells: int) -> None:
        """A frame of ``cells`` has left the buffer."""
        of_old = min(cells, self._stale)
        self._stale -= of_old
        self.freed = (self.freed + min(cells - of_old, self.held)) % self._cycle

    def repair(self, consumed: int) -> int:
        """Take the sender's count; return how many cells never came, which are free now."""
        lost = (consumed - self.received) % self._cycle
        if lost >= self._cycle // 2:
            return 0
        self.received = consumed
        self.freed = (self.freed + lost) % self._cycle
        return lost


class CellAccount:
    """The cells of a port's receive buffer, whose octets stand in ``words`` from ``at`` on.

    The switch program counts octets of frames that came in by the port and wait (``HELD`` of
    :mod:`emulator.dataplane.switch.virtual_state`), and the engine takes them off as frames leave.
    A frame that the program does not hold (dropped, or sent on in another class) is free at once.
    """

    __slots__ = ("_at", "_beside", "_coming", "_rules", "_words", "receiver")

    def __init__(self, words: memoryview, at: int, rules: CbfcRules) -> None:
        self._words, self._at, self._rules = words, at + HELD, rules
        self.receiver = CreditReceiver()
        #: frames that are in the pipeline, with their cells
        self._coming: deque[tuple[bytes, int]] = deque()
        #: frames that are held without cells, by octets: others' class, further copies
        self._beside: Counter[int] = Counter()

    def reset(self) -> None:
        """Count anew, on a link that begins anew."""
        self.receiver.reset()
        self._coming.clear()

    def receive(self, frame: bytes, cells: int) -> None:
        """``frame`` has come over the cable, and takes ``cells`` until it leaves the switch."""
        self.receiver.receive(cells)
        self._coming.append((frame, cells))

    @property
    def held_bytes(self) -> int:
        """Return the octets of the cells that frames take now."""
        return self.receiver.held * self._rules.cell_bytes

    @property
    def octets(self) -> int:
        """Return the octets on the wire of the frames that the switch holds now."""
        return self._words[self._at]

    def settle(self, frame: bytes, before: int) -> bool:
        """Free ``frame``, which the switch has taken, unless it is held since ``before``.

        Returns whether cells became free.
        """
        coming, cells = self._coming, 0
        if coming and coming[0][0] is frame:
            cells = coming.popleft()[1]
        octets = octets_on_wire(frame)
        copies = (self._words[self._at] - before) // octets
        if cells and not copies:
            self.receiver.free(cells)
            return True
        if surplus := copies - (1 if cells else 0):
            self._beside[octets] += surplus
        return False

    def give_back(self, octets: int) -> bool:
        """A frame of ``octets`` has left the switch; return whether cells became free."""
        self._words[self._at] -= octets
        if self._beside and self._beside[octets]:
            self._beside[octets] -= 1
            return False
        self.receiver.free(self._rules.cells_of(octets))
        return True
