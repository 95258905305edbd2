"""Parts of a suite's report beside its results: what was tested, with which settings, how well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from emulator.dataplane.switch import switch_choice
from emulator.dataplane.switch.switch_profile import PROFILES
from emulator.errors import UserError
from emulator.metrics import BOUNDARY, ENDPOINT, MEANINGS, MODEL, SWITCH
from emulator.report.run.report_tables import ReportTable
from emulator.report.suite.folder import (
    ReportedTest,
    SuiteFolder,
    TrialRun,
    comparable_rows,
    fabric_facts,
    joined,
)
from emulator.suite.suite_model import SAMPLES, Point

AWAY = "the run folders of the trials are away"
DEVICE: Mapping[str, str] = {
    "device under test": "the fabric: all switches and the cables between them, emulated",
    "switch": "a network namespace of Linux, whose bridge or routes forward real frames",
    "switch ASIC": "queues, ECN, trimming, PFC and load balancing of each port, in eBPF",
    "operating system": "none of a vendor; no optics, no firmware",
    "time": "virtual: fabric time, which waits for the machine, so its speed changes no value",
}
#: What is otherwise in a suite whose fabrics are a model.
MODELLED: Mapping[str, str] = {
    "switch": "a model of bridges and routes in each run's process: no frame passes a kernel",
    "switch ASIC": "a model of the program: queues, ECN, trimming, PFC, balancing of each port",
}
#: Meanings of the observation points of a suite's columns.
POINTS: Mapping[Point, str] = {
    Point.FABRIC: MEANINGS[BOUNDARY],
    Point.SWITCH: f"{MEANINGS[SWITCH]}; counts are sums over ports and directions",
    Point.LINK: "at both ends of each cable: what their link layers count",
    Point.ENDPOINT: MEANINGS[ENDPOINT],
    Point.DERIVED: f"{MEANINGS[MODEL]}, or a ratio of values in the same row",
    Point.PUBLISHED: "by others on hardware, as the source says",
}


def device_facts(suite: SuiteFolder) -> list[tuple[str, str]]:
    """Return the description of the device under test."""
    machine = suite.data.get("machine")
    packages = machine.get("packages") if isinstance(machine, dict) else None
    version = packages.get("uetemu") if isinstance(packages, dict) else "unknown"
    kernel = machine.get("kernel") if isinstance(machine, dict) else None
    release = kernel.get("release") if isinstance(kernel, dict) else "unknown"
    device = {**DEVICE, **MODELLED} if suite.data.get("nodes") == "model" else DEVICE
    return [*device.items(), ("emulator", f"uetemu {version} on Linux {release}")]


def topology_table(suite: SuiteFolder) -> ReportTable:
    """Return the fabrics of the tests: their size, rates and oversubscription."""
    used: dict[str, tuple[TrialRun, list[str]]] = {}
    for test in suite.tests:
        for _, run in suite.runs_of(test):
            _, numbers = used.setdefault(str(run.result.get("topology")), (run, []))
            numbers.append(test.number)
    lines = []
    for run, numbers in used.values():
        facts = fabric_facts(run)
        lines.append(
            [
                facts.spec,
                str(facts.accelerators),
                facts.per_node,
                str(facts.switches),
                str(facts.cables),
                facts.rate,
                facts.oversubscription,
                joined(numbers),
            ]
        )
    return ReportTable(
        name="topologies",
        title="Fabrics",
        groups=[("settings", 8)],
        headings=[
            *("fabric", "N", "accelerators a node", "switches", "cables"),
            *("B_acc (Gb/s)", "oversubscription", "tests"),
        ],
        rows=lines,
        note="Trials of one test may have several fabrics. `uetemu graph FABRIC` draws one, with "
        "its cables; fabric.json in a trial's folder lists them all.",
        reason=None if lines else AWAY,
    )


def transport_table(suite: SuiteFolder) -> ReportTable:
    """Return the transports of the rows, and the switch that each ran on."""
    lines: dict[tuple[str, str], list[str]] = {}
    for test in suite.tests:
        for _, run in suite.runs_of(test):
            for row in run.rows:
                key = str(row.get("transport")), str(row.get("switch"))
                lines.setdefault(key, []).append(test.number)
    return ReportTable(
        name="transports",
        title="Transports and their switches",
        groups=[("settings", 3)],
        headings=["transport", "switch", "tests"],
        rows=[[*key, joined(numbers)] for key, numbers in sorted(lines.items())],
        note="`uetemu run --help` explains each parameter; what is not named has its default.",
        reason=None if lines else AWAY,
    )


def switch_table(suite: SuiteFolder) -> ReportTable:
    """Return every switch setting in full, as this version reads it."""
    specs = dict.fromkeys(
        str(row.get("switch")) for run in suite.runs.values() for row in run.rows
    )  # fmt: skip
    return ReportTable(
        name="switches",
        title="Switch settings in full",
        groups=[("settings", 3)],
        headings=["switch", "all that was chosen", "data class of its profile"],
        rows=[list(_settings(spec)) for spec in sorted(specs)],
        note="What is chosen overrides the profile. BDP is the bandwidth-delay product of the "
        "fabric.",
        reason=None if specs else AWAY,
    )


def _settings(spec: str) -> Iterator[str]:
    yield spec
    try:
        choice = switch_choice.parse(spec)
    except UserError as error:
        yield from (str(error), "")
        return
    yield choice.spec
    rules = [PROFILES[choice.profile](bdp)["data"] for bdp in (10_000, 20_000)]
    yield ", ".join(
        f"{words} {_depth(*(getattr(one, name) for one in rules))}"
        for name, words in (
            ("kmin_bytes", "Kmin"),
            ("kmax_bytes", "Kmax"),
            ("trim_bytes", "trimmed from"),
            ("limit_bytes", "dropped from"),
        )
    )


def _depth(of_one: int | None, of_two: int | None) -> str:
    """Return a threshold by its values for a BDP of 10,000 and of 20,000 octets."""
    if of_one is None or of_two is None:
        return "never"
    return f"{of_one} B" if of_one == of_two else f"{of_one / 10_000:g} BDP"


def point_table(suite: SuiteFolder) -> ReportTable:
    """Return the columns of all tables by the point where they are observed."""
    columns: dict[Point, list[str]] = {point: [] for point in POINTS}
    for test in suite.tests:
        for table in test.tables:
            for one in table.columns:
                if one.point in columns:
                    columns[one.point].append(one.heading)
    return ReportTable(
        name="points",
        title="Columns by observation point",
        groups=[("", 3)],
        headings=["point", "where", "columns"],
        rows=[
            [point.value, meaning, joined(sorted(set(columns[point])))]
            for point, meaning in POINTS.items()
            if columns[point]
        ],
        note="A column has values of one point only. The drafts' points are (a) the fabric "
        "boundary, (b) device-reported, here the switch, and (c) endpoint software.",
    )


def host_facts(suite: SuiteFolder) -> list[tuple[str, str]]:
    """Return the description of the hosts, and of the machines that emulated everything."""
    facts = [
        ("accelerators", "processes that follow a schedule; computing takes the time it is given"),
        ("NICs", "the emulator's own UET and RoCEv2 stacks; every octet that arrives is compared"),
        ("collective library", "the emulator's own schedules, with NCCL's algorithms by name"),
    ]
    machine = suite.data.get("machine")
    for key, value in machine.items() if isinstance(machine, dict) else ():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {one}" for name, one in value.items())
        elif isinstance(value, list):
            value = " ".join(map(str, value))
        facts.append((str(key).replace("_", " "), str(value)))
    ranks = suite.data.get("ranks")
    for rank, one in ranks.items() if isinstance(ranks, dict) else ():
        if isinstance(one, dict):
            words = ", ".join(f"{name} {value}" for name, value in one.items())
            facts.append((f"rank {rank}", words))
    return facts


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
