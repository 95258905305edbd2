"""Errors of one direction of a cable: which frames and ordered sets arrive with wrong bits."""

from __future__ import annotations

import random
from dataclasses import dataclass

from emulator.dataplane.switch.port_faults import Faults


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """Chances of a unit to have an error: of any, in bursts (Gilbert-Elliott), and by its bits."""

    loss: float = 0.0
    burst_begin: float = 0.0
    burst_end: float = 1.0
    burst_loss: float = 1.0
    bit_errors: float = 0.0

    @classmethod
    def of(cls, faults: Faults) -> ErrorRates:
        """The chances that ``faults`` name."""
        return cls(
            faults.loss,
            faults.burst_begin,
            faults.burst_end,
            faults.burst_loss,
            faults.bit_errors,
        )

    @property
    def any(self) -> bool:
        """Return whether a unit can come with an error."""
        return bool(self.loss or self.burst_begin or self.bit_errors)


class CableErrors:
    """The draws of the line called ``name``, for units in the order in which they leave."""

    __slots__ = ("_bad", "_name", "_random", "_seed", "rates")

    def __init__(self, name: str) -> None:
        self._name, self._seed = name, 0
        self.rates = ErrorRates()
        self.begin_row()

    def begin_row(self, seed: int | None = None) -> None:
        """Draw anew, by ``seed`` if there is another."""
        self._seed = self._seed if seed is None else seed
        self._bad = False
        self._random = random.Random(f"cable {self._seed} {self._name}")

    def strike(self, octets: int) -> bool:
        """Return whether the next unit, of ``octets`` with its check sequence, has an error."""
        rates = self.rates
        if not rates.any:
            return False
        draw = self._random.random
        if rates.burst_begin or self._bad:
            change = draw()
            self._bad = change >= rates.burst_end if self._bad else change < rates.burst_begin
            if self._bad and draw() < rates.burst_loss:
                return True
        return draw() < rates.loss + 8 * octets * rates.bit_errors
