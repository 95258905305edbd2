"""The command ``uetemu torchrun``: what it refuses, and what it repeats."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from emulator.cli.torchrun_verb import command
from emulator.errors import UserError
from tests.emulator.torch_backend.scripts import NEEDS_TORCH, printed, result, torchrun


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (["--fabric", "none", "--param", "allreduce=ring"], "--param is about a fabric, and with"),
        (["--record", "step.csv", "--fake-clock"], "with --record there is none: leave it out"),
        (["--param", "warmups=1"], "a script has no warmups: it repeats its steps itself"),
        (["--param", "foo=1"], "scenario torchrun has no parameter 'foo'; it takes allreduce"),
        (["--param", "reduce=direct"], "reduce is 'direct'"),
        (["--topology", "rail_clos:hosts=2,gpus_per_host=2", "--ranks", "5"], "has 4 GPUs; take a"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], stated: str
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.touch()
    given = [] if "none" in words or "--record" in words else ["--fabric", "model"]
    ended = CliRunner().invoke(command, [*given, *words, str(script)])
    assert isinstance(ended.exception, UserError)
    assert stated in str(ended.exception)
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]


@NEEDS_TORCH
def test_a_script_is_run_with_each_seed_as_with_that_alone(tmp_path: Path) -> None:
    text = "dist.all_gather_object([None] * size, 'x' * 99 * rank)\nprint('done')\n"
    ended = torchrun(tmp_path, text, "--seeds", "2")
    assert ended.returncode == 0, ended.stderr
    found = result(tmp_path)
    assert [row["seed"] for row in found["rows"]] == [1, 2]
    (summary,) = found["summary"]
    times = [row["time_us"] for row in found["rows"]]
    assert [summary["time_min_us"], summary["time_max_us"]] == [min(times), max(times)]
    assert printed(tmp_path, 3, "ranks-2") == ["done"]
    assert ended.stdout.count("# Calls over uet, seed 1,") == ended.stdout.count("# Calls") == 1
    alone = tmp_path / "alone"
    alone.mkdir()
    assert torchrun(alone, text, "--seed", "2").returncode == 0
    (row,) = result(alone)["rows"]
    assert {**row, "began_us": found["rows"][1]["began_us"]} == found["rows"][1]
