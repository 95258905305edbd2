"""``uetemu torchrun``: a PyTorch script with a process for each rank.

The ranks come from :mod:`emulator.torch_backend.launching`.  Whatever stands between a script and
torch.distributed hooks in by ``Script.prepare``: functions that are called in each rank's process,
with torch imported and before the script begins (``prepare(place: RankPlace)``).  They may wrap
functions of ``torch.distributed``, push modes, and register what is to happen at the script's end
by ``atexit``.  :func:`_prepared` makes the list from the options; a recorder adds its own there.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import click

from emulator.cli.options import RUN_FOLDER, SEED, option
from emulator.cli.plugin_command import PluginCommand
from emulator.errors import UserError
from emulator.torch_backend.launching import Nursery, Prepare, Script, check_script, places
from emulator.torch_backend.output import FOLDER, RankOutput
from emulator.torch_backend.passthrough import free_port, run_alone
from emulator.torch_backend.recording import EFFICIENCY, H100_TFLOPS, Record


@click.command(
    name="torchrun",
    cls=PluginCommand,
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@option("topology", "fabric, whose GPUs are the ranks, such as rail_clos:hosts=4,gpus_per_host=4")
@click.option(
    "--ranks",
    type=click.IntRange(1, 4096),
    help="number of ranks [default: one for each GPU of the topology]",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module")
@click.option(
    "--fabric",
    type=click.Choice(["none"]),
    default="none",
    show_default=True,
    help="none: no fabric, torch.distributed by itself (gloo)",
)
@click.option(
    "--record",
    metavar="FILE",
    help="write what the ranks compute and send as a trace, such as step.csv or step.et, for "
    "uetemu run trace",
)
@click.option(
    "--fake",
    is_flag=True,
    help="with --record: one process stands for all ranks, and tensors have sizes but no values",
)
@click.option(
    "--tflops",
    type=click.FloatRange(min=0, min_open=True),
    default=H100_TFLOPS * EFFICIENCY,
    show_default="396: 40 % of an H100's 989 in dense bfloat16",
    help="TFLOPS that a GPU reaches, at which FLOPs become time",
)
@SEED
@RUN_FOLDER
def command(**given: Any) -> None:
    """Run SCRIPT as torchrun does, with a process for each GPU of a fabric.

    Options of uetemu stand before SCRIPT, and those of the script behind it.
    """
    _run(_Options(**given))


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The words of the command, by the names of its options."""

    script: str
    arguments: Sequence[str]
    topology: str | None
    ranks: int | None
    is_module: bool
    fabric: str
    record: str | None
    fake: bool
    tflops: float
    seed: int
    output: Path | None


def _hosts(options: _Options) -> list[int]:
    """Return the number of the host of each rank."""
    if options.topology is None:
        return [0] * (options.ranks or 1)
    from emulator.dataplane.fabric_choice import choose

    gpus = choose(options.topology).topology.gpus
    count = len(gpus) if options.ranks is None else options.ranks
    if count > len(gpus):
        raise UserError(
            f"--ranks is {count} and topology {options.topology} has {len(gpus)} GPUs; take a "
            "larger one, or fewer ranks"
        )
    servers = list(dict.fromkeys(gpu.server for gpu in gpus))
    return [servers.index(gpu.server) for gpu in gpus[:count]]


def _prepared(options: _Options, notes: str) -> list[Prepare]:
    """Return what is called in each rank before the script; its notes go into the folder."""
    return [Record(notes, fake=options.fake)] if options.record else []


def _show(rank: int, stream: int, line: str) -> None:
    """Print a line of a rank."""
    click.echo(f"[{rank}] {line}", file=sys.stdout if stream == 1 else sys.stderr)


def _run(options: _Options) -> None:
    if options.record is None:
        if options.fake:
            raise UserError("--fake is for a recording; add --record FILE, or leave it out")
        _run_script(options, "")
        return
    recording = import_module("scenarios.traces.recording")
    recording.check_destination(options.record)
    notes = mkdtemp(prefix="uetemu-")  # TemporaryDirectory would remove it at the end of any rank
    try:
        _run_script(options, notes)
        written = recording.write_recording(notes, options.record, options.tflops)
    finally:
        shutil.rmtree(notes)
    click.echo(f"recorded in {' '.join(written)}; uetemu run trace {' '.join(written)} replays it")


def _run_script(options: _Options, notes: str) -> None:
    check_script(options.script, is_module=options.is_module)
    script = Script(
        path=options.script,
        arguments=options.arguments,
        is_module=options.is_module,
        prepare=_prepared(options, notes),
        environment={"MASTER_PORT": str(free_port())},
    )
    where = places(_hosts(options))
    if options.fake:
        where = where[:1]
    folder = None
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        folder = options.output / FOLDER
    with Nursery(script) as nursery:
        nursery.ready()
        run_alone(nursery, where, RankOutput(folder, _show))
