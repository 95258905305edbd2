"""The published measurements of ``points.toml``, and how a value is judged beside them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from emulator.suite.suite_model import SuiteChoice
from emulator.suite.trials import SuiteTrial

FILE = Path(__file__).with_name("points.toml")
#: Verdicts, the best first.
AGREES, NEAR, OFF = "agrees", "near", "off"
#: Whether a point counts: not if a constant was fitted on it, or if it is run again as another.
COUNTED, NO_RUN, FITTED, AGAIN = "yes", "no: not run", "no: fitted", "no: again as"


@dataclass(frozen=True, kw_only=True)
class Band:
    """How far (0..1) a value may be from the published one to be called so."""

    agrees: float
    near: float

    def verdict(self, ratio: float | None) -> str:
        """Return what a ratio of emulated over published is called; None is infinite."""
        distance = abs(ratio - 1) if ratio is not None else float("inf")
        return AGREES if distance <= self.agrees else NEAR if distance <= self.near else OFF


@dataclass(frozen=True, kw_only=True)
class HardwarePoint:
    """A published value, or its range from ``low`` to ``high`` in ``unit``, and its run.

    The head of ``points.toml`` says what each field means.
    """

    number: str
    title: str
    cite: str
    conditions: str
    unit: str
    low: float
    high: float
    metric: str = ""
    times: float = 1
    row: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    per: Mapping[str, Any] = field(default_factory=dict)
    size: str = ""
    scaled: str = ""
    fitted: bool = False
    again: str = ""
    seen: bool = False
    reason: str = ""
    explained: str = ""

    def __post_init__(self) -> None:
        if self.low > self.high or bool(self.run) is bool(self.reason):
            raise ValueError(f"point {self.number} needs a range, and a run or a reason")

    @property
    def counts(self) -> str:
        """Return whether the point counts, and else why not."""
        if self.reason:
            return NO_RUN
        return FITTED if self.fitted else f"{AGAIN} {self.again}" if self.again else COUNTED

    @property
    def published(self) -> str:
        """Return the value, or the range, as text."""
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"

    def ratio(self, value: float) -> float | None:
        """Return ``value`` over the nearest end of the range: 1 within, None beyond 0."""
        if self.low <= value <= self.high:
            return 1.0
        nearest = self.low if value < self.low else self.high
        return value / nearest if nearest else None

    def trials(self, choice: SuiteChoice) -> list[SuiteTrial]:
        """Return the run, and the one that it is compared with, if there is one."""
        runs = [self.run, {**self.run, **self.per}] if self.per else [self.run]
        return [_trial(choice, **run) for run in runs if run]


def _trial(choice: SuiteChoice, *, params: Mapping[str, Any], **given: Any) -> SuiteTrial:
    return choice.trial(**given, **params)


@dataclass(frozen=True, kw_only=True)
class HardwareSource:
    """A paper, a table or a thread with its points."""

    number: str
    title: str
    cite: str
    points: Sequence[HardwarePoint]


@cache
def load(path: Path = FILE) -> tuple[Band, Sequence[HardwareSource]]:
    """Return the band and the sources of ``points.toml``."""
    data = tomllib.loads(path.read_text())
    runs = {
        point["number"]: {key: point[key] for key in ("run", "per") if key in point}
        for source in data["source"]
        for point in source["point"]
    }
    sources = []
    for source in data["source"]:
        points = []
        for point in source.pop("point"):
            run = runs[point.pop("as", point["number"])]
            points.append(HardwarePoint(**{"cite": source["cite"], **point, **run}))
        sources.append(HardwareSource(points=points, **source))
    return Band(agrees=data["agrees"], near=data["near"]), sources


def points() -> list[HardwarePoint]:
    """Return the points of all sources."""
    return [point for source in load()[1] for point in source.points]
