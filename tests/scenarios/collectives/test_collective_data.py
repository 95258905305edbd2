"""Data of collectives: exact in every order where they claim it, bounded where they do not."""

import itertools

import numpy as np
import pytest

from emulator.sim.endpoint.operations.elementwise import ELEMENT_FUNCTIONS
from scenarios.collectives.data_types import (
    DATA_TYPES,
    REDUCTIONS,
    Total,
    factors,
    function_of,
    random_reals,
    whole_numbers,
)


def operands(name: str, reduction: str, ranks: int, count: int = 40) -> list[np.ndarray]:
    make = factors if reduction == "prod" else whole_numbers
    return [
        make(DATA_TYPES[name], (1, rank), count, ranks=ranks, position=rank)
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("name", DATA_TYPES)
@pytest.mark.parametrize("reduction", ["sum", "prod"])
@pytest.mark.parametrize("ranks", [4, 24, 600])
def test_no_order_changes_a_result(name: str, reduction: str, ranks: int) -> None:
    values = operands(name, reduction, ranks)
    rng = np.random.default_rng(1)
    results = []
    for _ in range(4):
        first, *others = rng.permutation(ranks)
        total = values[first].copy()
        for rank in others:
            ELEMENT_FUNCTIONS[reduction](total, values[rank])
        results.append(total)
        tree = list(values)
        while len(tree) > 1:
            pairs = itertools.zip_longest(tree[::2], tree[1::2])
            tree = []
            for one, other in pairs:
                joined = one.copy()
                if other is not None:
                    ELEMENT_FUNCTIONS[reduction](joined, other)
                tree.append(joined)
        results.append(tree[0])
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    assert np.isfinite(results[0].astype(float)).all()
    assert len(np.unique(results[0])) > 1


@pytest.mark.parametrize("name", ["float", "half", "bfloat16", "double"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("ranks", [2, 24, 100])
def test_rounded_results_are_within_the_bound_and_a_lost_operand_is_not(
    name: str, reduction: str, ranks: int
) -> None:
    datatype = DATA_TYPES[name]
    values = [
        random_reals(datatype, (1, rank), 200, ranks=ranks, product=reduction == "prod")
        for rank in range(ranks)
    ]
    total = Total(datatype, reduction, exact=False)
    for one in values:
        total.add(one)
    bound = total.bound()
    if reduction in ("min", "max"):
        assert bound is None
        return
    assert bound is not None

    def rounded(chosen: list[np.ndarray]) -> np.ndarray:
        result = chosen[0].copy()
        for one in chosen[1:]:
            ELEMENT_FUNCTIONS[function_of(reduction)](result, one)
        if reduction == "avg":
            ELEMENT_FUNCTIONS["divide"](result, np.full_like(result, ranks))
        return result.astype(float)

    exact = total.value().astype(float)
    assert (np.abs(rounded(values) - exact) <= bound).all()
    assert (np.abs(rounded(values[::-1]) - exact) <= bound).all()
    if ranks <= 24:  # beyond, bfloat16's rounding is as large as an operand
        assert (np.abs(rounded(values[1:]) - exact) > bound).any()


def test_averages_of_whole_numbers_are_rounded_towards_zero() -> None:
    total = Total(DATA_TYPES["int32"], "avg", exact=True)
    for value in (-3, -2):
        total.add(np.array([value, -value], np.int32))
    assert total.value().tolist() == [-2, 2]
