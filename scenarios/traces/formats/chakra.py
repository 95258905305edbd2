"""Chakra execution traces of MLCommons (``.et``, schemas 0.0.4 and 1.0.0): a file for each rank.

A file holds messages of protocol buffers, each behind its length: the metadata of the trace, then
its nodes.  The two schemas have the same messages.  As in Chakra's own feeder a node starts when
its ``data_deps`` are over.  ``ctrl_deps`` are its parents in the call tree of PyTorch, which begin
before it and need not be in the file; ``--param ctrl_deps=wait`` lets it wait for them too.
``job.3.et`` is rank 3.  Groups of ranks (``pg_name``) come from metadata nodes as PyTorch writes
them. Or they come from a JSON file of group names and ranks as ASTRA-sim takes it (``--param
groups=FILE``).

Sizes are as ASTRA-sim has them: of an all-gather the part of a rank, otherwise the whole buffer.
The attribute ``comm_splits`` of an all-to-all, a list of int64 that Chakra does not know, has the
octets to each member where they differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emulator.packed_file import Pace
from scenarios.traces import protobuf_wire as wire
from scenarios.traces.format_registry import FORMATS, ReadOptions, TraceFormat
from scenarios.traces.trace_file import TraceFile, read_groups
from scenarios.traces.trace_model import (
    MOST_OPERATIONS,
    MOST_RANKS,
    Collective,
    Trace,
    TraceCollective,
    TraceCompute,
    TraceOperation,
    TraceReceive,
    TraceRefusal,
    TraceRun,
    TraceSend,
)

_RANK = re.compile(r"\.(\d{1,6})\.et$")
WORLD = "world"
(INVALID, METADATA, LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE) = range(8)
_COLLECTIVES = {
    0: Collective.ALL_REDUCE,
    1: Collective.REDUCE,
    2: Collective.ALL_GATHER,
    3: Collective.GATHER,
    4: Collective.SCATTER,
    5: Collective.BROADCAST,
    6: Collective.ALL_TO_ALL,
    7: Collective.REDUCE_SCATTER,
    8: Collective.REDUCE_SCATTER,
    9: Collective.BARRIER,
}
_NUMBERS = {kind: number for number, kind in reversed(_COLLECTIVES.items())}
#: The streams of a rank: operations of the GPU, of the CPU, and of memories.
_GPU, _CPU, _MEMORY = 0, 1, 2
_VERSION = "0.0.4"
#: Attributes of what moves data.
_MOVES = {"comm_type", "comm_size", "comm_src", "comm_dst"}
_SPLITS = "comm_splits"
#: Fields of an attribute that are lists.
_INT64_LIST, _BOOL_LIST = 10, 28
MOST_DEPENDENCIES = 4 * MOST_OPERATIONS
#: Attributes that Chakra's feeder reads as int32; it takes other numbers as int64.
_SHORT = ("comm_src", "comm_dst", "comm_tag")
#: The wire type of each field of a node that is read, and fields that are numbers.
_KINDS_OF_FIELDS = {
    **dict.fromkeys((1, 3, 7), wire.VARINT),
    **dict.fromkeys((2, 8, 10), wire.OCTETS),
}
_PLAIN = {1: "number", 3: "kind", 7: "duration_us"}
Value = int | float | str | list[int] | None


@dataclass(slots=True)
class _Node:
    number: int = 0  # what is 0 is not written
    name: str = ""
    kind: int = INVALID
    waits: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    duration_us: int = 0
    inputs: str = ""
    attributes: dict[str, Value] = field(default_factory=dict)


class _RankReader:
    def __init__(self, file: TraceFile, rank: int, ranks: int, options: ReadOptions) -> None:
        self._file, self._rank, self._ranks, self._options = file, rank, ranks, options
        self.groups: dict[str, tuple[int, ...]] = {}
        #: No node waits for another, and there are ctrl_deps, which are not followed.
        self.only_parents = False
        self._dependencies = self._parents = 0
        self._places: dict[int, int] = {}

    def _note(self, node: _Node, place: int) -> None:
        if node.number in self._places:
            raise self._wrong_at(node, "another node has the same id; give each its own")
        self._places[node.number] = place

    def nodes(self) -> list[_Node]:
        nodes: list[_Node] = []
        pace = Pace(f"reading {self._file.name}")
        try:
            for number, message in enumerate(wire.delimited(memoryview(self._file.content))):
                if not number % 4096:
                    pace.at(f"{number} nodes")
                if number:
                    nodes.append(self._node(message))
                    self._note(nodes[-1], number - 1)
                if number > MOST_OPERATIONS:
                    raise self._wrong(f"more than {MOST_OPERATIONS} nodes; cut the trace")
        except wire.WireError as error:
            raise self._wrong(
                f"{error} (behind node {nodes[-1].number if nodes else 'none'}); is it whole, and "
                "a Chakra trace?"
            ) from None
        return nodes

    def operations(self, groups: Mapping[str, tuple[int, ...]]) -> list[TraceOperation]:
        nodes = self.nodes()
        places = self._places
        for node in nodes:
            if node.kind == METADATA:
                self._read_groups(node)
        self.groups.update(groups)
        found = []
        for node in nodes:
            for one in node.waits:
                if one not in places:
                    raise self._wrong_at(
                        node, f"its data_deps name node {one}, which the file has not; add it"
                    )
            there = (one for one in (*node.waits, *node.parents) if one in places)
            after = tuple(dict.fromkeys(places[one] for one in there))
            found.append(self._operation(node, after))
        self.only_parents = self._parents > 0 and not any(node.waits for node in nodes)
        return found

    def _node(self, message: memoryview) -> _Node:
        node = _Node()
        for number, kind, value in wire.fields(message):
            if number in (4, 5):
                if number == 4 and not self._options.ctrl_deps:
                    self._parents += 1
                    continue
                found = list(wire.varints(value))
                self._dependencies += len(found)
                if self._dependencies > MOST_DEPENDENCIES:
                    raise self._wrong(
                        f"more than {4 * MOST_OPERATIONS} dependencies; cut the trace"
                    )
                (node.waits if number == 5 else node.parents).extend(found)
            elif number in _KINDS_OF_FIELDS and kind != _KINDS_OF_FIELDS[number]:
                raise wire.WireError(f"field {number} of a node has wire type {kind}")
            elif number == 10:
                name, content = _attribute(value)  # type: ignore[arg-type]
                node.attributes[name] = content
            elif number in _PLAIN:
                setattr(node, _PLAIN[number], value)
            elif number == 2:
                node.name = _text(value)  # type: ignore[arg-type]
            elif number == 8:
                node.inputs = _inputs(value)  # type: ignore[arg-type]
        return node

    def _operation(self, node: _Node, after: tuple[int, ...]) -> TraceOperation:
        where, name = f"node {node.number}", node.name[:80]
        if node.kind in (INVALID, METADATA):
            return TraceCompute(where=where, name=name, after=after, duration_ns=0, stream=None)
        # The call on the CPU that launches a collective is a node of its kind, and moves nothing.
        launches = "is_cpu_op" in node.attributes and not _MOVES & node.attributes.keys()
        if node.kind in (LOAD, STORE, COMPUTE) or (
            launches and node.attributes["is_cpu_op"] and node.kind in (SEND, RECEIVE, COLLECTIVE)
        ):
            stream = _MEMORY
            if node.kind not in (LOAD, STORE):
                stream = _CPU if node.attributes.get("is_cpu_op") else _GPU
            return TraceCompute(
                where=where, name=name, after=after, duration_ns=self._duration(node), stream=stream
            )
        if node.kind == COLLECTIVE:
            return self._collective(node, after)
        if node.kind not in (SEND, RECEIVE):
            raise self._wrong_at(node, f"its type {node.kind} is unknown; known are 0 to 7")
        octets, tag = self._number(node, "comm_size"), self._number(node, "comm_tag", 0)
        if node.kind == SEND:
            peer = self._number(node, "comm_dst")
            return TraceSend(where=where, name=name, after=after, peer=peer, octets=octets, tag=tag)
        peer = self._number(node, "comm_src")
        return TraceReceive(where=where, name=name, after=after, peer=peer, octets=octets, tag=tag)

    def _duration(self, node: _Node) -> int:
        unknown = "num_ops" if node.kind == COMPUTE else "tensor_size"
        if not node.duration_us and node.attributes.get(unknown) and not self._options.timeless:
            raise self._wrong_at(
                node,
                f"it has {unknown} and no duration, which depends on a GPU; give it "
                "duration_micros, or take --param compute_scale=0",
            )
        return node.duration_us * 1000

    def _collective(self, node: _Node, after: tuple[int, ...]) -> TraceOperation:
        kind = _COLLECTIVES.get(self._number(node, "comm_type"))
        if kind is None:
            raise self._wrong_at(
                node, f"its comm_type {node.attributes['comm_type']} is unknown; known are 0 to 9"
            )
        dimensions = node.attributes.get("involved_dim")
        if isinstance(dimensions, list) and not all(dimensions):
            raise self._wrong_at(
                node,
                "involved_dim leaves out dimensions of a simulator's network, which this fabric "
                "does not have; name the ranks by pg_name",
            )
        group = node.attributes.get("pg_name", "")
        group = str(group) if group not in ("", None) else WORLD
        if group == "0" and group not in self.groups:
            group = WORLD
        if group == WORLD:
            self.groups[WORLD] = tuple(range(self._ranks))
        octets = 0
        if kind is not Collective.BARRIER:
            octets = self._number(node, "comm_size")
        if kind is Collective.ALL_GATHER:
            octets *= len(self.groups.get(group, ()))
        root = None
        if kind.rooted:
            root = self._root(node, self.groups.get(group, ()))
        return TraceCollective(
            where=f"node {node.number}",
            name=node.name[:80],
            after=after,
            kind=kind,
            octets=octets,
            group=group,
            root=root,
            splits=self._splits(node) if kind is Collective.ALL_TO_ALL else (),
        )

    def _splits(self, node: _Node) -> tuple[int, ...]:
        value = node.attributes.get(_SPLITS)
        return tuple(value) if isinstance(value, list) else ()

    def _root(self, node: _Node, members: tuple[int, ...]) -> int:
        for name in ("root", "comm_src"):
            if name in node.attributes:
                return self._number(node, name)
        position = self._options.root
        if position is None or position >= len(members):
            raise self._wrong_at(
                node, "it has neither root nor comm_src; add one, or take --param root=N"
            )
        return members[position]

    def _read_groups(self, node: _Node) -> None:
        """Take the process groups that PyTorch has written into a metadata node."""
        text = node.inputs.strip()
        if not text:
            return
        at, end = text.find("[{"), text.rfind("}]")
        if at < 0 or end < at:
            return
        try:
            for one in json.loads(text[at : end + 2]):
                ranks = tuple(int(rank) for rank in one["ranks"])
                self.groups[str(one["pg_name"])] = ranks or tuple(range(self._ranks))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._wrong_at(
                node, "its process groups are no list of pg_name and ranks; correct it"
            ) from None

    def _number(self, node: _Node, name: str, default: int | None = None) -> int:
        value = node.attributes.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            problem = "has no" if name not in node.attributes else "has no whole number as"
            raise self._wrong_at(node, f"it {problem} {name}; add that attribute")
        return value

    def _wrong(self, stated: str) -> TraceRefusal:
        return TraceRefusal(f"{self._file.name}: {stated}")

    def _wrong_at(self, node: _Node, stated: str) -> TraceRefusal:
        return TraceRefusal(f"{self._file.name}, node {node.number} ({node.name[:40]}): {stated}")


def _text(value: memoryview) -> str:
    return bytes(value).decode("utf-8", "replace")


def _inputs(value: memoryview) -> str:
    for number, _, content in wire.fields(value):
        if number == 1 and isinstance(content, memoryview):
            return _text(content)
    return ""


def _attribute(message: memoryview) -> tuple[str, Value]:
    name, found = "", None
    for number, kind, value in wire.fields(message):
        if number == 1 and isinstance(value, memoryview):
            name = _text(value)
        elif number > 2:
            found = _value(number, kind, value)
    return name, found


def _value(number: int, kind: int, value: int | memoryview) -> Value:
    """Return the value of an attribute, of the field ``number`` of its message."""
    if isinstance(value, int):
        if number in (15, 17):  # sint32, sint64: zigzag
            return value >> 1 ^ -(value & 1)
        return bool(value) if number == 27 else wire.signed(value)
    if kind == wire.EIGHT:
        return wire.as_double(value) if number == 3 else int.from_bytes(value, "little")
    if kind == wire.FOUR:
        return int.from_bytes(value, "little")
    if number == 29:
        return _text(value)
    if number in (_INT64_LIST, _BOOL_LIST):
        return [
            one for inner, _, row in wire.fields(value) if inner == 1 for one in wire.varints(row)
        ]
    return None  # a list, or octets, that nothing here needs


def _read(files: Sequence[TraceFile], options: ReadOptions) -> Trace:
    by_rank: dict[int, TraceFile] = {}
    for file in files:
        found = _RANK.search(file.stem)
        if found is None and len(files) > 1:
            raise TraceRefusal(
                f"{file.name}: the name does not say which rank it is; rename it to NAME.RANK.et"
            )
        rank = int(found[1]) if found else 0
        if rank in by_rank:
            raise TraceRefusal(
                f"{file.name} and {by_rank[rank].name} are both rank {rank}; leave one out"
            )
        by_rank[rank] = file
    ranks = options.ranks or len(files)
    missing = [rank for rank in range(min(ranks, MOST_RANKS)) if rank not in by_rank]
    if missing or len(files) > ranks:
        raise TraceRefusal(
            f"{files[0].name}: rank {missing[0] if missing else ranks} has no place: there are "
            f"{len(files)} files, of ranks {min(by_rank)} to {max(by_rank)}; give the file of "
            "each rank from 0 on"
        )
    groups = read_groups(Path(options.groups)) if options.groups else {}
    lists: list[list[TraceOperation]] = []
    warnings: list[str] = []
    total = 0
    for rank in range(ranks):
        reader = _RankReader(by_rank[rank], rank, ranks, options)
        lists.append(reader.operations(groups))
        by_rank[rank].release()
        for name, members in reader.groups.items():
            if groups.setdefault(name, members) != members:
                raise TraceRefusal(
                    f"{by_rank[rank].name}: group {name!r} has other ranks than in the files "
                    "before; make them equal"
                )
        if reader.only_parents and not warnings:
            warnings.append(
                f"{by_rank[rank].name}: no node has data_deps, so that all begin at once; if its "
                "ctrl_deps are meant, take --param ctrl_deps=wait"
            )
        total += len(lists[-1])
        if total > MOST_OPERATIONS:
            raise TraceRefusal(
                f"{by_rank[rank].name}: more than {MOST_OPERATIONS} nodes in all; cut the trace"
            )
    stem = _RANK.sub("", files[0].stem)
    return Trace(stem, tuple(lists), groups, tuple(warnings))


def _write(run: TraceRun) -> Mapping[str, bytes]:
    return {f".{rank}": b"".join(_messages(run.trace, rank)) for rank in range(run.trace.ranks)}


def _messages(trace: Trace, rank: int) -> Iterator[bytes]:
    numbers = {name: number for number, name in enumerate(trace.groups, 1)}
    yield _delimited(wire.field(1, _VERSION))
    groups = [
        {"pg_name": str(numbers[name]), "pg_desc": name, "ranks": list(ranks)}
        for name, ranks in trace.groups.items()
    ]
    inputs = wire.field(1, f"['{json.dumps(groups)}']")
    yield _delimited(
        wire.field(1, 0)
        + wire.field(2, "## process_group:init ##")
        + wire.field(3, METADATA)
        + wire.field(8, inputs)
    )
    for index, one in enumerate(trace.operations[rank], 1):
        after = b"".join(wire.varint(earlier + 1) for earlier in one.after)
        yield _delimited(
            wire.field(1, index)
            + wire.field(2, one.name or one.where)
            + (wire.field(5, after) if after else b"")
            + _content(trace, rank, one, numbers)
        )


def _content(trace: Trace, rank: int, one: TraceOperation, groups: Mapping[str, int]) -> bytes:
    on_cpu = isinstance(one, TraceCompute) and one.stream == _CPU
    common = _attributes({"is_cpu_op": on_cpu})
    match one:
        case TraceCompute(duration_ns=duration):
            return wire.field(3, COMPUTE) + wire.field(7, -(-duration // 1000)) + common
        case TraceSend(peer=peer, octets=octets, tag=tag):
            return (
                wire.field(3, SEND)
                + common
                + _attributes(
                    {"comm_src": rank, "comm_dst": peer, "comm_size": octets, "comm_tag": tag}
                )
            )
        case TraceReceive(peer=peer, octets=octets, tag=tag):
            return (
                wire.field(3, RECEIVE)
                + common
                + _attributes(
                    {"comm_src": peer, "comm_dst": rank, "comm_size": octets, "comm_tag": tag}
                )
            )
        case TraceCollective(kind=kind, octets=octets, group=group, root=root, splits=splits):
            if kind is Collective.ALL_GATHER:
                octets //= len(trace.groups[group])
            values: dict[str, int | str] = {"comm_type": _NUMBERS[kind], "comm_size": octets}
            values["pg_name"] = str(groups[group])
            if root is not None:
                values["root"] = root
            parts = b"".join(map(wire.varint, splits))
            listed = wire.field(1, _SPLITS) + wire.field(_INT64_LIST, wire.field(1, parts))
            return (
                wire.field(3, COLLECTIVE)
                + common
                + _attributes(values)
                + (wire.field(10, listed) if splits else b"")
            )
    raise TypeError(f"{type(one).__name__} has no place in a Chakra trace")


def _attributes(values: Mapping[str, int | str]) -> bytes:
    found = b""
    for name, value in values.items():
        number = 27 if isinstance(value, bool) else 29 if isinstance(value, str) else 9
        if name in _SHORT:
            number = 7
        content = int(value) if isinstance(value, bool) else value
        found += wire.field(10, wire.field(1, name) + wire.field(number, content))
    return found


def _delimited(message: bytes) -> bytes:
    return wire.varint(len(message)) + message


FORMATS.register(
    TraceFormat(
        name="chakra",
        meaning="execution traces of MLCommons Chakra",
        suffixes=(".et",),
        recognises=lambda head: True,
        read=_read,
        write=_write,
        facts=("ranks", "groups", "root", "ctrl_deps"),
        per_rank=True,
    )
)
