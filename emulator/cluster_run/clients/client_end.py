"""The end of a client that fails: one sentence on standard error, and exit status 1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from emulator.errors import UserError


@contextmanager
def ended_with_sentence() -> Iterator[None]:
    """Print a UserError of the block and leave the process with status 1."""
    try:
        yield
    except UserError as error:
        click.echo(error, err=True)
        raise SystemExit(1) from None
