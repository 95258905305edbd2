"""A row of the table and of ``result.json``, from what was measured of a trial."""

from __future__ import annotations

from emulator.metrics import computed
from emulator.run.plan.run_plan import PlannedStage, RunPlan
from emulator.run.report import comparison
from emulator.scenario import MeasuredTrial, Outcome, Trial


def measured_row(
    plan: RunPlan, stage: PlannedStage, trial: Trial, outcome: Outcome
) -> dict[str, object]:
    """Make the row of ``trial`` on ``stage``.

    The measures of the scenario count where they have the name of another one.
    """
    request, topology = plan.request, plan.topology
    return {
        "transport": stage.stage.label,
        "switch": stage.stage.switch,
        "seed": stage.seed,
        "collective": trial.collective,
        "size_bytes": trial.size_bytes,
        **computed("every", MeasuredTrial(topology, trial, outcome, stage.transport)),
        **plan.request.start.as_dict(),
        "began_us": [one.origin_ns / 1000 for one in outcome.iterations],
        **(comparison.measured(topology, outcome) if plan.compares else {}),
        **trial.facts,
        **request.scenario.measures(request.parameters, topology, trial, outcome),
    }
