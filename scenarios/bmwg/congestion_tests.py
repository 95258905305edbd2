"""Section 7 of the training draft: marking, pauses, DCQCN, storms and deadlocks."""

from __future__ import annotations

from emulator.suite.suite_model import (
    Curve,
    Point,
    Procedure,
    SuiteChoice,
    SuiteColumn,
    SuiteTest,
)
from scenarios.bmwg import bmwg_columns as c
from scenarios.bmwg.baseline import SHORT_TRIALS
from scenarios.bmwg.trial_rows import NamedTrial, TrialTable

INCAST = "rail_clos:hosts={hosts},gpus_per_host=1,spines=1,uplinks_per_spine=1"


def marking(choice: SuiteChoice) -> Procedure:
    """Measure what is marked with a step threshold T (7.1)."""
    thresholds = choice.pick(
        small=("20KB", "50KB", "100KB"),
        medium=("20KB", "50KB", "100KB", "200KB"),
        full=("100KB", "1MB", "5MB"),
    )
    trials: list[NamedTrial] = []
    for threshold in thresholds:
        trial = choice.trial(
            "incast",
            INCAST.format(hosts=5),
            "uet",
            switch=f"deep:data.kmin_bytes={threshold},data.kmax_bytes={threshold},trim=off",
            senders=4,
            size="1MiB",
            victim=0,
        )
        trials.append((trial, {"threshold": threshold}))
    columns = (
        SuiteColumn("threshold", "T (Kmin = Kmax)", "", Point.INPUT),
        *(c.TRANSPORT, c.MARKED, c.STEADY_QUEUE, c.QUEUE, c.GOODPUT_SHARE),
    )
    table = TrialTable(title="Marks of a 4:1 incast", columns=columns, trials=trials)
    return (
        yield from table.findings(
            deviations=[
                "The queue is not held at a depth by a generator: senders react to marks. What the"
                " switch marks at each depth is exact by construction, and tested packet by packet"
                " with the emulator's own tests.",
                SHORT_TRIALS,
            ]
        )
    )


def pauses(choice: SuiteChoice) -> Procedure:
    """Measure PFC under incast (7.2)."""
    senders = choice.pick(small=(2, 4, 8), medium=(2, 4, 8, 16), full=(2, 4, 8, 16, 32, 64))
    fabric = INCAST.format(hosts=max(senders) + 1)
    trials: list[NamedTrial] = [
        (
            choice.trial(
                "incast",
                fabric,
                transport,
                switch="lossless",
                senders=",".join(map(str, senders)),
                size="1MiB",
                in_flight=64,
            ),
            {},
        )
        for transport in ("rocev2:cc=none", "rocev2:classic")
    ]
    columns = (
        *(c.SENDERS, c.TRANSPORT, c.GOODPUT, c.GOODPUT_SHARE, c.TIME, c.CV),
        *(c.PAUSES, c.PAUSED, c.DROPPED, c.QUEUE, c.VICTIM_P99, c.JAIN),
    )
    table = TrialTable(
        title="N:1 on a lossless switch",
        columns=columns,
        trials=trials,
        curves=[Curve("senders", key) for key in ("paused_us", "pauses", "goodput_share")],
    )
    return (
        yield from table.findings(
            deviations=[SHORT_TRIALS, f"N = {', '.join(map(str, senders))}."],
            notes=["rocev2:cc=none sends at line rate until it is paused."],
        )
    )


def dcqcn(choice: SuiteChoice) -> Procedure:
    """Measure how long M more flows take to a fair share (7.3)."""
    flows = choice.pick(small=(2, 4), medium=(2, 4, 8), full=(4, 16, 32))
    fabric = INCAST.format(hosts=2 * max(flows) + 1)
    size = choice.pick(small="4MiB", medium="8MiB", full="16MiB")
    trials: list[NamedTrial] = [
        (choice.trial("onset", fabric, transport, flows=",".join(map(str, flows)), size=size), {})
        for transport in choice.transports
    ]
    columns = (
        *(c.SENDERS, c.TRANSPORT, c.SWITCH, c.CONVERGED, c.JAIN, c.GOODPUT_SHARE),
        *(c.MARKED, c.PAUSES, c.DROPPED, c.QUEUE),
    )
    table = TrialTable(
        title="2M flows, of which M begin later",
        columns=columns,
        trials=trials,
        curves=[Curve("senders", key) for key in ("converged_us", "jain", "max_queue_bytes")],
    )
    return (
        yield from table.findings(
            deviations=[
                SHORT_TRIALS,
                "Fair is within 10 % of the flows' mean, in windows of 20 us, until the first flow"
                " ends. It is empty where that does not come.",
            ]
        )
    )


def storm(choice: SuiteChoice) -> Procedure:
    """Measure a NIC that pauses its port for long, with a watchdog and without (7.4)."""
    trials: list[NamedTrial] = [
        (choice.trial("pfcstorm", "rail_clos:hosts=4,gpus_per_host=2,spines=2", transport), {})
        for transport in ("rocev2:classic", "rocev2:adaptive")
    ]
    case = SuiteColumn("storm", "case", "", Point.INPUT)
    columns = (
        *(case, c.TRANSPORT, c.TIME, c.CV, c.GOODPUT, c.PAUSES, c.PAUSED, c.DROPPED, c.TIMEOUTS),
    )
    table = TrialTable(
        title="PFC storm of one NIC",
        columns=columns,
        trials=trials,
        curves=[Curve("storm", "time_us")],
    )
    return (
        yield from table.findings(
            deviations=[
                "The storm lasts 300 us of fabric time, not 300 s.",
                "Fabrics whose routes allow a circle of buffers are refused before they are built."
                " No deadlock is provoked here (pfc_deadlock=allow runs into one on purpose).",
            ]
        )
    )


TESTS = (
    SuiteTest(
        number="7.1",
        title="ECN marking accuracy",
        objective="marks at the configured threshold",
        procedure=marking,
    ),
    SuiteTest(
        number="7.2",
        title="PFC under incast",
        objective="pauses, their time and what they cost others",
        procedure=pauses,
    ),
    SuiteTest(
        number="7.3",
        title="DCQCN convergence",
        objective="time to a fair share after an onset, beside UET",
        procedure=dcqcn,
    ),
    SuiteTest(
        number="7.4",
        title="PFC storm and deadlock",
        objective="what a storm stops, and what ends it",
        procedure=storm,
    ),
)
