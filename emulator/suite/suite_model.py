"""Suites, their tests, and what a test finds: tables whose columns name their observation point.

A test's procedure is a generator.  It yields lists of trials, gets their outcomes, and returns
:class:`Findings`::

    def procedure(choice: SuiteChoice) -> Procedure:
        (outcome,) = yield [choice.trial("incast", senders="8")]
        return Findings(tables=[...])

Trials of one list are independent of each other, and run at the same time where processors are
idle.  A search yields again and again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from emulator.errors import UserError
from emulator.run.results import FabricKind
from emulator.suite.trials import SuiteTrial, TrialOutcome
from topologies.advice import meant

SCALES = ("small", "medium", "full")


class Point(enum.StrEnum):
    """The point at which a value is observed; values of two points never share a column."""

    FABRIC = "fabric boundary"
    SWITCH = "switch"
    LINK = "link layer"
    ENDPOINT = "endpoint"
    DERIVED = "computed"
    INPUT = "setting"
    PUBLISHED = "published by others"


@dataclass(frozen=True)
class SuiteColumn:
    """A column by the ``key`` of its values: heading, unit, and where they are observed."""

    key: str
    heading: str
    unit: str
    point: Point


def headed(column: SuiteColumn) -> str:
    """Return the heading of a column with its unit."""
    return f"{column.heading} ({column.unit})" if column.unit else column.heading


def shown_value(value: Any) -> str:
    """Return a value as tables show it; None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        decimals = 3 if abs(value) < 10 else 1 if abs(value) < 1e5 else 0
        return f"{value:.{decimals}f}"
    return str(value)


#: Under this key a row may hold the values of all seeds, by the key of their column.
SAMPLES = "samples"


@dataclass(frozen=True)
class Curve:
    """A figure of a table: the values of column ``y`` over those of ``x``.

    There is a line for each combination of the values of ``series``.  ``measured``: x is a quantity
    with an axis of its own, not one setting after the other.
    """

    x: str
    y: str
    series: tuple[str, ...] = ("transport",)
    measured: bool = False


@dataclass(frozen=True, kw_only=True)
class SuiteTable:
    """A table of a test.  None in a row means that there was nothing to measure.

    ``curves`` are what a report draws of it; the first one is also shown with its series side by
    side.
    """

    title: str
    columns: Sequence[SuiteColumn]
    rows: Sequence[Mapping[str, Any]]
    curves: Sequence[Curve] = ()

    def __post_init__(self) -> None:
        keys = {column.key for column in self.columns}
        drawn = {key for one in self.curves for key in (one.x, one.y, *one.series)}
        if unknown := drawn - keys:
            raise ValueError(f"table {self.title!r} has no column {', '.join(sorted(unknown))}")

    @property
    def filled(self) -> list[SuiteColumn]:
        """The columns of which some row has a value."""
        return [
            one for one in self.columns if any(row.get(one.key) is not None for row in self.rows)
        ]

    @property
    def without_value(self) -> str:
        """A sentence that names the other columns; empty if there are none."""
        filled = self.filled
        empty = [headed(one) for one in self.columns if one not in filled]
        return f"No row has a value of: {', '.join(empty)}." if empty else ""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The result of a test.

    ``deviations`` state where it differs from the draft.
    """

    tables: Sequence[SuiteTable] = ()
    deviations: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class SuiteChoice:
    """The choices of a user: scale, transports, seeds; and a fabric, or the test's own.

    ``nodes`` are what the nodes of every fabric are: namespaces of the kernel, or a model.
    """

    scale: str
    transports: Sequence[str]
    fabric: str | None = None
    seed: int = 1
    seeds: int = 3
    nodes: FabricKind = "kernel"

    def pick(self, **values: Any) -> Any:
        """Return the value of this scale: ``pick(small=8, medium=24, full=64)``."""
        return values[self.scale]

    def trial(
        self,
        scenario: str,
        fabric: str,
        transport: str | None = None,
        *,
        switch: str | None = None,
        faults: Sequence[str] = (),
        options: Sequence[str] = (),
        seeds: int | None = None,
        **parameters: object,
    ) -> SuiteTrial:
        """Return a trial over ``transport``, else over all transports of the choice.

        A fabric that the user names stands in place of ``fabric``.
        """
        modelled = () if self.nodes == "kernel" else ("--fabric", self.nodes)
        return SuiteTrial(
            scenario=scenario,
            fabric=self.fabric or fabric,
            transport=transport or ",".join(self.transports),
            switch=switch,
            parameters=tuple((name, str(value)) for name, value in parameters.items()),
            faults=tuple(faults),
            options=(*options, *modelled),
            seed=self.seed,
            seeds=self.seeds if seeds is None else seeds,
        )


Procedure = Generator[Sequence[SuiteTrial], Sequence[TrialOutcome], Findings]


@dataclass(frozen=True, kw_only=True)
class SuiteTest:
    """A test by the ``number`` of its section, with a procedure or the reason why it has none.

    ``searches``: later trials depend on the outcomes of earlier ones.
    """

    number: str
    title: str
    objective: str
    procedure: Callable[[SuiteChoice], Procedure] | None = None
    reason: str = ""
    searches: bool = False

    def __post_init__(self) -> None:
        if (self.procedure is None) is not bool(self.reason):
            raise ValueError(f"test {self.number} needs a procedure, or a reason why it has none")


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tests in the order of their numbers, and the document that they come from.

    ``estimate_s`` returns about how many seconds a trial takes.  ``criterion`` says how values are
    judged.
    """

    name: str
    document: str
    terminology: str
    criterion: str = "The drafts set no criterion, so nothing passes or fails."
    tests: Sequence[SuiteTest] = field(default_factory=tuple)
    estimate_s: Callable[[SuiteTrial], float] = lambda trial: 0.0

    def choose(self, numbers: Sequence[str]) -> list[SuiteTest]:
        """Return the tests by number, or those of a section: ``6`` is all of 6.1 to 6.7.

        UserError names a number that is not there.
        """
        if not numbers:
            return list(self.tests)
        known = [test.number for test in self.tests]
        for number in numbers:
            if not any(_is_of(one, number) for one in known):
                raise UserError(
                    f"the {self.name} suite has no test {number!r}{meant(number, known)}; it has "
                    f"{', '.join(known)}"
                )
        return [test for test in self.tests if any(_is_of(test.number, one) for one in numbers)]


def _is_of(number: str, requested: str) -> bool:
    return number == requested or number.startswith(f"{requested}.")
