"""Tables for terminals and files: Markdown, coloured only for a terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table


def page(shown: Sequence[object], *, to_terminal: bool, width: int = 120) -> str:
    """Return tables and lines as text of ``width`` characters, coloured only for a terminal."""
    colour = to_terminal and sys.stdout.isatty()
    text = io.StringIO()
    console = Console(
        file=text, width=None if colour else width, force_terminal=colour, highlight=False
    )
    for item in shown:
        console.print(item)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).rstrip() + "\n"


def plain_table(title: str | None, *columns: str, right: int | None = None) -> Table:
    """Return an empty table whose columns from the ``right``-th on are numbers."""
    table = Table(title=title, title_justify="left", box=box.MARKDOWN)
    for position, column in enumerate(columns):
        is_number = right is not None and position >= right
        table.add_column(column, overflow="fold", justify="right" if is_number else "left")
    return table
