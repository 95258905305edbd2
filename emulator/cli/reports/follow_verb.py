"""``uetemu follow``: one packet through every hop of a run."""

from __future__ import annotations

import json
from pathlib import Path

import click

from emulator.cli.decode.decode_source import keys_beside, opener, read_domains
from emulator.cli.options import result_format
from emulator.cli.plain_tables import page, plain_table
from emulator.errors import UserError
from emulator.report.follow.ladder import ladder_svg
from emulator.report.follow.search import PacketWish, addresses_of
from emulator.report.follow.story import (
    COLUMNS,
    PacketStory,
    StoryChoice,
    as_data,
    heading,
    story_rows,
    tell,
)
from emulator.report.run.page import write_files
from emulator.report.run_folder import RunRecord
from emulator.run_files import CAPTURE
from topologies.model import Topology

#: Characters of a line of the table.
_WIDTH = 150
_NUMBER = click.IntRange(min=0, max=2**32 - 1)


@click.command("follow", short_help="follow one packet through every hop of a run")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--psn", type=_NUMBER, help="packet sequence number, of UET or RoCEv2; packet ID of RUDI"
)
@click.option("--message", type=click.IntRange(min=0, max=2**16 - 1), help="SES message ID, of UET")
@click.option("--source", metavar="GPU|ADDRESS", help="sender of the packet")
@click.option("--flow", metavar="GPU:GPU", help="sender and receiver of the packet")
@click.option("--pdc", type=click.IntRange(0, 2**16 - 1), help="UET: PDC of either end")
@click.option("--qp", metavar="N|0xN", help="RoCEv2: destination queue pair")
@click.option("--row", type=click.IntRange(min=1), help="row of the run's table, 1 the first")
@click.option("--iteration", type=click.IntRange(min=1), help="iteration of the row, 1 the first")
@click.option("--keys", type=click.Path(path_type=Path), help="as of uetemu decode")
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), help="also draw it, as an SVG file"
)
@result_format(None, "text")
def command(  # noqa: PLR0913  options of the verb
    run: Path,
    psn: int | None,
    message: int | None,
    source: str | None,
    flow: str | None,
    pdc: int | None,
    qp: str | None,
    row: int | None,
    iteration: int | None,
    keys: Path | None,
    svg: Path | None,
    form: str,
) -> None:
    """Follow a packet through every captured port of the run folder RUN.

    Each attempt to send it is shown with its waits in switches, ECN marks, trims, pauses, and where
    and why it ended; then the acknowledgement or refusal that came back.  The last measured
    iteration that has it is taken, unless --row and --iteration choose.  A run with --capture all
    sees every hop.
    """
    if psn is None and message is None:
        raise UserError("say which packet, by --psn or --message; uetemu decode --brief lists them")
    if pdc is not None and qp is not None:
        raise UserError("--pdc is of UET and --qp of RoCEv2; give one of them")
    topology = RunRecord.read(run).topology
    ends = _ends(topology, source, flow)
    wish = PacketWish(
        psn=psn,
        message=message,
        source=ends[0],
        destination=ends[1],
        context=pdc if qp is None else _queue_pair(qp),
    )
    key_file = keys if keys is not None else keys_beside(str(run / CAPTURE))
    open_secure = None if key_file is None else opener(read_domains(key_file))
    choice = StoryChoice(wish=wish, row=row or 0, iteration=iteration or 0)
    story = tell(run, choice, open_secure)
    if form == "json":
        click.echo(json.dumps(as_data(story), indent=1, allow_nan=False))
    else:
        click.echo(_text(story), nl=False)
    if svg is not None:
        write_files({svg: ladder_svg(story)}, "--svg")
        click.echo(f"uetemu: wrote {svg}", err=True)


def _text(story: PacketStory) -> str:
    table = plain_table(None, *COLUMNS)
    for cells in story_rows(story):
        table.add_row(*cells)
    filtered = ["Wireshark's display filter for these frames:", "", f"    {story.display_filter}"]
    shown = page([heading(story), "", table, "", *story.notes], to_terminal=True, width=_WIDTH)
    return shown + "\n" + "\n".join(filtered) + "\n"


def _queue_pair(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise UserError(f"--qp {text!r} is no number; write it as 120 or 0x78") from None


def _ends(
    topology: Topology | None, source: str | None, flow: str | None
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the addresses of sender and receiver that the options name; empty for any."""
    if flow is not None and source is not None:
        raise UserError("--flow names the sender, too; leave --source out")
    first, colon, second = (flow or source or "").partition(":" if flow is not None else "\0")
    if flow is not None and not (first and colon and second):
        raise UserError(f"--flow {flow!r} is no GPU:GPU; write it as h1g0:h0g0")
    return _addresses(topology, first), _addresses(topology, second)


def _addresses(topology: Topology | None, name: str) -> frozenset[str]:
    if not name or topology is None:
        return frozenset()
    found = addresses_of(topology, name)
    if not found:
        known = ", ".join(gpu.name for gpu in topology.gpus[:8])
        raise UserError(f"there is no GPU or address {name!r}; the GPUs are {known}, ...")
    return found
