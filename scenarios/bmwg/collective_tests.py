"""Section 9 of the training draft: AllReduce, AlltoAll and AllGather by load-balancing strategy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from emulator.suite.suite_model import (
    Curve,
    Findings,
    Point,
    Procedure,
    SuiteChoice,
    SuiteColumn,
    SuiteTable,
    SuiteTest,
)
from emulator.suite.trials import SuiteTrial, TrialOutcome
from scenarios.bmwg import bmwg_columns as c
from scenarios.bmwg.trial_rows import lines

COLLECTIVES = ("allreduce", "alltoall", "allgather")
#: Load-balancing strategies: the transport, and what its switches do.
STRATEGIES = {
    "spray by endpoints": ("uet", "shallow"),
    "ECMP": ("rocev2:classic", "lossless"),
    "ECMP, 4 QPs": ("rocev2:nccl", "lossless"),
    "least loaded path": ("rocev2:adaptive", "lossless:balance=least-loaded"),
}
COLUMNS = (
    *(c.RANKS, c.SIZE, c.BALANCING, c.TRANSPORT, c.ALGORITHM, c.BUSBW),
    *(c.TIME, c.LEAST, c.MOST, c.CV, c.IDEAL, c.EFFICIENCY, c.S_FABRIC),
)


def collective_fabric(choice: SuiteChoice) -> str:
    """Return the rail-optimised fabric of this scale."""
    hosts, gpus = choice.pick(small=(4, 2), medium=(6, 4), full=(8, 8))
    return f"rail_clos:hosts={hosts},gpus_per_host={gpus},spines=2"


def _trials(choice: SuiteChoice, scenario: str) -> list[tuple[SuiteTrial, dict[str, Any]]]:
    sizes = choice.pick(small="64KiB,1MiB", medium="64KiB,1MiB,8MiB", full="64KiB,1MiB,8MiB,64MiB")
    named = []
    for name, (transport, switch) in STRATEGIES.items():
        make = partial(
            choice.trial,
            scenario,
            collective_fabric(choice),
            transport,
            switch=switch,
            sizes=sizes,
        )
        trial = make() if scenario == "alltoall" else make(order="shuffled")
        named.append((trial, {"balancing": name, "collective": scenario}))
    return named


def collective_lines(
    outcomes: Sequence[TrialOutcome],
    columns: Sequence[SuiteColumn],
    facts: Mapping[str, Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yield the lines of trials with N, and with ``delta`` over RoCEv2's own where there is one."""
    ranks = {one.trial.key: {"ranks": one.result.get("ranks")} for one in outcomes}
    merged = {key: {**ranks[key], **facts.get(key, {})} for key in ranks}
    found = list(lines(outcomes, columns, merged))
    base = {
        (row.get("collective"), row["size_bytes"]): row["busbw_gbps"]
        for row in found
        if str(row["transport"]).startswith("rocev2:classic")
    }
    for row in found:
        reference = base.get((row.get("collective"), row["size_bytes"]))
        if reference:
            row["delta"] = row["busbw_gbps"] / reference - 1
        yield row


def _procedure(choice: SuiteChoice, scenario: str) -> Procedure:
    named = _trials(choice, scenario)
    outcomes = yield [trial for trial, _ in named]
    facts = {trial.key: values for trial, values in named}
    rows = list(collective_lines(outcomes, COLUMNS, facts))
    return Findings(
        tables=[
            SuiteTable(
                title=scenario,
                columns=COLUMNS,
                rows=rows,
                curves=[
                    Curve("size_bytes", key, ("balancing",)) for key in ("busbw_gbps", "time_us")
                ],
            )
        ],
        deviations=[
            f"N = {', '.join(sorted({str(row['ranks']) for row in rows}))}, {choice.seeds} seeds of"
            " one iteration instead of 100 iterations: with fresh endpoints a seed repeats to the"
            " bit.",
        ],
        notes=[
            "Rings have their ranks shuffled, so that they cross the spines. In their own order"
            " they stay on their rails."
        ]
        if scenario != "alltoall"
        else [],
    )


def allreduce(choice: SuiteChoice) -> Procedure:
    """Measure AllReduce by size and strategy (9.1)."""
    return _procedure(choice, "allreduce")


def alltoall(choice: SuiteChoice) -> Procedure:
    """Measure AlltoAll by size and strategy (9.2)."""
    return _procedure(choice, "alltoall")


def allgather(choice: SuiteChoice) -> Procedure:
    """Measure AllGather by size and strategy (9.3)."""
    return _procedure(choice, "allgather")


def summary(choice: SuiteChoice) -> Procedure:
    """Put the bus bandwidths of 9.1 to 9.3 into one table (9.4)."""
    named = [pair for scenario in COLLECTIVES for pair in _trials(choice, scenario)]
    outcomes = yield [trial for trial, _ in named]
    facts = {trial.key: values for trial, values in named}
    found: dict[tuple[Any, Any], dict[str, Any]] = {}
    for row in lines(outcomes, (c.SIZE, c.BUSBW), facts):
        line = found.setdefault(
            (row["collective"], row["size_bytes"]),
            {"collective": row["collective"], "size_bytes": row["size_bytes"]},
        )
        line[row["balancing"]] = row["busbw_gbps"]
    columns = (
        SuiteColumn("collective", "collective", "", Point.INPUT),
        c.SIZE,
        *(SuiteColumn(name, name, "GB/s", Point.ENDPOINT) for name in STRATEGIES),
    )
    return Findings(
        tables=[
            SuiteTable(
                title="Bus bandwidth by strategy", columns=columns, rows=list(found.values())
            )
        ],
        deviations=["The trials are those of 9.1 to 9.3."],
    )


TESTS = (
    SuiteTest(
        number="9.1", title="AllReduce", objective="bus bandwidth by size", procedure=allreduce
    ),
    SuiteTest(
        number="9.2", title="AlltoAll", objective="time of the worst exchange", procedure=alltoall
    ),
    SuiteTest(
        number="9.3",
        title="AllGather",
        objective="distribution of parameters",
        procedure=allgather,
    ),
    SuiteTest(
        number="9.4",
        title="Summary of collectives",
        objective="each collective and size by strategy",
        procedure=summary,
    ),
)
