"""Cases that CI leaves to the nightly tests."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet


def nightly_beyond(number: int, cases: Iterable[object]) -> list[object | ParameterSet]:
    """Return ``cases``, of which all but the first ``number`` are nightly."""
    values = list(cases)
    late = [pytest.param(value, marks=pytest.mark.nightly) for value in values[number:]]
    return [*values[:number], *late]
