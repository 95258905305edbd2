"""Kineto traces of PyTorch (JSON): the collectives of NCCL kernels, one file for each rank.

A kernel that has ``Collective name`` among its arguments is a collective, a send or a receive.  Its
size follows from the numbers of elements and their type.  Collectives of one CUDA stream follow
each other; the time between them counts as computing.  Times are microseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios.traces import trace_model
from scenarios.traces.format_registry import FORMATS, ReadOptions, TraceFormat
from scenarios.traces.trace_file import TraceFile, read_groups

_COLLECTIVES = {
    "allreduce": trace_model.Collective.ALL_REDUCE,
    "all_reduce": trace_model.Collective.ALL_REDUCE,
    "allgather": trace_model.Collective.ALL_GATHER,
    "all_gather": trace_model.Collective.ALL_GATHER,
    "_allgather_base": trace_model.Collective.ALL_GATHER,
    "reduce_scatter": trace_model.Collective.REDUCE_SCATTER,
    "_reduce_scatter_base": trace_model.Collective.REDUCE_SCATTER,
    "all_to_all": trace_model.Collective.ALL_TO_ALL,
    "alltoall_base": trace_model.Collective.ALL_TO_ALL,
    "all_to_allv": trace_model.Collective.ALL_TO_ALL,
    "broadcast": trace_model.Collective.BROADCAST,
    "reduce": trace_model.Collective.REDUCE,
    "gather": trace_model.Collective.GATHER,
    "scatter": trace_model.Collective.SCATTER,
    "barrier": trace_model.Collective.BARRIER,
}
#: Collectives whose whole is what comes out.
_GROWING = (trace_model.Collective.ALL_GATHER, trace_model.Collective.GATHER)
_SIZES = {
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long"), 8),
}
#: JSON of others by a key of it.
_OTHERS = {
    "workload_graph": "Chakra's trace as JSON",
    "nodes": "an execution trace of PyTorch, of which Chakra's converter makes a trace",
}
#: Times of a file end here: they are microseconds since 1970, or less.
_LATEST_US = 2**53
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class _Kernel:
    """A kernel of NCCL: its number in the file, its times, and its arguments."""

    number: int
    start_ns: int
    duration_ns: int
    stream: int
    arguments: Mapping[str, Any]


class _KinetoReader:
    def __init__(self, file: TraceFile, options: ReadOptions) -> None:
        self._file, self._options = file, options
        content = self._content()
        info = content.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        self.rank, self.world = info.get("rank"), info.get("world_size")
        for name, value in (("rank", self.rank), ("world_size", self.world)):
            if type(value) is not int or not 0 <= value <= trace_model.MOST_RANKS:
                raise self._wrong(
                    f"distributedInfo has no {name}; record with torch.distributed initialised, or "
                    "write it into the file"
                )
        self._begin_ns, self._kernels = self._events(content["traceEvents"])

    def operations(self, groups: dict[str, tuple[int, ...]]) -> list[trace_model.TraceOperation]:
        named = read_groups(Path(self._options.groups)) if self._options.groups else {}
        found: list[trace_model.TraceOperation] = []
        last: dict[int, tuple[int, tuple[int, ...]]] = {}
        for kernel in self._kernels:
            ended, after = last.get(kernel.stream, (self._begin_ns, ()))
            gap = trace_model.TraceCompute(
                where=f"event {kernel.number}",
                after=after,
                duration_ns=max(0, kernel.start_ns - ended),
                stream=kernel.stream,
            )
            found.append(gap)
            found.append(self._operation(kernel, (len(found) - 1,), groups, named))
            last[kernel.stream] = kernel.start_ns + kernel.duration_ns, (len(found) - 1,)
        return found

    def _content(self) -> dict[str, Any]:
        try:
            content = json.loads(self._file.text)
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", 1)
            raise self._file.wrong(line, "not JSON; is the file whole?") from None
        if not isinstance(content, dict) or not isinstance(content.get("traceEvents"), list):
            for key, what in _OTHERS.items():
                if isinstance(content, dict) and key in content:
                    raise self._wrong(f"this is {what}; give its .et, or a trace of Kineto")
            raise self._wrong("it has no traceEvents; is it a trace of Kineto?")
        return content

    def _events(self, events: Sequence[Any]) -> tuple[int, list[_Kernel]]:
        """Return when the first kernel begins, and all kernels of NCCL in order."""
        begin: int | None = None
        found = []
        for number, event in enumerate(events):
            if not isinstance(event, dict) or event.get("ph") != "X":
                continue
            if str(event.get("cat", "")).lower() != "kernel":
                continue
            start, duration = self._time(number, event, "ts"), self._time(number, event, "dur")
            begin = start if begin is None else min(begin, start)
            arguments = event.get("args")
            name = str(event.get("name", ""))
            if not isinstance(arguments, dict) or "Collective name" not in arguments:
                if name.startswith("nccl"):
                    raise self._wrong_at(
                        number,
                        f"kernel {name[:40]} does not say its collective; record with PyTorch 2.4 "
                        "or later",
                    )
                continue
            stream = arguments.get("stream", event.get("tid", 0))
            stream = stream if type(stream) is int and 0 <= stream < 2**31 else 0
            found.append(_Kernel(number, start, duration, stream, arguments))
            if len(found) > trace_model.MOST_OPERATIONS // 2:
                raise self._wrong("too many collectives; record fewer steps")
        found.sort(key=lambda kernel: kernel.start_ns)
        return begin or 0, found

    def _operation(
        self,
        kernel: _Kernel,
        after: tuple[int, ...],
        groups: dict[str, tuple[int, ...]],
        named: Mapping[str, tuple[int, ...]],
    ) -> trace_model.TraceOperation:
        where = f"event {kernel.number}"
        name = str(kernel.arguments["Collective name"])
        ranks = self._ranks(kernel, named)
        group = f"{kernel.arguments.get('Process Group Name', '')}:{','.join(map(str, ranks))}"
        if name in ("send", "recv"):
            key = "Dst Rank" if name == "send" else "Src Rank"
            peer = self._count(kernel, key)
            if peer >= len(ranks):
                raise self._wrong_at(
                    kernel.number, f"{key} is {peer}, and the group has {len(ranks)} ranks"
                )
            kind = trace_model.TraceSend if name == "send" else trace_model.TraceReceive
            octets = self._octets(kernel, "In" if name == "send" else "Out")
            return kind(where=where, name=name, after=after, peer=ranks[peer], octets=octets)
        known = _COLLECTIVES.get(name)
        if known is None:
            raise self._wrong_at(
                kernel.number,
                f"collective {name[:40]!r} is unknown; known are send, recv, "
                f"{', '.join(_COLLECTIVES)}",
            )
        octets = 0
        if known is not trace_model.Collective.BARRIER:
            octets = self._octets(kernel, "Out" if known in _GROWING else "In")
        splits: tuple[int, ...] = ()
        if known is trace_model.Collective.ALL_TO_ALL:
            splits = self._splits(kernel, octets, len(ranks))
        groups[group] = ranks
        return trace_model.TraceCollective(
            where=where,
            name=name,
            after=after,
            kind=known,
            octets=octets,
            group=group,
            root=self._root(kernel, ranks) if known.rooted else None,
            recorded_ns=kernel.duration_ns,
            splits=splits,
        )

    def _splits(self, kernel: _Kernel, octets: int, members: int) -> tuple[int, ...]:
        """Return the octets to each member, of a kernel that has parts: rows of its tensor."""
        text = str(kernel.arguments.get("In split size", ""))
        rows = [int(word[:18]) for word in _NUMBER.findall(text)]
        if not rows:
            return ()
        whole = sum(rows) or 1
        if "..." in text or len(rows) != members or any(octets * one % whole for one in rows):
            raise self._wrong_at(
                kernel.number,
                f"In split size {text[:40]!r} does not divide {octets} B among {members} ranks; "
                "write this job as a plain list, whose splits have no limit",
            )
        return tuple(octets * one // whole for one in rows) if octets else ()

    def _ranks(self, kernel: _Kernel, named: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        assert isinstance(self.world, int)
        name = str(kernel.arguments.get("Process Group Name", ""))
        if name in named:
            return named[name]
        size = kernel.arguments.get("Group size", self.world)
        if size == self.world:
            return tuple(range(self.world))
        text = str(kernel.arguments.get("Process Group Ranks", ""))
        ranks = tuple(int(word[:9]) for word in _NUMBER.findall(text))
        if "..." in text or len(ranks) != size:
            raise self._wrong_at(
                kernel.number,
                f"the ranks of group {name[:40]!r} are cut off or missing; give them with --param "
                f'groups=FILE, such as {{"{name[:20]}": [0, 1]}}',
            )
        return ranks

    def _root(self, kernel: _Kernel, ranks: tuple[int, ...]) -> int:
        root = self._options.root
        if root is None or not 0 <= root < len(ranks):
            raise self._wrong_at(
                kernel.number,
                f"the trace does not say the root; state its rank in the group, 0 to "
                f"{len(ranks) - 1}, with --param root=N",
            )
        return ranks[root]

    def _octets(self, kernel: _Kernel, way: str) -> int:
        dtype = str(kernel.arguments.get("dtype", ""))
        size = 1 if dtype.startswith("Float8") else _SIZES.get(dtype)
        if size is None:
            raise self._wrong_at(
                kernel.number, f"the size of dtype {dtype[:40]!r} is unknown; known are "
                f"{', '.join(_SIZES)} and Float8"
            )  # fmt: skip
        return size * self._count(kernel, f"{way} msg nelems")

    def _count(self, kernel: _Kernel, name: str) -> int:
        value = kernel.arguments.get(name)
        if type(value) is not int or not 0 <= value < 2**48:
            raise self._wrong_at(
                kernel.number, f"{name} is {str(value)[:40]!r}, no whole number; correct it"
            )
        return value

    def _time(self, number: int, event: Mapping[str, Any], name: str) -> int:
        value: Any = event.get(name)
        if type(value) not in (int, float) or not 0 <= value < _LATEST_US:
            raise self._wrong_at(number, f"{name} is {str(value)[:40]!r}, no time in us")
        return round(float(value) * 1000)

    def _wrong(self, stated: str) -> trace_model.TraceRefusal:
        return trace_model.TraceRefusal(f"{self._file.name}: {stated}")

    def _wrong_at(self, number: int, stated: str) -> trace_model.TraceRefusal:
        return trace_model.TraceRefusal(f"{self._file.name}, event {number}: {stated}")


def _read(files: Sequence[TraceFile], options: ReadOptions) -> trace_model.Trace:
    lists: dict[int, list[trace_model.TraceOperation]] = {}
    names: dict[int, str] = {}
    groups: dict[str, tuple[int, ...]] = {}
    world = 0
    for file in files:
        reader = _KinetoReader(file, options)
        file.release()
        assert isinstance(reader.rank, int)
        assert isinstance(reader.world, int)
        if reader.rank in lists:
            raise trace_model.TraceRefusal(
                f"{file.name} and {names[reader.rank]} are both rank {reader.rank}; leave one out"
            )
        if world not in (0, reader.world):
            raise trace_model.TraceRefusal(
                f"{file.name}: world_size is {reader.world}, and {world} in the files before; give "
                "the files of one job"
            )
        world, names[reader.rank] = reader.world, file.name
        lists[reader.rank] = reader.operations(groups)
    missing = [rank for rank in range(world) if rank not in lists]
    if missing or len(lists) > world:
        raise trace_model.TraceRefusal(
            f"{files[0].name}: world_size is {world}, and rank "
            f"{missing[0] if missing else world} has {'no' if missing else 'a'} file; give the "
            "file of each rank"
        )
    return trace_model.Trace(files[0].stem, tuple(lists[rank] for rank in range(world)), groups)


FORMATS.register(
    TraceFormat(
        name="kineto",
        meaning="Kineto trace of PyTorch with arguments of NCCL",
        suffixes=(".json",),
        recognises=lambda head: b'"coll_perf"' not in head and b'"inspector_output' not in head,
        begins="has no 'coll_perf'",
        read=_read,
        facts=("groups", "root"),
        per_rank=True,
        weight=20,
    )
)
