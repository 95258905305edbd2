"""What a rank of a script computes and sends, noted while the script runs.

::

    stream 0      [ compute ][ compute     ]............[ compute ]
    group "dp"               [ all_reduce ][ all_reduce ]

A :class:`Recorder` is a mode of torch's dispatcher, which every operation passes, also those that
torch itself calls, such as the all-reduces of DistributedDataParallel.  It keeps the order that a
GPU would have:

- Operations of one stream follow each other, and their FLOPs (``torch.utils.flop_counter``) add up
  to one computation until the stream waits for something else.
- A collective begins when the stream that calls it is that far, and the collective of its group
  before it is over.
- A stream waits for a collective when the script calls ``wait()`` of its Work, or when an operation
  takes a tensor that is not there yet: whichever is first.
- Streams and events of ``torch.cpu``, which do nothing in torch, order here what they order on a
  GPU.  FullyShardedDataParallel (``fully_shard``) overlaps its collectives by them.

Notes are plain data, written as JSON for each rank; ``scenarios.traces.recording`` makes a trace of
them.  Operations without FLOPs take no time, and neither does the host.
"""

# ruff: noqa: SLF001 (operations of torch have such names)

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork, ProcessGroup, Work, _resolve_process_group
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

from emulator.torch_backend.flops import FLOPS
from emulator.torch_backend.launching import RankPlace
from emulator.torch_backend.other_groups import have_gloo, pretend
from emulator.torch_backend.script_lines import script_line

_aten = torch.ops.aten
Tensors = list[Any]


class RecordingError(RuntimeError):
    """A call that no trace can have."""


@dataclass
class _Call:
    """A collective or a message: what it is, and the tensors that it fills."""

    note: dict[str, Any]
    group: Any
    results: Tensors = field(default_factory=list)


class _Stream:
    """A stream in place of ``torch.cpu.Stream``: what its next operation waits for."""

    recorder: Recorder

    def __init__(self, *_: object, **__: object) -> None:
        self.tail: set[int] = set()
        self.flops = 0

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event()
        event.record(self)
        return event

    def wait_event(self, event: _Event | None) -> None:
        if event is not None:
            self.recorder.wait(self, event.tail)

    def wait_stream(self, other: _Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        """Do nothing: the host takes no time."""

    def query(self) -> bool:
        return True


class _Event:
    """An event in place of ``torch.cpu.Event``."""

    recorder: Recorder

    def __init__(self, *_: object, **__: object) -> None:
        self.tail: set[int] = set()

    def record(self, stream: _Stream | None = None) -> None:
        stream = stream or self.recorder.stream
        self.recorder.flush(stream)
        self.tail = set(stream.tail)

    def wait(self, stream: _Stream | None = None) -> None:
        (stream or self.recorder.stream).wait_event(self)

    def synchronize(self) -> None:
        """Do nothing: the host takes no time."""

    def query(self) -> bool:
        return True


class _StreamContext:
    """A context in place of ``torch.cpu.stream``."""

    recorder: Recorder

    def __init__(self, stream: _Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._before = self.recorder.stream
        if self._stream is not None:
            self.recorder.stream = self._stream

    def __exit__(self, *_: object) -> None:
        self.recorder.stream = self._before


class Recorder(TorchDispatchMode):
    """Notes the operations of a rank, of a script that runs while this mode is on."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[dict[str, Any]] = []
        self.groups: dict[str, list[int]] = {}
        self.stream = _Stream()
        self._step = 0
        self._last: dict[tuple[object, ...], int] = {}
        self._works: dict[int, tuple[Any, int]] = {}
        self._coming: dict[int, int] = {}  # by storage: which operation fills it

    # -- streams ---------------------------------------------------------------------------------

    def flush(self, stream: _Stream) -> None:
        """Note what ``stream`` has computed since it waited last."""
        if stream.flops:
            stream.tail = {self._note({"kind": "compute", "flops": stream.flops}, stream.tail)}
            stream.flops = 0

    def wait(self, stream: _Stream, others: Iterable[int]) -> None:
        """Let what follows in ``stream`` wait for ``others`` too."""
        new = set(others) - stream.tail
        if new:
            self.flush(stream)
            stream.tail |= new
            stream.tail -= {one for late in stream.tail for one in self.operations[late]["after"]}

    def _note(self, note: dict[str, Any], after: Iterable[int]) -> int:
        note |= {"after": sorted(after), "step": self._step}
        self.operations.append(note)
        return len(self.operations) - 1

    # -- operations ------------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(one, torch.Tensor) and one is not FakeTensor for one in types):
            plain = {torch.Tensor, torch.nn.Parameter, FakeTensor}
            if not plain.issuperset(types):
                return NotImplemented  # DTensor and its like: their own operations come here
        if func.namespace in ("c10d", "_c10d_functional", "_dtensor"):
            return self._communicate(func, args, kwargs)
        # A view, or a question such as which device a tensor is on, needs no contents.
        if self._coming and not func.is_view and func.namespace != "prim":
            self._take(self.stream, (args, kwargs))
        if func is _aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return _unknown(args[0])
        formula = FLOPS.get(func._overloadpacket)
        if formula is None and func.namespace == "aten":
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if formula is not None:
            self.stream.flops += int(formula(*args, **kwargs, out_val=result))
        return result

    def _take(self, stream: _Stream, given: object) -> None:
        """Wait for what fills the tensors in ``given``, if it is under way."""
        for tensor in _tensors(given):
            coming = self._coming.pop(_storage(tensor), None)
            if coming is not None:
                self.wait(stream, [coming])
                self._works = {key: one for key, one in self._works.items() if one[1] != coming}

    def wait_for_work(self, work: Any) -> None:
        """Let what follows in the current stream wait for ``work``, if it is of a call here."""
        _, index = self._works.pop(id(work), (None, None))
        if index is not None:
            self.wait(self.stream, [index])
            self._coming = {key: one for key, one in self._coming.items() if one != index}

    def next_step(self) -> None:
        """Count a step of an optimiser."""
        self.flush(self.stream)
        self._step += 1

    # -- collectives and messages ----------------------------------------------------------------

    def _communicate(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = func._schema.name.split("::")[1]
        given = dict(zip((one.name for one in func._schema.arguments), args, strict=False))
        given.update(kwargs)
        if name in ("wait_tensor", "check_for_nan"):
            self._take(self.stream, (args, kwargs))
            return func(*args, **kwargs)
        read = _CALLS.get(name)
        if read is None and not given.keys() & {"process_group", "group_name"}:
            return self._wrap(func, args, kwargs)
        if read is None:
            raise RecordingError(
                f"{name} cannot be recorded; record a script that calls one of "
                f"{', '.join(sorted(_CALLS))}"
            )
        self._take(self.stream, (args, kwargs))
        result = func(*args, **kwargs)
        call = read(name, given, result)
        self.flush(self.stream)
        order = self._order(call)
        before = {self._last[order]} if order in self._last else set()
        note = call.note | {"group": self._group(call.group), "name": script_line()}
        index = self._last[order] = self._note(note, self.stream.tail | before)
        for tensor in _tensors(call.results):
            self._coming[_storage(tensor)] = index
        if func.namespace == "c10d":
            self._keep_work(result, index)
        return result

    def _wrap(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call what moves nothing, such as a wrapper of a result that may still be coming."""
        coming = [self._coming.get(_storage(tensor)) for tensor in _tensors((args, kwargs))]
        result = func(*args, **kwargs)
        for index in coming:
            if index is not None:
                self._coming |= {_storage(tensor): index for tensor in _tensors(result)}
        return result

    def _keep_work(self, result: Any, index: int) -> None:
        boxed = result[-1] if isinstance(result, tuple | list) else result
        if boxed is None:  # a monitored barrier is over when it returns
            self.wait(self.stream, [index])
            return
        work = Work.unbox(boxed)
        self._works[id(work)] = work, index

    def _order(self, call: _Call) -> tuple[object, ...]:
        """Return in whose order the call stands: its group's, or that of messages to a peer."""
        if "peer" in call.note:
            return call.group.group_name, call.note["kind"], call.note["peer"]
        return (call.group.group_name,)

    def _group(self, group: Any) -> str:
        name = _name_of(group)
        if name not in self.groups:
            self.groups[name] = list(dist.get_process_group_ranks(group))
        return name


def _name_of(group: Any) -> str:
    said = group.group_desc
    if said == "default_pg":
        return "world"
    return f"{'group' if said in ('', 'undefined') else said}.{group.group_name}"


def _tensors(given: object) -> Iterator[Any]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _tensors(one)
    elif isinstance(given, dict):
        for one in given.values():
            yield from _tensors(one)


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _octets(given: object) -> int:
    return sum(one.numel() * one.element_size() for one in _tensors(given))


def _unknown(tensor: Any) -> float:
    """Return what a fake tensor holds: for a floating-point number, no number."""
    if tensor.dtype.is_floating_point:
        return float("nan")
    raise RecordingError(
        f"a value of a fake tensor ({tensor.dtype}) decides what the script does, and --fake has "
        "no values; record it without --fake, or take the value from elsewhere"
    )


# -- what calls of torch.distributed say -----------------------------------------------------------


def _group_of(given: Mapping[str, Any]) -> Any:
    if "process_group" in given:
        return ProcessGroup.unbox(given["process_group"])
    return _resolve_process_group(given["group_name"])


def _collective(kind: str, size: str, *, results: str = "", parts: bool = False) -> Any:
    """Return a reader of a call: the argument whose octets are its size, or a part of it.

    ``results`` is the argument that it fills, if it does not return the tensors.
    """

    def read(_: str, given: Mapping[str, Any], result: Any) -> _Call:
        group = _group_of(given)
        octets = _octets(given[size]) * (group.size() if parts else 1)
        note = {"kind": kind, "octets": octets}
        for key in ("root_rank", "src"):
            if key in given:
                note["root"] = dist.get_global_rank(group, given[key])
        return _Call(note, group, list(_tensors(given.get(results, result) if results else result)))

    return read


def _barrier(_: str, given: Mapping[str, Any], __: Any) -> _Call:
    return _Call({"kind": "barrier", "octets": 0}, _group_of(given))


def _all_to_all(_: str, given: Mapping[str, Any], result: Any) -> _Call:
    group = _group_of(given)
    if "input_tensors" in given:
        splits = [_octets(one) for one in given["input_tensors"]]
        results = given["output_tensors"]
    else:
        sent = given["input"]
        octets, rows = _octets(sent), list(given.get("input_split_sizes", ()))
        length = sent.shape[0] if sent.dim() else 1
        equal = [octets // group.size()] * group.size()
        splits = [octets * one // max(1, length) for one in rows] if rows else equal
        results = given.get("output", result)
    note = {"kind": "all_to_all", "octets": sum(splits)}
    if len(set(splits)) > 1:
        note["splits"] = splits
    return _Call(note, group, list(_tensors(results)))


def _message(name: str, given: Mapping[str, Any], result: Any) -> _Call:
    group = _group_of(given)
    sends = name in ("send", "isend")
    tensors = given.get("tensors", given.get("tensor"))
    peer = dist.get_global_rank(group, given["dst" if sends else "src"])
    note = {"kind": "send" if sends else "recv", "octets": _octets(tensors), "peer": peer}
    note["tag"] = given.get("tag", 0)
    received = [] if sends else list(_tensors([tensors, result]))
    return _Call(note, group, received)


_CALLS: Mapping[str, Callable[[str, Mapping[str, Any], Any], _Call]] = {
    "allreduce_": _collective("all_reduce", "tensors", results="tensors"),
    "allreduce_coalesced_": _collective("all_reduce", "tensors", results="tensors"),
    "broadcast_": _collective("broadcast", "tensors", results="tensors"),
    "reduce_": _collective("reduce", "tensors", results="tensors"),
    "allgather_": _collective("all_gather", "input_tensors", results="output_tensors", parts=True),
    "_allgather_base_": _collective("all_gather", "output_tensor", results="output_tensor"),
    "allgather_coalesced_": _collective(
        "all_gather", "input_list", results="output_lists", parts=True
    ),
    "allgather_into_tensor_coalesced_": _collective("all_gather", "outputs", results="outputs"),
    "reduce_scatter_": _collective(
        "reduce_scatter", "output_tensors", results="output_tensors", parts=True
    ),
    "_reduce_scatter_base_": _collective("reduce_scatter", "input_tensor", results="output_tensor"),
    "reduce_scatter_tensor_coalesced_": _collective("reduce_scatter", "inputs", results="outputs"),
    "gather_": _collective("gather", "input_tensors", results="output_tensors", parts=True),
    "scatter_": _collective("scatter", "output_tensors", results="output_tensors", parts=True),
    "alltoall_": _all_to_all,
    "alltoall_base_": _all_to_all,
    "barrier": _barrier,
    "monitored_barrier_": _barrier,
    "send": _message,
    "recv_": _message,
    "all_reduce": _collective("all_reduce", "input"),
    "all_reduce_": _collective("all_reduce", "input", results="input"),
    "all_reduce_coalesced": _collective("all_reduce", "inputs"),
    "all_reduce_coalesced_": _collective("all_reduce", "inputs", results="inputs"),
    "broadcast": _collective("broadcast", "input"),
    "all_gather_into_tensor": _collective("all_gather", "input", parts=True),
    "all_gather_into_tensor_out": _collective("all_gather", "input", results="out", parts=True),
    "all_gather_into_tensor_coalesced": _collective("all_gather", "inputs", parts=True),
    "reduce_scatter_tensor": _collective("reduce_scatter", "input"),
    "reduce_scatter_tensor_out": _collective("reduce_scatter", "input", results="out"),
    "reduce_scatter_tensor_coalesced": _collective("reduce_scatter", "inputs"),
    "all_to_all_single": _all_to_all,
    "shard_dim_alltoall": _all_to_all,
    "isend": _message,
    "irecv": _message,
}


# -- in the process of a rank ----------------------------------------------------------------------


def begin(place: RankPlace, folder: str, *, fake: bool, cuda_on_cpu: bool) -> Callable[[str], None]:
    """Note from now on what the rank at ``place`` does; return what writes it into ``folder``."""
    devices: list[Any] = [torch.cpu]
    if cuda_on_cpu:
        from emulator.torch_backend.cuda_on_cpu import map_cuda

        map_cuda()
        devices.append(torch.cuda)
    recorder = _listen(devices)
    families = pretend(place) if fake else None
    if not fake:
        have_gloo(place)
    recorder.__enter__()

    def end(_: str) -> None:
        recorder.__exit__(None, None, None)
        write(recorder, Path(folder), place, families)

    return end


def _listen(devices: Sequence[Any]) -> Recorder:
    """Return a recorder to which Works, streams of ``devices`` and optimisers tell what they do."""
    recorder = Recorder()
    for one in (_Stream, _Event, _StreamContext):
        one.recorder = recorder
    for device in devices:
        device.Stream, device.Event = _Stream, _Event
        device.StreamContext = device.stream = _StreamContext
        device.current_stream = lambda device=None: recorder.stream
    for kind in (Work, FakeWork):  # each has a wait() of its own
        _tell_of_waits(kind, recorder)
    register_optimizer_step_post_hook(lambda *_: recorder.next_step())
    return recorder


def _tell_of_waits(kind: Any, recorder: Recorder) -> None:
    wait = kind.wait

    def waited(work: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.wait_for_work(work)
        return wait(work, *args, **kwargs)

    kind.wait = waited


def write(
    recorder: Recorder,
    folder: Path,
    place: RankPlace,
    families: Sequence[Sequence[int]] | None = None,
) -> None:
    """Write what ``recorder`` has noted into ``folder``, as the file of the rank at ``place``."""
    recorder.flush(recorder.stream)
    notes = {
        "rank": place.rank,
        "ranks": place.size,
        "groups": recorder.groups,
        "operations": recorder.operations,
        "families": families,
    }
    path = folder / f"{place.rank}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(notes))
    os.replace(part, path)
