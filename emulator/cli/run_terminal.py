"""The view of a run that a user has while it goes on: a bar, and the table as it grows."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from emulator.compiled.finder import engine
from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.kernel import launcher
from emulator.result_rows import settings, summary
from emulator.run.plan.effort import effort
from emulator.run.report import comparison, outcome_sentence
from emulator.run.report import result_table as table
from emulator.run.results import Result, RunFolder
from emulator.run.runner import RunPlan
from emulator.sim.endpoint.nic import host_staging, nic_profile

if TYPE_CHECKING:
    from rich.progress import Progress

#: What the table says of a fabric that is a model.
MODELLED = "model: switches are computed in this process, no frame passes a kernel"
#: A bar appears once a run has taken this long (s).
TIME_LIMIT_S = 2.0
#: Seconds between two lines of progress where there is no terminal for a bar.
LINE_S = 10.0
#: What is under way before a run has a row.
PLANNING = "schedules are still being compiled"
#: Work beyond so many seconds comes with a hint.
LONG_S = 60.0


def _counted(number: int, thing: str) -> str:
    plural = "es" if thing.endswith("ch") else "s"
    return f"{number} {thing}{plural if number != 1 else ''}"


def modelled_line(plan: RunPlan) -> Sequence[str]:
    """Return the heading's line on a fabric that is a model."""
    return [f"# Fabric               : {MODELLED}"] if plan.request.fabric == "model" else []


def _reported(spec: str, plan: RunPlan) -> Sequence[str]:
    """The heading's lines on the control plane, of one that speaks."""
    plane = control_plane.parse(spec)
    if plane is None:
        return ()
    return (
        f"# Control plane        : {spec}",
        f"# Convergence          : {plan.request.convergence.words(plane)}",
    )


@contextmanager
def _called_every(seconds: float, report: Callable[[], None]) -> Iterator[None]:
    """Call ``report`` by SIGALRM in the main thread, whatever that computes meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGALRM, lambda *_: report())
    signal.siginterrupt(signal.SIGALRM, False)
    before = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, handler)


def _drawn_bar() -> Progress:
    # A run without a terminal, or a short one, loads no rich.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


class Bar:
    """A progress bar on standard error if a run takes its time; a line now and then without one."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown: Progress | None = None
        self._requested = sys.stderr.isatty()
        self._now: tuple[str, float | None] = ("", None)
        place = launcher.place()
        with ExitStack() as stack:
            if place is None or place.number == 0:
                stack.enter_context(_called_every(LINE_S, self._show_line))
            self._lines = stack.pop_all()

    def show(self, what: str, share: float | None) -> None:
        self._now = what, share
        if not self._requested:
            return
        if self._shown is None:
            if time.monotonic() - self._began < TIME_LIMIT_S:
                return
            self._shown = _drawn_bar()
            self._shown.start()
            self._shown.add_task(what, total=1.0)
        (task,) = self._shown.task_ids
        self._shown.update(task, description=what)
        if share is not None:
            self._shown.update(task, completed=share)

    def _show_line(self) -> None:
        """Write what is under way; called by a timer, as an iteration may take minutes."""
        if self._shown is not None:
            return
        what, share = self._now
        done = "" if share is None else f", {100 * share:.0f} % of the run is done"
        if what:
            line = f"uetemu: {what}{done} after {time.monotonic() - self._began:.0f} s\n"
            os.write(2, line.encode())  # the stream may be in the middle of another line

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The bar is out of the way while something is printed."""
        if self._shown is not None:
            self._shown.stop()
        yield
        if self._shown is not None:
            self._shown.start()

    def end(self) -> None:
        """Take the bar away for good."""
        self._lines.close()
        if self._shown is not None:
            self._shown.stop()
        self._shown = None
        self._requested = False


@contextmanager
def progress_bar() -> Iterator[Bar]:
    bar = Bar()
    try:
        yield bar
    finally:
        bar.end()


_CLOCK = "virtual: it waits for the work, so that times are exact and come again"


def _switch(plan: RunPlan, result: Result) -> str:
    """Return what the switches do, or how it differs."""
    used = {stage.stage.switch for stage in plan.stages}
    if len(used) == 1:
        return str(result.switch) if None in used else str(*used)
    where = "each transport's, listed at the end" if plan.compares else "by row"
    return f"{len(used)} settings, {where}"


def _seeds(result: Result) -> str:
    if result.seeds == 1:
        return str(result.seed)
    last = result.seed + result.seeds - 1
    return f"{result.seed} to {last}; all below are medians but least, most and #wrong"


def taken_times(plan: RunPlan) -> str:
    """Return what NICs take, and GPUs, the links of a scale-up product, and whether it sums."""
    nic, library = plan.request.nic, getattr(plan.request.parameters, "library", None)
    nics = "no time (--nic none)" if nic == nic_profile.NONE else f"those of --nic {nic}"
    scale_up = plan.topology.servers[0].scale_up
    links = f"; {scale_up.links} scale-up links a GPU, as a model whose packets are not seen"
    if not scale_up.links:
        links = ""
    links = f"{host_staging.stated(plan.request.gpu_direct)}{links}"
    if library is None:  # GPUs have what the scenario gives them to compute
        return f"NICs take {nics}{links}"
    gpus = "no time (library=none)" if library == "none" else f"those of library={library}"
    sums = ""
    if getattr(plan.request.parameters, "algorithm", None) == "nvls":
        sums = "; scale-up switches sum and copy, as a model whose packets are not seen"
    return f"NICs take {nics}, GPUs {gpus}{links}{sums}"


def _work(plan: RunPlan) -> str:
    """Return how much the run has to do, and what makes it less where that is much."""
    if any(trial.drive is not None for trial in plan.trials):
        return "what the script calls"
    work = effort(plan)
    less = ""
    if work.seconds > LONG_S:
        scenario = plan.request.scenario
        taken = [one for one in ("sizes", "size", "iterations") if scenario.takes(one)]
        less = f"; less with another {' or '.join(taken)}" if taken else ""
    return f"{work} on a quiet machine{less}"


def run_facts(plan: RunPlan) -> list[dict[str, object]]:
    return [{"size_bytes": trial.size_bytes, **trial.facts} for trial in plan.trials]


class Terminal:
    """Prints the table as it grows, or at the end the JSON object and nothing else."""

    def __init__(
        self,
        rows: table.ResultTable | None,
        bar: Bar,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._rows = rows
        self._names = names or {}
        self._bar = bar
        self._result: Result | None = None
        self._compares = False
        self._differences: Sequence[str] = ()

    def began(self, plan: RunPlan, result: Result) -> None:
        self._result = result
        self._compares = plan.compares
        if plan.compares:
            self._differences = comparison.report(plan)
        if self._rows is None:
            return
        fabric = plan.topology
        parts = (
            (len(fabric.gpus), "GPU"),
            (len(fabric.servers), "server"),
            (len(fabric.switches), "switch"),
            (len(fabric.links), "link"),
        )
        self._print(
            *table.title(self._command(plan, result), plan.request.scenario.title),
            *table.wrapped("Topology", f"{plan.spec} ({', '.join(_counted(*p) for p in parts)})"),
            *modelled_line(plan),
            f"# Transport            : {result.transport}",
            f"# Switch               : {_switch(plan, result)}",
            *_reported(fabric.profile.control_plane, plan),
            *([f"# Homing               : {plan.homing}"] if plan.homing else []),
            f"# Clock                : {_CLOCK}",
            *table.wrapped("NICs and GPUs", taken_times(plan)),
            f"# Start                : {plan.request.start}",
            f"# Seed                 : {_seeds(result)}",
            *table.wrapped("Engine", engine()),
            *table.wrapped("Work", _work(plan)),
            "#",
        )

    def _command(self, plan: RunPlan, result: Result) -> str:
        driven = any(trial.drive is not None for trial in plan.trials)
        return result.scenario if driven else f"run {result.scenario}"

    def progress(self, what: str, share: float | None) -> None:
        self._bar.show(what, share)

    def row(self, row: Mapping[str, object]) -> None:
        if self._rows is not None:
            name = self._names.get(str(row["transport"]))
            self._print(*self._rows.lines({**row, "name": name}))

    def close(self, folder: RunFolder | None, result: Result | None = None) -> None:
        """Print the last lines of a run; both arguments are None if it was cut short."""
        result = result or self._result
        if result is None or (self._result is None and self._rows is not None):
            return  # there is no table to end
        content = result.as_dict()
        if self._rows is None:
            click.echo(json.dumps(content, indent=1, allow_nan=False))
        else:
            if self._compares:
                lines = (
                    *settings(result.rows),
                    *self._differences,
                    *summary(result.rows),
                )
                self._print(*(part for line in lines for part in table.wrapped("Comparison", line)))
            elif rows := result.summary or result.rows:
                words = outcome_sentence.sentence(rows, self._rows, result.rows)
                self._print(*table.wrapped("Came out", words))
            if result.rows:
                self._print(*table.wrapped("Columns", self._rows.explained()))
            self._print(*table.trailer(content, folder.path if folder else None))

    def _print(self, *lines: str) -> None:
        with self._bar.aside():
            for line in lines:
                click.echo(line)
