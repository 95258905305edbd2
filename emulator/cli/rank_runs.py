"""Commands that a launcher (mpirun, srun) starts several times: what they may do, how they end.

Every rank carries out the same command.  The first one speaks for all: the others print nothing but
the traceback of a failure of their own.  What concerns several ranks is decided here alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import click

from emulator import plugins
from emulator.cli.rank_command import FARMED_VERBS
from emulator.dataplane import cleanup
from emulator.dataplane.kernel.launcher import RankPlace
from emulator.dataplane.kinds import KINDS
from emulator.errors import UserError
from emulator.run.plan import preflight
from emulator.run.plan.run_plan import RunPlan, RunRequest, drafted, prepare, weighed
from emulator.run.run_secret import plan_digest
from emulator.run.run_start import note_end
from emulator.workers.partition import Partition
from emulator.workers.ranks.exchange import (
    PATIENCE_S,
    PATIENCE_VARIABLE,
    Ranks,
)

#: The verbs that several ranks carry out together.
RANKED_VERBS = ("run",)
#: Loaded in a process that a launcher has started, and in no other.
_CHANNEL = "emulator.workers.ranks.mpi_channel"
#: Has Open MPI gather the blocks of N ranks in log2(N) rounds, where N is a power of two.  Without
#: it, and for any other N, each rank sends its block to each other one.
_ROUNDS = ("OMPI_MCA_coll_libnbc_iallgather_algorithm", "2")
#: Letters of a scenario's name that the name of a lab has room for, beside the rank's number.
_STEM = 10
#: What the sources of a machine are: these folders, by a digest of so many digits.
_ROOT = Path(__file__).parents[2]
_PACKAGES = ("emulator", "scenarios", "topologies", "uet")
_DIGITS = 12


def carry_out(place: RankPlace, work: Callable[[Ranks], int]) -> int:
    """Join the other ranks, do ``work``, and return its status when all have done theirs.

    That is done in a child of this process, which guards it.  Where a rank does not come to its
    end, the launcher is to end all, and this never returns.
    """
    from emulator.workers.ranks.guardian import Aftermath, guarded

    watch = guarded(place, Aftermath(remove=cleanup.remove_left, note=note_end), _patience_s())
    os.environ.setdefault(*_ROUNDS)  # a user's --mca is there already
    try:
        channel = importlib.import_module(_CHANNEL).MpiChannel()
    except ImportError as error:
        click.echo(
            f"uetemu: MPI rank {place.number} on {platform.node()} has no mpi4py ({error}): run "
            "vagrant/provision.sh --with mpi there",
            err=True,
        )
        watch.over()
        return 1
    machine = platform.node()
    ranks = Ranks(channel, machine=machine, patience_s=_patience_s(), watch=watch)
    with _quiet(ranks.number != 0):
        try:
            status = work(ranks)
        except BaseException as error:  # noqa: BLE001 (all others wait for the end, whatever it is)
            ranks.leave(f"{type(error).__name__}: {error}")
            if error is not ranks.heard:
                traceback.print_exc(file=sys.__stderr__)
            status = 1
        whole = ranks.part()
    silent = all(peer in ranks.silent for peer in range(ranks.number))
    if status and ranks.number and silent and not ranks.death_reported:
        click.echo(f"uetemu: {ranks.exit_reason}", err=True)  # who speaks for all is gone
    sys.stdout.flush()
    sys.stderr.flush()
    watch.over()
    if not whole:
        ranks.abort(status or 1)
    return status


def _patience_s() -> float:
    text = os.environ.get(PATIENCE_VARIABLE, "")
    try:
        return float(text) if text else PATIENCE_S
    except ValueError:
        return PATIENCE_S


@contextmanager
def _quiet(silent: bool) -> Iterator[None]:
    """With ``silent`` standard output and error go nowhere."""
    before = sys.stdout, sys.stderr
    if not silent:
        yield
        return
    with open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


def join(ranks: Ranks, verb: str | None) -> None:
    """Learn who the other ranks are.

    Raises UserError for a ``verb`` that is one machine's, and for machines that would differ.
    """
    if verb not in RANKED_VERBS:
        raise UserError(
            f"uetemu {verb or ''} is for one process, and a launcher has started {ranks.count}: "
            f"only uetemu {' and '.join((*RANKED_VERBS, *FARMED_VERBS))} take several; call it "
            "without mpirun or srun"
        )
    machines: list[RankMachine] = ranks.gather("machines", RankMachine.here())
    ranks.machines = [machine.name for machine in machines]
    ranks.introduce()
    check_alike(machines, ranks)


def current() -> Ranks | None:
    """Return the ranks that carry out the present command; None if it is one process."""
    return click.get_current_context().find_object(Ranks)


def part_of(request: RunRequest, ranks: Ranks) -> RunRequest:
    """Return the ``request`` of this rank, which is one of its workers, on a lab of its own.

    Raises UserError for a request that is for one machine.
    """
    if request.workers is not None:
        raise UserError(
            f"--workers {request.workers} is given, and the launcher has started {ranks.count} "
            "ranks, which are the workers: leave --workers out"
        )
    name = request.lab or preflight.lab_name(request.scenario.name[:_STEM])
    name = ranks.gather("name of the lab", name)[0]
    own = f"{name}-r{ranks.number}" if ranks.number else name
    ranks.holds(lab=own)
    return dataclasses.replace(request, lab=own, workers=ranks.count)


def planned(request: RunRequest, ranks: Ranks | None) -> RunPlan:
    """Return the plan of ``request`` for this process, one of ``ranks`` if there are any.

    Rank 0 alone compiles and weighs the schedules of all GPUs.
    """
    if ranks is None:
        return prepare(request)
    plan = drafted(part_of(request, ranks), ranks)
    agree(plan, ranks)
    return weighed(plan, ranks)


def check_files(files: Sequence[Sequence[Mapping[str, str]]], ranks: Ranks) -> None:
    """Raise UserError unless all ranks have loaded the same ``files`` of users."""
    for number, other in enumerate(files):
        if other != files[0]:
            differs = next(iter([one for one in files[0] if one not in other] or other))["file"]
            raise UserError(
                f"{ranks.name(number)} has another {differs} than {ranks.name(0)}, or none: bring "
                "the same file there"
            )


def agree(plan: RunPlan, ranks: Ranks) -> None:
    """Raise UserError unless all ranks have the same ``plan``, and each has a part of it."""
    KINDS[plan.request.fabric].check_ranks(plan.topology)
    if plan.request.parts is not None and len(plan.request.parts) != ranks.count:
        raise UserError(
            f"--parts has {len(plan.request.parts)} lines, and the launcher has started "
            f"{ranks.count} ranks: write a line for each"
        )
    parts = Partition.of(plan.topology, ranks.count).workers
    if parts < ranks.count:
        raise UserError(
            f"the launcher has started {ranks.count} ranks, and the fabric has parts for {parts}, "
            f"each a leaf switch with its GPUs: start {parts} with mpirun -n {parts}"
        )
    check_files(ranks.gather("plug-ins", plugins.facts()), ranks)
    plans = ranks.gather("plan", plan_digest(plan))
    for number, other in enumerate(plans):
        if other != plans[0]:
            raise UserError(
                f"{ranks.name(number)} has another plan than {ranks.name(0)}: their command lines, "
                "or files that the run reads (scenario, fabric profile, trace), differ; make them "
                "alike"
            )


@dataclass(frozen=True)
class RankMachine:
    """The ``name`` of a machine, its kernel's release, and the digest of uetemu's sources there."""

    name: str
    kernel: str
    sources: str

    @classmethod
    def here(cls) -> Self:
        """The machine of this process."""
        return cls(platform.node(), platform.release(), _digest())


def check_alike(machines: Sequence[RankMachine], ranks: Ranks) -> None:
    """Raise UserError, which names a rank, unless ``machines`` have the same kernel and uetemu."""
    first = machines[0]
    for number, machine in enumerate(machines):
        if machine.sources != first.sources:
            raise UserError(
                f"{ranks.name(number)} has another uetemu ({machine.sources}) than {ranks.name(0)} "
                f"({first.sources}): install the same version on both"
            )
        if machine.kernel != first.kernel:
            raise UserError(
                f"{ranks.name(number)} has kernel {machine.kernel}, and {ranks.name(0)} has "
                f"{first.kernel}: boot the same on both, as their switches may differ"
            )


def _digest() -> str:
    """The first digits of the SHA-256 of all sources, by their names."""
    total = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.[pch]*")):
            if path.suffix in (".py", ".c", ".h"):
                total.update(f"{path.relative_to(_ROOT)}\n".encode())
                total.update(path.read_bytes())
    return total.hexdigest()[:_DIGITS]
