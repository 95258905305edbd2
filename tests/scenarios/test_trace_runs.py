"""Traces replayed over real fabrics, over either transport: right, exact, not below the ideal."""

from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.pytest_plugin.runs import RunProcess
from tests import DATA
from tests.harness.runs.processes import ended

LIST = """\
operation,size,ranks,root,duration,name,after,group,splits
ranks,,4
compute,,,,3us
all_reduce,64KiB
all_gather,8KiB,0-1
reduce,1001,,2
send,4KiB,0 3
all_to_all,4KiB,,,,,-
all_to_all,,,,,,,ep,4KiB 0 8 12; 0 0 0 0; 4 5KiB 6 7; 0 16KiB 0 0
"""
GOAL = """\
num_ranks 2
rank 0 { w: calc 2000 s: send 20000b to 1 tag 3 s requires w }
rank 1 { recv 20000b from 0 tag 3 }
"""


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_lists_and_goal_are_replayed(
    start: Callable[..., RunProcess], tmp_path: Path, transport: str
) -> None:
    first, second = tmp_path / "list.csv", tmp_path / "two.goal"
    first.write_text(LIST)
    second.write_text(GOAL)
    run = start(
        str(first), str(second), "--transport", transport, "--capture", "none", scenario="trace"
    )
    ended(run)
    assert run.result["fidelity"]["verdict"] == "exact"
    rows = run.result["rows"]
    assert [row["trace"] for row in rows] == ["list.csv", "two.goal"]
    assert [row["compute_us"] for row in rows] == [3.0, 2.0]
    for row in rows:
        assert row["wrong"] == 0
        assert row["time_us"] >= row["ideal_us"] > row["compute_us"]
        assert row["flows"] == 1
        assert 0 < row["message_max_us"] < row["time_us"] - row["compute_us"]
    kinds = [one["collective"] for one in rows[0]["collective_times"]]
    assert sorted(kinds) == ["all_gather", "all_reduce", "all_to_all", "all_to_all", "reduce"]
    for one in rows[0]["collective_times"]:
        assert 0 <= one["start_us"] < one["end_us"] <= rows[0]["time_us"]


@pytest.mark.parametrize("suffix", ["goal", "csv", "yaml"])
def test_what_ran_runs_again(start: Callable[..., RunProcess], tmp_path: Path, suffix: str) -> None:
    first, written = tmp_path / "list.csv", tmp_path / f"out.{suffix}"
    first.write_text(LIST)
    run = start(str(first), "--capture", "none", "--param", f"write={written}", scenario="trace")
    assert run.communicate()[0] == 0
    again = start(str(written), "--capture", "none", scenario="trace")
    assert again.communicate()[0] == 0
    (row,), (other,) = run.result["rows"], again.result["rows"]
    assert other["wrong"] == 0
    assert other["data_packets"] == row["data_packets"]
    assert other["ideal_us"] == pytest.approx(row["ideal_us"])


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_formats_of_other_tools_are_written_and_replayed(
    start: Callable[..., RunProcess], tmp_path: Path, transport: str
) -> None:
    first = tmp_path / "list.csv"
    first.write_text("operation,size,ranks\nranks,,4\nall_reduce,64KiB\n")
    files = ",".join(f"{tmp_path}/out{suffix}" for suffix in (".et", ".cm", ".jsonl", ".goal"))
    run = start(str(first), "--capture", "none", "--param", f"write={files}", scenario="trace")
    assert run.communicate()[0] == 0
    written = run.result["rows"][0]["written"]
    assert len(written) == 4 + 1 + 4 + 1
    again = start(*written, "--capture", "none", "--transport", transport, scenario="trace")
    ended(again)
    rows = again.result["rows"]
    assert sorted(row["trace"] for row in rows) == ["out", "out", "out.cm", "out.goal"]
    for row in rows:
        assert row["wrong"] == 0
        assert row["data_packets"] == run.result["rows"][0]["data_packets"]
        assert row["ideal_us"] == pytest.approx(run.result["rows"][0]["ideal_us"], rel=0.05)


def test_flows_of_a_matrix_have_completion_times(start: Callable[..., RunProcess]) -> None:
    matrix = DATA / "traces" / "messages_of_one_flow.cm"
    run = start(str(matrix), "--fabric", "model", scenario="trace")
    out = ended(run)
    (row,) = run.result["rows"]
    assert row["flows"] == 3
    # Each of the messages takes 40,000 B of the link, and the headers, longer than the one before.
    middle, mean, most = row["message_p50_us"], row["message_mean_us"], row["message_max_us"]
    assert row["message_p99_us"] == most
    assert most - middle == pytest.approx(0.825, abs=0.01)
    assert mean == pytest.approx(middle, abs=0.001)
    assert most < row["time_us"]
    assert "FCT" in out
