"""Groups of ranks with another backend than the script asks for.

One that moves nothing, with one process and tensors without values in place of all ranks; or gloo.
"""

# ruff: noqa: SLF001 (what makes groups in torch has such a name)

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _functional_collectives, device_mesh, distributed_c10d
from torch.utils._python_dispatch import _disable_current_modes

from emulator.torch_backend.launching import RankPlace


def pretend(place: RankPlace) -> list[list[int]]:
    """Let the script have fake tensors and groups; return a list that gets all groups it makes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    made: list[list[int]] = []

    def begin(_: Any) -> dict[str, Any]:
        store = FakeStore()
        return {"backend": "fake", "store": store, "rank": place.rank, "world_size": place.size}

    def group(ranks: Any, _: Any) -> None:
        made.append(sorted(ranks) if ranks is not None else list(range(place.size)))

    _change_groups(begin, group)
    _let_meshes_have_values()
    # Torch takes fake tensors for a compiler's, and would wait for functional collectives at once.
    functional: Any = _functional_collectives
    functional._are_we_tracing = lambda: False
    FakeTensorMode(allow_non_fake_inputs=True).__enter__()
    return made


def have_gloo(place: RankPlace) -> None:
    """Let gloo do what a script asks of a backend that takes GPUs, and say so once."""
    said: list[str] = []

    def backend(asked: Any) -> Any:
        if not isinstance(asked, str) or "nccl" not in asked.lower():
            return asked
        if not said and place.rank == 0:
            said.append(asked)
            print(f"uetemu: gloo does what {asked} is asked for", file=sys.stderr)  # noqa: T201
        return "gloo"

    def begin(given: dict[str, Any]) -> dict[str, Any]:
        given.pop("device_id", None)
        return {**given, "backend": backend(given.get("backend"))}

    _change_groups(begin, lambda _, asked: backend(asked))


def _change_groups(
    begin: Callable[[dict[str, Any]], dict[str, Any]], backend: Callable[[Any, Any], Any]
) -> None:
    """Let ``begin`` have the arguments that init_process_group gets, and choose others.

    ``backend`` gets the ranks and the backend of each further group, and chooses its backend.
    """
    first, further = dist.init_process_group, distributed_c10d._new_group_with_tag
    of_first, of_further = inspect.signature(first), inspect.signature(further)

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        first(**begin(dict(of_first.bind(*args, **kwargs).arguments)))

    def new_group_with_tag(*args: Any, **kwargs: Any) -> Any:
        given = dict(of_further.bind(*args, **kwargs).arguments)
        given["backend"] = backend(given.get("ranks"), given.get("backend"))
        given.pop("device_id", None)
        return further(**given)

    for module in (dist, distributed_c10d, device_mesh):
        module.init_process_group = init_process_group
    distributed_c10d._new_group_with_tag = new_group_with_tag


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
