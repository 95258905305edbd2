"""Sections 10, 11.1 and 12 of the training draft: jobs, scale and long runs."""

from __future__ import annotations

from typing import Any

from emulator.dataplane.fabric_choice import choose
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
from scenarios.bmwg import bmwg_columns as c
from scenarios.bmwg.collective_tests import collective_fabric, collective_lines
from scenarios.bmwg.trial_rows import NamedTrial, TrialTable, lines
from topologies.model import Topology
from topologies.parts.attachment import nic_rate_bps

#: The draft divided by this: 256 MB become 1 MiB, 10 ms of computing 40 us.
JOB_SCALE = 256
#: Computing of an iteration in the draft (ms).
COMPUTE_MS = (10, 50, 100, 500)
RATIO = SuiteColumn("ratio", "JCT ratio", "", Point.DERIVED)
ROOFLINE = SuiteColumn("roofline_us", "roofline", "us", Point.DERIVED)


def synthetic(choice: SuiteChoice) -> Procedure:
    """Measure AllReduce after computing for C, and a training step that overlaps both (10.1)."""
    fabric = collective_fabric(choice)
    topology = choose(choice.fabric or fabric).topology
    exchange = choice.trial("allreduce", fabric, sizes=f"{2**28 // JOB_SCALE}", order="shuffled")
    steps = choice.trial("llm", LLM_FABRIC, layers=2, tp=2, pp=2, dp=2, batch=8, scale=4096)
    exchanged, stepped = yield [exchange, steps]
    columns = (
        *(c.RANKS, c.TRANSPORT, c.SIZE, SuiteColumn("compute_us", "C", "us", Point.INPUT)),
        *(c.TIME, c.CV, SuiteColumn("jct_us", "JCT", "us", Point.DERIVED), ROOFLINE, RATIO),
    )
    rows = [
        _sequential(row, topology, milliseconds * 1000 / JOB_SCALE)
        for row in lines([exchanged], (c.TRANSPORT, c.SIZE, c.TIME, c.CV))
        for milliseconds in COMPUTE_MS
    ]
    overlapping = (
        *(c.TRANSPORT, SuiteColumn("jct_us", "JCT", "us", Point.ENDPOINT), c.CV, ROOFLINE),
        *(SuiteColumn("jct_ratio", "JCT ratio", "", Point.DERIVED), EXPOSED, c.S_FABRIC),
    )
    return Findings(
        tables=[
            SuiteTable(
                title="Computing, then AllReduce",
                columns=columns,
                rows=rows,
                curves=[Curve("compute_us", "ratio")],
            ),
            SuiteTable(
                title="A training step that overlaps computing and exchanges",
                columns=overlapping,
                rows=[
                    row | {"jct_us": row["time_us"]}
                    for row in lines([stepped], (*overlapping, c.TIME))
                ],
            ),
        ],
        deviations=[
            f"Sizes and computing are the draft's over {JOB_SCALE}, N is that of the fabric.",
            "Computing takes C exactly, everywhere alike. So the JCT of the first table is C"
            " plus the time of AllReduce, and its overlap is 0.",
        ],
        notes=["The roofline is C + 8 S factor / B_acc, B_acc being the NICs of an accelerator."],
    )


LLM_FABRIC = "rail_clos:hosts=4,gpus_per_host=2,spines=2"
EXPOSED = SuiteColumn("exposed", "exposed exchanges", "", Point.ENDPOINT)


def _sequential(row: dict[str, Any], topology: Topology, compute_us: float) -> dict[str, Any]:
    ranks = len(topology.gpus)
    factor = 2 * (ranks - 1) / ranks
    rate = nic_rate_bps(topology, topology.gpus[0].name)
    roofline = compute_us + 8e6 * row["size_bytes"] * factor / rate
    jct = compute_us + row["time_us"]
    values = {"compute_us": compute_us, "jct_us": jct, "roofline_us": roofline}
    return row | values | {"ranks": ranks, "ratio": jct / roofline}


def tenants(choice: SuiteChoice) -> Procedure:
    """Measure jobs beside each other, by their placement (10.3)."""
    trials: list[NamedTrial] = [
        (choice.trial("jobs", JOBS_FABRIC, transport), {}) for transport in choice.transports
    ]
    columns = (
        *(SuiteColumn("placement", "placement", "", Point.INPUT),),
        *(SuiteColumn("running", "jobs that run", "", Point.INPUT), c.TRANSPORT),
        *(c.TIME, c.CV, SuiteColumn("slowdown", "contention / alone", "", Point.DERIVED)),
        *(SuiteColumn("spine_share", "octets over spines", "", Point.DERIVED), c.RESENT),
    )
    table = TrialTable(
        title="Two jobs, alone and at once",
        columns=columns,
        trials=trials,
        curves=[Curve("placement", "slowdown")],
    )
    return table.findings(
        deviations=[
            "The share of octets that two jobs send over spines follows from their placement,"
            " and is shown. It is not set to 0, 25, 50 and 75 %.",
            "A step of each job stands for its iterations.",
        ],
        amend=compare_at_once,
    )


def compare_at_once(rows: list[dict[str, Any]]) -> None:
    """Leave contention to rows in which both jobs run: a job alone is its own reference."""
    for row in rows:
        if "+" not in str(row["running"]):
            row["slowdown"] = None


JOBS_FABRIC = "rail_clos:hosts=4,gpus_per_host=4,spines=1,uplinks_per_spine=1"


def scale(choice: SuiteChoice) -> Procedure:
    """Measure AllReduce as the fabric grows (11.1)."""
    hosts = choice.pick(small=(2, 4, 8), medium=(2, 4, 8, 16), full=(4, 8, 16, 32))
    size = choice.pick(small="1MiB", medium="4MiB", full="8MiB")
    trials = []
    for count in hosts:
        fabric = f"rail_clos:hosts={count},gpus_per_host=2,spines=2"
        for transport in choice.transports:
            trial = choice.trial("allreduce", fabric, transport, sizes=size, order="shuffled")
            trials.append(trial)
    outcomes = yield trials
    columns = (
        *(c.RANKS, c.TRANSPORT, c.SIZE, c.ALGORITHM, c.BUSBW, c.TIME, c.CV, c.IDEAL),
        *(c.EFFICIENCY, c.S_FABRIC),
    )
    rows = sorted(
        collective_lines(outcomes, columns, {}),
        key=lambda row: (str(row["transport"]), row["ranks"]),
    )
    return Findings(
        tables=[
            SuiteTable(
                title="AllReduce by number of accelerators",
                columns=columns,
                rows=rows,
                curves=[Curve("ranks", key) for key in ("busbw_gbps", "efficiency")],
            )
        ],
        deviations=[
            f"N = {', '.join(str(2 * count) for count in hosts)} instead of 64 and more, {size}"
            " instead of 1 GB.",
            "Processor and memory of switches are not measured: switches are the kernel's.",
        ],
    )


TESTS = (
    SuiteTest(
        number="10.1",
        title="Synthetic JCT",
        objective="a job's time over its roofline",
        procedure=synthetic,
    ),
    SuiteTest(
        number="10.2",
        title="MLPerf-aligned JCT",
        objective="published workloads",
        reason="MLPerf's workloads need accelerators that compute; here computing takes the time"
        " that it is given.",
    ),
    SuiteTest(
        number="10.3",
        title="Multi-tenant interference",
        objective="jobs that share spine links",
        procedure=tenants,
    ),
    SuiteTest(
        number="11.1",
        title="Scale limits",
        objective="AllReduce as the fabric grows",
        procedure=scale,
    ),
)
LONG_TESTS = (
    SuiteTest(
        number="12.1",
        title="24 h soak",
        objective="stability over a day",
        reason="A day of one 400 Gb/s port is 1e12 packets, years of this emulator's time.",
    ),
    SuiteTest(
        number="12.2",
        title="Resource leaks",
        objective="memory of devices over a day",
        reason="The switches are the kernel's: their memory is not that of a device under test.",
    ),
)
