"""``uetemu torchrun``: a PyTorch script with a process for each rank.

The ranks come from :mod:`emulator.torch_backend.launching`.  Whatever stands between a script and
torch.distributed hooks in by ``Script.prepare``: functions that are called in each rank's process,
with torch imported and before the script begins (``prepare(place: RankPlace)``).  They may wrap
functions of ``torch.distributed`` and push modes; what they return is called when the script is
over.  :func:`_prepared` makes the list from the options; a recorder adds its own there.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast

import click
from click.core import ParameterSource

from emulator.cli.options import (
    LAB_NAME,
    PARAMETERS,
    RUN_FOLDER,
    SEED,
    gpu_direct,
    nic,
    option,
    pxn,
    result_format,
)
from emulator.cli.plugin_command import PluginCommand
from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.torch_backend.launching import ForkServer, Prepare, Script, check_script, places
from emulator.torch_backend.output import FOLDER, RankOutput
from emulator.torch_backend.passthrough import free_port, run_alone
from emulator.torch_backend.recording import EFFICIENCY, H100_TFLOPS, Record

#: The scenario's module; the floor of scenarios lies above this one.
SCRIPT_SCENARIO = "scenarios.torch_script.torch_run"
#: What ranks would import one by one, as soon as a mode of torch sees an operation.
PRELOAD = ("torch._dynamo", "emulator.torch_backend.process_group")
#: Options that change nothing without a fabric.
_OF_FABRIC = (
    *("transport", "switch", "plane", "seed", "seeds", "compute", "fake_clock", "workers"),
    *("digest", "capture", "faults", "pxn", "nic", "gpu_direct", "report", "name", "form", "pairs"),
)
#: Parameters of other scenarios, for which a script has its own steps.
_REPEATED = ("warmups", "iterations")
#: Lines of the script that the table shows at most.
MOST_SITES = 20


@click.command(
    name="torchrun",
    cls=PluginCommand,
    context_settings={"allow_interspersed_args": False},
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
@option("transport", "what the endpoints speak, as in uetemu run; several to compare them")
@option("switch", "what the switches do, as in uetemu run")
@option("plane", "how switches learn their routes, as in uetemu run")
@SEED
@click.option(
    "--seeds",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="run the script with so many seeds of the fabric, from --seed on, and report median, "
    "least and most; what it draws itself is the same each time",
)
@click.option(
    "--fabric",
    type=click.Choice(["kernel", "model", "none"]),
    default="kernel",
    show_default=True,
    help="kernel, model: as in uetemu run; none: no fabric, torch.distributed by itself (gloo)",
)
@click.option(
    "--record",
    metavar="FILE",
    help="without a fabric (gloo): write what the ranks compute and send as a trace, such as "
    "step.csv or step.et, for uetemu run trace",
)
@click.option(
    "--record-steps",
    metavar="A-B",
    help="with --record: only these steps, such as 3 or 2-4, each of which ends with an "
    "optimiser's step()",
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
@click.option(
    "--compute",
    metavar="flops|none|fixed:TIME|csv:FILE",
    default="flops",
    show_default=True,
    help="time between calls: FLOPs over --tflops, none, so long before each call, or as the lines "
    "of a file say (columns rank and compute_us)",
)
@click.option(
    "--fake-clock", is_flag=True, help="have time.time() and others of the script be fabric time"
)
@click.option(
    "--map-cuda", is_flag=True, help="have the CPU stand for CUDA, where the script asks for it"
)
@click.option("--workers", metavar="auto|N", help="processes that share the fabric's work, at most")
@click.option(
    "--check-digest",
    "digest",
    metavar="HEX",
    help="fail unless result.json has this digest of all frames and their times",
)
@click.option("--capture", metavar="all|none|NODE[:PORT],...", help="ports to capture")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="TIMELINE",
    help="what goes wrong, as in uetemu run: the script runs without it first",
)
@pxn
@nic
@gpu_direct
@RUN_FOLDER
@option("report", "also write report.html, as uetemu report does")
@LAB_NAME
@result_format("json: what result.json holds")
@PARAMETERS
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Run SCRIPT as torchrun does, with a process for each GPU of a fabric.

    Each call of torch.distributed crosses the fabric with its tensors, whatever backend the script
    names.  Options of uetemu stand before SCRIPT, and those of the script behind it.
    """
    alone = "--record" if given["record"] else "--fabric none" if given["fabric"] == "none" else ""
    for parameter in context.command.params if alone else ():
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in _OF_FABRIC and source is ParameterSource.COMMANDLINE:
            raise UserError(
                f"{parameter.opts[0]} is about a fabric, and with {alone} there is none: leave it "
                "out"
            )
    _run(_Options(**given))


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The words of the command, by the names of its options."""

    script: str
    arguments: Sequence[str]
    topology: str | None
    ranks: int | None
    is_module: bool
    transport: str | None
    switch: str | None
    plane: str | None
    seed: int
    seeds: int
    fabric: str
    record: str | None
    record_steps: str | None
    fake: bool
    tflops: float
    compute: str
    fake_clock: bool
    map_cuda: bool
    workers: str | None
    digest: str | None
    capture: str | None
    faults: Sequence[str]
    pxn: str
    nic: str
    gpu_direct: str
    output: Path | None
    report: bool
    name: str | None
    form: str
    pairs: Sequence[str]


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
    if options.record:
        return [Record(notes, fake=options.fake, cuda_on_cpu=options.map_cuda)]
    from emulator.torch_backend.computing import Computing
    from emulator.torch_backend.script_ranks import on_fabric, on_gloo

    if options.fabric == "none":
        return [on_gloo(cuda_on_cpu=options.map_cuda)]
    computing = Computing.parse(options.compute, options.tflops)
    return [on_fabric(computing, cuda_on_cpu=options.map_cuda, fake_clock=options.fake_clock)]


def _run(options: _Options) -> None:
    if options.record is None:
        for name, given in (("--fake", options.fake), ("--record-steps", options.record_steps)):
            if given:
                raise UserError(f"{name} is for a recording; add --record FILE, or leave it out")
        _run_script(options, "")
        return
    recording = import_module("scenarios.traces.recording")
    recording.check_destination(options.record)
    steps = recording.chosen_steps(options.record_steps)
    notes = mkdtemp(prefix="uetemu-")  # TemporaryDirectory would remove it at the end of any rank
    try:
        _run_script(options, notes)
        written = recording.write_recording(notes, options.record, options.tflops, steps)
    finally:
        shutil.rmtree(notes)
    files = written[0] if len(written) == 1 else options.record.removesuffix(".et") + ".*.et"
    click.echo(f"recorded: uetemu run trace {files}", err=True)


def _run_script(options: _Options, notes: str) -> None:
    check_script(options.script, is_module=options.is_module)
    alone = options.fabric == "none" or options.record is not None
    script = Script(
        path=options.script,
        arguments=options.arguments,
        is_module=options.is_module,
        prepare=_prepared(options, notes),
        preload=PRELOAD if options.fabric != "none" or options.record else (),
        environment={"MASTER_PORT": str(free_port() if alone else 29500)},
    )
    with ForkServer(script) as fork_server:
        if alone:
            _run_alone(options, fork_server)
        else:
            _run_on_fabric(options, fork_server)


def _run_alone(options: _Options, fork_server: ForkServer) -> None:
    folder = None
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        folder = options.output / FOLDER
    where = places(_hosts(options))
    if options.fake:
        where = where[:1]
    fork_server.ready()
    run_alone(fork_server, where, RankOutput(folder, _show))


def _show(rank: int, stream: int, line: str) -> None:
    """Print a line of a rank."""
    click.echo(f"[{rank}] {line}", file=sys.stdout if stream == 1 else sys.stderr)


#: Columns of the calls by line.
_CALLS = (
    TableColumn("site", "line of the script", "", 20),
    TableColumn("kind", "kind", "", 13),
    TableColumn("dtype", "type", "", 9),
    TableColumn("members", "ranks", "", 6),
    TableColumn("calls", "calls", "", 6),
    TableColumn("bytes", "octets", "(B)", 13),
    TableColumn("time_us", "time", "(us)", 12),
    TableColumn("exposed_us", "exposed", "(us)", 12),
    TableColumn("overlapped_us", "overlapped", "(us)", 12),
    TableColumn("busbw_gbps", "busbw", "(GB/s)", 8),
    TableColumn("algorithms", "algorithm", "", 12),
)


def _show_calls(row: Mapping[str, object], seeds: int) -> None:
    """Print the calls of a ``row`` of the result by the lines that made them."""
    from emulator.run.report.result_table import ResultTable

    sites = cast(Sequence[Mapping[str, object]], row["call_sites"])
    table = ResultTable(_CALLS, wide=True)
    over = f"{row['transport']}, seed {row['seed']}" if seeds > 1 else row["transport"]
    click.echo(f"#\n# Calls over {over}, the longest first")
    for one in sites[:MOST_SITES]:
        for line in table.lines(one):
            click.echo(line)
    if len(sites) > MOST_SITES:
        click.echo(f"# and {len(sites) - MOST_SITES} lines more (call_sites of result.json)")


def _run_on_fabric(options: _Options, fork_server: ForkServer) -> None:
    from emulator.cli import run_options as parse
    from emulator.cli.run_terminal import PLANNING, Terminal, progress_bar, run_facts
    from emulator.result_rows import short_names
    from emulator.run.plan.run_plan import RunRequest, prepare
    from emulator.run.report import comparison, spread
    from emulator.run.report.result_table import ResultTable
    from emulator.run.results import FabricKind
    from emulator.run.runner import execute
    from emulator.torch_backend.compiled_calls import Compile
    from emulator.torch_backend.driver import ScriptDriver
    from emulator.workers.interrupts import Interrupted

    with progress_bar() as bar:

        def show(rank: int, stream: int, line: str) -> None:
            with bar.aside():
                shown = sys.stdout if stream == 1 and options.form == "table" else sys.stderr
                click.echo(f"[{rank}] {line}", file=shown)

        def make_driver(hosts: Sequence[int], compile_call: Compile) -> ScriptDriver:
            tell = partial(bar.show, share=None)
            return ScriptDriver(fork_server, places(hosts), compile_call, show, tell)

        name = options.script if options.is_module else Path(options.script).name
        scenario = import_module(SCRIPT_SCENARIO).scenario_of(
            name, make_driver, options.ranks, options.pxn
        )
        given = parse.parameter_texts(options.pairs, {})
        for repeated in filter(given.__contains__, _REPEATED):
            raise UserError(
                f"a script has no {repeated}: it repeats its steps itself, on endpoints that have "
                "learned from those before; --seeds N runs all of it N times"
            )
        request = RunRequest(
            scenario=scenario,
            parameters=scenario.parameters(given),
            topology=options.topology,
            transport=options.transport,
            switch=options.switch,
            control_plane=options.plane,
            seed=options.seed,
            seeds=options.seeds,
            fabric=cast(FabricKind, options.fabric),
            workers=1 if options.workers is None else parse.parse_workers(options.workers),
            digest=parse.parse_digest(options.digest),
            capture=options.capture,
            faults=options.faults,
            pxn=options.pxn,
            nic=options.nic,
            gpu_direct=options.gpu_direct,
            output=options.output,
            lab=options.name,
        )
        bar.show(PLANNING, None)
        plan = prepare(request)
        bar.show("PyTorch is still being imported", None)
        fork_server.ready()
        labels = [stage.stage.label for stage in plan.stages]
        columns = scenario.module.COLUMNS
        if plan.compares:
            columns = comparison.columns(columns, labels, plan.trials[0].facts, options.seeds)
        elif options.seeds > 1:
            columns = spread.columns(columns)
        table = ResultTable(columns, run_facts(plan)) if options.form == "table" else None
        terminal = Terminal(table, bar, short_names(labels))
        try:
            result, folder = execute(plan, terminal)
        except Interrupted as stop:
            bar.end()
            terminal.close(None)
            click.echo(f"uetemu: {stop}; the fabric has been removed", err=True)
            sys.exit(stop.exit_status)
    terminal.close(folder, result)
    if options.form == "table":
        for row in result.rows:
            if row["seed"] == options.seed:
                _show_calls(row, options.seeds)
    if options.report:
        from emulator.report.run.page import write_report

        click.echo(f"uetemu: wrote {write_report(folder.path)}", err=True)
    if result.errors:
        raise UserError(result.errors[0])
