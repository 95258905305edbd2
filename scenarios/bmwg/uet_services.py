"""Section 6 of the training draft: Ultra Ethernet's services beside RoCEv2 on one fabric."""

from __future__ import annotations

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
from scenarios.bmwg.baseline import NO_GENERATOR, PAIRS, SHORT_TRIALS
from scenarios.bmwg.collective_tests import COLLECTIVES, collective_fabric, collective_lines
from scenarios.bmwg.congestion_tests import FAIR, fairness
from scenarios.bmwg.link_layer_tests import LINK_LAYER
from scenarios.bmwg.trial_rows import NamedTrial, TrialTable, lines

#: Services by the transport that stands for each.
SERVICES = {
    "RUD": "uet",
    "ROD": "uet:delivery=rod",
    "RC": "rocev2:classic",
    "RC, 4 QPs": "rocev2:nccl",
    "RC, selective repeat": "rocev2:adaptive",
}
SERVICE = SuiteColumn("service", "service", "", Point.INPUT)
LESS_SERVICES = (
    "RUDI and UUD are left out: a write over them needs a notice over RUD, and `uetemu run"
    " transport_services` has them. UC is not implemented."
)


def services(choice: SuiteChoice) -> Procedure:
    """Measure the goodput of each service at the draft's message sizes (6.1)."""
    sizes = choice.pick(small=(1,), medium=(1, 4), full=(1, 4))  # MiB
    trials: list[NamedTrial] = []
    for size in sizes:
        for direction in ("one", "both"):
            for service, transport in SERVICES.items():
                trial = choice.trial(
                    "pairs",
                    PAIRS,
                    transport,
                    message=f"{size}MiB",
                    size=f"{12 * size}MiB",
                    in_flight=4,
                    direction=direction,
                    seeds=1,
                )
                trials.append((trial, {"message": f"{size}MiB", "service": service}))
    columns = (
        *(SERVICE, c.MESSAGE, c.DIRECTION, c.TRANSPORT, c.SWITCH),
        *(c.GOODPUT, c.GOODPUT_SHARE, c.TIME, c.EFFICIENCY),
    )
    table = TrialTable(
        title="Goodput by service",
        columns=columns,
        trials=trials,
        curves=[Curve("message", "goodput_gbps", ("service", "direction"))],
    )
    return table.findings(
        deviations=[NO_GENERATOR, SHORT_TRIALS, LESS_SERVICES],
        notes=["The first message's time stands in 6.2; how many contexts are sustained in 6.7."],
    )


def first_message(choice: SuiteChoice) -> Procedure:
    """Measure a single small write with a context's set-up and without it (6.2)."""
    trials: list[NamedTrial] = []
    for service, transport in SERVICES.items():
        for endpoints in ("fresh", "kept"):
            trial = choice.trial(
                "pairs",
                PAIRS,
                transport,
                options=("--endpoints", "reused" if endpoints == "kept" else endpoints),
                message="4KiB",
                size="4KiB",
                in_flight=1,
                iterations=choice.pick(small=5, medium=20, full=50),
                seeds=1,
            )
            state = "first message" if endpoints == "fresh" else "later message"
            trials.append((trial, {"service": service, "state": state}))
    columns = (
        *(SERVICE, SuiteColumn("state", "state", "", Point.INPUT)),
        *(c.TRANSPORT, c.P50, c.P99, c.IDEAL),
    )
    table = TrialTable(
        title="4 KiB write on an idle fabric",
        columns=columns,
        trials=trials,
        curves=[Curve("state", "message_p50_us", ("service",))],
    )
    return table.findings(
        deviations=[
            "Queue pairs of RoCEv2 are there before the run, as their set-up goes over another"
            " network: a first message has none of it. UET opens its context with the data.",
            LESS_SERVICES,
        ]
    )


#: Configurations of 6.3: transport and the switches' load balancing.
SPRAYS = {
    "RUD + spray": ("uet", "shallow"),
    "ROD + spray": ("uet:delivery=rod,reorder=on", "shallow:balance=packet"),
    "RC + spray": ("rocev2:adaptive", "lossless:balance=packet"),
    "RC + ECMP": ("rocev2:classic", "lossless"),
    "RUD + flowlet": ("uet:spray=bitmap", "shallow:balance=flowlet"),
}


def spray(choice: SuiteChoice) -> Procedure:
    """Measure a permutation over 4 to 32 paths in the draft's five configurations (6.3)."""
    paths = choice.pick(small=(4, 8), medium=(4, 8, 16), full=(4, 8, 16, 32))
    size = choice.pick(small="512KiB", medium="2MiB", full="2MiB")
    trials: list[NamedTrial] = []
    for count in paths:
        fabric = paths_fabric(count)
        for name, (transport, switch) in SPRAYS.items():
            trial = choice.trial("permutation", fabric, transport, switch=switch, sizes=size)
            trials.append((trial, {"paths": count, "balancing": name}))
    columns = (
        *(c.PATHS, c.BALANCING, c.TRANSPORT, c.SWITCH, c.GOODPUT, c.GOODPUT_SHARE),
        *(c.TIME, c.CV, c.MMR, c.LINKS_JAIN, c.REORDERED, c.RESENT),
    )
    drawn = ("goodput_share", "links_jain", "links_max_mean", "retransmitted_packets")
    table = TrialTable(
        title="Permutation across the spines",
        columns=columns,
        trials=trials,
        curves=[Curve("paths", key, ("balancing",)) for key in drawn],
    )
    return table.findings(
        deviations=[
            f"{', '.join(map(str, paths))} paths, {size} a flow, {choice.seeds} seeds.",
            SHORT_TRIALS,
        ],
        notes=[
            "RoCEv2 counts each packet behind a loss as out of order, UET only those that were"
            " sent earlier: the two are not to be compared."
        ],
    )


def paths_fabric(paths: int) -> str:
    """Return a fabric whose two rail switches are joined by so many equal paths."""
    return f"rail_clos:hosts={paths},gpus_per_host=2,spines={paths},uplinks_per_spine=1"


def congestion(choice: SuiteChoice) -> Procedure:
    """Measure incasts without PFC over UET, beside DCQCN with it (6.4)."""
    senders = choice.pick(small=(2, 4, 8), medium=(2, 4, 8, 16), full=(2, 4, 8, 16, 32, 64))
    transports = ("uet", "uet:cc=rccc", "uet:cc=both", "rocev2:classic", "rocev2:adaptive")
    fabric = f"rail_clos:hosts={max(senders) + 1},gpus_per_host=1,spines=1,uplinks_per_spine=1"
    trials = [
        choice.trial("incast", fabric, transport, senders=",".join(map(str, senders)))
        for transport in transports
    ]
    shared = [
        fairness(choice, fabric, transport, str(max(senders) // 2), "2MiB")
        for transport in transports
    ]
    outcomes = yield [*trials, *shared]
    columns = (
        *(c.SENDERS, c.TRANSPORT, c.SWITCH, c.GOODPUT, c.GOODPUT_SHARE, c.TIME, c.CV),
        *(c.JAIN, c.VICTIM_P99, c.MARKED, c.TRIMMED, c.DROPPED, c.PAUSES, c.QUEUE),
        *(c.RESENT, c.TIMEOUTS),
    )
    shared_columns = (c.SENDERS, c.TRANSPORT, c.SWITCH, c.CONVERGED, c.JAIN, c.QUEUE, c.DROPPED)
    return Findings(
        tables=[
            SuiteTable(
                title="Incast",
                columns=columns,
                rows=list(lines(outcomes[: len(trials)], columns)),
                curves=[
                    Curve("senders", key)
                    for key in ("goodput_share", "max_queue_bytes", "victim_p99_us", "pauses")
                ],
            ),
            SuiteTable(
                title="As many flows again join: time until all are within 10 % of their mean",
                columns=shared_columns,
                rows=list(lines(outcomes[len(trials) :], shared_columns)),
                curves=[Curve("senders", "converged_us")],
            ),
        ],
        deviations=[SHORT_TRIALS, f"N = {', '.join(map(str, senders))}.", FAIR],
        notes=[
            "Zero loss that an application sees: a run ends with an error where a message is lost."
        ],
    )


def collectives(choice: SuiteChoice) -> Procedure:
    """Measure the collectives over UET's services and RoCEv2 (6.6)."""
    size = choice.pick(small="1MiB", medium="8MiB", full="64MiB")
    transports = ("uet", "uet:tss=cluster", "uet:delivery=rod", "rocev2:classic", "rocev2:nccl")
    trials, facts = [], {}
    for scenario in COLLECTIVES:
        for transport in transports:
            trial = choice.trial(scenario, collective_fabric(choice), transport, sizes=size)
            trials.append(trial)
            facts[trial.key] = {
                "collective": scenario,
                "tss": "active" if "tss=" in transport else "off",
            }
    outcomes = yield trials
    columns = (
        SuiteColumn("collective", "collective", "", Point.INPUT),
        *(c.TRANSPORT, c.TSS, c.RANKS, c.SIZE, c.ALGORITHM),
        *(c.BUSBW, c.DELTA, c.TIME, c.CV, c.IDEAL, c.S_FABRIC),
    )
    rows = list(collective_lines(outcomes, columns, facts))
    return Findings(
        tables=[
            SuiteTable(
                title="Collectives by service",
                columns=columns,
                rows=rows,
                curves=[Curve("collective", "busbw_gbps")],
            )
        ],
        deviations=[f"N = {collective_ranks(rows)} and {size} instead of 128 to 512 and 1 GB."],
        notes=["Delta is the bus bandwidth over that of rocev2:classic, less one."],
    )


def collective_ranks(rows: list[dict[str, object]]) -> str:
    """Return the numbers of ranks in ``rows``."""
    return ", ".join(sorted({str(row["ranks"]) for row in rows}))


TESTS = (
    SuiteTest(
        number="6.1",
        title="UET throughput by service",
        objective="what ROD and RUD carry, beside RC",
        procedure=services,
    ),
    SuiteTest(
        number="6.2",
        title="UET latency",
        objective="a first message with its context's set-up, and a later one",
        procedure=first_message,
    ),
    SuiteTest(
        number="6.3",
        title="Spray efficacy under RUD",
        objective="what native spraying gains over hashed paths",
        procedure=spray,
    ),
    SuiteTest(
        number="6.4",
        title="UET congestion control",
        objective="incasts without PFC, beside DCQCN",
        procedure=congestion,
    ),
    LINK_LAYER,
    SuiteTest(
        number="6.6",
        title="UET collectives",
        objective="collectives over UET's services and over RoCEv2",
        procedure=collectives,
    ),
    SuiteTest(
        number="6.7",
        title="PDC scale",
        objective="how many contexts, and how fast they are set up",
        reason="It measures endpoint implementations, outside the boundary of a fabric; an endpoint"
        " of this emulator is software, whose rate says nothing of a NIC.",
    ),
)
