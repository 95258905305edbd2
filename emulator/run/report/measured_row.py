"""A row of the table and of ``result.json``, from what was measured of a trial."""

from __future__ import annotations

from emulator.run.plan.run_plan import PlannedStage, RunPlan
from emulator.run.report import comparison
from emulator.scenario import Outcome, Trial


def measured_row(
    plan: RunPlan, stage: PlannedStage, trial: Trial, outcome: Outcome
) -> dict[str, object]:
    """Make the row of ``trial`` on ``stage``; its keys are explained in ``results``.

    The measures of the scenario count where they have the name of another one.
    """
    request, topology, transport = plan.request, plan.topology, stage.transport
    return {
        "transport": stage.stage.label,
        "switch": stage.stage.switch,
        "seed": stage.seed,
        "collective": trial.collective,
        "size_bytes": trial.size_bytes,
        "time_us": outcome.mean_ns / 1000,
        "time_min_us": min(outcome.times_ns) / 1000,
        "time_max_us": max(outcome.times_ns) / 1000,
        "iterations": len(outcome.times_ns),
        "ideal_us": outcome.ideal_ns / 1000,
        "efficiency": outcome.ideal_ns / outcome.mean_ns if outcome.mean_ns else None,
        "wrong": outcome.wrong if trial.checked else None,
        "data_packets": outcome.counters.get(transport.data_packets, 0),
        "retransmitted_packets": outcome.counters.get(transport.retransmitted, 0),
        "frames_lost": sum(port.frames_lost for port in outcome.ports.values()),
        "rto_wait_us": waited_us(outcome),
        **plan.request.start.as_dict(),
        "began_us": [one.origin_ns / 1000 for one in outcome.iterations],
        **(comparison.measured(topology, outcome) if plan.compares else {}),
        **trial.facts,
        **request.scenario.measures(request.parameters, topology, trial, outcome),
    }


def waited_us(outcome: Outcome) -> float:
    """Return the longest (us, of an iteration) that an endpoint waited for its retry timer."""
    waited = [counters.get("rto_wait_ns", 0) for counters in outcome.endpoints.values()]
    return max(waited, default=0) / len(outcome.times_ns) / 1000
