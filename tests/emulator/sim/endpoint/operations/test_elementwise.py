"""Element functions of Reduce against Python's own arithmetic, for every type."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from emulator.sim.endpoint.operations.elementwise import ELEMENT_FUNCTIONS, element_type
from emulator.sim.endpoint.operations.operation_table import OperationTable
from emulator.sim.endpoint.operations.schedule import Reduce, Region, Schedule
from emulator.sim.endpoint.operations.schedule_program import ScheduleProgram

WHOLE = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
EXPECTED: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "min": min,
    "max": max,
    "divide": lambda a, b: a / b,
    "replace": lambda a, b: b,
}


@pytest.mark.parametrize("dtype", [*WHOLE, *FLOATS])
@pytest.mark.parametrize("name", list(EXPECTED))
def test_functions_change_the_first_operand(name: str, dtype: str) -> None:
    signs = (1,) if dtype.startswith("u") else (1, -1)
    pairs = [(a * s, b) for a in (0, 1, 3, 5, 7) for b in (1, 2, 4) for s in signs]
    into = np.array([a for a, _ in pairs]).astype(element_type(dtype))
    source = np.array([b for _, b in pairs]).astype(element_type(dtype))
    kept = source.copy()
    ELEMENT_FUNCTIONS[name](into, source)
    expected = [EXPECTED[name](a, b) for a, b in pairs]
    if dtype in WHOLE:
        expected = [math.trunc(value) for value in expected]
    np.testing.assert_array_equal(into, np.array(expected).astype(element_type(dtype)))
    np.testing.assert_array_equal(source, kept)


def test_bfloat16_has_eight_significant_bits() -> None:
    into = np.array([256], element_type("bfloat16"))
    ELEMENT_FUNCTIONS["sum"](into, np.array([1], into.dtype))
    assert float(into[0]) == 256  # 257 takes nine bits: rounded to even


def test_a_table_keeps_the_function() -> None:
    region = Region("a", 0, 4)
    operations = [
        Reduce(source=region, into=region, dtype="bfloat16", function=name)
        for name in ELEMENT_FUNCTIONS
    ]
    table = OperationTable.of(operations)
    assert list(table) == operations
    program = ScheduleProgram(Schedule(rank=0, buffers={"a": 4}, operations=table), {})
    assert [program.function(index) for index in range(len(operations))] == list(
        ELEMENT_FUNCTIONS.values()
    )
    assert program.dtype(0) == element_type("bfloat16")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"function": "xor"}, "has a function 'xor'; known are sum, prod"),
        ({"dtype": "float33"}, "there is no element type 'float33'"),
        ({"dtype": "int64"}, "its regions are not whole int64 elements"),
    ],
)
def test_what_cannot_be_is_refused_by_its_operation(wrong: dict[str, Any], why: str) -> None:
    region = Region("a", 0, 4)
    operations = (Reduce(source=region, into=region, **wrong),)
    with pytest.raises(ValueError, match=f"rank 0: .*{why}"):
        ScheduleProgram(Schedule(rank=0, buffers={"a": 4}, operations=operations), {})
