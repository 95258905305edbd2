"""``uetemu report``: the HTML report of run folders."""

from __future__ import annotations

from pathlib import Path

import click

from emulator.errors import UserError
from emulator.run_report.page import PAGE, write_report


@click.command("report")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"HTML file to write, of one RUN [default: {PAGE} in the run folder]",
)
def command(runs: tuple[Path, ...], output: Path | None) -> None:
    """Write the report of each run folder RUN: one HTML file that needs nothing else.

    The data of every figure are written beside it as CSV and JSON, in the folder
    report-figures.
    """
    if output is not None and len(runs) > 1:
        raise UserError(f"--output names one file, and {len(runs)} runs are given; leave it out")
    failed = []
    for run in runs:
        try:
            click.echo(write_report(run, output))
        except UserError as error:
            if len(runs) == 1:
                raise
            click.echo(f"uetemu: {error}", err=True)
            failed.append(run)
    if failed:
        raise UserError(f"{len(failed)} of {len(runs)} reports could not be written, see above")
