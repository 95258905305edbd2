"""``uetemu tensorboard``: the trainings of run folders, for TensorBoard."""

from __future__ import annotations

from pathlib import Path

import click

from emulator.cli.options import output_option
from emulator.errors import UserError
from emulator.report.training import FOLDER, write_event_files


@click.command("tensorboard")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@output_option(
    f"folder to write to, of one RUN [default: {FOLDER} in the run folder]", file_okay=False
)
def command(runs: tuple[Path, ...], output: Path | None) -> None:
    """Write the trainings of each run folder RUN as event files for TensorBoard.

    Each row that trains gets a folder: losses, times of steps, shares of communication. Times are
    fabric time: TensorBoard's axis "Relative" shows it.  Then tensorboard --logdir RUN.
    """
    if output is not None and len(runs) > 1:
        raise UserError(f"--output names one folder, and {len(runs)} runs are given; leave it out")
    for run in runs:
        for path in write_event_files(run, output):
            click.echo(path)
