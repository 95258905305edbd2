"""The CPU in place of CUDA, for scripts that ask for it (``--map-cuda``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

#: Functions of torch.cuda that do nothing here.
_IDLE = (
    "set_device",
    "synchronize",
    "empty_cache",
    "manual_seed",
    "manual_seed_all",
    "reset_peak_memory_stats",
    "init",
    "ipc_collect",
)
#: Those that return a number.
_ZERO = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


class _OnCpu(TorchFunctionMode):
    """Calls of torch get ``cpu`` wherever they name CUDA."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.pin_memory:
            return args[0]
        named = {name: _mapped(one) for name, one in (kwargs or {}).items()}
        return func(*(_mapped(one) for one in args), **named)


def _mapped(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    return value


def map_cuda() -> None:
    """Have the CPU stand for CUDA from now on."""
    _OnCpu().__enter__()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    cuda: Any = torch.cuda
    for name in _IDLE:
        setattr(cuda, name, lambda *_, **__: None)
    for name in _ZERO:
        setattr(cuda, name, lambda *_, **__: 0)
    cuda.is_available = lambda: True
    cuda.current_device = lambda: local
    cuda.device_count = lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    module: Any = torch.nn.Module
    module.cuda = lambda self, device=None: self
    parallel: Any = torch.nn.parallel.DistributedDataParallel
    begin = parallel.__init__

    def on_cpu(self: Any, replicated: Any, device_ids: Any = None, *rest: Any, **more: Any) -> None:
        more["output_device"] = None
        begin(self, replicated, None, *rest[1:], **more)

    parallel.__init__ = on_cpu
