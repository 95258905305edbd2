"""Things that go wrong around a run: killed helpers, full disks, readers that go away."""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.errors import UserError
from emulator.pytest_plugin.runs import BUDGET_S, RunProcess
from emulator.run.results import RunFolder
from emulator.run.run_start import UNFINISHED
from tests.harness.runs.processes import ENDLESS, SMALL, until, user_environment


def shell(line: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of shell, in which ``"$@"`` is ``uetemu`` with ``arguments``."""
    code = "from emulator.cli.main import main; main()"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line, "bash", sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=user_environment(),
        timeout=BUDGET_S,
        check=False,
    )


# What is written, and nobody takes


@pytest.mark.parametrize("verb", [("graph",), ("graph", "--format", "json")])
def test_a_full_disk_is_one_sentence(verb: tuple[str, ...], tmp_path: Path) -> None:
    done = shell('"$@" > /dev/full', *verb, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("uetemu: no room for ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("verb", [("graph",), ("graph", "--format", "json"), ("run", "--help")])
def test_a_reader_that_goes_away_ends_a_verb_silently(
    verb: tuple[str, ...], tmp_path: Path
) -> None:
    done = shell('"$@" > >(exec true)', *verb, folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")


def test_output_that_nobody_takes_leaves_the_status_of_an_error(tmp_path: Path) -> None:
    """A stream still holds what /dev/full refused; the verb's own status stays."""
    code = "import sys; sys.stdout.write('x'); raise UserError('no')"
    program = f"from emulator.errors import UserError\ndef verb(**_): {code}\n"
    program += "from emulator.cli import main\nmain.cli.main = verb\nmain.main()"
    line = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} > /dev/full"
    done = shell(line, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("uetemu: no\n")
    assert "Exception ignored" not in done.stderr


def test_closed_streams_are_no_trouble(tmp_path: Path) -> None:
    for line in ('"$@" >&-', '"$@" 2>&- >/dev/null', '"$@" <&- >/dev/null', '"$@" <&- >&- 2>&-'):
        done = shell(line, "graph", folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), line


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    done = shell('"$@" >&-', "graph", "-o", "here.json", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    json.loads((tmp_path / "here.json").read_text())


def test_a_run_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = RunFolder.create("allreduce", tmp_path / "run")
    (tmp_path / "run" / "result.json").mkdir()  # nothing can be renamed to it
    with pytest.raises(UserError, match=r"cannot write .*/run/result\.json: .*--output"):
        folder.write("result.json", {})
    assert [path.name for path in folder.path.iterdir() if path.name.startswith(".")] == []
    folder.close()


# What is asked for


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "see uetemu run --help"),
        (("rnu",), "see uetemu --help"),
        (("run", "allreduce", "--seed", "-1"), "see uetemu run --help"),
        (("up", "--seed", "-1"), "see uetemu up --help"),
    ],
)
def test_usage_errors_point_at_the_help(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    done = shell('"$@"', *arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--topology", "--capture", "--name"])
def test_an_empty_option_is_not_one_left_out(option: str, tmp_path: Path) -> None:
    done = shell('"$@"', "run", "allreduce", *SMALL, option, "", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "''" in done.stderr
    assert list(tmp_path.iterdir()) == []


# What is killed


class TestRuns:
    pytestmark = pytest.mark.root

    def test_the_result_of_a_killed_run_says_that_it_did_not_end(
        self, spawn: Callable[..., RunProcess]
    ) -> None:
        run = spawn(
            *(*SMALL, "--sizes", "4KiB,256MB", "--param", "warmups=0"),
            *("--iterations", "1", "--capture", "none"),
        )
        run.event("row")
        until(lambda: run.result if run.result["rows"] else None)
        run.process.kill()
        run.communicate()
        assert run.result["errors"] == [UNFINISHED]
        assert [row["size_bytes"] for row in run.result["rows"]] == [4096]

    def test_a_row_is_there_before_the_next_one_ends(
        self, spawn: Callable[..., RunProcess]
    ) -> None:
        run = spawn(*ENDLESS)
        assert run.process.stdout is not None
        assert run.process.stdout.readline().startswith("# uetemu run allreduce")
        assert run.process.poll() is None
        run.process.terminate()
        run.communicate()

    def test_a_reader_that_goes_away_ends_the_run(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        done = shell(
            '"$@" | head -n 1',
            *("run", "allreduce", *SMALL, "--sizes", "4KiB"),
            *("--output", str(folder)),
            folder=tmp_path,
        )
        assert done.returncode == 1
        assert done.stderr.startswith("uetemu: whoever read the table went away")
        assert done.stderr.count("\n") == 1
        assert json.loads((folder / "result.json").read_text())["errors"]

    def test_clean_by_force_lets_the_run_write_its_result(
        self, spawn: Callable[..., RunProcess]
    ) -> None:
        run = spawn(*ENDLESS)
        run.event("started")
        clean = shell('"$@"', "clean", "--force", run.lab, folder=run.folder)
        assert clean.returncode == 0
        status, _, err = run.communicate()
        assert status == 128 + signal.SIGTERM
        assert err.count("\n") == 1
        assert run.result["errors"] == ["interrupted by SIGTERM"]
        assert run.leftovers() == []
