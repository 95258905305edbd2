"""Credits of one virtual channel (UES 5.2): cells consumed by the sender, freed by the receiver.

Both counts are cyclic and go on for as long as the link is up: an update that is lost is made good
by the next one.  Cells of a frame that was lost on the cable would never be freed.  So the sender
reports what it has consumed (CC_Update), and the receiver frees what never came (CF_Update).
"""

from __future__ import annotations

from emulator.dataplane.switch.link.link_fitting import CbfcRules

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
        """Have all credits."""
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
