"""Progress of a run where standard error is no terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from emulator.cli import run_terminal
from emulator.cli.run_terminal import progress_bar


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
