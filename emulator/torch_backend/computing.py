"""How long a rank computes between its calls, as the user has it; never by the host's clock.

::

    flops          what torch counts of its operations, over a rate
    none           no time
    fixed:20us     so long before each call
    csv:FILE       what the lines of a rank say (columns rank and compute_us), one for each call

"""

from __future__ import annotations

import csv
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from emulator.errors import UserError
from topologies.units import UnitError, parse_time_ns

FLOPS, NONE, FIXED, CSV = "flops", "none", "fixed", "csv"
_COLUMNS = ("rank", "compute_us")


class Clock(Protocol):
    """Counts a rank's time of computing."""

    def computed_ns(self) -> int:
        """Return how long the rank has computed so far."""

    def before_call(self) -> None:
        """Take notice of a call that is about to be made."""


@dataclass(frozen=True, kw_only=True)
class Computing:
    """The user's choice; of :data:`FLOPS` the rate is ``tflops``."""

    kind: str
    tflops: float = 0.0
    fixed_ns: int = 0
    lines: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, tflops: float) -> Computing:
        """Return what ``--compute`` says; UserError if it is nothing."""
        kind, _, value = text.partition(":")
        if kind in (FLOPS, NONE) and not value:
            return cls(kind=kind, tflops=tflops)
        if kind == FIXED:
            try:
                return cls(kind=kind, fixed_ns=parse_time_ns(value))
            except UnitError as error:
                raise UserError(f"--compute {text}: {error}") from None
        if kind == CSV:
            return cls(kind=kind, lines=_lines(Path(value)))
        raise UserError(
            f"--compute is {text!r}; write flops, none, fixed:TIME such as fixed:20us, or csv:FILE"
        )

    def clock(self, rank: int) -> Clock:
        """Begin to count in the process of ``rank``."""
        if self.kind == FLOPS:
            from emulator.torch_backend.flop_clock import FlopClock

            return FlopClock(self.tflops)
        if self.kind == CSV:
            return _Stated(deque(self.lines.get(rank, ())))
        return _Stated(deque(), self.fixed_ns)


@dataclass
class _Stated:
    """Stated times: ``lines`` (ns), then ``rest_ns`` before each call."""

    lines: deque[int]
    rest_ns: int = 0
    total_ns: int = 0

    def computed_ns(self) -> int:
        return self.total_ns

    def before_call(self) -> None:
        self.total_ns += self.lines.popleft() if self.lines else self.rest_ns


def _lines(path: Path) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    try:
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            missing = [one for one in _COLUMNS if one not in (rows.fieldnames or ())]
            if missing:
                raise UserError(f"--compute {path} has no column {missing[0]}; write both of them")
            for row in rows:
                time_ns = round(float(row["compute_us"]) * 1000)
                if time_ns < 0:
                    raise ValueError(f"compute_us is {row['compute_us']}")
                found[int(row["rank"])].append(time_ns)
    except OSError as error:
        raise UserError(f"--compute {path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise UserError(
            f"--compute {path}: line {rows.line_num} has no rank and time ({error}); write numbers"
        ) from None
    return found
