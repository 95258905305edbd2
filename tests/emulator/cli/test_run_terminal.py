"""Progress of a run where standard error is no terminal."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.cli import run_terminal
from emulator.cli.run_terminal import progress_bar
from emulator.cli.run_verb import command
from emulator.errors import UserError


def written(capfd: pytest.CaptureFixture[str]) -> Iterator[str]:
    while True:
        yield capfd.readouterr().err


def test_a_line_comes_by_itself_while_an_iteration_goes_on(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_terminal, "LINE_S", 0.02)
    before = signal.getsignal(signal.SIGALRM)
    with progress_bar() as bar:
        bar.show("all_reduce 8 B", 0.25)
        line = next(text for text in written(capfd) if text)
    assert line.startswith("uetemu: all_reduce 8 B, 25 % of the run is done after ")
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[1] == 0  # a timer of pytest goes on, and comes once


def test_a_line_comes_while_schedules_are_compiled(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_terminal, "LINE_S", 0.02)
    (tmp_path / "taken").touch()
    words = ["permutation", "--fabric", "model", "--param", "message=64", "--sizes", "32KiB"]
    with pytest.raises(UserError, match="is not empty"):  # found out once there is a plan
        command([*words, "--output", str(tmp_path)], standalone_mode=False)
    assert "uetemu: schedules are still being compiled after 0 s\n" in capfd.readouterr().err
