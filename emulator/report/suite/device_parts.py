"""Parts 1 to 5 of a suite's report: device, topology, configuration, observation points, host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from emulator.dataplane.switch import switch_choice
from emulator.dataplane.switch.switch_profile import PROFILES
from emulator.errors import UserError
from emulator.report.observation_points import BOUNDARY, ENDPOINT, MEANINGS, MODEL, SWITCH
from emulator.report.run.report_tables import ReportTable
from emulator.report.suite.suite_folder import SuiteFolder, TrialRun
from emulator.report.suite.trial_facts import fabric_facts, joined
from emulator.suite.suite_model import Point

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
