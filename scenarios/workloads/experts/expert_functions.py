"""The functions that GPUs apply to tokens on their way to experts and back.

Elements are whole numbers without sign of the given octets, and all arithmetic wraps around.  So
sums are the same in every order, and results are compared to the bit.  Expert e multiplies each
element by 2e + 3 and adds e + 1. So a token at another expert than its own comes back as another
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.sim.endpoint.operations.gpu_functions import Octets, gpu_function

Elements = npt.NDArray[np.unsignedinteger]
#: Octets of an element, and its type.
ELEMENTS: Mapping[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
}
#: Indices of rows in the memory of a GPU.
INDEX = np.dtype(np.int32)


def expert_output(tokens: Elements, experts: npt.NDArray[np.integer], octets: int) -> Elements:
    """Return what ``experts`` make of ``tokens``, a row each, in elements of ``octets``."""
    dtype = ELEMENTS[octets]
    factor = (2 * experts + 3).astype(dtype)[:, None]
    made: Elements = tokens.astype(dtype) * factor + (experts + 1).astype(dtype)[:, None]
    return made


@gpu_function
def rows_gathered(
    inputs: Sequence[Octets], outputs: Sequence[Octets], hidden: int, octets: int
) -> None:
    """Copy rows of the first input, in the order of the indices in the second."""
    rows = inputs[0].reshape(-1, hidden * octets)
    outputs[0].reshape(-1, hidden * octets)[:] = rows[inputs[1].view(INDEX)]


@gpu_function
def experts_applied(
    inputs: Sequence[Octets], outputs: Sequence[Octets], hidden: int, octets: int, made: int
) -> None:
    """Add what the experts make of each row: of rows to results, ``made`` octets an element.

    The second input holds pairs of row and expert.
    """
    rows = inputs[0].view(ELEMENTS[octets]).reshape(-1, hidden)
    pairs = inputs[1].view(INDEX).reshape(-1, 2)
    results = outputs[0].view(ELEMENTS[made]).reshape(-1, hidden)
    results[:] = 0
    np.add.at(results, pairs[:, 0], expert_output(rows[pairs[:, 0]], pairs[:, 1], made))


@gpu_function
def rows_summed(
    inputs: Sequence[Octets], outputs: Sequence[Octets], hidden: int, octets: int
) -> None:
    """Add each row of the first input to that row of the output which the second one names."""
    rows = inputs[0].view(ELEMENTS[octets]).reshape(-1, hidden)
    sums = outputs[0].view(ELEMENTS[octets]).reshape(-1, hidden)
    sums[:] = 0
    np.add.at(sums, inputs[1].view(INDEX), rows)


@gpu_function
def elements_narrowed(
    inputs: Sequence[Octets], outputs: Sequence[Octets], before: int, after: int
) -> None:
    """Convert elements of ``before`` octets to ``after`` octets: the low ones stay."""
    outputs[0].view(ELEMENTS[after])[:] = inputs[0].view(ELEMENTS[before]).astype(ELEMENTS[after])
