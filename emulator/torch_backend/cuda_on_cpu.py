"""The CPU in place of CUDA, for scripts that ask for it (``--map-cuda``)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed import device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.overrides import TorchFunctionMode

#: Functions of torch.cuda and torch.accelerator that do nothing here.
_IDLE = (
    "set_device",
    "set_device_idx",
    "set_device_index",
    "set_stream",
    "synchronize",
    "empty_cache",
    "manual_seed",
    "manual_seed_all",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
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
        if func is torch.Tensor.to:
            args = _to(args)
        named = {name: _mapped(one) for name, one in (kwargs or {}).items()}
        return func(*(_mapped(one) for one in args), **named)


class _Event(torch.cpu.Event):
    """An event that knows when it was recorded: all before it has been done."""

    def __init__(self, *_: object, **__: object) -> None:
        self._at = 0.0

    def record(self, stream: object = None) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, later: _Event) -> float:
        return (later._at - self._at) * 1000


def _mapped(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    return value


def _to(args: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments of ``to``, whose device may be the number of a GPU."""
    return ["cpu" if type(one) is int else one for one in args]


def _with_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def on_cpu(*args: Any, **named: Any) -> Any:
        mapped = {name: _mapped(one) for name, one in named.items()}
        return function(*map(_mapped, args), **mapped)

    return on_cpu


@contextmanager
def _device(*_: object) -> Any:
    """Stand for the context of a device."""
    yield


def _split_attention_by_heads() -> None:
    """Let DTensor split attention by heads, which it does for CUDA's operations alone."""
    aten = torch.ops.aten
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default  # noqa: SLF001
    for operation, outputs, inputs in ((forward, 2, 3), (backward, 3, 6)):

        def placements(
            *given: object, outputs: int = outputs, inputs: int = inputs, **_: object
        ) -> list[tuple[list[Placement], list[Placement | None]]]:
            others: list[Placement | None] = [None] * (len(given) - inputs)
            return [
                ([one] * outputs, [*[one] * inputs, *others])
                for one in (Replicate(), Shard(0), Shard(1))
            ]

        register_sharding(operation)(placements)


def map_cuda() -> None:
    """Have the CPU stand for CUDA from now on."""
    _OnCpu().__enter__()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    cuda: Any = torch.cuda
    accelerator: Any = torch.accelerator
    for place in (cuda, accelerator):
        for name in _IDLE:
            setattr(place, name, lambda *_, **__: None)
        for name in _ZERO:
            setattr(place, name, lambda *_, **__: 0)
        place.is_available = lambda: True
        place.device_count = lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        place.current_stream = torch.cpu.current_stream
    cuda.current_device = accelerator.current_device_index = lambda: local
    accelerator.current_device_idx = accelerator.current_device_index
    accelerator.current_accelerator = lambda *_, **__: torch.device("cuda")
    cuda.device = accelerator.device_index = _device
    cuda.is_bf16_supported = lambda *_, **__: True
    cuda.get_device_name = lambda *_: "CPU"
    cuda.Stream, cuda.Event = torch.cpu.Stream, _Event
    cuda.StreamContext, cuda.stream = torch.cpu.StreamContext, torch.cpu.stream
    for name in ("range_push", "range_pop", "mark"):
        setattr(cuda.nvtx, name, lambda *_: None)
    _split_attention_by_heads()
    tensor: Any = torch.Tensor
    tensor.cuda = tensor.pin_memory = lambda self, *_, **__: self
    for owner, name in (
        (torch, "load"),
        (torch.autocast, "__init__"),
        (torch.amp.GradScaler, "__init__"),
        (device_mesh.DeviceMesh, "__init__"),
    ):
        setattr(owner, name, _with_cpu(getattr(owner, name)))
    module: Any = torch.nn.Module
    module.cuda = lambda self, device=None: self
    to = module.to
    module.to = lambda self, *args, **named: to(self, *_to(args), **named)
    parallel: Any = torch.nn.parallel.DistributedDataParallel
    begin = parallel.__init__

    def on_cpu(self: Any, replicated: Any, device_ids: Any = None, *rest: Any, **more: Any) -> None:
        more["output_device"] = None
        begin(self, replicated, None, *rest[1:], **more)

    parallel.__init__ = on_cpu
