"""Chakra traces: what is read, what is written, and what is refused with its node."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenarios.traces import protobuf_wire as wire
from scenarios.traces.format_registry import FORMATS, ReadOptions
from scenarios.traces.replay import in_order
from scenarios.traces.trace_loading import load_traces
from scenarios.traces.trace_model import (
    Collective,
    Trace,
    TraceCollective,
    TraceCompute,
    TraceReceive,
    TraceRefusal,
    TraceRun,
    TraceSend,
)
from tests.harness.traces import outcome

HEAD = wire.varint(7) + wire.field(1, "0.0.4")


def node(number: int, kind: int, *more: bytes, **attributes: int | str) -> bytes:
    """A node as a message behind its length; attributes are int64 or texts."""
    content = wire.field(1, number) + wire.field(2, f"n{number}") + wire.field(3, kind)
    content += b"".join(more)
    for name, value in attributes.items():
        inner = wire.field(1, name) + wire.field(9 if isinstance(value, int) else 29, value)
        content += wire.field(10, inner)
    return wire.varint(len(content)) + content


def read(folder: Path, *files: bytes, names: str = "job.{}.et", **options: Any) -> Trace:
    paths = []
    for rank, content in enumerate(files):
        path = folder / names.format(rank)
        path.write_bytes(content)
        paths.append(str(path))
    (trace,) = load_traces(paths, "", ReadOptions(**options))
    return trace


def test_the_octets_of_a_published_sample_are_read(tmp_path: Path) -> None:
    """These are laid out as in the collective microbenchmarks of ASTRA-sim: node 0 is not told."""
    content = bytes.fromhex("12") + bytes([10]) + b"all_reduce" + bytes.fromhex("1807")
    for name, field in (("is_cpu_op", "d80100"), ("comm_type", "4800"), ("comm_size", "48808040")):
        inner = bytes([10, len(name)]) + name.encode() + bytes.fromhex(field)
        content += bytes([0x52, len(inner)]) + inner
    one = HEAD + bytes([len(content)]) + content
    trace = read(tmp_path, one, one)
    assert trace.groups == {"world": (0, 1)}
    assert trace.operations[1] == [
        TraceCollective(
            where="node 0",
            name="all_reduce",
            kind=Collective.ALL_REDUCE,
            octets=2**20,
            group="world",
        )
    ]


def test_every_kind_of_node_is_read(tmp_path: Path) -> None:
    deps = wire.field(4, wire.varint(7)) + wire.field(5, wire.varint(300) + wire.varint(3))
    first = HEAD + b"".join(
        [
            node(300, 4, wire.field(7, 20), num_ops=5),
            node(3, 4, wire.field(7, 2), is_cpu_op=1),
            node(4, 5, deps, comm_dst=1, comm_size=9, comm_tag=7),
            node(5, 2, wire.field(7, 1), tensor_size=5),
            node(6, 7, comm_type=2, comm_size=4, pg_name="5"),
            node(7, 7, comm_type=5, comm_size=4, pg_name="5", root=1),
        ]
    )
    second = HEAD + b"".join(
        [
            node(1, 6, comm_src=0, comm_size=9, comm_tag=7),
            node(6, 7, comm_type=2, comm_size=4, pg_name="5"),
            node(7, 7, comm_type=5, comm_size=4, pg_name="5", root=1),
        ]
    )
    groups = tmp_path / "groups.json"
    groups.write_text('{"5": [1, 0]}')
    trace = read(tmp_path, first, second, groups=str(groups))
    gpu, cpu, send, load, gathered, root = trace.operations[0]
    assert gpu == TraceCompute(where="node 300", name="n300", duration_ns=20_000, stream=0)
    assert cpu == TraceCompute(where="node 3", name="n3", duration_ns=2000, stream=1)
    assert send == TraceSend(where="node 4", name="n4", after=(0, 1), peer=1, octets=9, tag=7)
    assert load == TraceCompute(where="node 5", name="n5", duration_ns=1000, stream=2)
    assert isinstance(gathered, TraceCollective)
    assert gathered.octets == 8  # the file states the part of a rank
    assert isinstance(root, TraceCollective)
    assert (root.root, root.octets) == (1, 4)
    assert isinstance(trace.operations[1][0], TraceReceive)
    in_order(trace)


KEPT: Mapping[str, int] = {"comm_type": 0, "comm_size": 8}
DATA = Path(__file__).parents[3] / "data" / "traces"


@pytest.mark.parametrize(
    ("name", "waits", "after"),
    [
        ("parent_is_absent", False, [(), (0,)]),
        ("parent_is_absent", True, [(), (0,)]),
        ("parent_is_present", False, [(), (), (1,)]),
        ("parent_is_present", True, [(), (0,), (1,)]),
    ],
)
def test_parents_in_the_call_tree_are_waited_for_on_request(
    name: str, waits: bool, after: list[tuple[int, ...]]
) -> None:
    paths = [str(DATA / f"{name}.{rank}.et") for rank in range(2)]
    (trace,) = load_traces(paths, "", ReadOptions(ctrl_deps=waits))
    in_order(trace)
    assert [[one.after for one in each] for each in trace.operations] == [after] * 2
    assert not trace.warnings


def test_a_trace_with_parents_alone_is_warned_of(tmp_path: Path) -> None:
    one = HEAD + node(1, 4) + node(2, 4, wire.field(4, 1))
    (warning,) = read(tmp_path, one, one).warnings
    assert "job.0.et: no node has data_deps" in warning
    assert "--param ctrl_deps=wait" in warning
    assert not read(tmp_path, one, one, ctrl_deps=True).warnings


def test_schema_1_0_has_the_messages_of_0_0_4(tmp_path: Path) -> None:
    """Chakra 1.0's text converter writes no version, but the schema and its input as attributes."""
    stated = {"schema": "1.0.2-chakra.1.0.0", "input_file": "MICRO\n1\n" * 30}
    metadata = b"".join(
        wire.field(2, wire.field(1, name) + wire.field(29, text)) for name, text in stated.items()
    )
    for version in (b"", wire.field(1, "1.0.0")):
        head = wire.varint(len(version + metadata)) + version + metadata
        one = head + node(0, 4, wire.field(7, 5)) + node(1, 7, wire.field(5, 0), **KEPT)
        trace = read(tmp_path, one, one)
        assert [operation.after for operation in trace.operations[0]] == [(), (0,)]
        assert trace.operations[1][1].octets == 8  # type: ignore[attr-defined]


def test_a_launch_on_the_cpu_is_no_collective(tmp_path: Path) -> None:
    """PyTorch's own collectives are nodes of their kind on the CPU, beside those of NCCL."""
    launch = node(1, 7, wire.field(7, 5), is_cpu_op=1)
    broadcast = {"comm_type": 5, "comm_size": 8, "is_cpu_op": 0}
    one = HEAD + launch + node(2, 7, wire.field(5, 1), **broadcast)
    trace = read(tmp_path, one, one, root=1)
    first, second = trace.operations[0]
    assert first == TraceCompute(where="node 1", name="n1", duration_ns=5000, stream=1)
    assert isinstance(second, TraceCollective)
    assert (second.root, second.after) == (1, (0,))


def test_process_groups_of_pytorch_are_read(tmp_path: Path) -> None:
    listed = json.dumps([{"pg_name": "7", "ranks": []}, {"pg_name": "8", "ranks": [1]}])
    metadata = node(9, 1, wire.field(8, wire.field(1, f"['{listed}']")))
    one = HEAD + metadata + node(1, 7, comm_type=0, comm_size=4, pg_name="7")
    assert read(tmp_path, one, one).groups == {"7": (0, 1), "8": (1,)}


def test_numbers_have_the_types_that_chakras_feeder_reads() -> None:
    """The feeder of mlcommons/chakra asks for one type of each and gets 0 of any other."""
    sends = (
        [TraceSend(where="a", peer=1, octets=7, tag=5)],
        [TraceReceive(where="b", peer=0, octets=7, tag=5)],
    )
    collective = TraceCollective(
        where="c", kind=Collective.ALL_REDUCE, octets=8, group="g", root=None
    )
    trace = Trace("t", tuple([*own, collective] for own in sends), {"g": (0, 1)})
    run = TraceRun(trace=trace, messages=trace, collectives=(), servers=(), origin_us=0)
    assert FORMATS["chakra"].write is not None
    types = {"bool": 27, "int32": 7, "int64": 9, "text": 29}
    found = set()
    for content in FORMATS["chakra"].write(run).values():
        for message in list(wire.delimited(memoryview(content)))[1:]:
            for number, _, attribute in wire.fields(message):
                if number == 10:
                    assert isinstance(attribute, memoryview)
                    (_, _, name), (kind, _, _) = wire.fields(attribute)
                    found.add((bytes(name).decode(), kind))
    assert found == {
        ("is_cpu_op", types["bool"]), ("comm_type", types["int64"]),
        ("comm_size", types["int64"]), ("comm_src", types["int32"]),
        ("comm_dst", types["int32"]), ("comm_tag", types["int32"]), ("pg_name", types["text"]),
    }  # fmt: skip


def test_what_is_written_is_read_as_the_same(tmp_path: Path) -> None:
    lists = []
    for rank in range(4):
        shared: dict[str, Any] = {"where": "line 1", "group": "g"}
        lists.append(
            [
                TraceCompute(where="line 1", duration_ns=5000, stream=0, name="work"),
                *(
                    TraceCollective(
                        kind=kind,
                        octets=64,
                        root=2 if kind.rooted else None,
                        after=(0,),
                        **shared,
                    )
                    for kind in Collective
                ),
                TraceCollective(
                    kind=Collective.ALL_TO_ALL, octets=300, splits=(0, 1, 299, 0), **shared
                ),
                TraceSend(where="line 2", peer=(rank + 1) % 4, octets=7, tag=rank)
                if rank % 2
                else TraceReceive(
                    where="line 2", peer=(rank - 1) % 4, octets=7, tag=(rank - 1) % 4
                ),
            ]
        )
    trace = Trace("t", tuple(lists), {"g": (3, 1, 0, 2)})
    run = TraceRun(trace=trace, messages=trace, collectives=(), servers=(), origin_us=0)
    assert FORMATS["chakra"].write is not None
    written = FORMATS["chakra"].write(run)
    again = read(tmp_path, *(written[f".{rank}"] for rank in range(4)))
    assert again.groups == {"1": (3, 1, 0, 2)}
    for ours, theirs in zip(trace.operations, again.operations, strict=True):
        for one, other in zip(ours, theirs[1:], strict=True):  # behind the process groups
            assert type(one) is type(other)
            assert tuple(place + 1 for place in one.after) == other.after
            for name in (
                "peer",
                "octets",
                "tag",
                "duration_ns",
                "kind",
                "root",
                "stream",
                "splits",
            ):
                if not (name == "octets" and getattr(one, "kind", None) is Collective.BARRIER):
                    assert getattr(one, name, None) == getattr(other, name, None)
    in_order(again)


REFUSED: dict[str, Callable[[], bytes]] = {
    "node 1 .n1.: it has no comm_type": lambda: node(1, 7, comm_size=5),
    "node 1 .n1.: it has no comm_size": lambda: node(1, 7, comm_type=0),
    "node 1 .n1.: its comm_type 11 is unknown": lambda: node(1, 7, comm_type=11, comm_size=5),
    "node 1 .n1.: its type 8 is unknown": lambda: node(1, 8),
    "it has num_ops and no duration": lambda: node(1, 4, num_ops=5),
    "its data_deps name node 9, which the file has not": lambda: node(1, 4, wire.field(5, 9)),
    "another node has the same id": lambda: node(1, 4) + node(1, 4),
    "it has no comm_src": lambda: node(1, 6, comm_size=5),
    "has no whole number as comm_size": lambda: node(1, 5, comm_dst=1, comm_size="5"),
    "it has neither root nor comm_src; add one, or take --param root=N": lambda: node(
        1, 7, comm_type=5, comm_size=5
    ),
    "nothing says which ranks the group '44' has": lambda: node(
        1, 7, comm_type=0, comm_size=5, pg_name="44"
    ),
    "a message claims 5000 octets and 1 are left": lambda: wire.varint(5000) + b"a",
    "field 2 claims 99 octets and 1 are left": lambda: b"\x03\x12\x63a",
    "a number has more than 64 bits": lambda: b"\xff" * 12,
    "it ends in the middle of a number": lambda: b"\x80",
    "wire type 3 of field 1 is unknown": lambda: b"\x01\x0b",
    "field 1 of a node has wire type 2": lambda: b"\x03\x0a\x01a",
    "circle": lambda: node(1, 4, wire.field(5, 2)) + node(2, 4, wire.field(5, 1)),
}


@pytest.mark.parametrize("stated", REFUSED)
def test_what_is_open_or_wrong_is_refused_with_its_node(tmp_path: Path, stated: str) -> None:
    one = HEAD + REFUSED[stated]()
    with pytest.raises(TraceRefusal, match=stated):
        in_order(read(tmp_path, one, one))


def test_without_time_no_duration_is_needed(tmp_path: Path) -> None:
    trace = read(tmp_path, HEAD + node(1, 4, num_ops=5), timeless=True)
    assert trace.operations[0][0].duration_ns == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("names", "files", "stated"),
    [
        ("job.1{}.et", 2, r"rank 0 has no place: there are 2 files, of ranks 10 to 11"),
        ("job{}.et", 2, r"job0\.et: the name does not say which rank it is"),
        ("{}job.1.et", 2, "are both rank 1"),
    ],
)
def test_ranks_come_from_the_names(tmp_path: Path, names: str, files: int, stated: str) -> None:
    with pytest.raises(TraceRefusal, match=stated):
        read(tmp_path, *[HEAD + node(1, 4)] * files, names=names)


@pytest.mark.parametrize(
    ("text", "stated"),
    [("{", "line 1: not JSON"), ("[1]", "not a mapping"), ('{"a": [1.5]}', "no list of ranks")],
)
def test_a_wrong_file_of_groups_is_refused(tmp_path: Path, text: str, stated: str) -> None:
    groups = tmp_path / "groups.json"
    groups.write_text(text)
    with pytest.raises(TraceRefusal, match=f"groups.json.*{stated}"):
        read(tmp_path, HEAD + node(1, 4), groups=str(groups))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200), st.integers(0, 120), st.booleans())
def test_any_octets_are_a_trace_or_one_sentence(
    tmp_path: Path, octets: bytes, at: int, cut: bool
) -> None:
    whole = HEAD + node(1, 4, wire.field(7, 3)) + node(2, 7, wire.field(4, 1), **KEPT)
    content = whole[:at] + octets + (b"" if cut else whole[at + len(octets) :])
    assert "\n" not in outcome(lambda: in_order(read(tmp_path, content)))
