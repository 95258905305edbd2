"""Functions of GPUs for tests of the executor."""

from collections.abc import Sequence

import numpy as np

from emulator.sim.endpoint.operations.gpu_functions import gpu_function


@gpu_function
def increased(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], by: int) -> None:
    """Add ``by`` to whole numbers of eight octets."""
    outputs[0].view(np.int64)[:] = inputs[0].view(np.int64) + by


@gpu_function
def overwriting(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], by: int) -> None:
    """Write to an input, which is refused."""
    inputs[0][:] = by
