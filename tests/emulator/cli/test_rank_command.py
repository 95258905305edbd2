"""Words of a call that are passed on, and refusals that come from one rank of several."""

from typing import Any

import click
import pytest
from click.testing import CliRunner

from emulator.cli.rank_command import RankCommand, given_words, is_farmed


@click.command(cls=RankCommand)
@click.argument("scenario")
@click.argument("files", nargs=-1)
@click.option("--seed", type=int, default=1)
@click.option("--fault", "faults", multiple=True)
@click.option("--report", is_flag=True)
@click.option("--format", "form", default="table")
@click.pass_context
def verb(context: click.Context, /, **_: Any) -> None:
    """Print the words, with another seed and without the form."""
    click.echo(given_words(context, {"seed": "7", "form": None}))


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["incast"], ["incast", "--seed", "7"]),
        (["incast", "--seed", "3", "--format", "json"], ["incast", "--seed", "7"]),
        (
            ["trace", "a", "b", "--fault", "t=1 x", "--report", "--fault", "y"],
            ["trace", "a", "b", "--seed", "7", "--fault", "t=1 x", "--fault", "y", "--report"],
        ),
    ],
)
def test_words_are_those_of_the_user(given: list[str], passed: list[str]) -> None:
    assert CliRunner().invoke(verb, given).output == f"{passed}\n"


@pytest.mark.parametrize(("words", "status"), [(["--colour"], 2), (["--help"], 0)])
def test_only_the_first_rank_speaks_of_wrong_words_or_shows_help(
    words: list[str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        done = CliRunner().invoke(verb, words)
        assert done.exit_code == status
        assert bool(done.output) == (rank == "0")


@pytest.mark.parametrize(
    ("words", "farmed"),
    [
        ("bench training", True),
        ("-v bench training --tests 5.1", True),
        ("run allreduce", False),
        ("run allreduce --seeds 1", False),
        ("run allreduce --seeds 4", True),
        ("run --seeds=4 allreduce", True),
        ("run allreduce --seeds", True),
        ("status", False),
        ("", False),
    ],
)
def test_ranks_carry_out_trials_or_parts_of_a_run(words: str, farmed: bool) -> None:
    assert is_farmed(words.split()) is farmed
