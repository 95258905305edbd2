"""``uetemu report``: the HTML report of run folders and suite folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from emulator.cli.options import output_option, waiting_prices
from emulator.errors import UserError
from emulator.report.cluster_page import is_cluster_run, write_cluster_report
from emulator.report.run.page import PAGE, write_page, write_report
from emulator.report.run_folder import RunRecord
from emulator.report.suite.folder import is_suite
from emulator.report.suite.page import write_suite_report
from emulator.report.waiting_cost import WaitingPrices, sentences, with_cost

Writer = Callable[[Path, Path | None], Path]
#: Who writes the report of a folder, by what the folder is; of all others it is a run's.
WRITERS: tuple[tuple[Callable[[Path], bool], Writer], ...] = (
    (is_cluster_run, write_cluster_report),
    (is_suite, write_suite_report),
)


@click.command("report")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@output_option(
    f"HTML file to write, of one RUN [default: {PAGE} in the run folder]", dir_okay=False
)
@waiting_prices
def command(runs: tuple[Path, ...], output: Path | None, **prices: float | None) -> None:
    """Write the report of each folder RUN: one HTML file that needs nothing else.

    RUN is the folder of a run, of a cluster's (`uetemu cluster`), or of a suite (`uetemu bench`).

    The data of every figure are written beside it as CSV and JSON, in the folder
    report-figures.

    With prices it has what GPUs cost that wait for the network.
    """
    costs = WaitingPrices(**prices)
    if output is not None and len(runs) > 1:
        raise UserError(f"--output names one file, and {len(runs)} runs are given; leave it out")
    failed = []
    for run in runs:
        try:
            write = _writer(run)
            if not costs.given:
                click.echo(write(run, output))
                continue
            if write is not write_report:
                raise UserError(f"{run} is no run folder, and prices are for run folders")
            record = with_cost(RunRecord.read(run), costs)
            click.echo(write_page(record, output))
            for line in sentences(record):
                click.echo(f"uetemu: {line}", err=True)
        except UserError as error:
            if len(runs) == 1:
                raise
            click.echo(f"uetemu: {error}", err=True)
            failed.append(run)
    if failed:
        raise UserError(f"{len(failed)} of {len(runs)} reports could not be written, see above")


def _writer(folder: Path) -> Writer:
    return next((write for is_it, write in WRITERS if is_it(folder)), write_report)
