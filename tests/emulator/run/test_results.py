"""Run folder, result schema, table and fidelity verdict."""

import json
from pathlib import Path
from typing import Any

import pytest

from emulator.errors import UserError
from emulator.result_rows import NCCL_COLUMNS, TableColumn
from emulator.run.report import outcome_sentence
from emulator.run.report import result_table as table
from emulator.run.results import ROW_KEYS, Result, RunFolder
from emulator.run_files import SCHEMA


def result() -> Result:
    return Result(scenario="allreduce", topology="rail_clos", transport="uet", ranks=4, seed=1)


def row(**more: Any) -> dict[str, object]:
    return {
        "transport": "uet",
        "collective": "all_reduce",
        "size_bytes": 65536,
        "count": 16384,
        "type": "float",
        "redop": "sum",
        "root": -1,
        "time_us": 10.0,
        "algbw_gbps": 6.5536,
        "busbw_gbps": 9.8304,
        "wrong": 0,
        "ideal_us": 7.5,
        "efficiency": 0.75,
        **more,
    }


def test_the_schema_has_every_obligatory_key() -> None:
    outcome = result()
    outcome.add_row({"size_bytes": 4})
    content = outcome.as_dict()
    assert content["schema"] == SCHEMA
    for key in ("scenario", "topology", "transport", "ranks", "seed", "dilation", "rows"):
        assert key in content
    for key in ("endpoints", "ports", "fidelity", "errors", "units"):
        assert key in content
    assert set(ROW_KEYS) <= set(outcome.rows[0])
    json.dumps(content)


def test_success_needs_rows_without_a_wrong_element_and_no_error() -> None:
    outcome = result()
    assert not outcome.succeeded
    outcome.add_row(row())
    assert outcome.succeeded
    outcome.add_row(row(wrong=1))
    assert not outcome.succeeded
    outcome.rows.pop()
    outcome.errors.append("something broke")
    assert not outcome.succeeded


def test_a_host_limited_run_is_a_success() -> None:
    outcome = result()
    outcome.add_row(row())
    outcome.fidelity = {"verdict": "host-limited", "reasons": ["busy"], "inputs": []}
    assert outcome.succeeded


def test_events_are_on_disk_at_once(tmp_path: Path) -> None:
    folder = RunFolder.create("allreduce", tmp_path / "a" / "b")
    folder.event("row", size_bytes=4)
    (line,) = (folder.path / "events.jsonl").read_text().splitlines()
    assert json.loads(line)["size_bytes"] == 4
    folder.close()


def test_json_is_replaced_in_one_step_and_leaves_no_other_file(tmp_path: Path) -> None:
    folder = RunFolder.create("allreduce", tmp_path / "run")
    folder.write("result.json", {"a": 1})
    with pytest.raises(TypeError):
        folder.write("result.json", {"a": object()})
    assert json.loads((folder.path / "result.json").read_text()) == {"a": 1}
    folder.close()
    assert sorted(path.name for path in folder.path.iterdir()) == ["events.jsonl", "result.json"]


def test_two_runs_in_one_second_get_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [RunFolder.create("allreduce") for _ in range(5)]
    assert len({folder.path for folder in folders}) == 5
    assert all(folder.path.name.startswith("allreduce-2") for folder in folders)
    for folder in folders:
        folder.close()


def test_a_used_or_impossible_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="not empty"):
        RunFolder.create("allreduce", tmp_path)
    with pytest.raises(UserError, match="choose another"):
        RunFolder.create("allreduce", tmp_path / "file" / "below")


def test_the_table_reads_like_that_of_the_nccl_tests() -> None:
    fields = table.line(NCCL_COLUMNS, row()).split()
    assert fields == ["65536", "16384", "float", "sum", "-1", "10.00", "6.55", "9.83", "0"]
    columns = (*NCCL_COLUMNS, *table.FABRIC_COLUMNS)
    titles, units = table.heading(columns)
    assert titles.startswith("#")
    assert units.startswith("#")
    assert len(table.line(columns, row())) == len(titles) >= len(units)
    assert table.line(columns, row()).split()[-3:] == ["75.0", "N/A", "N/A"]


def test_a_heading_comes_again_where_a_column_has_its_first_value() -> None:
    columns = (TableColumn("a", "a"), TableColumn("b", "b"))
    shown = table.ResultTable(columns)
    assert [line.split() for line in shown.lines({"a": 1})] == [["#", "a"], ["#"], ["1"]]
    assert [line.split() for line in shown.lines({"a": 2})] == [["2"]]
    again, _, line = shown.lines({"a": 3, "b": 4})
    assert (again.split(), line.split()) == (["#", "a", "b"], ["3", "4"])


def test_columns_of_the_largest_rank_leave_a_full_line() -> None:
    columns = [TableColumn(f"k{n}", f"k{n}", width=29, rank=n % 5) for n in range(6)]
    shown = table.ResultTable(columns)
    heading, *_ = shown.lines({one.key: 1 for one in columns})
    assert heading.split() == ["#", "k0", "k1", "k2", "k5"]
    assert "--wide shows k3, k4 as well" in shown.explained()
    same = [*columns, TableColumn("k6", "k4", width=29, rank=4)]
    again = table.ResultTable(same)
    list(again.lines({one.key: 1 for one in same}))
    assert "--wide shows k3, k4 as well" in again.explained()
    wide, *_ = table.ResultTable(columns, wide=True).lines({})
    assert wide.split()[1:] == [one.key for one in columns]


def test_the_sentence_states_the_fastest_and_what_was_lost() -> None:
    columns = (
        *NCCL_COLUMNS,
        *table.FABRIC_COLUMNS,
        TableColumn("algorithm", "algorithm"),
    )
    rows = [
        row(algorithm=name, time_us=time, size_bytes=size, retransmitted_packets=2)
        for size, name, time in [(8, "ring", 1.0), (16, "ring", 3.0), (16, "tree", 2.0)]
    ]
    shown = table.ResultTable(
        columns, [{key: one[key] for key in ("size_bytes", "algorithm")} for one in rows]
    )
    assert outcome_sentence.sentence(rows, shown, rows) == (
        "Of the largest size, 16 B, fastest was algorithm=tree with 2.00 us (75.0 % of ideal, bus "
        "bandwidth 9.83 GB/s), slowest algorithm=ring with 3.00 us (75.0 % of ideal, bus bandwidth "
        "9.83 GB/s); 6 packets were sent again."
    )
    moved = {
        "size_bytes": 1,
        "time_us": 1.0,
        "dropped_packets": 0,
        "trimmed_packets": 3,
        "timeouts": 1,
    }
    assert outcome_sentence.sentence([moved], table.ResultTable(()), [moved]) == (
        "It took 1.00 us; 3 packets were trimmed, none dropped, 1 retransmission timer expired."
    )


def test_the_trailer_says_what_disqualifies_the_numbers() -> None:
    outcome = result()
    outcome.add_row(row())
    outcome.add_row(row(busbw_gbps=10.0, wrong=3))
    outcome.fidelity = {"verdict": "host-limited", "reasons": ["too busy"], "inputs": []}
    outcome.errors.append("h0g0 died")
    text = list(table.trailer(outcome.as_dict(), "runs/x"))
    assert all(line.startswith("#") for line in text)
    assert "# Out of bounds values : 3 FAILED" in text
    assert "# Avg bus bandwidth    : 9.9152" in text
    assert any("HOST-LIMITED" in line for line in text)
    assert any("too busy" in line for line in text)
    assert any("h0g0 died" in line for line in text)


def test_the_trailer_says_whose_hash_chose_paths() -> None:
    outcome = result()
    outcome.add_row(row())
    for decides in (True, False):
        outcome.fidelity = {"verdict": "exact", "reasons": [], "kernel_hash": decides}
        text = "\n".join(table.trailer(outcome.as_dict(), "runs/x"))
        assert ("kernel's own hash" in text) == decides
