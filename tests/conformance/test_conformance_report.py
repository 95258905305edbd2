"""The conformance report: from markers through pytest's plugin and its file to the verb's table."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from emulator.cli import conformance_verb as verb
from emulator.errors import UserError
from tests import CHECKOUT
from tests.conformance import report as rules
from tests.conformance.plugin import CATALOGUE, RUN
from tests.conformance.project import STATEMENTS, Project
from tests.conformance.report import Run, merged, without_test_or_reason
from tests.conformance.statements import Catalogue, Statement, StatementError, load


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


# --- this repository ------------------------------------------------------------------------------


def test_every_statement_has_a_test_or_a_reason(request: pytest.FixtureRequest) -> None:
    """On the markers of this session; a part of the suite cannot tell."""
    run = request.config.stash[RUN]
    files = {str(path.relative_to(CHECKOUT)) for path in CHECKOUT.glob("tests/**/test_*.py")}
    if left_out := files - run.collected.keys():
        pytest.skip(f"needs the whole suite: {len(left_out)} files were not collected")
    lacking = without_test_or_reason(request.config.stash[CATALOGUE], run.carried)
    assert not lacking, (
        f"{', '.join(lacking)}: no test carries the number; write one, or say in "
        "tests/conformance/statements.toml why there is none: untested = ..."
    )


def test_the_statements_of_this_repository() -> None:
    catalogue = load()
    assert catalogue.titles == {
        "uet": "Ultra Ethernet Transport",
        "rocev2": "RoCEv2",
        "dcqcn": "DCQCN",
        "pfc": "Priority flow control",
    }
    for family, count in (("uet", 108), ("rocev2", 36), ("dcqcn", 5), ("pfc", 6)):
        numbers = [each.number for each in catalogue.statements.values() if each.family == family]
        assert len(numbers) >= count  # none is ever taken away
        assert numbers == sorted(numbers)
    for statement in catalogue.statements.values():
        known = r"UES|UEC|ns-3|ETH|libfabric|IEEE|SIGCOMM|SONiC|IBA|golden|inferred"
        assert re.search(known, statement.source), statement
        assert statement.text.endswith("."), statement


def test_a_statement_without_test_or_reason_is_found() -> None:
    one, two, three = (
        Statement(f"C-00{n}", "uet", "text.", "UES 3.5", "A", untested="no time" if n == 3 else "")
        for n in (1, 2, 3)
    )
    catalogue = Catalogue({"uet": "UET"}, {each.number: each for each in (one, two, three)})
    assert without_test_or_reason(catalogue, {"t.py::test": ["C-001"]}) == ["C-002"]
    assert without_test_or_reason(catalogue, {"t.py::test": ["C-001", "C-002"]}) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("C-002", "C-2"), "C-2 is not C- and three digits"),
        (("C-002", "D-002"), "D-002 is not C- and three digits"),
        (('source = "inferred"', ""), "C-003 has no source"),
        (('"I"', '"D"'), "C-003: confidence must be one of A, B, C, I"),
        (("untested =", "untestable ="), "C-003 has a key untestable"),
        (("untested =", 'left_out = "x"\nuntested ='), "C-003 is untested, so left_out"),
        (("no switch yet", " "), "C-003: untested must say something"),
        (('prefix = "C"', ""), "family uet needs a title and a prefix"),
        (("[uet.C-001]", "[uet.C-001"), "line 5"),
    ],
)
def test_faulty_statements_are_refused(
    tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    path = tmp_path / "statements.toml"
    path.write_text(STATEMENTS.replace(*change))
    with pytest.raises(StatementError, match=re.escape(complaint)) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_families_stand_beside_each_other(tmp_path: Path) -> None:
    path = tmp_path / "statements.toml"
    path.write_text(
        STATEMENTS
        + '[roce]\ntitle = "RoCEv2"\nprefix = "R"\n'
        + '[roce.R-001]\ntext = "r"\nsource = "IBTA"\nconfidence = "A"\n'
    )
    catalogue = load(path)
    assert [each.family for each in catalogue.statements.values()] == ["uet"] * 3 + ["roce"]


# --- the plugin -----------------------------------------------------------------------------------


def test_the_file_of_a_run(project: Project) -> None:
    stated = project.pytest()
    assert "conformance (uet): 2 passed, 1 untested" in stated
    facts = project.read()
    assert facts["schema"] == verb.SCHEMA == rules.SCHEMA
    assert facts["commit"] is None
    assert facts["versions"]["pytest"] == pytest.__version__
    assert facts["last_run"] == {"tests": 4}
    assert facts["families"] == [
        {
            "name": "uet",
            "title": "Ultra Ethernet Transport",
            "statements": 3,
            "results": {"passed": 2, "untested": 1},
        }
    ]
    assert facts["statements"][1] == {
        "number": "C-002",
        "family": "uet",
        "text": "two [of three]",
        "source": "UEC reference provider",
        "confidence": "B",
        "note": "the half: C",
        "untested": "",
        "left_out": "three",
        "result": "passed",
        "tests": [
            "tests/test_first.py::test_both[a]",
            "tests/test_first.py::test_both[b::c]",
            "tests/test_second.py::TestTwo::test_two",
        ],
    }
    assert facts["tests"]["tests/test_first.py::test_one"] == {
        "outcome": "passed",
        "ran": facts["written"],
        "commit": None,
        "statements": ["C-001"],
    }
    left = {path.name for path in project.root.iterdir()}
    assert left == {"pytest.ini", "statements.toml", "tests", ".pytest_cache"}
    assert list(project.report.parent.iterdir()) == [project.report]


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("assert False", "failed"),
        ("pytest.skip('not here')", "skipped"),
        ("pytest.xfail('known')", "xfailed"),
    ],
)
def test_outcomes(project: Project, body: str, outcome: str) -> None:
    project.replace("tests/test_first.py", "test_one(): pass", f"test_one(): {body}")
    project.pytest(status=outcome == "failed")
    assert project.outcomes()["test_first.py::test_one"] == outcome
    assert project.results() == {"C-001": outcome, "C-002": "passed", "C-003": "untested"}


def test_what_fails_before_or_after_a_test_fails_it(project: Project) -> None:
    project.write(
        "tests/test_first.py",
        "import pytest\n"
        "@pytest.fixture\n"
        "def before(): assert False\n"
        "@pytest.fixture\n"
        "def after():\n    yield\n    assert False\n"
        "@pytest.mark.conformance('C-001')\n"
        "def test_before(before): pass\n"
        "@pytest.mark.conformance('C-002')\n"
        "def test_after(after): pass\n"
        "@pytest.mark.conformance('C-003')\n"
        "@pytest.mark.xfail\n"
        "def test_wrongly_expected(): pass\n",
    )
    stated = project.pytest(status=1)
    assert project.results() == {"C-001": "failed", "C-002": "failed", "C-003": "xpassed"}
    assert "tested, but called untested in statements.toml: C-003" in stated


XDIST = ("-p", "xdist", "-n", "1")


@pytest.mark.parametrize(
    ("marker", "complaint", "workers"),
    [
        ('("C-001", "C-999")', "there is no statement C-999 (there are C-001 to C-003", ()),
        ('("C-999")', "there is no statement C-999 (there are C-001 to C-003", XDIST),
        ("(1)", "a statement number is a string, not 1", ()),
        ("()", "the conformance marker takes statement numbers", ()),
        ("(number='C-001')", "the conformance marker takes statement numbers", ()),
    ],
)
def test_a_wrong_marker_is_an_error_of_collection(
    project: Project, marker: str, complaint: str, workers: tuple[str, ...]
) -> None:
    project.replace("tests/test_first.py", '("C-001")', marker)
    stated = project.pytest(*workers, status=1 if workers else 2)
    assert "ERROR collecting tests/test_first.py" in stated
    assert f"tests/test_first.py::test_one: {complaint}" in stated
    assert "Traceback" not in stated


def test_a_run_of_a_part_leaves_the_rest(project: Project) -> None:
    project.pytest()
    first = project.read()["written"]
    project.replace("tests/test_first.py", "test_one(): pass", "test_one(): assert False")
    project.pytest("tests/test_second.py")
    assert set(project.outcomes().values()) == {"passed"}
    project.pytest("tests/test_first.py::test_one", status=1)
    project.pytest("-k", "test_two")
    assert project.outcomes() == {
        "test_first.py::test_one": "failed",
        "test_first.py::test_both[a]": "passed",
        "test_first.py::test_both[b::c]": "passed",
        "test_second.py::TestTwo::test_two": "passed",
    }
    assert project.read()["tests"]["tests/test_first.py::test_both[a]"]["ran"] == first
    project.pytest("--lf", status=1)
    project.pytest("--collect-only")
    assert len(project.outcomes()) == 4


def test_what_was_never_run_is_not_run(project: Project) -> None:
    project.pytest("-k", "test_one")
    assert project.outcomes()["test_first.py::test_both[a]"] == "not-run"
    assert project.results() == {"C-001": "not-run", "C-002": "not-run", "C-003": "untested"}
    project.pytest("-k", "test_both")
    assert project.results()["C-001"] == "passed"


def test_what_is_gone_leaves_when_its_file_is_collected(project: Project) -> None:
    project.pytest()
    project.replace("tests/test_first.py", '["a", "b::c"]', '["a"]')
    project.replace("tests/test_second.py", "def test_two", "def test_other")
    project.pytest("tests/test_second.py")
    assert project.outcomes() == {
        "test_first.py::test_one": "passed",
        "test_first.py::test_both[a]": "passed",
        "test_first.py::test_both[b::c]": "passed",
        "test_second.py::TestTwo::test_other": "passed",
    }
    project.pytest("tests/test_first.py::test_one")
    assert "test_first.py::test_both[b::c]" not in project.outcomes()
    (project.root / "tests/test_first.py").unlink()
    project.replace("tests/test_second.py", '@pytest.mark.conformance("C-002")', "")
    project.pytest("tests/test_second.py")
    assert project.outcomes() == {}
    assert project.results() == {"C-001": "missing", "C-002": "missing", "C-003": "untested"}


def test_a_file_that_cannot_be_collected_fails_its_tests(project: Project) -> None:
    project.pytest()
    project.replace("tests/test_first.py", "import pytest", "import pytest, no_such_module")
    project.pytest(status=2)
    assert project.results() == {"C-001": "failed", "C-002": "failed", "C-003": "untested"}
    assert project.outcomes()["test_second.py::TestTwo::test_two"] == "passed"
    project.write("tests/test_first.py", "import pytest\npytest.importorskip('no_such_module')\n")
    project.pytest()
    assert project.results()["C-001"] == "skipped"


def test_workers_report_to_the_controller(project: Project) -> None:
    project.replace("tests/test_first.py", "test_one(): pass", "test_one(): assert False")
    project.pytest("-p", "xdist", "-n", "2", status=1)
    spread = project.read()
    project.pytest(status=1)
    alone = project.read()
    for facts in (spread, alone):
        for record in (facts, *facts["tests"].values()):
            record.pop("ran", None)
            record.pop("written", None)
    assert spread == alone
    assert project.results()["C-001"] == "failed"
    # What was collected crosses too: what a worker left out is known, and what is gone leaves.
    project.replace("tests/test_second.py", "def test_two", "def test_other")
    project.pytest("-p", "xdist", "-n", "2", "-k", "test_both")
    assert project.outcomes() == {
        "test_first.py::test_one": "failed",
        "test_first.py::test_both[a]": "passed",
        "test_first.py::test_both[b::c]": "passed",
        "test_second.py::TestTwo::test_other": "not-run",
    }


def test_a_worker_that_dies_fails_its_test(project: Project) -> None:
    project.pytest()
    project.replace(
        "tests/test_first.py", "test_one(): pass", "test_one(): __import__('os')._exit(9)"
    )
    project.pytest("-p", "xdist", "-n", "1", status=1)
    assert project.outcomes()["test_first.py::test_one"] == "failed"
    assert project.outcomes()["test_first.py::test_both[a]"] == "passed"


def test_another_file(project: Project) -> None:
    project.pytest("--conformance-file", "out/here.json", "-p", "no:cacheprovider")
    assert not project.report.exists()
    assert json.loads((project.root / "out/here.json").read_bytes())["last_run"]["tests"] == 4
    project.pytest("-p", "no:cacheprovider")
    assert not project.report.exists()


def test_a_first_run_without_a_test_of_a_statement_leaves_no_report(project: Project) -> None:
    project.write("tests/test_other.py", "def test_of_nothing(): pass\n")
    project.pytest("tests/test_other.py")
    assert not project.report.exists()


def test_clearing_pytests_cache_forgets(project: Project) -> None:
    project.pytest()
    project.pytest("--cache-clear", "tests/test_second.py")
    assert list(project.outcomes()) == ["test_second.py::TestTwo::test_two"]


def test_a_file_that_is_no_report_is_begun_anew(project: Project) -> None:
    project.pytest()
    project.report.write_text('{"schema": "other/1"}')
    assert "conformance report begun anew" in project.pytest("tests/test_second.py")
    assert list(project.outcomes()) == ["test_second.py::TestTwo::test_two"]


def test_a_file_that_cannot_be_written_is_said(project: Project) -> None:
    (project.root / "taken").mkdir()
    stated = project.pytest("--conformance-file", "taken")
    assert "conformance report not written" in stated


def test_faulty_statements_stop_pytest(project: Project) -> None:
    project.replace("statements.toml", '"I"', '"D"')
    assert "C-003: confidence must be one of" in project.pytest(status=4)


def test_the_commit_is_kept(project: Project) -> None:
    git = ["git", "-C", str(project.root), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "pytest.ini", "tests", "statements.toml"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    project.pytest()
    clean = project.read()["commit"]
    assert re.fullmatch("[0-9a-f]{40}", clean)
    project.replace("tests/test_second.py", "def test_two", "def test_other")
    project.pytest("tests/test_second.py")
    assert project.read()["commit"] == f"{clean}-dirty"
    assert project.read()["tests"]["tests/test_first.py::test_one"]["commit"] == clean
    assert "3 of the tests ran last at another commit" in shown(project).output


def test_parameters_with_colons_are_no_classes() -> None:
    run = Run(collected={"a.py": ["a.py::test[x::y]", "a.py::TestIt"]}, carried={})
    run.carried["a.py::test[x::y]"] = ["C-001"]
    before = {
        name: {"outcome": "passed", "ran": "then", "commit": None, "statements": ["C-001"]}
        for name in ("a.py::test[x::y]", "a.py::test[x::z]", "a.py::TestIt::test", "b.py::test")
    }
    after = merged(before, run, ran="now", commit=None, file_exists=lambda file: True)
    assert list(after) == ["a.py::TestIt::test", "a.py::test[x::y]", "b.py::test"]


# --- the verb -------------------------------------------------------------------------------------


def shown(project: Project, *arguments: str) -> Result:
    return CliRunner().invoke(verb.command, ["--file", str(project.report), *arguments])


def test_table_and_exit_status_of_a_whole_run(project: Project) -> None:
    project.pytest()
    done = shown(project)
    assert done.exit_code == 0
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.output.splitlines()]
    assert ["C-001", "one", "UES 3.5", "A", "3", "passed"] in rows
    assert [
        "C-002",
        "two [of three] (the half: C)",
        "UEC reference provider",
        "B",
        "3",
        "passed; left out: three",
    ] in rows
    assert ["C-003", "three", "inferred", "I", "0", "untested: no switch yet"] in rows
    assert "Ultra Ethernet Transport: 3 statements: 2 passed, 1 untested" in done.output
    assert "tested in part only: C-002" in done.output


@pytest.mark.parametrize(
    ("body", "stated"),
    [("assert False", "FAILED"), ("pytest.skip('no')", "skipped")],
)
def test_exit_status_when_something_is_not_proven(project: Project, body: str, stated: str) -> None:
    project.replace("tests/test_first.py", "test_one(): pass", f"test_one(): {body}")
    project.pytest(status=body.startswith("assert"))
    done = shown(project, "-v", "--only", "failing")
    assert isinstance(done.exception, UserError)
    assert (
        f"neither passed nor listed as untested: 1 of 3 statements, C-001 ({stated}); 4 tests "
    ) in str(done.exception)
    assert f"tests/test_first.py::test_one ({stated})" in done.output
    assert "tests/test_first.py::test_both[a]" in done.output
    assert "two [of three]" not in done.output


def test_the_score_of_mutants_stands_below_the_table(project: Project) -> None:
    project.pytest()
    assert "mutants: none tried; try some: vagrant" in shown(project).output
    score: dict[str, object] = {
        "schema": "uetemu.mutation/1",
        "written": "now",
        "commit": None,
        "places": ["uet"],
    }
    score |= {"seed": 7, "mutants": 900, "tried": 8, "killed": 6, "survivors": ["uet/a.py:3: x"]}
    beside = project.report.with_name("mutation.json")
    beside.write_text(json.dumps(score))
    text = shown(project).output
    assert "mutants of uet: 6 of 8 killed (75 %), a sample of 900 with seed 7" in text
    assert "  survived: uet/a.py:3: x" in text
    assert json.loads(shown(project, "--format", "json").stdout)["mutation"] == score
    for broken in ("{", '{"schema": "other"}'):
        beside.write_text(broken)
        assert isinstance(shown(project).exception, UserError)


def test_json_and_choices(project: Project) -> None:
    project.pytest()
    facts = json.loads(shown(project, "--format", "json", "--family", "uet").output)
    assert facts == project.read()
    facts = json.loads(shown(project, "-f", "json", "--only", "untested").output)
    assert [row["number"] for row in facts["statements"]] == ["C-003"]
    with pytest.raises(UserError, match="there is no family roce; there is uet"):
        verb.chosen(facts, "roce")


def test_the_report_is_found_from_inside_a_checkout(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "__file__", str(project.root / "other/emulator/cli/verb.py"))
    assert verb.find(None, project.root / "tests") == verb.SHIPPED
    project.pytest()
    assert verb.find(None, project.root / "tests") == project.report
    with pytest.raises(UserError, match=r"vagrant/provision\.sh pytest --conformance-file"):
        verb.find(project.root / "none.json")


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "uetemu.conformance/9"}'])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"run the tests again: vagrant/provision\.sh"):
        verb.load(path)
