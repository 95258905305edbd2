"""What ``uetemu bench`` says at its end."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from emulator.cli import bench_verb
from emulator.errors import UserError
from emulator.suite import trials


def test_a_suite_whose_trials_are_all_excluded_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "_START", "raise SystemExit('uetemu: there is no room')")
    words = ["training", "--tests", "8.2", "--seeds", "1", "--nodes", "model"]
    done = CliRunner().invoke(bench_verb.command, [*words, "--output", str(tmp_path / "suite")])
    assert isinstance(done.exception, UserError)
    assert (
        str(done.exception) == "no trial has a result; the first one ended with: there is no room"
    )
    assert (tmp_path / "suite" / "suite.json").exists()
