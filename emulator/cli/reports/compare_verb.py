"""``uetemu compare``: runs or suites beside each other, or beside a cluster's measurements."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from emulator.cli.options import result_format, waiting_prices
from emulator.errors import UserError
from emulator.report.compare.comparison import (
    as_data,
    as_page,
    as_text,
    compare,
    failures,
    parse_condition,
)
from emulator.report.compare.sources import SUITE, MeasuredSource, read_source, read_suite
from emulator.report.run.page import write_files
from emulator.report.suite.folder import is_suite
from emulator.report.waiting_cost import WaitingPrices

#: Exit status where a condition of --fail-if holds: distinct from an error's.
CONDITION_HOLDS = 3


@click.command("compare")
@click.argument(
    "sources", metavar="A B...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--fail-if",
    "conditions",
    metavar="CONDITION",
    multiple=True,
    help="exit with status 3 if the median of a value changed so, in any row: busbw<-5%, time>10%, "
    "drops>0 (without % in the value's own unit)",
)
@click.option(
    "--collective",
    metavar="NAME",
    help="of logs of nccl-tests that do not name their test, such as all_reduce",
)
@result_format("text: what differs; json: everything", "text")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="also write an HTML page"
)
@waiting_prices
def command(
    sources: tuple[Path, ...],
    conditions: tuple[str, ...],
    collective: str | None,
    form: str,
    html: Path | None,
    **prices: float | None,
) -> None:
    """Compare run folders B... with A: what differed in input and outcome, and by how much.

    A and B are run folders, logs of nccl-tests, or files of the NCCL Inspector; or folders of
    suites, whose tests are compared row by row.  A difference
    counts where the ranges of seeds or iterations of both sides do not overlap.
    """
    costs = WaitingPrices(**prices)
    if len(sources) < 2:
        raise UserError("two sources or more are compared; name another run folder or log")
    base, *others = [_source(path, collective, costs) for path in sources]
    requested = [parse_condition(text, base.metrics) for text in conditions]
    if len({one.kind == SUITE for one in (base, *others)}) > 1:
        raise UserError("a suite is compared with suites; name run folders of its trials instead")
    comparisons = [compare(base, other) for other in others]
    failed = [sentence for condition in requested for sentence in failures(condition, comparisons)]
    if form == "json":
        click.echo(json.dumps(as_data(comparisons, failed), indent=1, allow_nan=False))
    else:
        for line in as_text(comparisons):
            click.echo(line)
    if html is not None:
        write_files({html: as_page(comparisons, failed)}, "--html")
        click.echo(f"uetemu: wrote {html}", err=True)
    for sentence in failed:
        click.echo(f"uetemu: {sentence}", err=True)
    if failed:
        sys.exit(CONDITION_HOLDS)


def _source(path: Path, collective: str | None, prices: WaitingPrices) -> MeasuredSource:
    if not is_suite(path):
        return read_source(path, collective, prices)
    if prices.given:
        raise UserError(f"{path} is a suite: prices are for run folders, such as its trials'")
    return read_suite(path)
