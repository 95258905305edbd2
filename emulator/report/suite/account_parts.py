"""Parts 7 to 10 of a suite's report: anomalies, accounting, repeatability, comparability."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from emulator.report.run.report_tables import ReportTable
from emulator.report.suite.device_parts import AWAY
from emulator.report.suite.suite_folder import ReportedTest, SuiteFolder, TrialRun
from emulator.report.suite.trial_facts import comparable_rows, fabric_facts, joined
from emulator.suite.suite_model import SAMPLES

#: The coefficient of variation (%) that the drafts recommend to stay below.
STEADY_CV = 5.0


def anomaly_table(suite: SuiteFolder) -> ReportTable:
    """Return what did not go as planned: failures, warnings, loss behind lossless switches."""
    lines = [line for test in suite.tests for line in _anomalies(suite, test)]
    return ReportTable(
        name="anomalies",
        title="Anomalies",
        groups=[("", 3)],
        headings=["test", "what", "trial"],
        rows=lines,
        reason=None if lines else "no trial failed, warned, lost octets or was less than exact",
    )


def _anomalies(suite: SuiteFolder, test: ReportedTest) -> Iterator[list[str]]:
    if test.error:
        yield [test.number, test.error, ""]
    elif not test.ended:
        yield [test.number, "the test has not ended", ""]
    for trial in {one.key: one for one in test.trials}.values():
        if trial.excluded:
            yield [test.number, trial.excluded, trial.command]
    for trial, run in suite.runs_of(test):
        for what in _of_run(run):
            yield [test.number, what, trial.command]


def _of_run(run: TrialRun) -> Iterator[str]:
    fidelity, warnings = run.result.get("fidelity"), run.result.get("warnings")
    verdict = fidelity.get("verdict") if isinstance(fidelity, dict) else None
    if verdict != "exact":
        yield f"the verdict of its fidelity is {verdict}"
    yield from map(str, warnings if isinstance(warnings, list) else ())
    for row in run.rows:
        if row.get("wrong"):
            yield f"{row['wrong']} elements are wrong over {row.get('transport')}"
    lost: dict[str, Counter[str]] = {}
    for row in run.rows:
        if row.get("dropped_packets") and str(row.get("switch")).startswith("lossless"):
            lost.setdefault(str(row.get("transport")), Counter()).update(_drops(row))
    for transport, drops in sorted(lost.items()):
        reasons = joined(f"{reason}: {count}" for reason, count in drops.items())
        yield f"lossless switches dropped packets of {transport} ({reasons})"


def _drops(row: Mapping[str, object]) -> dict[str, int]:
    """Return the packets that switches dropped, by reason."""
    drops = row.get("drops")
    named = drops.items() if isinstance(drops, dict) else ()
    counts = {str(reason): count for reason, count in named if isinstance(count, int)}
    whole = row.get("dropped_packets")
    return counts or {"no reason recorded": whole if isinstance(whole, int) else 0}


def accounting_tables(suite: SuiteFolder) -> list[ReportTable]:
    """Return the trials of each test, the reasons that exclude some, and those tried again."""
    lines, reasons, again = [], list[list[str]](), list[list[str]]()
    for test in suite.tests:
        trials = {one.key: one for one in test.trials}.values()
        excluded = [one for one in trials if one.excluded]
        lines.append(
            [
                test.number,
                test.title,
                *map(str, (len(trials), len(trials) - len(excluded), len(excluded))),
                f"{sum(one.seconds for one in trials):.0f}",
            ]
        )
        for reason in dict.fromkeys(str(one.excluded) for one in excluded):
            count = sum(one.excluded == reason for one in excluded)
            reasons.append([test.number, str(count), reason])
        again += [[test.number, one.again, one.command] for one in trials if one.again]
    return [
        ReportTable(
            name="accounting",
            title="Trials of each test",
            groups=[("", 2), ("trials", 3), ("of the machine", 1)],
            headings=["test", "title", "attempted", "included", "excluded", "seconds"],
            rows=lines,
            note="A trial that two tests ask for runs once, and counts in both.",
        ),
        ReportTable(
            name="exclusions",
            title="Reasons of exclusion",
            groups=[("", 3)],
            headings=["test", "trials", "reason"],
            rows=reasons,
            reason=None if reasons else "no trial is excluded",
        ),
        ReportTable(
            name="again",
            title="Trials that were tried again by another rank",
            groups=[("", 3)],
            headings=["test", "what", "trial"],
            rows=again,
            note="What came of the second try counts.",
            reason=None if again else "no trial failed at one rank and was tried at another",
        ),
    ]


def total_sentence(suite: SuiteFolder) -> str:
    """Return how many trials were attempted and included, over all tests."""
    trials = {one.key: one for test in suite.tests for one in test.trials}.values()
    included = sum(one.excluded is None for one in trials)
    return f"{len(trials)} trials were attempted, {included} are included."


def repeatability_table(suite: SuiteFolder) -> ReportTable:
    """Return iterations, seeds and coefficients of variation of each test's tables."""
    lines = []
    for test in suite.tests:
        rows = [row for _, run in suite.runs_of(test) for row in run.rows]
        iterations = joined(sorted({_whole(row.get("iterations")) for row in rows}))
        for table in test.tables:
            found = [row["cv"] for row in table.rows if isinstance(row.get("cv"), int | float)]
            seeds = max((_seeds(row.get(SAMPLES)) for row in table.rows), default=1)
            lines.append(
                [
                    test.number,
                    table.title,
                    str(len(table.rows)),
                    str(seeds),
                    iterations or "unknown",
                    *_cv_cells(found),
                ]
            )
    return ReportTable(
        name="repeatability",
        title="Repeatability",
        groups=[("", 2), ("how often", 3), ("CV of the time over the seeds", 3)],
        headings=[
            *("test", "table", "rows", "seeds", "iterations"),
            *("median (%)", "largest (%)", f"rows at {STEADY_CV:g} % or more"),
        ],
        rows=lines,
        note="The same seed repeats to the bit (digests in suite.json), so one seed has no spread. "
        "CV is between seeds: of what is drawn at random, not of an instrument. The drafts "
        f"recommend less than {STEADY_CV:g} %.",
        reason=None if lines else "no test has a table",
    )


def _seeds(samples: object) -> int:
    if not isinstance(samples, dict):
        return 1
    return max((len(values) for values in samples.values()), default=1)


def _cv_cells(found: Sequence[float]) -> list[str]:
    if not found:
        return ["n/a"] * 3
    above = sum(one >= STEADY_CV for one in found)
    return [f"{median(found):.2f}", f"{max(found):.2f}", str(above)]


def comparability_tables(suite: SuiteFolder) -> list[ReportTable]:
    """Return what results must share to be compared, and both sizes of what crossed the fabric."""
    lines: dict[tuple[str, ...], list[int]] = {}
    for test in suite.tests:
        for _, run in suite.runs_of(test):
            facts = fabric_facts(run)
            for row, sizes in comparable_rows(run).items():
                key = (
                    *(test.number, str(facts.accelerators), facts.per_node, facts.rate),
                    *(facts.oversubscription, row.pattern, row.factor, row.algorithm),
                    *(row.transport, row.tss, row.switch),
                )
                lines.setdefault(key, []).extend(sizes)
    return [
        ReportTable(
            name="comparability",
            title="Comparability set of every result",
            groups=[("", 1), ("fabric", 4), ("traffic", 4), ("transport", 3)],
            headings=[
                *("test", "N", "accelerators a node", "B_acc (Gb/s)", "oversubscription"),
                *("pattern", "factor", "algorithm (verified)", "S (B)"),
                *("transport and service", "TSS", "switch and load balancing"),
            ],
            rows=[[*key[:8], _range(sizes), *key[8:]] for key, sizes in lines.items()],
            note="Results that differ in any of these stand side by side, never in one figure of "
            "merit. Rail g of a node is GPU g. Algorithms are verified: the schedule is compiled "
            "from that algorithm, and each octet is compared at its receiver.",
            reason=None if lines else AWAY,
        ),
        _fabric_octets(suite),
    ]


def _range(sizes: Sequence[int]) -> str:
    low, high = min(sizes), max(sizes)
    return str(low) if low == high else f"{low} .. {high}"


def _fabric_octets(suite: SuiteFolder) -> ReportTable:
    """Return S_fabric as measured and as derived, where a test has both."""
    lines = []
    for test in suite.tests:
        rows = [
            (one, other)
            for _, run in suite.runs_of(test)
            for row in run.rows
            if isinstance(one := row.get("fabric_bytes"), int | float)
            and isinstance(other := row.get("fabric_bytes_derived"), int | float)
        ]
        if rows:
            apart = [pair for pair in rows if pair[0] != pair[1]]
            shown = "; ".join(f"{one:.10g} and {other:.10g}" for one, other in apart[:3])
            lines.append([test.number, str(len(rows)), str(len(apart)), shown or "none"])
    return ReportTable(
        name="fabric-octets",
        title="S_fabric, measured at endpoints and derived from schedules",
        groups=[("", 4)],
        headings=["test", "rows", "rows that differ", "measured and derived (B)"],
        rows=lines,
        note="Payload octets that cross NIC ports, each counted once, without retransmissions.",
        reason=None if lines else "no row has both",
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
