"""A run's progress, read from its events while they are written."""

import json
from pathlib import Path
from typing import Any

import pytest

from emulator.lab.monitoring import lab_watch
from emulator.lab.monitoring.lab_watch import MOST_ROWS, MOST_TRANSPORTS, RowName, RunProgress


def line(event: str, **details: Any) -> str:
    return json.dumps({"time": "now", "event": event, **details}) + "\n"


def row(size: int, busbw: float = 1.0, transport: str = "uet") -> str:
    return line("row", transport=transport, switch=None, collective="all", size_bytes=size,
                busbw_gbps=busbw)  # fmt: skip


def appended(folder: Path, *lines: str) -> None:
    with (folder / "events.jsonl").open("a") as stream:
        stream.write("".join(lines))


def test_rows_ports_and_endpoints_add_up(tmp_path: Path) -> None:
    run = RunProgress(tmp_path)
    run.read()  # nothing is there yet
    assert (run.finished, run.errors) == (0, None)
    appended(tmp_path, line("begin", scenario="allreduce"), row(8, 2.0),
             line("ports", row=1, ports={"a:0": {"marked": 3}, "b:0": {"marked": 4}}),
             line("endpoints", row=1, transport="uet", counters={"tx_acks": 5}))  # fmt: skip
    run.read()
    whole = line("ports", row=2, ports={"a:0": {"marked": 1}})
    appended(tmp_path, row(8, 9.0), whole[:10])
    run.read()
    assert run.ports["marked"] == 7
    appended(tmp_path, whole[10:],
             line("endpoints", row=2, transport="uet", counters={"tx_acks": 6}),
             line("end", errors=["one"]))  # fmt: skip
    run.read()
    assert run.scenario == "allreduce"
    assert run.finished == 2
    (name,) = run.latest
    assert name == RowName(transport="uet", switch="none", collective="all", size_bytes=8)
    assert run.latest[name]["busbw_gbps"] == 9.0
    assert run.ports["marked"] == 8
    assert run.transports["uet"]["tx_acks"] == 11
    assert run.errors == 1


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_watch, "MOST_OCTETS", 4096)
    run = RunProgress(tmp_path)
    for number in range(MOST_ROWS + 10):
        appended(tmp_path, row(number, transport=f"t{number}"),
                 line("endpoints", transport=f"t{number}", counters={"tx_acks": 1}))  # fmt: skip
    appended(tmp_path, line("ports", ports={f"p{n}": {"marked": 1} for n in range(1000)}))
    appended(tmp_path, row(-1))
    for _ in range(100):
        run.read()
    assert run.finished == MOST_ROWS + 11
    assert len(run.latest) == MOST_ROWS
    assert [*run.latest][-1].size_bytes == -1  # the latest stay
    assert len(run.transports) == MOST_TRANSPORTS
    assert run.ports["marked"] == 0  # a line that is longer than any of ours


def test_lines_of_another_version_are_left_out(tmp_path: Path) -> None:
    run = RunProgress(tmp_path)
    appended(tmp_path, "[]\n", "7\n", "{\n", "\udcff".encode("utf-8", "replace").decode() + "\n",
             line("row"), line("ports", ports=[1]), line("endpoints", transport="x"),
             line("messages"), line("end"), row(8))  # fmt: skip
    run.read()
    assert run.finished == 1
