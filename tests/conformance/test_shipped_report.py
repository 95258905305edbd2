"""The report that is shipped is of the tests and statements that stand beside it."""

import re
from collections import defaultdict
from importlib import metadata

import pytest
from click.testing import CliRunner

from emulator.cli import conformance_verb as verb
from tests import CHECKOUT
from tests.conformance.statements import load

_MARK = re.compile(r"mark\.conformance\(([^)]*)\)")


def test_it_names_the_tests_and_statements_of_this_version() -> None:
    """If not, run the tests, and then ``python -m tests.conformance.release``."""
    report = verb.load(verb.SHIPPED)
    shipped: defaultdict[str, set[str]] = defaultdict(set)
    for test, record in report["tests"].items():
        shipped[test.split("::")[0]] |= set(record["statements"])
    for path in sorted((CHECKOUT / "tests").rglob("test_*.py")):
        marks = "".join(_MARK.findall(path.read_text()))
        if path.parent.name == "conformance" or "*" in marks:  # which numbers, captures say
            continue
        name = str(path.relative_to(CHECKOUT))
        assert shipped[name] == set(re.findall(r'"([A-Z]-\d+)"', marks)), name
    assert all((CHECKOUT / name).exists() for name in shipped)
    assert [(row["number"], row["text"]) for row in report["statements"]] == [
        (one.number, one.text) for one in load().statements.values()
    ]
    assert report["versions"]["uetemu"] == metadata.version("uetemu")


def test_it_is_shown_where_no_test_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "PLACE", CHECKOUT / "none.json")
    done = CliRunner().invoke(verb.command, [])
    assert done.exit_code == 0, done.output
    assert "C-001" in done.output
    assert f"shipped with uetemu {metadata.version('uetemu')}" in done.output
