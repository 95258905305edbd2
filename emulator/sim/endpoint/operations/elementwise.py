"""Element-wise functions of Reduce operations, and the element types that they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

#: ``function(into, source)`` changes ``into`` element by element.
ElementFunction = Callable[[npt.NDArray[np.generic], npt.NDArray[np.generic]], object]


def _sum(into: npt.NDArray[np.generic], source: npt.NDArray[np.generic]) -> object:
    return np.add(into, source, out=into)


def _prod(into: npt.NDArray[np.generic], source: npt.NDArray[np.generic]) -> object:
    return np.multiply(into, source, out=into)


def _min(into: npt.NDArray[np.generic], source: npt.NDArray[np.generic]) -> object:
    return np.minimum(into, source, out=into)


def _max(into: npt.NDArray[np.generic], source: npt.NDArray[np.generic]) -> object:
    return np.maximum(into, source, out=into)


def _divide(into: npt.NDArray[np.generic], source: npt.NDArray[np.generic]) -> object:
    """Divide; whole numbers are rounded towards zero, as in C."""
    if not np.issubdtype(into.dtype, np.integer):
        return np.divide(into, source, out=into)
    np.subtract(into, np.fmod(into, source), out=into)
    return np.floor_divide(into, source, out=into)


def _replace(into: npt.NDArray[np.generic], source: npt.NDArray[np.generic]) -> object:
    into[:] = source
    return into


#: What a Reduce does to its region, by name.  The names of the first four are NCCL's.
ELEMENT_FUNCTIONS: dict[str, ElementFunction] = {
    "sum": _sum,
    "prod": _prod,
    "min": _min,
    "max": _max,
    "divide": _divide,
    "replace": _replace,
}
#: Numbers of the functions in a table of operations.
FUNCTION_NUMBERS = {name: number for number, name in enumerate(ELEMENT_FUNCTIONS)}
FUNCTION_NAMES = tuple(ELEMENT_FUNCTIONS)


def element_type(name: str) -> np.dtype[np.generic]:
    """Return the numpy type called ``name``, which may be ``bfloat16`` or ``float8_e5m2``.

    Raises ValueError if there is none.
    """
    if name in ("bfloat16", "float8_e5m2"):
        import ml_dtypes  # few runs need it

        short: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return short
    try:
        return np.dtype(name)
    except TypeError:
        raise ValueError(f"there is no element type {name!r}") from None
