"""Records of the NCCL Inspector (JSON, v4): which collectives of a job ran, and how long they took.

A file belongs to one process.  Each record has a communicator (``id``, ``rank``, ``n_ranks``), the
sequence number of the collective in it, its kind, its size and its time.  A collective that one
rank has recorded ran at all of them, so files of some ranks are enough for the communicator of all
processes.  For others the files record which process has which rank.

The size is that of a rank's buffer; of all-gather and reduce-scatter it is the part of a rank.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scenarios.traces.format_registry import FORMATS, ReadOptions, TraceFormat
from scenarios.traces.trace_file import TraceFile
from scenarios.traces.trace_model import (
    MOST_OPERATIONS,
    MOST_RANKS,
    Collective,
    CollectiveRun,
    Trace,
    TraceCollective,
    TraceOperation,
    TraceRefusal,
    TraceRun,
    bus_factor,
)

_NAMES = {
    Collective.ALL_REDUCE: "AllReduce",
    Collective.ALL_GATHER: "AllGather",
    Collective.REDUCE_SCATTER: "ReduceScatter",
    Collective.BROADCAST: "Broadcast",
    Collective.REDUCE: "Reduce",
}
_KINDS = {name: kind for kind, name in _NAMES.items()}
#: Collectives whose records have the size of one rank's part.
_PARTS = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
#: The end of a name that names the process the file belongs to.
_RANK = re.compile(r"(\.\d+)?\.(jsonl|log|json)$")
_BLANK = re.compile(r"[\s,]*")
_VERSION = "v4.0"
#: What the times of written records come from: no GPU has measured them.
_SOURCE = "uetemu_fabric_time"
Process = tuple[str, int]


@dataclass
class _Call:
    """A collective of a communicator, as the first record of it has it."""

    where: str
    kind: Collective
    octets: int
    time_us: int


@dataclass
class _Communicator:
    """The communicator ``id``, with the contents of its records."""

    name: str
    ranks: int
    processes: dict[int, Process] = field(default_factory=dict)
    calls: dict[int, _Call] = field(default_factory=dict)


class _Records:
    def __init__(self, root: int | None) -> None:
        self._root = root
        self._found: dict[str, _Communicator] = {}
        self._count = 0

    def add(self, file: TraceFile) -> None:
        for line, record in _objects(file):
            header = _part(file, line, record, "header")
            metadata = _part(file, line, record, "metadata")
            version = str(metadata.get("inspector_output_format_version", ""))
            if not version.startswith("v4."):
                raise file.wrong(
                    line, f"format version {version[:20]!r} is unknown; known is v4, from NCCL 2.28"
                )
            if "coll_perf" not in record:
                if "p2p_perf" in record:
                    raise file.wrong(
                        line,
                        "a point-to-point record has no counterpart that could be found for sure; "
                        "take such records out",
                    )
                continue
            communicator = self._communicator(file, line, header)
            self._place(file, line, communicator, header, metadata)
            self._call(file, line, communicator, _part(file, line, record, "coll_perf"))

    def trace(self, name: str) -> Trace:
        if not self._found:
            raise TraceRefusal(f"{name}: no record of a collective; give the Inspector's files")
        world = max(self._found.values(), key=lambda one: one.ranks)
        ranks = {process: rank for rank, process in world.processes.items()}
        groups: dict[str, tuple[int, ...]] = {}
        lists: list[list[TraceOperation]] = [[] for _ in range(world.ranks)]
        for one in self._found.values():
            groups[one.name] = members = self._members(name, one, world, ranks)
            for number, (_, call) in enumerate(sorted(one.calls.items())):
                self._count += len(members)
                if self._count > MOST_OPERATIONS:
                    raise TraceRefusal(
                        f"{call.where}: more than {MOST_OPERATIONS} collectives of ranks; "
                        "cut out the iterations that matter"
                    )
                for rank in members:
                    after = (len(lists[rank]) - 1,) if number else ()
                    lists[rank].append(self._operation(one, call, after, members))
        return Trace(name, tuple(lists), groups)

    def _operation(
        self,
        one: _Communicator,
        call: _Call,
        after: tuple[int, ...],
        members: tuple[int, ...],
    ) -> TraceCollective:
        root = None
        if call.kind.rooted:
            if self._root is None or not 0 <= self._root < len(members):
                raise TraceRefusal(
                    f"{call.where}: the records of a {_NAMES[call.kind]} do not say its "
                    f"root; state its rank in the communicator, 0 to {len(members) - 1}, with "
                    "--param root=N"
                )
            root = members[self._root]
        return TraceCollective(
            where=call.where,
            after=after,
            kind=call.kind,
            octets=call.octets,
            group=one.name,
            root=root,
            recorded_ns=call.time_us * 1000,
        )

    def _members(
        self,
        name: str,
        one: _Communicator,
        world: _Communicator,
        ranks: Mapping[Process, int],
    ) -> tuple[int, ...]:
        if one.ranks == world.ranks:
            if one is not world and one.processes.items() ^ world.processes.items():
                return self._mapped(name, one, ranks)
            return tuple(range(one.ranks))
        return self._mapped(name, one, ranks)

    def _mapped(
        self, name: str, one: _Communicator, ranks: Mapping[Process, int]
    ) -> tuple[int, ...]:
        found = []
        for rank in range(one.ranks):
            process = one.processes.get(rank)
            if process is None or process not in ranks:
                raise TraceRefusal(
                    f"{name}: nothing says which process is rank {rank} of communicator "
                    f"{one.name[:40]}; give the files of all its processes, with records of the "
                    "communicator of all"
                )
            found.append(ranks[process])
        return tuple(found)

    def _communicator(
        self, file: TraceFile, line: int, header: Mapping[str, object]
    ) -> _Communicator:
        ranks = _number(file, line, header, "n_ranks")
        if not 1 <= ranks <= MOST_RANKS:
            raise file.wrong(line, f"n_ranks is {ranks}; it lies in 1 to {MOST_RANKS}")
        name = str(header.get("id", ""))
        if not name:
            raise file.wrong(line, "the header has no id of the communicator; add it")
        one = self._found.setdefault(name, _Communicator(name, ranks))
        if one.ranks != ranks:
            raise file.wrong(
                line, f"communicator {name[:40]} has {ranks} ranks here and {one.ranks} before"
            )
        return one

    def _place(
        self,
        file: TraceFile,
        line: int,
        one: _Communicator,
        header: Mapping[str, object],
        metadata: Mapping[str, object],
    ) -> None:
        rank = _number(file, line, header, "rank")
        if rank >= one.ranks:
            raise file.wrong(line, f"there is no rank {rank} of {one.ranks}; correct the header")
        process = str(metadata.get("hostname", "")), _number(file, line, metadata, "pid")
        if one.processes.setdefault(rank, process) != process:
            raise file.wrong(
                line,
                f"rank {rank} of communicator {one.name[:40]} is process {process[1]} on "
                f"{process[0][:40]} here and another one before; give the files of one job",
            )

    def _call(
        self, file: TraceFile, line: int, one: _Communicator, record: Mapping[str, object]
    ) -> None:
        kind = _KINDS.get(str(record.get("coll", "")))
        if kind is None:
            raise file.wrong(
                line,
                f"the size of a {str(record.get('coll'))[:40]!r} is not one that records settle; "
                f"known are {', '.join(_KINDS)}: take it out, or write a plain list",
            )
        octets = _number(file, line, record, "coll_msg_size_bytes")
        if kind in _PARTS:
            octets *= one.ranks
        number = _number(file, line, record, "coll_sn")
        time_us = _number(file, line, record, "coll_exec_time_us")
        call = _Call(f"{file.name}, line {line}", kind, octets, time_us)
        known = one.calls.setdefault(number, call)
        if (known.kind, known.octets) != (kind, octets):
            raise file.wrong(
                line,
                f"collective {number} of communicator {one.name[:40]} is another one at "
                f"{known.where}; give the files of one job",
            )
        known.time_us = max(known.time_us, time_us)
        if len(one.calls) > MOST_OPERATIONS:
            raise file.wrong(line, f"more than {MOST_OPERATIONS} collectives; cut the file")


def _objects(file: TraceFile) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the JSON objects of ``file``, one behind the other, each with its line."""
    text, decoder = file.text, json.JSONDecoder()
    at, line = _skipped(text, 0), 1
    counted = 0
    while at < len(text):
        line += text.count("\n", counted, at)
        counted = at
        try:
            record, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            raise file.wrong(line, "not a JSON object; is the file whole?") from None
        if not isinstance(record, dict):
            raise file.wrong(line, "not a JSON object; write {...} for each record")
        yield line, record
        at = _skipped(text, end)


def _skipped(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _part(
    file: TraceFile, line: int, record: Mapping[str, object], name: str
) -> Mapping[str, object]:
    part = record.get(name)
    if not isinstance(part, dict):
        raise file.wrong(line, f"the record has no {name}; is it of the NCCL Inspector?")
    return part


def _number(file: TraceFile, line: int, record: Mapping[str, object], name: str) -> int:
    value = record.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise file.wrong(line, f"{name} is {str(value)[:40]!r}, which is no number; correct it")
    return value


def _read(files: Sequence[TraceFile], options: ReadOptions) -> Trace:
    records = _Records(options.root)
    for file in files:
        records.add(file)
    return records.trace(_RANK.sub("", files[0].stem))


def _write(run: TraceRun) -> Mapping[str, bytes]:
    numbers = {name: number for number, name in enumerate(run.trace.groups, 1)}
    return {
        f".{rank}": b"".join(
            json.dumps(_record(run, one, rank, numbers[one.collective.group])).encode() + b"\n"
            for one in run.collectives
            if rank in one.begins_ns
        )
        for rank in range(run.trace.ranks)
    }


def _record(run: TraceRun, one: CollectiveRun, rank: int, number: int) -> dict[str, object]:
    kind, octets = one.collective.kind, one.collective.octets
    if kind not in _NAMES:
        raise run.trace.wrong(
            one.collective,
            rank,
            f"records of the NCCL Inspector do not settle the size of a {kind.value}; write Chakra",
        )
    length = one.ends_ns[rank] - one.start_ns  # from the first message of any rank on
    algbw = octets / length if length else 0.0
    members = len(one.ranks)
    return {
        "header": {
            "id": f"{number:#018x}",
            "rank": one.ranks.index(rank),
            "n_ranks": members,
            "nnodes": len({run.servers[member] for member in one.ranks}),
        },
        "metadata": {
            "inspector_output_format_version": _VERSION,
            "git_rev": "",
            "rec_mechanism": "uetemu",
            "dump_timestamp_us": run.origin_us + one.ends_ns[rank] // 1000,
            "hostname": run.servers[rank],
            "pid": rank,
        },
        "coll_perf": {
            "coll": _NAMES[kind],
            "coll_sn": one.number + 1,
            "coll_msg_size_bytes": octets // members if kind in _PARTS else octets,
            "coll_exec_time_us": round(length / 1000),
            "coll_timing_source": _SOURCE,
            "coll_algobw_gbs": round(algbw, 6),
            "coll_busbw_gbs": round(algbw * bus_factor(kind, members), 6),
        },
    }


FORMATS.register(
    TraceFormat(
        name="inspector",
        meaning="records of the NCCL Inspector",
        suffixes=(".jsonl", ".log", ".json"),
        recognises=lambda head: b'"coll_perf"' in head or b'"inspector_output' in head,
        begins="has 'coll_perf'",
        read=_read,
        write=_write,
        facts=("root",),
        per_rank=True,
    )
)
