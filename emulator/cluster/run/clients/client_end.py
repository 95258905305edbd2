"""The two ends of a client: it waits for the others, and fails with one sentence and status 1."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from emulator.errors import UserError

#: The line that a client prints once it could begin.
READY = "ready"


def wait_for_release() -> None:
    """Print that this client is ready, and return when a line comes on standard input.

    So all clients of a measurement begin at once, however long each took to start.
    """
    click.echo(READY)
    sys.stdin.readline()


async def released() -> None:
    """Do as :func:`wait_for_release` does, while the loop goes on."""
    await asyncio.to_thread(wait_for_release)


@contextmanager
def ended_with_sentence() -> Iterator[None]:
    """Print a UserError of the block and leave the process with status 1."""
    try:
        yield
    except UserError as error:
        click.echo(error, err=True)
        raise SystemExit(1) from None
