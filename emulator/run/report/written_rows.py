"""What a run writes of each row: the row of ``result.json``, and ``events.jsonl``.

The events are those of its ports, messages and endpoints (:mod:`emulator.run_files`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.metrics import computed
from emulator.run.measures.message_times import Iteration
from emulator.run.plan.run_plan import PlannedStage, RunPlan
from emulator.run.report import comparison
from emulator.run_files import PAUSES, SWITCH, TRAFFIC
from emulator.scenario import MeasuredTrial, Outcome, Trial
from topologies.model import Topology

#: Shares of messages: a hundred steps, and the tail finer.
SHARES = (*(number / 100 for number in range(100)), 0.995, 0.999, 0.9999, 1.0)
#: Flows of a row at most: those with the most octets are kept.
MOST_FLOWS = 1024


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


def ports_of(row: int, outcome: Outcome) -> dict[str, object]:
    """The event of the ``row``-th row (from 1)."""
    records = outcome.ports.values()
    observes = [TRAFFIC]
    if any(port.asic is not None for port in records):
        observes.append(SWITCH)
    if any(port.pause is not None for port in records):
        observes.append(PAUSES)
    return {
        "row": row,
        "span_us": sum(outcome.times_ns) / 1000,
        "observes": observes,
        "ports": {name: port.as_dict() for name, port in outcome.ports.items()},
    }


def endpoints_of(row: int, transport: str, outcome: Outcome) -> dict[str, object]:
    """Return the event of the ``row``-th row (from 1), which ran with ``transport``."""
    return {"row": row, "transport": transport, "counters": dict(sorted(outcome.counters.items()))}


def messages_of(row: int, outcome: Outcome, topology: Topology) -> dict[str, Any]:
    """Return the event of the ``row``-th row (from 1)."""
    names = [gpu.name for gpu in topology.gpus]
    found: dict[str, object] = {
        "row": row,
        "times_us": [time_ns / 1000 for time_ns in outcome.times_ns],
        **_told(outcome.iterations, names),
    }
    if outcome.victims:
        found["victims"] = _told(outcome.victims, names)
    return found


def _told(iterations: Sequence[Iteration], names: Sequence[str]) -> dict[str, object]:
    flows = _flows(iterations, names)
    return {
        "count": sum(len(iteration) for iteration in iterations),
        "latency_us": _distribution(iterations),
        "flows": flows[:MOST_FLOWS],
        "flows_left_out": max(0, len(flows) - MOST_FLOWS),
    }


def _distribution(iterations: Sequence[Iteration]) -> list[tuple[float, float]]:
    parts = [iteration.end_ns - iteration.start_ns for iteration in iterations]
    durations = np.sort(np.concatenate(parts)) if parts else np.zeros(0)
    if not len(durations):
        return []
    shares = np.array(SHARES)
    ranks = np.clip(np.ceil(shares * len(durations)).astype(np.int64) - 1, 0, None)
    times = (durations[ranks] / 1000).tolist()
    return list(zip(SHARES, times, strict=True))


def _flows(iterations: Sequence[Iteration], names: Sequence[str]) -> list[dict[str, object]]:
    """Return the flows, those with the most octets first."""
    totals: dict[int, list[float]] = {}
    ranks = len(names)
    for iteration in iterations:
        if not len(iteration):
            continue
        pairs, place = np.unique(
            iteration.source * ranks + iteration.destination, return_inverse=True
        )
        octets = np.bincount(place, weights=iteration.length)
        messages = np.bincount(place)
        first = np.full(len(pairs), np.iinfo(np.int64).max)
        last = np.zeros(len(pairs), dtype=np.int64)
        np.minimum.at(first, place, iteration.start_ns)
        np.maximum.at(last, place, iteration.end_ns)
        columns = (octets, messages, last - first)
        for number, pair in enumerate(pairs.tolist()):
            total = totals.setdefault(pair, [0.0, 0.0, 0.0, 0.0])
            for index, column in enumerate(columns):
                total[index] += float(column[number])
            total[3] += 1
    ordered = sorted(totals.items(), key=lambda item: (-item[1][0], item[0]))
    return [
        {
            "from": names[pair // ranks],
            "to": names[pair % ranks],
            "bytes": int(octets),
            "messages": int(messages),
            "time_us": time_ns / 1000 / times,
            "goodput_gbps": octets / time_ns if time_ns else None,
        }
        for pair, (octets, messages, time_ns, times) in ordered
    ]
