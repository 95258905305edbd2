"""A little project with tests and statements of its own, on which the report is tried."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from emulator.cli.conformance_verb import PLACE
from tests import CHECKOUT

STATEMENTS = """
[uet]
title = "Ultra Ethernet Transport"
prefix = "C"
[uet.C-001]
text = "one"
source = "UES 3.5"
confidence = "A"
[uet.C-002]
text = "two [of three]"
source = "UEC reference provider"
confidence = "B"
note = "the half: C"
left_out = "three"
[uet.C-003]
text = "three"
source = "inferred"
confidence = "I"
untested = "no switch yet"
"""

FIRST = """
import pytest

@pytest.mark.conformance("C-001")
def test_one(): pass

@pytest.mark.conformance("C-001", "C-002")
@pytest.mark.parametrize("how", ["a", "b::c"])
def test_both(how): pass
"""

SECOND = """
import pytest

@pytest.mark.conformance("C-002")
class TestTwo:
    def test_two(self): pass

def test_of_nothing(): pass
"""


class Project:
    """A little checkout with tests of its own, statements of its own, and this plugin."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.report = root / PLACE
        self.write("statements.toml", STATEMENTS)
        self.write("tests/conformance/.keep", "")
        self.write(
            "pytest.ini",
            "[pytest]\naddopts = --strict-markers\nconformance_statements = statements.toml\n"
            "testpaths = tests\nmarkers = conformance(*statements): what a test proves\n",
        )
        self.write("tests/test_first.py", FIRST)
        self.write("tests/test_second.py", SECOND)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def pytest(self, *arguments: str, status: int = 0) -> str:
        """Run pytest as a user would; returns what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tests.conformance.plugin", *arguments],
            cwd=self.root,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(CHECKOUT),
                "PYTHONDONTWRITEBYTECODE": "1",  # a source may change within its time's grain
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def read(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.report.read_bytes())
        return facts

    def results(self) -> dict[str, str]:
        return {row["number"]: row["result"] for row in self.read()["statements"]}

    def outcomes(self) -> dict[str, str]:
        return {
            name.removeprefix("tests/"): record["outcome"]
            for name, record in self.read()["tests"].items()
        }
