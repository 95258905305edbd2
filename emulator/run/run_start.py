"""Parts of a run that are the same for one process, and for several that do it seed by seed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from emulator import plugins
from emulator.errors import UserError
from emulator.logs import plain_logger
from emulator.run.environment import describe_machine
from emulator.run.plan.run_plan import RunPlan
from emulator.run.results import Result, RunFolder

_log = plain_logger(__name__)
#: What ``result.json`` has for an error until the run has ended.
UNFINISHED = "the run has not ended yet, or it was killed before it could say why"


def blank_result(plan: RunPlan) -> Result:
    """Return the result of ``plan`` before anything is measured."""
    request = plan.request
    return Result(
        scenario=request.scenario.name,
        topology=plan.spec,
        transport=plan.transport,
        switch=plan.switch,
        fabric=request.fabric,
        ranks=len(plan.topology.gpus),
        seed=request.seed,
        homing=None if plan.homing is None else dataclasses.asdict(plan.homing),
        seeds=request.seeds,
        parameters=dataclasses.asdict(request.parameters),
    )


def environment_of(plan: RunPlan) -> dict[str, object]:
    """Return what ``environment.json`` says of this machine and of what the run needs of it."""
    return {
        **describe_machine(),
        "nic": plan.request.nic,
        "gpu_direct": plan.request.gpu_direct,
        **({"plugins": loaded} if (loaded := plugins.facts()) else {}),
        "capabilities": {
            name: {"present": found.present, "detail": found.detail}
            for name, found in plan.capabilities.items()
        },
    }


def check_digest(plan: RunPlan, result: Result) -> None:
    """Add an error to ``result`` unless it has the digest that the user asked for, if any."""
    requested = plan.request.digest
    if requested not in (None, result.digest):
        result.errors.append(
            f"the digest of this run is {result.digest}, not {requested}: "
            "another seed, option, topology or version, or a fault of this program"
        )


def note_end(folder: str, sentence: str) -> None:
    """Write into the ``folder`` of a run that was killed why it has ended, if nothing does yet."""
    path = Path(folder) / "result.json"
    try:
        for begun in Path(folder).glob(".*.json.[0-9]*"):  # which the run was about to write
            begun.unlink()
        result = json.loads(path.read_text())
        if result["errors"] == [UNFINISHED]:
            RunFolder(Path(folder)).write(path.name, result | {"errors": [sentence]})
    except (OSError, ValueError, UserError) as error:
        _log.info("%s is not completed: %s", path, error)


class Observer(Protocol):
    """An observer of a run: a terminal, or nobody."""

    def began(self, plan: RunPlan, result: Result) -> None:
        """The fabric is about to be built; the dilation is known."""

    def progress(self, what: str, share: float | None) -> None:
        """Report progress: ``share`` (0..1) of the whole run is done, None if unknown."""

    def row(self, row: Mapping[str, object]) -> None:
        """A trial is done."""
