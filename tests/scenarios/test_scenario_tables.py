"""Tables of all scenarios: their width, what they leave out, and the sentence below them."""

import json
import re
from itertools import takewhile
from pathlib import Path

import pytest

from emulator.cli.explain_verb import explained, headed, table_columns
from emulator.cli.main import cli
from emulator.metrics import METRICS
from emulator.result_rows import NCCL_COLUMNS
from emulator.run.report.result_table import WIDTH
from tests.harness.runs.model_comparisons import SCENARIOS, TRACE

#: Comments that may be longer: a path is not parted.
LONG = ("# Run folder",)


def printed(
    scenario: str, folder: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> list[str]:
    """Return what a small run of ``scenario`` prints."""
    (folder / "step.csv").write_text(TRACE)
    small = (str(folder / word) if word == "step.csv" else word for word in SCENARIOS[scenario])
    run = ("--fabric", "model", "--capture", "none", "--output", str(folder / "run"))
    cli.main(["run", scenario, *small, *run, *options], standalone_mode=False)
    return capsys.readouterr().out.splitlines()


def comment(lines: list[str], what: str) -> str:
    first = next(place for place, line in enumerate(lines) if line.startswith(f"# {what} "))
    more = takewhile(lambda line: re.match("#   +", line), lines[first + 1 :])
    return " ".join([lines[first], *(line[1:].strip() for line in more)])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_table_fits_a_terminal_and_a_sentence_states_what_came_out(
    scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(scenario, tmp_path, capsys)
    assert max(len(line) for line in lines if not line.startswith(LONG)) <= WIDTH
    end = next(place for place, line in enumerate(lines) if line.startswith("# Came out"))
    table = lines[lines.index("#") + 1 : end]
    assert any(not line.startswith("#") for line in table)
    sentence = comment(lines, "Came out")
    assert re.fullmatch(r"# Came out             : [A-Z].* us.*[a-z].*\.", sentence)
    measured = json.loads((tmp_path / "run" / "result.json").read_text())["rows"]
    times = {f"{row['time_us']:.2f}" for row in measured}
    assert set(re.findall(r"([\d.]+) us \(", sentence)) <= times
    assert "uetemu explain NAME" in comment(lines, "Columns")
    last = max(place for place, line in enumerate(table) if line.startswith("#"))
    columns = zip(*(line.split() for line in table[last + 1 :]), strict=False)
    assert all(set(column) != {"N/A"} for column in columns)


def test_a_wide_table_has_all_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed("permutation", tmp_path, capsys, "--wide")
    heading = lines[lines.index("#") + 1]
    for name in ("goodput", "pauses", "max/mean", "reord"):
        assert name in heading
    assert "N/A" in lines[lines.index("#") + 3]
    assert "--wide" not in comment(lines, "Columns")


def test_columns_of_nccl_tests_keep_their_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where nothing is checked, and a value is N/A."""
    lines = printed("allreduce", tmp_path, capsys, "--param", "check=0")
    heading, _, row = lines[lines.index("#") + 1 : lines.index("#") + 4]
    assert re.match(r"#\s+size\s+count\s+type\b", heading)
    assert heading[1:].split()[: len(NCCL_COLUMNS)] == [one.heading for one in NCCL_COLUMNS]
    assert row.split()[: len(NCCL_COLUMNS)][-1] == "N/A"


def test_every_column_has_a_meaning() -> None:
    assert {column.key for column in table_columns()} <= METRICS.keys()
    headings = headed()
    for column in table_columns():
        assert any(f"(key {column.key})" in line for line in explained(column.heading, headings))


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("busbw", "busbw (GB/s): of collectives: bus bandwidth as nccl-tests defines it"),
        ("busbw_gbps", "busbw_gbps, key of a row: of collectives"),
        ("tx_acks", "tx_acks, counter of UET: ACKs sent"),
        ("xoff_sent", "xoff_sent, counter of PFC: frames sent that ask for a pause"),
    ],
)
def test_names_are_explained(name: str, meaning: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["explain", name], standalone_mode=False)
    assert meaning in capsys.readouterr().out
