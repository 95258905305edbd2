"""``uetemu run``: a scenario from its name to its table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emulator.cli.options import (
    FABRIC,
    ITERATIONS,
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
from emulator.cli.plugin_command import SCENARIO
from emulator.cli.rank_command import RankCommand, given_words
from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.kernel import launcher
from emulator.dataplane.switch import switch_choice as choice
from emulator.errors import UserError
from emulator.run.faults import grammar
from emulator.run.plan.variants import (
    COMPARE,
    COMPARED,
    COMPARED_SEEDS,
    DEFAULT_TRANSPORT,
    variants,
)
from emulator.sim.endpoint.nic import nic_profile
from emulator.transports import describe_options, is_secured

if TYPE_CHECKING:  # what --help does not need is imported where a run begins
    from emulator.run.results import FabricKind
    from emulator.run.runner import RunRequest
    from emulator.suite.farm.trial_farm import TrialFarm


def _describe_scenario() -> str:
    """Return the sheet of the scenario that stands before ``--help``, if one does."""
    name = click.get_current_context().meta[SCENARIO]
    if not name:
        return ""
    from emulator.cli.run_options import chosen

    return chosen(name, {}, None)[0].sheet()


@click.command(
    name="run",
    cls=RankCommand,
    sections=(
        _describe_scenario,
        describe_options,
        choice.describe,
        control_plane.describe,
        grammar.describe,
        nic_profile.describe,
    ),
)
@click.argument("scenario")
@click.argument("files", nargs=-1)
@option(
    "topology",
    "fabric, such as rail_clos:hosts=2,gpus_per_host=2, or a fabric profile, such as pod.yaml",
)
@option(
    "transport",
    "what the endpoints speak, such as uet:delivery=rod,tss=cluster (see below); several to "
    "compare them, each on a switch of its own if that follows @, such as "
    f"uet@deep,rocev2:adaptive@balance=packet; {COMPARE} stands for {','.join(COMPARED)} "
    f"[default: {DEFAULT_TRANSPORT}]",
)
@option(
    "switch",
    "what the switches do, such as deep:balance=packet (see below) "
    f"[default: as a fabric profile says, {choice.DEFAULT}, or what the transport is run on]",
)
@option(
    "plane",
    "how switches learn their routes, such as ebgp:interval=100ms (see below) "
    f"[default: as the topology says, or {control_plane.DEFAULT}]",
)
@SEED
@click.option(
    "--seeds",
    type=click.IntRange(1, 100),
    help="run everything with so many seeds, from --seed on, and report median, least and most "
    f"[default: 1, or {COMPARED_SEEDS} where transports are compared, without MPI]",
)
@click.option(
    "--clock",
    type=click.Choice(["virtual", "host"]),
    default="virtual",
    hidden=True,
)
@FABRIC
@click.option("--dilation", hidden=True)
@click.option(
    "--workers",
    metavar="auto|N",
    help="processes that share the work, at most; results are the same for any "
    "number [default: auto, one for each idle processor]",
)
@click.option(
    "--parts",
    type=click.Path(dir_okay=False, path_type=Path),
    help="file with a line for each worker, or MPI rank: names of the switches "
    "that it has, with their GPUs [default: as the least traffic crosses]",
)
@click.option(
    "--convergence",
    default=control_plane.COMPUTED,
    show_default=True,
    metavar=f"{control_plane.COMPUTED}|{control_plane.MEASURED}|TIME",
    help="fabric time from a fault to the control plane's new routes: from its "
    "timers and the hops, what this machine takes (not repeatable), or a time such as 10ms",
)
@click.option(
    "--check-digest",
    "digest",
    metavar="HEX",
    help="fail unless result.json has this digest of all frames and their times",
)
@click.option("--digest-parts", is_flag=True, hidden=True)
@click.option(
    "--capture",
    metavar="all|none|NODE[:PORT],...",
    help="ports to capture [default: as the scenario says, or the first rail's port to its first "
    "host, and its uplinks]",
)
@click.option(
    "--snaplen",
    metavar="headers|N|full",
    help="octets of each frame to capture [default: headers; full if the transport encrypts, "
    "as a packet is decrypted whole or not at all]",
)
@click.option(
    "--frame-latency",
    metavar="N",
    type=click.IntRange(min=1),
    help="time about one of N frames of data between the NICs' ports, or each if N is 1",
)
@click.option(
    "--event-log",
    metavar="GPU,...|all",
    help="endpoints that write what they do as qlog, which slows them down several times",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="TIMELINE",
    help='what goes wrong in each iteration, such as "t=2ms link rail0:up1 down; t=9ms up" '
    "(see below)",
)
@click.option(
    "--endpoints",
    type=click.Choice(["fresh", "reused", "kept"]),
    default="fresh",
    show_default=True,
    help="fresh: each iteration that counts begins with endpoints that have learned nothing; "
    "reused: with those of the iteration or warm-up before, with its windows, rates and paths "
    "(kept: the former word for it)",
)
@click.option(
    "--gap",
    metavar="TIME",
    help="fabric time between iterations, such as 1ms, at least [default: about 1us]",
)
@pxn
@nic
@gpu_direct
@RUN_FOLDER
@option("report", "also write report.html, as uetemu report does")
@LAB_NAME
@result_format("json: what result.json holds, also of a run that failed, and nothing if none began")
@click.option("--wide", is_flag=True, help="show all columns of the table, however long its lines")
@PARAMETERS
@click.option("--sizes", metavar="SIZE,...", help="same as --param sizes=...")
@ITERATIONS
@click.pass_context
def command(context: click.Context, /, seeds: int | None, **given: Any) -> None:
    """Run SCENARIO (a name, or the path of a .py file) and leave a run folder.

    FILES are what the scenario reads, such as a trace.
    """
    place = launcher.place()
    if seeds is None:
        compared = place is None and len(variants(given["transport"])) > 1
        seeds = COMPARED_SEEDS if compared else 1
    if place is None or seeds == 1:
        _run(context, None, _Options(seeds=seeds, **given))
        return
    from emulator.suite.farm.session import GOES_ON, farm_of, serve_rank

    if place.number:
        serve_rank(place)
    else:
        with farm_of(place, GOES_ON) as farm:
            _run(context, farm, _Options(seeds=seeds, **given))


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The words of the command, by the names of its options."""

    scenario: str
    files: Sequence[str]
    topology: str | None
    transport: str | None
    switch: str | None
    plane: str | None
    seed: int
    seeds: int
    clock: str
    fabric: FabricKind
    dilation: str | None
    workers: str | None
    parts: Path | None
    convergence: str
    digest: str | None
    digest_parts: bool
    capture: str | None
    snaplen: str | None
    frame_latency: int | None
    event_log: str | None
    faults: Sequence[str]
    endpoints: str
    gap: str | None
    pxn: str
    nic: str
    gpu_direct: str
    output: Path | None
    report: bool
    name: str | None
    form: str
    pairs: Sequence[str]
    sizes: str | None
    iterations: str | None
    wide: bool

    def request(self) -> RunRequest:
        """Return what is requested; UserError for options that do not go together."""
        from emulator.cli import run_options as parse
        from emulator.cli.run_options import chosen
        from emulator.dataplane.capture.fabric_capture import parse_snaplen
        from emulator.dataplane.control_plane.charged_time import Convergence
        from emulator.run.measurement import Start
        from emulator.run.runner import RunRequest

        parse.refuse_host_clock(self.clock, self.dilation)
        if self.wide and self.form == "json":
            raise UserError(
                "--wide is about the table, and --format json shows none: leave one out"
            )
        given = parse.parameter_texts(
            self.pairs, {"sizes": self.sizes, "iterations": self.iterations}
        )
        loaded, given = chosen(self.scenario, given, self.transport)
        if self.files:
            given["files"] = parse.files_text(loaded, self.files, given)
        if self.capture == "none" and self.snaplen not in (None, "headers"):
            raise UserError("--snaplen is about captured frames, and --capture none keeps none")
        snaplen = self.snaplen
        if snaplen is None:
            used = [one.transport or DEFAULT_TRANSPORT for one in variants(self.transport)]
            snaplen = "full" if any(map(is_secured, used)) else "headers"
        return RunRequest(
            scenario=loaded,
            parameters=loaded.parameters(given),
            topology=self.topology,
            transport=self.transport,
            switch=self.switch,
            control_plane=self.plane,
            seed=self.seed,
            seeds=self.seeds,
            fabric=self.fabric,
            workers=parse.parse_workers(self.workers),
            parts=parse.parse_parts(self.parts, self.workers),
            convergence=Convergence.parse(self.convergence),
            digest=parse.parse_digest(self.digest),
            digest_parts=self.digest_parts,
            capture=self.capture,
            snaplen=parse_snaplen(snaplen),
            frame_latency=self.frame_latency or 0,
            event_log=self.event_log,
            faults=self.faults,
            start=Start(fresh=self.endpoints == "fresh", gap_ns=parse.parse_gap(self.gap)),
            pxn=self.pxn,
            nic=self.nic,
            gpu_direct=self.gpu_direct,
            output=self.output,
            lab=self.name,
        )


def _run(context: click.Context, farm: TrialFarm | None, options: _Options) -> None:
    from emulator.cli import rank_runs
    from emulator.cli.run_terminal import PLANNING, Terminal, progress_bar, run_facts
    from emulator.metrics import added_columns
    from emulator.result_rows import NCCL_COLUMNS, TableColumn, short_names
    from emulator.run.report import comparison, spread
    from emulator.run.report import result_table as table
    from emulator.run.runner import execute
    from emulator.workers.division import ALONE
    from emulator.workers.interrupts import Interrupted

    request, ranks = options.request(), rank_runs.current()
    with progress_bar() as bar:
        bar.show(PLANNING, None)
        plan = rank_runs.planned(request, ranks)
        columns: Sequence[TableColumn] = getattr(
            request.scenario.module, "COLUMNS", (*NCCL_COLUMNS, *table.FABRIC_COLUMNS)
        )
        columns = (*columns, *added_columns())
        labels = [stage.stage.label for stage in plan.stages]
        if plan.compares:
            facts = plan.trials[0].facts
            columns = comparison.columns(columns, labels, facts, plan.request.seeds)
        elif plan.request.seeds > 1:
            columns = spread.columns(columns)
        names = short_names(labels)
        rows = (
            table.ResultTable(columns, run_facts(plan), wide=options.wide)
            if options.form == "table"
            else None
        )
        terminal = Terminal(rows, bar, names)
        try:
            if farm is None:
                result, folder = execute(plan, terminal, ranks or ALONE)
            else:
                from emulator.suite.farm.seeds import execute_farmed

                words = partial(_words_of_seed, context, options.name, options.workers)
                result, folder = execute_farmed(plan, farm, words, terminal)
        except Interrupted as stop:
            if farm is not None:
                raise
            bar.end()
            terminal.close(None)
            if ranks is None or not ranks.death_reported:
                click.echo(f"uetemu: {stop}; the fabric has been removed", err=True)
            sys.exit(stop.exit_status)
    terminal.close(folder, result)
    if options.report and (ranks is None or ranks.number == 0):
        from emulator.report.run.page import write_report

        click.echo(f"uetemu: wrote {write_report(folder.path)}", err=True)
    if result.errors:
        raise UserError(result.errors[0])
    if not result.succeeded:
        wrong = sum(row["wrong"] for row in result.rows if isinstance(row["wrong"], int))
        raise UserError(
            f"{wrong} elements are wrong, see {folder.path}/result.json; unless the scenario "
            "expects the wrong values, please report it with the run folder"
        )


def _words_of_seed(
    context: click.Context, lab: str | None, workers: str | None, seed: int
) -> list[str]:
    """Return the words of the same run with one seed, for a rank."""
    replaced = {
        **{"seed": str(seed), "seeds": "1", "workers": workers or "1", "form": "json"},
        "name": None if lab is None else f"{lab}-{seed}",
        **dict.fromkeys(("digest", "output", "report", "wide")),
    }
    return ["run", *given_words(context, replaced), "--digest-parts"]
