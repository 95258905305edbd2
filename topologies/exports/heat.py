"""The load of a fabric's ports as colours of its drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

#: Light to dark, so that it is read without seeing hues, and in print; the first is "nothing".
COLOURS = ("#c8c8c8", "#fdcc8a", "#fc9d59", "#e8633a", "#c1272d", "#5f0f1e")
WIDTHS = (1.0, 1.6, 2.4, 3.4, 4.6, 6.0)  # points: the same again, for a line is thin
STEPS = len(COLOURS) - 1


@dataclass(frozen=True, kw_only=True)
class Heat:
    """``values`` are those of what leaves each port, by ``node:port``; some ports have none.

    ``most`` is the end of the scale, by default a round number above the largest value.
    ``unit`` is written behind a number.
    """

    title: str
    unit: str
    values: Mapping[str, float]
    most: float | None = None

    @property
    def end(self) -> float:
        if self.most is not None:
            return self.most
        return round_above(max(self.values.values(), default=0.0))

    def step(self, value: float) -> int:
        """0 for nothing, 1 .. STEPS for the fifths of the scale; beyond its end the last."""
        if value <= 0:
            return 0
        return min(STEPS, max(1, math.ceil(value / self.end * STEPS - 1e-9)))

    def colour(self, value: float) -> str:
        return COLOURS[self.step(value)]

    def width(self, value: float) -> float:
        return WIDTHS[self.step(value)]

    def shown(self, value: float) -> str:
        return f"{number(value)} {self.unit}"

    def legend(self) -> list[tuple[str, str]]:
        """(colour, range) of every step, the least first."""
        rows = [(COLOURS[0], "0")]
        for step in range(1, STEPS + 1):
            low, high = (number(self.end * part / STEPS) for part in (step - 1, step))
            rows.append((COLOURS[step], f"{low} - {high} {self.unit}"))
        return rows


def number(value: float) -> str:
    """Return three digits and at most two decimals; what would become 0 is shown as less."""
    if 0 < value < 0.01:
        return "<0.01"
    if value >= 1e6:
        return f"{value:.3g}"
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def round_above(value: float) -> float:
    """The least 1, 2, 2.5 or 5 times a power of ten that is no less: its fifths are round."""
    if value <= 0:
        return 5.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= value)
