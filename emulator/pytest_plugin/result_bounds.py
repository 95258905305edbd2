"""Bounds of a row's values: ``efficiency>=90%``, ``drops==0``, ``p99<80``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.errors import UserError
from emulator.report.compare.comparison import COMPARED, Statement, parse_statement
from emulator.report.observation_points import BY_KEY


@dataclass(frozen=True)
class ResultBound:
    """``key`` of every row keeps to ``limit``, in the key's own unit."""

    text: str
    key: str
    sign: str
    limit: float

    def trouble(self, row: Mapping[str, object]) -> str | None:
        """Return how the row breaks the bound, or None.  A value that it lacks breaks it, too."""
        value = row.get(self.key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{self.key} was not measured"
        if COMPARED[self.sign](value, self.limit):
            return None
        return f"{self.key} is {value:g}"


def parse_bound(text: str) -> ResultBound:
    """Return the bound that ``text`` states; UserError if it is none."""
    stated: Statement = parse_statement(text, f"bound {text!r}", "drops==0, time<=90 or jain>0.95")
    limit = stated.limit
    if stated.percent:
        if BY_KEY[stated.key].scale != 100:
            raise UserError(
                f"bound {text!r}: {stated.key} is no share; leave % out, or compare with another "
                "run by assert_against"
            )
        limit /= 100
    return ResultBound(text.strip(), stated.key, stated.sign, limit)
