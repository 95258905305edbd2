"""One process in place of all ranks: tensors without values, and collectives that move nothing."""

# ruff: noqa: SLF001 (what makes groups in torch has such a name)

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import device_mesh, distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from emulator.torch_backend.launching import RankPlace


def pretend(place: RankPlace) -> list[list[int]]:
    """Let the script have fake tensors and groups; return a list that gets all groups it makes."""
    made: list[list[int]] = []
    begin, group_with_tag = dist.init_process_group, distributed_c10d._new_group_with_tag

    def init_process_group(*_: Any, **given: Any) -> None:
        begin(
            backend="fake",
            store=FakeStore(),
            rank=place.rank,
            world_size=place.size,
            pg_options=None,
        )

    def new_group_with_tag(ranks: Any = None, *args: Any, **given: Any) -> Any:
        made.append(sorted(ranks) if ranks is not None else list(range(place.size)))
        if len(args) > 1:
            args = (args[0], None, *args[2:])
        given.pop("backend", None)
        return group_with_tag(ranks, *args, **given)

    for module in (dist, distributed_c10d, device_mesh):
        module.init_process_group = init_process_group
    distributed_c10d._new_group_with_tag = new_group_with_tag
    _let_meshes_have_values()
    FakeTensorMode(allow_non_fake_inputs=True).__enter__()
    return made


def _let_meshes_have_values() -> None:
    """Let a mesh keep its ranks in real tensors, whose values it reads."""
    for name, one in list(vars(device_mesh.DeviceMesh).items()):
        if isinstance(one, FunctionType):
            setattr(device_mesh.DeviceMesh, name, _with_values(one))
        elif isinstance(one, property):
            setattr(device_mesh.DeviceMesh, name, property(_with_values(one.fget), one.fset))
    made = device_mesh.init_device_mesh
    modules: list[Any] = list(sys.modules.values())
    for module in modules:
        if getattr(module, "init_device_mesh", None) is made:
            module.init_device_mesh = _with_values(made)


def _with_values(function: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    def real(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return real
