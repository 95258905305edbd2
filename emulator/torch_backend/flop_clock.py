"""A rank's time of computing: the FLOPs of its operations over a rate."""

# ruff: noqa: SLF001 (operations of torch have such names)
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from emulator.torch_backend.flops import FLOPS

#: FakeTensor: DTensor asks those for shapes, and nothing is computed.
_PLAIN = {torch.Tensor, torch.nn.Parameter, FakeTensor}


class FlopClock(TorchDispatchMode):
    """Counts FLOPs from now on, at ``tflops`` of them in a microsecond, times a million."""

    def __init__(self, tflops: float) -> None:
        super().__init__()
        self._rate = tflops * 1000  # FLOPs in a nanosecond
        self._flops = 0
        self.__enter__()

    def computed_ns(self) -> int:
        """Return how long the FLOPs so far take."""
        return int(self._flops / self._rate)

    def before_call(self) -> None:
        """Nothing: operations have been counted."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if not _PLAIN.issuperset(types):
            return NotImplemented  # DTensor and its like: their own operations come here
        kwargs = kwargs or {}
        formula = None if FakeTensor in types else FLOPS.get(func._overloadpacket)
        if formula is None and torch.is_inference_mode_enabled() and func.namespace == "aten":
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if formula is not None:
            self._flops += int(formula(*args, **kwargs, out_val=result))
        return result
