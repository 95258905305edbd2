"""torch.distributed's backend ``uetemu``: each call crosses the fabric of the run.

Imported in the processes of ranks alone, which have torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from emulator.torch_backend.calls import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    ANY,
    BARRIER,
    BROADCAST,
    GATHER,
    RECEIVE,
    REDUCE,
    REDUCESCATTER,
    SCATTER,
    SEND,
    Call,
)
from emulator.torch_backend.rank_link import RankLink
from emulator.torch_backend.script_lines import script_line

NAME = "uetemu"
#: Backends of torch's own tests, which stay what they are; others are this one.
OWN_KINDS = ("fake", "threaded")
_DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.bool: "bool",
}
#: What a reduction of truth values is one of octets.
_OF_BOOL = {"sum": "max", "max": "max", "prod": "min", "min": "min"}
Tensors = Sequence[torch.Tensor]


def _refusal(what: str) -> dist.DistBackendError:
    return dist.DistBackendError(f"ProcessGroupUetemu has no {what}")


def _reduction(operation: Any) -> str:
    for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"):
        if operation == getattr(dist.ReduceOp, name):
            return "prod" if name == "PRODUCT" else name.lower()
    others = ("BAND", "BOR", "BXOR", "PREMUL_SUM")
    named = [name for name in others if operation == getattr(dist.ReduceOp, name)]
    raise _refusal(f"ReduceOp.{'/'.join(named)}; it has SUM, AVG, MIN, MAX and PRODUCT")


def _dtype(tensors: Tensors, what: str) -> str:
    names = {one.dtype for one in tensors}
    if len(names) > 1:
        raise ValueError(f"{what} takes tensors of one type, and got {sorted(map(str, names))}")
    for one in names:
        if one not in _DTYPES:
            raise _refusal(f"{what} of {one}")
        return _DTYPES[one]
    return "uint8"


def _octets(tensors: Tensors) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)


def _as_octets(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    flat = tensor.detach().contiguous().reshape(-1)
    octets: npt.NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return octets


def _fill(tensors: Tensors, octets: npt.NDArray[np.uint8]) -> None:
    """Put ``octets`` into ``tensors`` one behind the other."""
    at = 0
    for one in tensors:
        size = one.numel() * one.element_size()
        if size:
            part = torch.from_numpy(octets[at : at + size]).view(one.dtype)
            one.detach().copy_(part.view(one.shape))
        at += size


class UetemuWork(dist.Work):
    """A call under way; its result is in ``outputs`` once it is waited for."""

    def __init__(
        self, link: RankLink, number: int, outputs: Tensors, members: Sequence[int]
    ) -> None:
        super().__init__()
        self._link, self._number, self._outputs = link, number, list(outputs)
        self._members, self._source = members, -1
        self._done = False
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the result is here: the rank's clock is then that of its end at least."""
        if self._done:
            return True
        try:
            octets, sender = self._link.wait(self._number)
        except RuntimeError as failure:
            raise dist.DistBackendError(str(failure)) from None
        _fill(self._outputs, octets)
        self._link.taken(self._number)
        if sender >= 0:
            self._source = self._members.index(sender)
        self._done = True
        if self._future is not None and not self._future.done():
            self._future.set_result(self._outputs)
        return True

    def is_completed(self) -> bool:
        """Return whether it has ended; a poll takes a microsecond, so that loops end."""
        return self._done or (self._link.poll(self._number) and self.wait())

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._outputs

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future, which is there once it, or this work, is waited for.

        Who waits for it without Python, as DDP's reducer does at the end of a backward pass, finds
        it there: the pass waits for it before.
        """
        if self._future is None:
            self._future = _LazyFuture(self.wait)
            if self._done:
                self._future.set_result(self._outputs)
            elif torch._C._current_graph_task_id() != -1:  # noqa: SLF001 (a backward pass)
                engine = torch.autograd.Variable._execution_engine  # noqa: SLF001
                engine.queue_callback(self.wait)
        return self._future


class _LazyFuture(torch.futures.Future):
    """A future that has its work waited for when somebody waits for it."""

    def __init__(self, arrive: Callable[[], object]) -> None:
        super().__init__()
        self._arrive = arrive

    def wait(self) -> Any:
        if not self.done():
            self._arrive()
        return super().wait()

    def value(self) -> Any:
        return self.wait()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        following = _LazyFuture(self.wait)
        whole = super().then(callback)
        whole.add_done_callback(lambda one: following.set_result(one.value()))
        return following


class _Together(dist.Work):
    """Several works as one."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        for one in self._works:
            one.wait()
        return True

    def is_completed(self) -> bool:
        return all(one.is_completed() for one in self._works)

    def get_future(self) -> Any:
        return torch.futures.collect_all([one.get_future() for one in self._works])


class UetemuGroup(dist.ProcessGroup):
    """A group of ranks whose calls cross the fabric; ``members`` are ranks of the run."""

    def __init__(self, link: RankLink, rank: int, members: Sequence[int], name: str) -> None:
        super().__init__(rank, len(members))
        self._link, self._members, self._name = link, tuple(members), name
        self._coalesced: list[dist.Work] | None = None

    def size(self) -> int:
        return len(self._members)

    def getBackendName(self) -> str:
        return NAME

    @property
    def group_name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"ProcessGroupUetemu({self._name!r}, ranks {list(self._members)})"

    def _call(
        self, kind: str, inputs: Tensors, outputs: Tensors, octets: int, **more: Any
    ) -> UetemuWork:
        link = self._link
        given = _octets(inputs)
        source = link.source(given)
        at = source
        for one in inputs:
            piece = _as_octets(one)
            link.octets[at : at + len(piece)] = piece
            at += len(piece)
        fields: dict[str, Any] = {"group": self._name, "members": self._members, **more}
        number = link.call(
            Call(
                rank=-1,
                number=0,
                clock_ns=0,
                kind=kind,
                octets=octets,
                source=source,
                source_octets=given,
                result_octets=_octets(outputs),
                site=script_line(),
                **fields,
            )
        )
        work = UetemuWork(link, number, outputs, self._members)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _reduced(
        self, kind: str, inputs: Tensors, outputs: Tensors, opts: Any, root: int = 0
    ) -> UetemuWork:
        dtype, reduction = _dtype([*inputs, *outputs], kind), _reduction(opts.reduceOp)
        if dtype == "bool":
            if reduction not in _OF_BOOL:
                raise _refusal(f"{reduction} of truth values")
            reduction = _OF_BOOL[reduction]
        return self._call(
            kind, inputs, outputs, _octets(inputs), dtype=dtype, reduction=reduction, root=root
        )

    # -- collectives ---------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        return self._reduced(ALLREDUCE, tensors, tensors, opts or dist.AllreduceOptions())

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        own = opts.rootRank == self.rank()
        return self._call(
            BROADCAST,
            tensors if own else [],
            tensors,
            _octets(tensors),
            dtype=_dtype(tensors, BROADCAST),
            root=opts.rootRank,
        )

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        own = opts.rootRank == self.rank()
        return self._reduced(REDUCE, tensors, tensors if own else [], opts, opts.rootRank)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        (own,), (input_tensor,) = outputs, inputs
        self._check_parts("all_gather", own, input_tensor)
        return self._gathered(own, input_tensor)

    def _gathered(self, outputs: Tensors, own: torch.Tensor) -> UetemuWork:
        dtype = _dtype([own, *outputs], ALLGATHER)
        return self._call(ALLGATHER, [own], outputs, self.size() * _octets([own]), dtype=dtype)

    def all_gather_single(
        self, output: torch.Tensor, own: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        if output.numel() != own.numel() * self.size():
            raise ValueError(
                f"all_gather_into_tensor of {own.numel()} elements over {self.size()} ranks needs "
                f"an output of {own.numel() * self.size()}, and got {output.numel()}"
            )
        return self._gathered([output], own)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        return _Together(
            [self.all_gather_single(*pair) for pair in zip(outputs, inputs, strict=True)]
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        lists = [list(of_rank) for of_rank in zip(*outputs, strict=True)]
        return _Together([self._gathered(own, one) for own, one in zip(lists, inputs, strict=True)])

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None
    ) -> dist.Work:
        (output,), (parts,) = outputs, inputs
        self._check_parts("reduce_scatter", parts, output)
        return self._reduced(REDUCESCATTER, parts, [output], opts or dist.ReduceScatterOptions())

    def reduce_scatter_single(
        self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        if whole.numel() != output.numel() * self.size():
            raise ValueError(
                f"reduce_scatter_tensor of {whole.numel()} elements over {self.size()} ranks needs "
                f"an output of one rank's part, and got {output.numel()}"
            )
        return self._reduced(REDUCESCATTER, [whole], [output], opts or dist.ReduceScatterOptions())

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        return _Together(
            [self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)]
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        sent = tuple(_octets([one]) for one in inputs)
        return self._exchanged(outputs, inputs, sent)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        opts: Any = None,
    ) -> dist.Work:
        if not output_splits and not input_splits:
            if whole.numel() % self.size() or whole.numel() != output.numel():
                raise ValueError("all_to_all_single without splits takes equal parts for all ranks")
            dtype = _dtype([whole, output], ALLTOALL)
            return self._call(ALLTOALL, [whole], [output], _octets([whole]), dtype=dtype)
        rows = input_splits or [whole.shape[0] // self.size()] * self.size()
        row = _octets([whole]) // max(1, whole.shape[0])
        return self._exchanged([output], [whole], tuple(row * count for count in rows))

    alltoall_base = all_to_all_single

    def _exchanged(self, outputs: Tensors, inputs: Tensors, sent: tuple[int, ...]) -> UetemuWork:
        dtype = _dtype([*inputs, *outputs], ALLTOALL)
        return self._call(ALLTOALL, inputs, outputs, 0, dtype=dtype, splits=sent)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        (own,) = inputs
        there = outputs[0] if opts.rootRank == self.rank() else []
        return self._call(
            GATHER,
            [own],
            there,
            self.size() * _octets([own]),
            dtype=_dtype([own, *there], GATHER),
            root=opts.rootRank,
        )

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> dist.Work:
        (own,) = outputs
        there = inputs[0] if opts.rootRank == self.rank() else []
        return self._call(
            SCATTER,
            there,
            [own],
            self.size() * _octets([own]),
            dtype=_dtype([own, *there], SCATTER),
            root=opts.rootRank,
        )

    def barrier(self, opts: Any = None) -> dist.Work:
        return self._call(BARRIER, [], [], 0)

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> dist.Work:
        return self._message(SEND, tensors, [], destination, tag)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> dist.Work:
        return self._message(RECEIVE, [], tensors, source, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        return self._message(RECEIVE, [], tensors, ANY, tag)

    def _message(
        self, kind: str, sent: Tensors, received: Tensors, peer: int, tag: int
    ) -> UetemuWork:
        if peer == self.rank():
            raise _refusal(f"{kind} of a rank with itself; copy the tensor")
        tensors = [*sent, *received]
        return self._call(
            kind,
            sent,
            received,
            _octets(tensors),
            dtype=_dtype(tensors, kind),
            root=peer,
            tag=tag,
        )

    def _check_parts(self, what: str, parts: Tensors, own: torch.Tensor) -> None:
        if len(parts) != self.size() or any(one.numel() != own.numel() for one in parts):
            raise ValueError(
                f"{what} takes {self.size()} parts of {own.numel()} elements, and got "
                f"{[one.numel() for one in parts]}"
            )

    # -- several calls as one ------------------------------------------------------------------

    def _start_coalescing(self, device: Any) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any) -> dist.Work:
        works, self._coalesced = self._coalesced or [], None
        return _Together(works)


class _Padded(torch.Tensor):
    """A pickled object, which grows by zeros: what is sent must not be whatever memory holds."""

    def resize_(self, *shape: Any, **more: Any) -> Any:
        before = self.numel()
        super().resize_(*shape, **more)
        self[before:] = 0
        return self


class RunStore(dist.Store):
    """The key-value store of all ranks, which the driver of the run keeps."""

    def __init__(self, link: RankLink) -> None:
        super().__init__()
        self._link = link

    def set(self, key: str, value: str | bytes) -> None:
        self._link.store("set", key, value=value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        return bytes(self._link.store("get", key))

    def add(self, key: str, amount: int) -> int:
        return int(self._link.store("add", key, amount=amount))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._link.store("wait", *keys)

    def check(self, keys: list[str]) -> bool:
        return bool(self._link.store("check", *keys))

    def delete_key(self, key: str) -> bool:
        return bool(self._link.store("delete", key))

    def num_keys(self) -> int:
        return int(self._link.store("count"))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        old, new = (one.encode() if isinstance(one, str) else one for one in (expected, desired))
        return bytes(self._link.store("compare", key, value=old + b"\0" + new))

    def set_timeout(self, timeout: timedelta) -> None:
        """Nothing: what never comes is found out by the driver."""


def install(link: RankLink) -> None:
    """Have torch.distributed use the fabric, whatever backend the script names."""

    def make(options: Any, _: Any) -> UetemuGroup:
        members = list(options.global_ranks_in_group) or list(range(options.group_size))
        return UetemuGroup(link, options.group_rank, members, options.group_id)

    dist.Backend.register_backend(NAME, make, extended_api=True, devices=["cpu"])
    helper = distributed_c10d._new_process_group_helper  # noqa: SLF001 (of every way to a group)
    told: set[str] = set()

    def new_process_group(
        size: int, rank: int, ranks: list[int], backend: Any, *rest: Any, **more: Any
    ) -> Any:
        asked = str(backend).lower()
        if asked not in (NAME, *OWN_KINDS):
            if link.rank == 0 and asked != "undefined" and asked not in told:
                told.add(asked)
                sys.stderr.write(f"uetemu: backend {asked} is uetemu's here, over the fabric\n")
            backend = dist.Backend(NAME)
        more.pop("backend_options", None)
        more["device_id"] = None
        return helper(size, rank, ranks, backend, *rest, **more)

    store = RunStore(link)  # kept: torch keeps what is C++'s of it alone

    def rendezvous(
        url: str, rank: int = -1, world_size: int = -1, **_: Any
    ) -> Iterator[tuple[dist.Store, int, int]]:
        if rank not in (-1, link.rank) or world_size not in (-1, link.size):
            raise ValueError(
                f"init_process_group gets rank={rank} and world_size={world_size}, and this is "
                f"rank {link.rank} of {link.size}; take RANK and WORLD_SIZE from the environment"
            )
        yield store, link.rank, link.size

    def monitored_barrier(group: Any = None, *_: Any, **__: Any) -> None:
        dist.barrier(group)  # who does not come is named in any case

    to_tensor = distributed_c10d._object_to_tensor  # noqa: SLF001

    def object_to_tensor(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        tensor, size = to_tensor(*given)
        return tensor.as_subclass(_Padded), size

    distributed_c10d._object_to_tensor = object_to_tensor  # noqa: SLF001
    distributed_c10d._new_process_group_helper = new_process_group  # noqa: SLF001
    distributed_c10d.rendezvous = rendezvous
    dist.monitored_barrier = distributed_c10d.monitored_barrier = monitored_barrier
    # It would warn that there is no NCCL.
    timeout = distributed_c10d._get_default_timeout  # noqa: SLF001
    distributed_c10d._get_default_timeout = lambda backend: timeout("gloo")  # noqa: SLF001
