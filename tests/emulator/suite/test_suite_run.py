"""Procedures advance as their trials end; what was found stands in ``suite.json`` and in CSV."""

import csv
import json
from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest

from emulator.errors import UserError
from emulator.suite import suite_run, trials
from emulator.suite.suite_model import (
    Findings,
    Point,
    Procedure,
    Suite,
    SuiteChoice,
    SuiteColumn,
    SuiteTable,
    SuiteTest,
)
from emulator.suite.suite_run import (
    FILE,
    Progress,
    SuiteRecord,
    SuiteRun,
    accounting,
    planned,
)
from emulator.suite.trials import TrialCommands
from tests.emulator.suite.test_trials import PROGRAM

CHOICE = SuiteChoice(scale="small", transports=["uet", "rocev2"], seeds=2)
COLUMNS = (
    SuiteColumn("size", "size", "B", Point.INPUT),
    SuiteColumn("time", "time", "us", Point.ENDPOINT),
)


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_START", PROGRAM)


def search(choice: SuiteChoice) -> Procedure:
    """Double a size until it is 4, one trial for each."""
    rows, size = [], 1
    while size <= 4:
        (outcome,) = yield [choice.trial("incast", "pod", size=size)]
        rows.append({"size": size, "time": outcome.rows[0]["time_us"]})
        size *= 2
    return Findings(tables=[SuiteTable(title="t", columns=COLUMNS, rows=rows)], deviations=["d"])


def failing(choice: SuiteChoice) -> Procedure:
    """Ask for a trial that fails."""
    (outcome,) = yield [choice.trial("broken", "pod")]
    return Findings(notes=[str(outcome.excluded)])


def refusing(choice: SuiteChoice) -> Procedure:
    yield [choice.trial("incast", "pod", size=1)]
    raise UserError("this fabric has no spines")


def half(choice: SuiteChoice) -> Procedure:
    """Ask for a trial that ends beside one that does not."""
    yield [choice.trial("incast", "pod"), choice.trial("forever", "pod")]
    return Findings()


SUITE = Suite(
    name="trial",
    document="a draft",
    terminology="its terms",
    tests=(
        SuiteTest(number="1.1", title="a", objective="o", procedure=search, searches=True),
        SuiteTest(number="1.2", title="b", objective="o", procedure=failing),
        SuiteTest(number="2.1", title="c", objective="o", reason="no accelerator"),
        SuiteTest(number="10.1", title="d", objective="o", procedure=refusing),
    ),
)


def run(folder: Path, *numbers: str, choice: SuiteChoice = CHOICE) -> list[SuiteRecord]:
    suite = SuiteRun(SUITE, SUITE.choose(numbers), choice, folder, TrialCommands(2))
    suite.run()
    return suite.records


def test_trials_on_a_model_say_so_and_share_no_folder_with_others(tmp_path: Path) -> None:
    modelled = SuiteChoice(scale="small", transports=["uet"], nodes="model")
    trial = modelled.trial("incast", "pod", options=("--iterations", "1"))
    assert trial.words[-4:] == ("--iterations", "1", "--fabric", "model")
    assert "--fabric" not in CHOICE.trial("incast", "pod").words
    run(tmp_path, "2.1", choice=modelled)
    assert json.loads((tmp_path / FILE).read_text())["nodes"] == "model"
    in_kernel = SuiteChoice(scale="small", transports=["uet"])
    with pytest.raises(UserError, match="another nodes"):
        run(tmp_path, "2.1", choice=in_kernel)


def test_a_suite_from_before_there_were_models_goes_on_in_the_kernel(tmp_path: Path) -> None:
    run(tmp_path, "2.1")
    data = json.loads((tmp_path / FILE).read_text())
    del data["nodes"]
    (tmp_path / FILE).write_text(json.dumps(data))
    run(tmp_path, "2.1")
    assert json.loads((tmp_path / FILE).read_text())["nodes"] == "kernel"


def test_a_search_goes_on_until_its_end_and_everything_is_written(tmp_path: Path) -> None:
    records = run(tmp_path)
    assert all(record.ended for record in records)
    assert accounting(records) == {
        "attempted": 4,  # one of them for two tests
        "included": 3,
        "excluded": {"the run failed": 1},
        "again": {},
    }
    data = json.loads((tmp_path / FILE).read_text())
    assert data["transports"] == ["uet", "rocev2"]
    first, second, third, last = data["tests"]
    assert [row["size"] for row in first["tables"][0]["rows"]] == [1, 2, 4]
    assert first["tables"][0]["columns"][1]["point"] == "endpoint"
    assert first["trials"][0]["command"].startswith("uetemu run incast --topology pod")
    assert second["notes"] == ["the run failed"]
    assert third["reason"] == "no accelerator"
    assert last["error"] == "this fabric has no spines"
    with (tmp_path / "tables" / "1.1-1.csv").open() as stream:
        heads, points, *rows = csv.reader(stream)
    assert heads == ["size (B)", "time (us)"]
    assert points == ["setting", "endpoint"]
    assert rows[0] == ["1", "11.0"]


def test_tests_of_an_earlier_call_stay_in_the_same_folder(tmp_path: Path) -> None:
    run(tmp_path, "10.1")
    run(tmp_path, "1.1")
    data = json.loads((tmp_path / FILE).read_text())
    assert [test["number"] for test in data["tests"]] == ["1.1", "10.1"]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "a", "2.1")
    other = SuiteChoice(scale="small", transports=["uet"], seeds=3)
    with pytest.raises(UserError, match="another transports and seeds"):
        run(tmp_path / "a", "2.1", choice=other)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").touch()
    with pytest.raises(UserError, match="holds no suite"):
        run(tmp_path / "b", "2.1")
    (tmp_path / "c").touch()
    with pytest.raises(UserError, match="cannot use"):
        run(tmp_path / "c", "2.1")


def test_tests_are_chosen_by_number_or_section() -> None:
    assert [test.number for test in SUITE.choose(["1"])] == ["1.1", "1.2"]
    assert [test.number for test in SUITE.choose(["10.1", "2.1"])] == ["2.1", "10.1"]
    with pytest.raises(UserError, match=r"no test '1\.3'"):
        SUITE.choose(["1.3"])


def test_a_test_has_a_procedure_or_a_reason() -> None:
    with pytest.raises(ValueError, match="needs a procedure, or a reason"):
        SuiteTest(number="1", title="t", objective="o")
    with pytest.raises(ValueError, match="needs a procedure, or a reason"):
        SuiteTest(number="1", title="t", objective="o", procedure=search, reason="r")


def test_a_plan_has_the_first_trials() -> None:
    (trial,) = planned(SUITE.tests[0], CHOICE)
    assert trial.parameters == (("size", "1"),)
    assert trial.transport == "uet,rocev2"
    assert planned(SUITE.tests[2], CHOICE) == ()


def test_a_suite_waits_for_trials_that_run_and_not_for_those_that_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[list[bool]] = []

    def recorded(futures: Sequence[Future[Any]], **options: Any) -> Any:
        waits.append([future.done() for future in futures])
        return wait(futures, **options)

    def progress(so_far: Progress) -> None:
        if so_far.known - so_far.ended == 2:
            waits.clear()
        elif len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(suite_run, "wait", recorded)
    test = SuiteTest(number="1.1", title="a", objective="o", procedure=half)
    suite = SuiteRun(SUITE, [test], CHOICE, tmp_path, TrialCommands(2))
    with pytest.raises(KeyboardInterrupt):
        suite.run(progress)
    assert waits[-2:] == [[False], [False]]
