"""Commands that load files of users (``--plugin``) before their options are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from emulator import plugins
from emulator.errors import UserError

OPTION = "plugin"
#: Where a context keeps the scenario that the user has named; empty without one.
SCENARIO = "uetemu.scenario"


class Names(click.Choice[str]):
    """One of names that users can add to: ``names`` returns them when they are needed."""

    def __init__(self, names: Callable[[], Sequence[str]]) -> None:
        self._names = names
        super().__init__(())

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(self._names())

    @choices.setter
    def choices(self, names: Sequence[str]) -> None:
        """Nothing: they are not fixed."""


class PluginCommand(click.Command):
    """A command with ``--plugin``, which knows what these files bring, in its help as well.

    A scenario's file is one, too.  ``sections`` make the parts of the help below the options.
    """

    def __init__(
        self, *arguments: Any, sections: Sequence[Callable[[], str]] = (), **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self._sections = tuple(sections)
        self.params.append(
            click.Option(
                [f"--{OPTION}"],
                multiple=True,
                metavar="FILE.py",
                expose_value=False,
                help="Python file that adds, say, a congestion control or a topology by its name; "
                "may be given several times; behind its name @SHA256 refuses another one",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Load the files that ``args`` name, then read the options."""
        try:
            values, _, _ = self.make_parser(ctx).parse_args(list(args))
        except click.UsageError:
            values = {}  # which comes again below
        ctx.meta[OPTION] = tuple(values.get(OPTION) or ())
        named = values.get("scenario")  # without one, a mark of click's own
        ctx.meta[SCENARIO] = scenario = named if isinstance(named, str) else ""
        plugins.load_installed()
        for file in ctx.meta[OPTION]:
            plugins.load(Path(file), named=True)
        if scenario.endswith(".py") and Path(scenario).is_file():
            plugins.load(Path(scenario))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Carry the command out; what a plug-in raises becomes one sentence."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort, click.ClickException, UserError):
            raise
        except Exception as error:
            stated = plugins.sentence_on(error)
            if stated is None:
                raise
            raise UserError(stated) from error

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self._sections:
            parts = (section() for section in self._sections)
            text = "\n\n".join(part for part in parts if part)
            self.epilog = "\b\n" + re.sub("\n\n(?!\b)", "\n\n\b\n", text)
        super().format_epilog(ctx, formatter)
