"""A source of measurements that can be compared: a run, or what a cluster's tools wrote.

Places are what was measured: a pattern, its size, and which of several alike it is.  Each place has
samples of values: of seeds, of iterations, or of a log's rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: A place: the pattern's name, its size in octets, and its number among those alike, from 0.
Place = tuple[str, int, int]

SEEDS, ITERATIONS, LOG_ROWS, RECORDS = "seeds", "iterations", "rows of the log", "records"


@dataclass(frozen=True)
class Samples:
    """The measurements of one value; ``of`` names what its several values are."""

    values: Sequence[float]
    of: str | None = None

    @property
    def spread(self) -> bool:
        """Whether several were taken that can lie apart.

        Iterations of one seed that are alike repeat one measurement: a virtual clock's do.
        """
        alike = len(set(self.values)) == 1
        return len(self.values) > 1 and not (self.of == ITERATIONS and alike)


@dataclass(frozen=True)
class MeasuredPlace:
    """The values of one place by their keys in ``result.json``; ``label`` names it for people."""

    label: str
    samples: Mapping[str, Samples]
    digests: tuple[str, ...] | None = None
    #: keys whose observation point is not the usual one
    points: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MeasuredSource:
    """A source of measurements.

    ``kind`` is its kind, ``asked`` are the inputs that a user chose, ``made_on`` is where it was
    made.

    ``digest`` is that of all frames of a run, None where there is none.  ``point`` is where all
    values of a cluster's log were observed; None leaves it to each value.
    """

    name: str
    kind: str
    asked: Mapping[str, str]
    places: Mapping[Place, MeasuredPlace]
    made_on: Mapping[str, str] = field(default_factory=dict)
    digest: str | None = None
    point: str | None = None
    errors: Sequence[str] = ()
    verdict: str | None = None


def pattern(name: str) -> str:
    """Return a pattern's name for matching: ``AllReduce`` and ``all_reduce`` are one."""
    return "".join(letter for letter in name.lower() if letter.isalnum())
