"""What a run is to take, stated before it runs, beside what it took."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from emulator.cli.main import cli
from emulator.run.plan.effort import Effort

FEW = ("--topology", "rail_clos:hosts=3,gpus_per_host=2")


@pytest.mark.parametrize(
    "command",
    [
        ("allreduce", *FEW, "--sizes", "64KiB"),
        ("permutation", *FEW, "--param", "sizes=128KiB"),
        ("permutation", *FEW, "--param", "sizes=128KiB", "--transport", "rocev2"),
        ("alltoall", *FEW, "--sizes", "96KiB"),
        ("allreduce", *FEW, "--sizes", "64KiB", "--fault", "t=1us link h0g0:eth0 loss=0.1%"),
    ],
)
def test_the_frames_are_about_those_that_pass(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("--fabric", "model", "--capture", "none", "--output", str(tmp_path / "run"))
    cli.main(["run", *command, *run], standalone_mode=False)
    text = capsys.readouterr().out
    stated, row, passed = (
        re.search(pattern, text, re.MULTILINE)
        for pattern in (r"^# Work +: about ([\d,]+) frames", r"^ +\d", r"(\d+) frames went")
    )
    assert stated is not None
    assert row is not None
    assert passed is not None
    assert stated.start() < row.start()
    assert int(stated[1].replace(",", "")) == pytest.approx(int(passed[1]), rel=0.3)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "a second"), (8.3, "8 s"), (47, "50 s"), (130, "2 minutes"), (8000, "2 hours")],
)
def test_a_duration_is_rounded(seconds: float, words: str) -> None:
    assert str(Effort(1234, seconds)) == (f"about 1,200 frames at all nodes, roughly {words}")
