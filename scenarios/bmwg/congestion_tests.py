"""Section 7 of the training draft: marking, pauses, DCQCN, storms and deadlocks."""

from __future__ import annotations

from typing import Any

from emulator.suite.suite_model import (
    Curve,
    Point,
    Procedure,
    SuiteChoice,
    SuiteColumn,
    SuiteTest,
)
from emulator.suite.trials import SuiteTrial
from scenarios.bmwg import bmwg_columns as c
from scenarios.bmwg.baseline import SHORT_TRIALS
from scenarios.bmwg.trial_rows import NamedTrial, TrialTable

INCAST = "rail_clos:hosts={hosts},gpus_per_host=1,spines=1,uplinks_per_spine=1"
FAIR = (
    "Fair is within 10 % of the flows' mean, in windows of 20 us, until the first flow ends. The"
    " median counts a seed in which that does not come as the longest; n/a: it comes in less than"
    " half of them."
)
#: Octets that are under way in a sender of 7.1, which hold the queue at a depth.
HELD = {"small": (64, 96, 128, 160, 192), "medium": range(64, 225, 16), "full": range(64, 385, 16)}
#: Kmin and Kmax of 7.1 (KB): a step, and a ramp.
THRESHOLDS = {"small": ((100, 100), (50, 200)), "medium": ((20, 20), (100, 100), (50, 200)),
              "full": ((100, 100), (200, 200), (50, 200))}  # fmt: skip
MARKERS = "uet:cc=none,rocev2:cc=none"
MARKED_SHARE = SuiteColumn("marked_share", "marked share", "", Point.DERIVED)
CONFIGURED = SuiteColumn("configured", "by configuration at the mean", "", Point.DERIVED)


def marking(choice: SuiteChoice) -> Procedure:
    """Measure what is marked at each depth at which a queue is held (7.1)."""
    trials: list[NamedTrial] = []
    for low, high in THRESHOLDS[choice.scale]:
        rules = ",".join(
            f"{name}.kmin_bytes={low}KB,{name}.kmax_bytes={high}KB"
            for name in ("data", "untrimmed")
        )
        for held in HELD[choice.scale]:
            trial = choice.trial(
                "incast",
                INCAST.format(hosts=3),
                MARKERS,
                switch=f"deep:trim=off,{rules}",
                senders=2,
                size="2MiB",
                message="4KiB",
                in_flight=held // 4,
                victim=0,
                warmups=0,
                seeds=1,  # nothing is drawn
            )
            facts = {"threshold": f"{low}..{high} KB", "kmin": low, "kmax": high, "held": 2 * held}
            trials.append((trial, facts))
    table = TrialTable(
        title="Marks of two senders whose octets under way hold the queue at a depth",
        columns=(
            SuiteColumn("threshold", "Kmin..Kmax", "", Point.INPUT),
            SuiteColumn("held", "octets under way", "KiB", Point.INPUT),
            *(c.TRANSPORT, c.MARKED, c.STEADY_QUEUE, c.QUEUE, c.DATA, MARKED_SHARE, CONFIGURED),
        ),
        trials=trials,
        curves=[Curve("held", key, ("transport", "threshold")) for key in ("marked_share",)],
    )
    return table.findings(
        [
            "A generator does not hold the depth: two senders without congestion control keep"
            " a fixed number of octets under way. Start and end of the transfer, when the queue"
            " is less deep, count as well.",
            SHORT_TRIALS,
        ],
        [
            "The ramp is linear from Kmin to Kmax, where all are marked (Pmax = 1).",
            "UET's fixed window is a bandwidth-delay product: a sender has no more under way.",
        ],
        _marked_shares,
    )


def _marked_shares(rows: list[dict[str, Any]]) -> None:
    """Set the share of packets that is marked, and what the configuration gives at that depth."""
    for row in rows:
        if row.get("data_packets"):
            row["marked_share"] = row["marked_packets"] / row["data_packets"]
        depth = row.get("steady_queue_bytes")
        if depth is not None:
            row["configured"] = configured_share(depth / 1000, row["kmin"], row["kmax"])


def configured_share(depth: float, low: float, high: float) -> float:
    """Return the probability of a mark at ``depth`` between the thresholds, all in one unit."""
    if depth < low or low == high:
        return float(depth >= low)
    return min(1.0, (depth - low) / (high - low))


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
    return table.findings(
        deviations=[SHORT_TRIALS, f"N = {', '.join(map(str, senders))}."],
        notes=["rocev2:cc=none sends at line rate until it is paused."],
    )


def fairness(choice: SuiteChoice, fabric: str, transport: str, flows: str, size: str) -> SuiteTrial:
    """Return a trial of ``fairness`` with short writes.

    Rates over a window of 20 us are within 10 % of each other only if a flow ends many writes in
    it.
    """
    return choice.trial(
        "fairness", fabric, transport, flows=flows, size=size, message="4KiB", in_flight=128
    )


def dcqcn(choice: SuiteChoice) -> Procedure:
    """Measure how long M more flows take to a fair share (7.3)."""
    flows = choice.pick(small=(2, 4), medium=(2, 4, 8), full=(4, 16, 32))
    fabric = INCAST.format(hosts=2 * max(flows) + 1)
    size = choice.pick(small="4MiB", medium="8MiB", full="16MiB")
    trials: list[NamedTrial] = [
        (fairness(choice, fabric, transport, ",".join(map(str, flows)), size), {})
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
    return table.findings(
        deviations=[
            SHORT_TRIALS,
            FAIR,
        ]
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
    return table.findings(
        deviations=[
            "The storm lasts 300 us of fabric time, not 300 s.",
            "Fabrics whose routes allow a cyclic buffer dependency are refused before they are "
            "built. No deadlock is provoked here; pfc_deadlock=allow would run into one.",
        ]
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
        objective="time to a fair share after more flows join, beside UET",
        procedure=dcqcn,
    ),
    SuiteTest(
        number="7.4",
        title="PFC storm and deadlock",
        objective="what a storm stops, and what ends it",
        procedure=storm,
    ),
)
