"""A trial of a suite: one ``uetemu run``, named by the words of its command.

Two tests with equal words share one trial.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from emulator import plugins

#: A row of ``result.json``.
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class SuiteTrial:
    """A scenario on a fabric with its parameters, as ``uetemu run`` takes them.

    ``options`` are further words of the command, such as ``("--pxn", "never")``.
    """

    scenario: str
    fabric: str
    transport: str
    switch: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    faults: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    seed: int = 1
    seeds: int = 1
    capture: str = "none"

    def given(self, parameters: Mapping[str, object]) -> SuiteTrial:
        """Return this trial with further ``parameters``, which replace those of the same name."""
        merged = {**dict(self.parameters), **{name: str(one) for name, one in parameters.items()}}
        return replace(self, parameters=tuple(merged.items()))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Return the words of the command after ``uetemu``, without the place of its folder."""
        words = ["run", self.scenario, "--topology", self.fabric, "--transport", self.transport]
        if self.switch is not None:
            words += ["--switch", self.switch]
        for name, value in self.parameters:
            words += ["--param", f"{name}={value}"]
        for fault in self.faults:
            words += ["--fault", fault]
        words += ["--seed", str(self.seed), "--seeds", str(self.seeds)]
        return (*words, "--capture", self.capture, *self.options, *plugins.words())

    @cached_property
    def key(self) -> str:
        """Return a short name that is the same for equal words only (SHA-256, 64 bits)."""
        return hashlib.sha256(json.dumps(self.words).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """The outcome of a trial: its ``result``, or the sentence why it is ``excluded``.

    A trial that failed may have a result as well, with the rows that it got to.  ``place`` names
    the rank that ran it, and ``again`` states where it had failed before, if it was farmed out.
    """

    trial: SuiteTrial
    folder: Path
    seconds: float
    result: Mapping[str, Any] = field(default_factory=dict)
    excluded: str | None = None
    place: str | None = None
    again: str | None = None

    @property
    def rows(self) -> Sequence[Row]:
        """Return the rows of all seeds; none of a trial that is excluded."""
        return () if self.excluded else self.result["rows"]

    def by_place(self) -> Iterator[Sequence[Row]]:
        """Yield for each line of the run's table its rows, one for each seed."""
        places: dict[tuple[object, ...], list[Row]] = {}
        seen: dict[tuple[object, ...], int] = {}
        for row in self.rows:
            seed = (row["transport"], row["switch"], row["seed"])
            number = seen[seed] = seen.get(seed, -1) + 1
            places.setdefault((*seed[:2], number), []).append(row)
        yield from places.values()
