"""What the command line says of words that it cannot take."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from emulator.cli.main import cli
from emulator.cli.reports.report_verb import command as report
from emulator.errors import UserError


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "allreduce", "--seed", "abc"), "'abc' is not a whole number"),
        (("top", "--interval", "often"), "'often'"),
    ],
)
def test_a_word_that_is_no_number_is_told_plainly(words: tuple[str, ...], told: str) -> None:
    program = "from emulator.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert told in line
    assert "range" not in line


def test_a_folder_without_a_result_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(report, [str(tmp_path)])
    assert isinstance(done.exception, UserError)
    assert str(done.exception) == f"{tmp_path} has no result.json; name the folder of a run"


@pytest.mark.parametrize("verb", ["fep", "hca", "nvme", "wireshark"])
def test_a_verb_without_its_command_shows_its_help(verb: str) -> None:
    done = CliRunner().invoke(cli, [verb])
    assert done.exit_code == 2
    assert f"Usage: cli {verb} [OPTIONS] COMMAND [ARGS]..." in done.stderr
    assert not done.stdout
