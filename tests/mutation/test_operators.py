"""Test what a mutant is, and that the conformance tests' harness notices one and only one."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.mutation.__main__ import rounds, sources
from tests.mutation.operators import mutants

PROGRAM = '''"""Docstring: 1 + 1."""
import os

LIMIT: int = 3

def f(a: int = 2, *, on: bool = True) -> int:
    """Another."""
    counts["rx"] += 1
    if a < LIMIT and on:
        g(a)
    return a + 1
'''
EXPECTED = {
    (4, "3 becomes 4"),
    (6, "2 becomes 3"),
    (6, "True becomes False"),
    (8, "1 becomes 2"),
    (9, "the condition a < LIMIT and on is negated"),
    (9, "And becomes Or"),
    (9, "Lt becomes LtE"),
    (10, "the call g(a) is left out"),
    (11, "Add becomes Sub"),
    (11, "1 becomes 2"),
}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_every_place_is_changed_in_one_way(program: Path) -> None:
    found = mutants(program)
    assert {(one.line, one.what) for one in found} == EXPECTED
    assert len(found) == len(EXPECTED)


def test_a_mutant_differs_in_its_place_only(program: Path) -> None:
    before = ast.unparse(ast.parse(PROGRAM)).splitlines()
    for mutant in mutants(program):
        after = ast.unparse(mutant.tree()).splitlines()
        assert len(before) == len(after)
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1, mutant


def test_the_protocol_is_mutated_and_its_dissector_is_not() -> None:
    files = {str(path) for path in sources(["uet"])}
    assert {"uet/pds/source.py", "uet/tss/record.py", "uet/fep.py"} <= files
    assert not [name for name in files if "wireshark" in name]


def test_tests_of_the_package_come_first() -> None:
    def first(path: str) -> str:
        return next(word for word in rounds(Path(path))[0] if word.startswith("tests/"))

    assert first("uet/tss/record.py") == "tests/uet/tss/test_record.py"
    assert first("uet/congestion/controls/nscc.py").startswith("tests/uet/congestion/")
    assert first("uet/pds/source.py").startswith("tests/uet/pds/")


@pytest.mark.nightly
def test_mutants_are_tried_and_the_score_is_written(tmp_path: Path) -> None:
    """The tests of the window's arithmetic notice most of a few mutants."""
    report = tmp_path / "score.json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.mutation",
            "uet/pds/window.py",
            "uet/pds/window.py",
            "--sample",
            "4",
            "--report",
            str(report),
            "--tests",
            "tests/uet/pds/test_windows.py",
        ],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    score = json.loads(report.read_text())
    assert score["tried"] == 4
    assert score["killed"] == 4 - len(score["survivors"]) >= 1
    assert done.stdout.count("killed   uet/") == score["killed"]
    assert done.stdout.count("SURVIVED uet/") == len(score["survivors"])
