"""Kinds of parameter that traces need beside numbers with units: paths, words, and a factor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from emulator.errors import UserError
from topologies.parts.design_parameters import TextKind

_FACTOR = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?(/[1-9][0-9]{0,8})?")


@dataclass(frozen=True)
class FactorKind:
    """A kind of parameter by which something is multiplied."""

    name: str

    def read(self, field: str, value: str) -> float:
        """Return ``value`` as a number.  UserError if it is none."""
        if _FACTOR.fullmatch(value) is None:
            raise UserError(f"{field} is {value!r}; write a factor such as 0.5, 1/8 or 2")
        number, _, divisor = value.partition("/")
        return float(Fraction(number) / int(divisor or 1))


PATH, WORD, FACTOR = TextKind("path"), TextKind("word"), FactorKind("factor")
