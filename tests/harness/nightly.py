"""Cases that CI leaves to the nightly tests."""

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet


def nightly(case: object) -> ParameterSet:
    """Return ``case``, nightly; a tuple is the values of several parameters."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)


def nightly_beyond(number: int, cases: Iterable[object]) -> list[object | ParameterSet]:
    """Return ``cases``, of which all but the first ``number`` are nightly."""
    values = list(cases)
    return [*values[:number], *map(nightly, values[number:])]
