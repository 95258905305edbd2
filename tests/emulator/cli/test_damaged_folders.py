"""Verbs that read folders have a sentence for whatever the files hold, and never a traceback."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from emulator.cli.reports import (
    compare_verb,
    follow_verb,
    report_verb,
    tensorboard_verb,
    traffic_verb,
)
from emulator.errors import UserError
from emulator.lab.monitoring.lab_watch import RunProgress
from emulator.suite.suite_run import _claim
from tests.harness.runs.written_folder import result, row, write_folder

VERBS = {
    "report": (report_verb.command, ()),
    "compare": (compare_verb.command, ()),
    "follow": (follow_verb.command, ("--psn", "1")),
    "tensorboard": (tensorboard_verb.command, ()),
    "traffic": (traffic_verb.command, ()),
}
FOREIGN = {
    "empty": "",
    "cut": '{"schema": "uetemu.result/1", "ro',
    "list": "[]",
    "null": "null",
    "deep": "[" * 5000,
    "binary": "\0\1",
    "package": '{"name": "left-pad", "version": "1.0.0"}',
    "schema alone": '{"schema": "uetemu.result/1"}',
    "no scenario": json.dumps({k: v for k, v in result(row()).items() if k != "scenario"}),
    "no seed in a row": json.dumps(result({k: v for k, v in row().items() if k != "seed"})),
    "words for counters": json.dumps(result(row(), endpoints={"h0g0": {"rx": "many"}})),
}


def outcome_of(verb: str, folder: Path) -> BaseException | None:
    command, options = VERBS[verb]
    folders = [str(folder), str(folder)] if verb == "compare" else [str(folder)]
    return CliRunner().invoke(command, [*folders, *options]).exception


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN.keys())
@pytest.mark.parametrize("verb", VERBS)
def test_a_foreign_result_is_refused_in_a_sentence(tmp_path: Path, verb: str, text: str) -> None:
    folder = write_folder(tmp_path / "run", result(row()))
    (folder / "result.json").write_text(text)
    refusal = outcome_of(verb, folder)
    assert isinstance(refusal, UserError)
    assert "\n" not in str(refusal)


@pytest.mark.parametrize("file", ["fabric.json", "events.jsonl", "timeline.json", "telemetry.csv"])
@pytest.mark.parametrize("name", ["empty", "cut", "deep", "package"])
@pytest.mark.parametrize("verb", ["report", "follow", "traffic"])
def test_another_damaged_file_is_survived(tmp_path: Path, verb: str, file: str, name: str) -> None:
    folder = write_folder(tmp_path / "run", result(row()))
    (folder / file).write_text(FOREIGN[name])
    assert isinstance(outcome_of(verb, folder), UserError | click.ClickException | None)


@pytest.mark.parametrize(
    ("key", "value"),
    [("nodes", [None]), ("name", -1.5), ("servers", [7]), ("profile", {"control_plane": []})],
)
def test_a_fabric_of_other_types_has_a_reason_in_the_report(
    tmp_path: Path, key: str, value: object
) -> None:
    folder = write_folder(tmp_path / "run", result(row()))
    fabric = json.loads((folder / "fabric.json").read_text())
    (folder / "fabric.json").write_text(json.dumps({**fabric, key: value}))
    assert outcome_of("report", folder) is None
    assert "fabric.json is of another version" in (folder / "report.html").read_text()


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN.keys())
def test_metrics_of_a_run_pass_over_damaged_lines(tmp_path: Path, text: str) -> None:
    good = json.dumps({"event": "begin", "scenario": "incast"})
    (tmp_path / "events.jsonl").write_text(f"{text}\n{good}\n")
    progress = RunProgress(tmp_path)
    progress.read()
    assert progress.scenario == "incast"


@pytest.mark.parametrize("text", ["[]", "null", "[" * 5000, '{"schema": "uetemu.suite/1"}', ""])
def test_a_suite_does_not_go_on_in_a_damaged_folder(tmp_path: Path, text: str) -> None:
    (tmp_path / "suite.json").write_text(text)
    with pytest.raises(UserError, match="choose"):
        _claim(tmp_path, {})
