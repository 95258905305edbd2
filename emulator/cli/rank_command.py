"""Commands that a launcher starts as several ranks: words that are wrong are refused once."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from itertools import pairwise
from typing import Any

import click
from click.core import ParameterSource

from emulator import plugins
from emulator.cli.plugin_command import OPTION, PluginCommand
from emulator.dataplane.kernel import launcher

#: The verbs whose trials are always farmed out to ranks.
FARMED_VERBS = ("bench",)


class RankCommand(PluginCommand):
    """A command whose help and whose usage errors come from the first rank alone."""

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        """Return the context of a call; a rank other than the first ends in silence at an error."""
        place = launcher.place()
        if place is None or place.number == 0:
            return super().make_context(*arguments, **extra)
        with redirect_stdout(io.StringIO()):
            try:
                return super().make_context(*arguments, **extra)
            except click.UsageError as error:
                raise click.exceptions.Exit(error.exit_code) from None


def is_farmed(words: Sequence[str]) -> bool:
    """Return whether ranks carry out trials of the command ``words``, not parts of a run."""
    verb = next((word for word in words if not word.startswith("-")), None)
    if verb != "run":
        return verb in FARMED_VERBS
    seeds = "1"
    for word, following in pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        if option == "--seeds":
            seeds = value if equals else following
    return seeds != "1"


def given_words(context: click.Context, replaced: Mapping[str, str | None]) -> list[str]:
    """Return the arguments and options that the user gave, as words of the same command.

    ``replaced`` has options by parameter name, with the value in place of the user's, or None to
    leave it out.
    """
    options: list[str] = []
    arguments: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        if name == OPTION:
            options += plugins.words()
            continue
        value: Any = context.params.get(name)
        values = value if parameter.multiple or parameter.nargs == -1 else [value]
        if isinstance(parameter, click.Argument):
            arguments += map(str, values)
        elif name in replaced:
            if (text := replaced[name]) is not None:
                options += [parameter.opts[0], text]
        elif context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = isinstance(parameter, click.Option) and parameter.is_flag
            for one in values:
                options += [parameter.opts[0]] if flag else [parameter.opts[0], str(one)]
    return [*arguments, *options]
