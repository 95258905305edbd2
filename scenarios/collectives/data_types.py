"""Element types, reduction operations, and data whose sums are the same in every order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.sim.endpoint.operations.elementwise import ELEMENT_FUNCTIONS, element_type

#: Values are made so many elements at a time: those of a large size need no room twice.
ELEMENTS_AT_ONCE = 2**20

Values = npt.NDArray[np.generic]


@dataclass(frozen=True)
class DataType:
    """``name`` is that of the NCCL tests, ``numpy_name`` that of numpy or ml_dtypes.

    ``precision`` is the number of significant bits of a float (None: whole numbers).
    ``exponents`` is a number of doublings, or halvings, that stays within its normal numbers.
    """

    name: str
    numpy_name: str
    precision: int | None = None
    exponents: int = 0

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return element_type(self.numpy_name)

    @property
    def octets(self) -> int:
        return self.dtype.itemsize

    @property
    def exact_sum(self) -> int:
        """Return the largest number up to which all whole numbers are elements of this type."""
        if self.precision is not None:
            return int(2**self.precision)
        return int(np.iinfo(self.numpy_name).max)

    def boundable(self, ranks: int) -> bool:
        """Return whether rounding leaves anything of a sum over ``ranks`` numbers for certain."""
        return self.precision is not None and ranks + 1 < 2 ** (self.precision - 1)

    @property
    def signed(self) -> bool:
        """Return whether elements may be below 0."""
        return not self.numpy_name.startswith("u")


#: Element types by the names of the NCCL tests.
DATA_TYPES = {
    one.name: one
    for one in (
        DataType("float", "float32", precision=24, exponents=120),
        DataType("half", "float16", precision=11, exponents=14),
        DataType("bfloat16", "bfloat16", precision=8, exponents=120),
        DataType("double", "float64", precision=53, exponents=1000),
        DataType("int8", "int8"),
        DataType("uint8", "uint8"),
        DataType("int32", "int32"),
        DataType("uint32", "uint32"),
        DataType("int64", "int64"),
        DataType("uint64", "uint64"),
    )
}
#: Other names of element types that users have.
ALIASES = {"float32": "float", "float16": "half", "float64": "double"}
#: Reduction operations by the names of NCCL.
REDUCTIONS = ("sum", "prod", "min", "max", "avg")


def function_of(reduction: str) -> str:
    """Return the element function that combines two operands; an average is a sum first."""
    return "sum" if reduction == "avg" else reduction


def whole_numbers(
    datatype: DataType, key: Iterable[int], count: int, *, ranks: int, position: int = 0
) -> Values:
    """Return ``count`` whole numbers, drawn by ``key``, of which ``ranks`` add up exactly.

    No partial sum, in any order, needs rounding or overflows.  Where a type holds fewer numbers
    than there are ranks, only some ranks have other elements than 0: which ones turns with the
    element, and the rank's ``position`` decides.
    """
    rng = np.random.default_rng(tuple(key))
    bound = datatype.exact_sum // ranks
    low = -bound if datatype.signed else 0
    kind = np.int32 if bound < 2**31 else np.int64
    values = np.empty(count, datatype.dtype)
    for start in range(0, count, ELEMENTS_AT_ONCE):
        part = values[start : start + ELEMENTS_AT_ONCE]
        if bound:
            part[:] = rng.integers(low, bound, len(part), kind)
            continue
        chosen = (np.arange(start, start + len(part)) + position) % ranks < datatype.exact_sum
        drawn = rng.integers(0, 2, len(part))
        part[:] = np.where(chosen, 2 * drawn - 1 if datatype.signed else drawn, 0)
    return values


def factors(
    datatype: DataType, key: Iterable[int], count: int, *, ranks: int, position: int
) -> Values:
    """Return ``count`` numbers, drawn by ``key``, of which ``ranks`` have an exact product.

    Floats are powers of two, of either sign.  Whole numbers multiply modulo 2 to the power of
    their width, which no order changes.
    """
    rng = np.random.default_rng(tuple(key))
    if datatype.precision is None:
        low, high = (-3, 3) if datatype.signed else (0, 7)
        return (rng.integers(low, high, count) * 2 + 1).astype(datatype.dtype)
    turned = (np.arange(count) + position) % ranks < datatype.exponents
    exponents = np.where(turned, rng.integers(-1, 2, count), 0)
    signs = rng.integers(0, 2, count) * 2 - 1
    return (signs * np.exp2(exponents)).astype(datatype.dtype)


def random_reals(
    datatype: DataType, key: Iterable[int], count: int, *, ranks: int, product: bool
) -> Values:
    """Return ``count`` real numbers, drawn by ``key``, whose sums depend on the order.

    They are normally distributed.  Those of a product lie around 1, and ``ranks`` of them have no
    product beyond the normal numbers of the type.
    """
    rng = np.random.default_rng(tuple(key))
    if not product:
        return rng.standard_normal(count).astype(datatype.dtype)
    widest = min(1.0, (datatype.exponents - 1) / ranks)
    return np.exp2(rng.uniform(-widest, widest, count)).astype(datatype.dtype)


class Total:
    """The result of a reduction over all ranks, and how far a rounded one may be from it."""

    def __init__(self, datatype: DataType, reduction: str, *, exact: bool) -> None:
        self.datatype, self.reduction, self.exact = datatype, reduction, exact
        self._value: Values = np.empty(0, datatype.dtype)
        self._magnitude: npt.NDArray[np.float64] = np.array(float(reduction == "prod"))
        #: how many have added theirs
        self.ranks = 0

    def add(self, values: Values) -> None:
        precise = values if self.exact else values.astype(np.float64)
        if not self.ranks:
            self._value = precise.copy()
        else:
            ELEMENT_FUNCTIONS[function_of(self.reduction)](self._value, precise)
        self.ranks += 1
        if not self.exact:
            combine = np.multiply if self.reduction == "prod" else np.add
            self._magnitude = combine(self._magnitude, np.abs(precise))

    def value(self) -> Values:
        """Return the result, in the element type."""
        result = self._value
        if self.reduction == "avg":
            result = result.copy()
            ELEMENT_FUNCTIONS["divide"](result, np.full_like(result, self.ranks))
        return result.astype(self.datatype.dtype)

    def bound(self) -> npt.NDArray[np.float64] | None:
        """Return how far each element of a correct result may be from :meth:`value`, in any order.

        Let u be the unit roundoff and n the number of ranks. Then n-1 rounded operations, and the
        roundings of the average and of ``value`` itself, add up. They are off by at most gamma(n+1)
        = (n+1)u / (1 - (n+1)u). That factor applies to the sum of the operands' magnitudes, or to
        the magnitude of the product. (Higham, Accuracy and Stability of Numerical Algorithms,
        chapters 3 and 4.)  A quotient below the normal numbers is off by the smallest number at
        most.
        """
        precision = self.datatype.precision
        if self.exact or self.reduction in ("min", "max") or precision is None:
            return None
        import ml_dtypes  # few runs need it

        steps = (self.ranks + 1) * 2.0**-precision
        scale = self.ranks if self.reduction == "avg" else 1
        least = float(ml_dtypes.finfo(self.datatype.dtype).smallest_subnormal)
        return steps / (1 - steps) * self._magnitude / scale + least
