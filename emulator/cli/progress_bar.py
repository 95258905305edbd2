"""A progress bar on standard error, for work that takes long enough to wonder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

TIME_LIMIT_S = 0.5  # shorter work shows nothing


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int, str], None] | None]:
    """A callback (done, total, label) that draws a bar; None when nobody is at a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    started = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[label]}"),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(title, label="")
    shown = False

    def report(done: int, total: int, label: str) -> None:
        nonlocal shown
        if not shown and time.monotonic() - started > TIME_LIMIT_S:
            bar.start()
            shown = True
        if shown:
            bar.update(task, completed=done, total=total, label=label)

    try:
        yield report
    finally:
        if shown:
            bar.stop()
