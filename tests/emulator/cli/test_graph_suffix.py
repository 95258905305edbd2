"""Test what ``uetemu graph -o`` makes of a file's suffix."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from emulator.cli.graph import graph_verb
from emulator.errors import UserError


def graph(*arguments: str | Path) -> Result:
    words = ["rail_clos:hosts=2", *map(str, arguments)]
    return CliRunner().invoke(graph_verb.command, words, catch_exceptions=True)


@pytest.mark.parametrize("name", ["c.png", "c.bmp", "a.b/c.PNG"])
def test_an_unknown_suffix_is_refused_and_the_known_are_named(tmp_path: Path, name: str) -> None:
    done = graph("-o", tmp_path / name)
    assert isinstance(done.exception, UserError | click.ClickException)
    sentence = str(done.exception)
    assert "\n" not in sentence
    for suffix in graph_verb.suffixes():
        assert suffix in sentence
    assert not (tmp_path / name).exists()


def test_a_suffix_or_an_option_says_the_format(tmp_path: Path) -> None:
    for name, more, start in (
        ("c.JSON", (), "{"),
        ("c.png", ("--format", "dot"), "graph"),
        ("c", (), "topology"),
        ("c.txt", (), "topology"),
    ):
        assert graph("-o", tmp_path / name, *more).exit_code == 0
        assert (tmp_path / name).read_text().lstrip("/* \n").startswith(start)
