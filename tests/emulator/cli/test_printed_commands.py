"""Each ``uetemu run`` that a manual prints is a run that can begin, as far as its plan."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from emulator.cli import rank_runs
from emulator.cli.main import cli
from emulator.run.plan.run_plan import RunPlan, drafted
from emulator.run.runner import RunRequest
from tests import CHECKOUT
from tests.reference_tables import PAGES

_PRINTED = re.compile(
    r"^ {4,}(uetemu run (?:.*\\\n)*.*)$|`(uetemu\s+run\s[^`]+)`", flags=re.MULTILINE
)
#: Words that stand for something of the reader's, such as a file, or begin no run.
_OPEN = re.compile(
    r"\brun trace\b|\.(?:py|yaml|txt|json)\b|\b(?:FILE|NAME|SCENARIO)\b|--help|--clock"
)


def printed() -> list[str]:
    """Return the commands, without their comments, that need nothing of the reader's."""
    found = ("".join(one) for page in PAGES for one in _PRINTED.findall(page.read_text()))
    lines = (text.replace("\\\n", " ") for text in found)
    commands = dict.fromkeys(shlex.join(shlex.split(line, comments=True)) for line in lines)
    return [command for command in commands if not _OPEN.search(command)]


class _DraftedError(Exception):
    """The plan stands; nothing is to run."""


@pytest.mark.parametrize("command", printed())
def test_a_printed_command_has_a_plan(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def planned(request: RunRequest, _ranks: object) -> RunPlan:
        drafted(request)
        raise _DraftedError

    monkeypatch.setattr(rank_runs, "planned", planned)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    with pytest.raises(_DraftedError):
        cli.main([*words, "--fabric", "model"], standalone_mode=False)


def test_manuals_print_commands() -> None:
    assert len(printed()) > 100
    assert (CHECKOUT / "README.md") in PAGES
