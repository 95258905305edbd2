"""Files of traces: packed or not, and too large for the memory."""

import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import psutil
import pytest

from emulator.packed_file import ALWAYS
from scenarios.traces.format_registry import FACTS, FORMATS, ReadOptions
from scenarios.traces.trace_file import TraceFile
from scenarios.traces.trace_loading import load_traces
from scenarios.traces.trace_model import TraceRefusal

TEXT = b"num_ranks 1\nrank 0 { calc 5 }\n"
#: Memory (octets) that a refusal may take.
LITTLE = 16 * 2**20


def test_a_packed_file_is_read_as_the_plain_one(tmp_path: Path) -> None:
    (tmp_path / "a.goal").write_bytes(TEXT)
    (tmp_path / "b.goal.gz").write_bytes(gzip.compress(TEXT, mtime=0))
    plain, packed = load_traces(
        [str(tmp_path / "a.goal"), str(tmp_path / "b.goal.gz")], "", ReadOptions()
    )
    assert plain.operations == packed.operations
    assert (plain.name, packed.name) == ("a.goal", "b.goal")


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.goal"
    path.write_bytes(TEXT)
    assert len(load_traces([str(path)], "", ReadOptions())[0]) == 1
    path.write_bytes(TEXT.replace(b"}", b"calc 6 }"))
    assert len(load_traces([str(path)], "", ReadOptions())[0]) == 2


def test_a_file_that_memory_does_not_hold_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "bomb.et"
    with path.open("wb") as file:
        file.truncate(psutil.virtual_memory().total)  # a hole, which takes no room on the disk
    with pytest.raises(
        TraceRefusal, match=r"bomb\.et has more than .* of memory are free.*unpacked"
    ):
        load_traces([str(path)], "", ReadOptions())


def test_a_packed_file_is_refused_at_its_bounds(tmp_path: Path) -> None:
    path = tmp_path / "bomb.goal.gz"
    path.write_bytes(gzip.compress(TEXT + b" " * ALWAYS, compresslevel=1))
    tracemalloc.start()
    with pytest.raises(TraceRefusal, match="unpacks to more than 16 MiB, 200 times"):
        load_traces([str(path)], "", ReadOptions())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * ALWAYS
    with pytest.raises(TraceRefusal, match="more than 4096 B, which --param unpacked allows"):
        load_traces([str(path)], "", ReadOptions(unpacked=4096))
    assert load_traces([str(path)], "", ReadOptions(unpacked=2**30))[0].ranks == 1


def test_text_may_be_utf_16(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("operation,size,ranks\nranks,,2\nsend,4KiB,0 1\n", encoding="utf-16")
    assert load_traces([str(path)], "", ReadOptions())[0].ranks == 2


def test_nodes_without_end_are_refused_early(tmp_path: Path) -> None:
    """An empty message is a node with id 0, and there may be one."""
    path = tmp_path / "zeros.et"
    path.write_bytes(bytes(2**22))
    tracemalloc.start()
    with pytest.raises(TraceRefusal, match=r"node 0 .*another node has the same id"):
        load_traces([str(path)], "", ReadOptions())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < LITTLE


@pytest.mark.parametrize("content", [b"\x1f\x8bnothing", gzip.compress(TEXT, mtime=0)[:-9]])
def test_a_packed_file_that_is_broken_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.goal.gz"
    path.write_bytes(content)
    with pytest.raises(TraceRefusal, match="begins as a gzip file and cannot be unpacked"):
        assert TraceFile(path).content


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("", "no trace is given"),
        ("absent.goal", r"absent\.goal cannot be read \(No such file"),
        (".", "is no file; name the files in it"),
        ("a.pdf", r"a\.pdf has no suffix of a trace; known are \.bin"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, name: str, stated: str) -> None:
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(TraceRefusal, match=stated):
        load_traces([str(tmp_path / name)] if name else [], "", ReadOptions())


@pytest.mark.parametrize(
    ("name", "content", "stated"),
    [
        ("bin.yaml", b"\0\1\2", r"is binary and does not begin as .* YAML \(has 'operations'\)"),
        ("bin.yaml", bytes(range(128, 256)), "is binary and does not begin"),
        ("a.yaml", b"name: x", r"a\.yaml does not begin as its name says"),
        ("a.goal", b"rank 0", r"begins with 4223\), or GOAL text .*begins with 'num_ranks'"),
        ("a.txt", b"18 8 1", r"begins with a policy in capitals"),
    ],
)
def test_what_does_not_begin_as_named_is_told(
    tmp_path: Path, name: str, content: bytes, stated: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceRefusal, match=stated):
        load_traces([str(tmp_path / name)], "", ReadOptions())


def test_the_user_may_name_the_format(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(TEXT)
    assert load_traces([str(path)], "goal", ReadOptions())[0].ranks == 1
    with pytest.raises(TraceRefusal, match=r"no trace format 'gaol' \(did you mean goal"):
        load_traces([str(path)], "gaol", ReadOptions())


@pytest.mark.parametrize("name", [one.name for one in FORMATS.values() if one.read])
def test_a_fact_that_a_format_does_not_take_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.trace"
    path.write_bytes(TEXT)
    facts: dict[str, Any] = {"ranks": 2, "groups": "a.json", "root": 1, "gathered": "part"}
    facts["ctrl_deps"] = True
    assert tuple(facts) == FACTS
    for fact in set(FACTS) - set(FORMATS[name].facts):
        with pytest.raises(TraceRefusal, match=f"{fact} changes nothing for a.trace, whose format"):
            load_traces([str(path)], name, ReadOptions(**{fact: facts[fact]}))
