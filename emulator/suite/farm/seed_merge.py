"""Results of one run for each seed, merged into the result of one run with all of them.

Rows, their digests and the digest of the run are those that one run with ``--seeds N`` has: a row
does not depend on those before it.  Times within the run (``began_us``) are not: each seed's begin
with its own run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator.dataplane.switch.cable_counters import LARGEST, LARGEST_OF_LINKS
from emulator.nccl_tests.json_report import REPORT_FILE, NcclReport
from emulator.run.plan.run_plan import RunPlan
from emulator.run.report.spread import SeedRows
from emulator.run.results import Result
from emulator.run_files import ENDPOINTS, EVENTS, MESSAGES, PORTS
from emulator.sim.endpoint.counting import is_extreme
from emulator.sim.frame_digest import DigestParts, digest_of_parts

#: The run folder of each seed.
Folders = Mapping[int, Path]
#: Events that belong to a row, which they number.
_OF_ROWS = frozenset({PORTS, MESSAGES, ENDPOINTS})
#: When a row began in its run.
_WITHIN = frozenset({"began_us"})
#: Values that are the same in all runs.
_SAME = frozenset({"bin_bytes"})


def merge(plan: RunPlan, runs: Mapping[int, Mapping[str, Any]], result: Result) -> None:
    """Fill ``result`` from ``runs``, what ``result.json`` of each seed holds.

    A seed whose run failed has fewer rows, or none; then there is no row for all seeds.
    """
    left = {seed: iter(runs[seed].get("rows", ()) if seed in runs else ()) for seed in _seeds(plan)}
    seeds = SeedRows(plan.request.seeds)
    for stage in plan.stages:
        for place in stage.stage.trials:
            row = next(left[stage.seed], None)
            if row is None:
                continue
            shown = seeds.add((stage.stage.label, place), result.add_row(row))
            if shown is not None:
                # Times within runs of their own have no median.
                result.summary.append({**shown, **dict.fromkeys(_WITHIN & shown.keys())})
    for run in runs.values():
        result.ports = _together(result.ports, run["ports"])
        result.endpoints = _together(result.endpoints, run["endpoints"])
        result.warnings += [one for one in run["warnings"] if one not in result.warnings]
    if len(runs) == plan.request.seeds:
        result.fidelity = _fidelity([run["fidelity"] for run in runs.values()])


def merged_digest(plan: RunPlan, parts: Mapping[int, DigestParts]) -> str:
    """Return the digest of all rows, from what the digest of each seed's run is made of."""
    return digest_of_parts(parts, [stage.seed for stage in plan.stages for _ in stage.trials])


def merged_nccl(
    plan: RunPlan, report: NcclReport, rows: Sequence[Mapping[str, Any]], folders: Folders
) -> None:
    """Add ``rows`` to ``report``, with the times of iterations from the folder of each seed."""
    times = {seed: _times(folder) for seed, folder in folders.items()}
    for row in rows:
        name = f"{row['transport']}, seed {row['seed']}" if len(plan.stages) > 1 else ""
        if NcclReport.takes(row):
            report.add(row, next(times[row["seed"]]), name)


def merged_events(rows: Sequence[Mapping[str, Any]], folders: Folders) -> Iterator[dict[str, Any]]:
    """Yield what the runs noted of each row, by the numbers of ``rows`` in the whole result."""
    numbers: dict[int, list[int]] = {}
    for number, row in enumerate(rows, 1):
        numbers.setdefault(row["seed"], []).append(number)
    for seed, folder in folders.items():
        with (folder / EVENTS).open(encoding="utf-8") as stream:
            for event in map(json.loads, stream):
                if event["event"] in _OF_ROWS:
                    yield {**event, "row": numbers[seed][event["row"] - 1]}


def _times(folder: Path) -> Iterator[list[int]]:
    """Yield the times (ns) of each row that is in the form of nccl-tests."""
    try:
        results = json.loads((folder / REPORT_FILE).read_text())["results"]
    except FileNotFoundError:
        return
    for result in results:
        for place in ("out_of_place", "in_place"):
            if result.get(place) is not None:
                yield [round(1000 * one) for one in result[f"{place}_per_iter"]["times_us"]]


def _seeds(plan: RunPlan) -> range:
    return range(plan.request.seed, plan.request.seed + plan.request.seeds)


def _together(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return counters of two runs as those of one, by name, whatever they are nested in."""
    names = dict.fromkeys((*first, *second))
    return {name: _both(name, first.get(name), second.get(name)) for name in names}


def _both(name: str, one: Any, other: Any) -> Any:
    if one is None or other is None or name in _SAME:
        return other if one is None else one
    if isinstance(one, Mapping):
        return _together(one, other)
    if isinstance(one, Sequence):
        return [sum(pair) for pair in zip(one, other, strict=True)]
    if name in LARGEST or name in LARGEST_OF_LINKS or is_extreme(name.rpartition(".")[2]):
        return max(one, other)
    return one + other


def _fidelity(found: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Return the verdict on all runs of the virtual clock: the account of all of their frames."""
    accounts: dict[str, Any] = {}
    for one in found:
        accounts = _together(accounts, one["account"])
    return {
        **found[0],
        "repeatable": all(one["repeatable"] for one in found),
        "account": {**accounts, "dropped": dict(sorted(accounts["dropped"].items()))},
    }
