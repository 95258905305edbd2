"""Functions that GPUs apply to regions of their memory, by name.

A function registers itself, and a schedule's
:class:`~emulator.sim.endpoint.operations.schedule.Apply` names it::

    @gpu_function
    def halved(inputs, outputs, divisor):
        outputs[0].view("float32")[:] = inputs[0].view("float32") / np.float32(divisor)

    Apply(function=name_of(halved), inputs=(here,), outputs=(there,), arguments=(2,))

Only the name travels to the process that runs the GPU.  This process imports the function's module
if it has not done so. So only the run that needs the module has it.  The function gets the octets
of its regions as they are in the GPU's memory at that moment, inputs read only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Octets = npt.NDArray[np.uint8]
#: ``function(inputs, outputs, *arguments)`` fills ``outputs``.
GpuFunction = Callable[..., object]
Registered = TypeVar("Registered", bound=GpuFunction)


class GpuFunctionError(Exception):
    """A function of a GPU raised an exception, which the text names."""


_FUNCTIONS: dict[str, GpuFunction] = {}


def gpu_function(function: Registered) -> Registered:
    """Register ``function``, so that operations can name it."""
    _FUNCTIONS[name_of(function)] = function
    return function


def name_of(function: GpuFunction) -> str:
    """Return the name of ``function``: its module, a colon and its own name."""
    return f"{function.__module__}:{function.__name__}"


def find_gpu_function(name: str) -> GpuFunction:
    """Return the function ``name``; its module is imported if it has to be.

    Raises ValueError if there is none.
    """
    if name not in _FUNCTIONS:
        module = name.partition(":")[0]
        try:
            importlib.import_module(module)
        except (ImportError, ValueError) as missing:
            raise ValueError(
                f"its function {name!r} cannot be imported ({missing}); "
                "define it in a module that every process can import, or use the virtual clock"
            ) from None
    if name not in _FUNCTIONS:
        raise ValueError(f"{name!r} is no function of GPUs; register it with @gpu_function")
    return _FUNCTIONS[name]


@dataclass(frozen=True, slots=True)
class LocatedCall:
    """One application of a function; regions are (offset, octets) in the GPU's memory."""

    function: GpuFunction
    inputs: Sequence[tuple[int, int]]
    outputs: Sequence[tuple[int, int]]
    arguments: Sequence[int | float | str]

    def run(self, memory: Octets) -> int:
        """Apply the function to ``memory``; return the octets that it reads and writes.

        Raises :class:`GpuFunctionError` if the function raises anything.
        """
        inputs = [memory[at : at + length] for at, length in self.inputs]
        for one in inputs:
            one.flags.writeable = False
        outputs = [memory[at : at + length] for at, length in self.outputs]
        try:
            self.function(inputs, outputs, *self.arguments)
        except Exception as failure:  # whatever a scenario's function may raise
            raise GpuFunctionError(f"{type(failure).__name__}: {failure}") from failure
        return sum(length for _, length in (*self.inputs, *self.outputs))
