"""Cells of a port's receive buffer, by the frames that came in by it and wait in the switch.

The switch program counts octets of such frames as it admits them (``HELD`` of
:mod:`emulator.dataplane.switch.virtual_state`), and the engine takes them off as frames leave.  A
frame that the program does not hold (dropped, or sent on in another class) is free at once.
"""

from __future__ import annotations

from collections import Counter, deque

from emulator.dataplane.switch.link.link_fitting import CbfcRules
from emulator.dataplane.switch.virtual_state import HELD
from emulator.sim.line import octets_on_wire
from emulator.sim.link_layer.credits import CreditReceiver


class CellAccount:
    """The receive buffer whose octets stand in ``words`` from ``at`` on."""

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
