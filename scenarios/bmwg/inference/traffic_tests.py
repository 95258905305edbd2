"""Sections 8 and 9 of the inference draft: congestion, and paths under the mix of traffic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from emulator.arithmetic import jain
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
from emulator.suite.trials import Row, TrialOutcome
from scenarios.bmwg import bmwg_columns as c
from scenarios.bmwg.baseline import SHORT_TRIALS
from scenarios.bmwg.congestion_tests import INCAST, storm
from scenarios.bmwg.inference import inference_columns as i
from scenarios.bmwg.inference.expert_tests import DISPATCH_P99, KV_P99, MIX
from scenarios.bmwg.inference.serving_tests import served
from scenarios.bmwg.trial_rows import NamedTrial, TrialTable

THRESHOLD = i.setting("threshold", "threshold")


def marking(choice: SuiteChoice) -> Procedure:
    """Measure marks of M senders to one port by the threshold (8.1)."""
    senders = choice.pick(small="2,4,8", medium="2,4,8,16", full="2,4,8,16,32")
    size = choice.pick(small="1MiB", medium="4MiB", full="16MiB")
    trials: list[NamedTrial] = []
    for threshold in ("100KB", "500KB"):
        for transport in choice.transports:
            # RoCEv2's marked packets are in the class that is not trimmed
            marks = f"data.kmin_bytes={threshold},data.kmax_bytes={threshold}"
            marks += f",untrimmed.kmin_bytes={threshold},untrimmed.kmax_bytes={threshold}"
            trial = choice.trial(
                "incast",
                INCAST.format(hosts=1 + int(senders.rpartition(",")[2])),
                transport,
                switch=f"deep:trim=off,{marks}",
                senders=senders,
                size=size,
                victim=0,
            )
            trials.append((trial, {"threshold": threshold}))
    table = TrialTable(
        title="Marks of M transfers to one port",
        columns=(
            *(THRESHOLD, c.SENDERS, c.TRANSPORT, c.GOODPUT, c.GOODPUT_SHARE, c.TIME, c.CV),
            *(c.MARKED, c.STEADY_QUEUE, c.QUEUE, c.DROPPED, c.RESENT),
        ),
        trials=trials,
        curves=[Curve("senders", "marked_packets", ("transport", "threshold"))],
    )
    return table.findings(
        [
            SHORT_TRIALS,
            f"M = {senders} and {size} instead of 16 MB; thresholds of 100 and 500 KB, with"
            " Kmin = Kmax, on a deep switch that neither trims nor pauses, for all transports.",
        ]
    )


def bursts(choice: SuiteChoice) -> Procedure:
    """Measure pauses of bursts by the PFC threshold (8.2)."""
    senders = choice.pick(small="4,8", medium="4,8,16", full="4,8,16,32")
    thresholds = choice.pick(
        small=("50KB", "400KB"), medium=("50KB", "200KB", "800KB"), full=("50KB", "200KB", "1MB")
    )
    trials: list[NamedTrial] = [
        (
            choice.trial(
                "incast",
                INCAST.format(hosts=1 + int(senders.rpartition(",")[2])),
                "rocev2:classic",
                switch=f"lossless:xoff={threshold}",
                senders=senders,
                size="1MiB",
                in_flight=64,
            ),
            {"threshold": threshold},
        )
        for threshold in thresholds
    ]
    trials.append(
        (
            choice.trial(
                "incast",
                INCAST.format(hosts=1 + int(senders.rpartition(",")[2])),
                "uet",
                senders=senders,
                size="1MiB",
                in_flight=64,
            ),
            {"threshold": "none (UET)"},
        )
    )
    table = TrialTable(
        title="Transfers that begin at once",
        columns=(
            *(THRESHOLD, c.SENDERS, c.TRANSPORT, c.SWITCH, c.TIME, c.CV, c.VICTIM_P99),
            *(c.PAUSES, c.PAUSED, c.QUEUE, c.DROPPED, c.TRIMMED),
        ),
        trials=trials,
        curves=[
            Curve("senders", key, ("transport", "threshold"))
            for key in ("paused_us", "victim_p99_us")
        ],
    )
    return table.findings(
        [
            SHORT_TRIALS,
            f"N = {senders} transfers of 1 MiB that begin at the same time, not within 100 us"
            " to 10 ms. The victim is a flow of the same class to another port.",
        ]
    )


def onset(choice: SuiteChoice) -> Procedure:
    """Measure KV transfers at 80 % that dispatches join (8.3)."""
    trials: list[NamedTrial] = []
    for name, octets in (("KV alone", "0"), ("with dispatch", "16KiB")):
        trial = choice.trial("kvmix", MIX, load=80, dispatch=octets, rounds=12)
        trials.append((trial, {"traffic": name}))
    table = TrialTable(
        title="KV transfers at 80 % of the NICs, joined by dispatches",
        columns=(
            *(i.setting("traffic", "traffic"), c.TRANSPORT, c.SWITCH, KV_P99, DISPATCH_P99),
            *(c.JAIN, c.MARKED, c.TRIMMED, c.DROPPED, c.PAUSES, c.QUEUE, c.RESENT),
        ),
        trials=trials,
        curves=[Curve("traffic", "message_p99_us")],
    )
    return table.findings(
        [
            SHORT_TRIALS,
            "The time to within 5 % of steady rates is not given: messages leave at fixed"
            " times, whatever congestion control does. The convergence of flows that only"
            " congestion control holds back is in 7.3 of the training suite.",
        ]
    )


#: Ways of the switches by name, with the transport that goes with each.
WAYS = {
    "ECMP": ("rocev2:classic", "lossless"),
    "flowlets": ("rocev2:classic,qps=4", "lossless:balance=flowlet,flowlet_gap=500ns"),
    "least loaded path": ("rocev2:adaptive", "lossless:balance=least-loaded"),
    "spray by switches": ("rocev2:adaptive", "lossless:balance=packet"),
    "spray by endpoints": ("uet", "shallow"),
}


def mixed_paths(choice: SuiteChoice) -> Procedure:
    """Measure how even links are under transfers, dispatches, and both (9.3)."""
    mixes = {"KV": (60, "0"), "dispatch": (0, "16KiB"), "both": (60, "16KiB")}
    trials: list[NamedTrial] = [
        (
            choice.trial(
                "kvmix",
                MIX,
                transport,
                switch=switch,
                load=load,
                dispatch=octets,
                rounds=choice.pick(small=6, medium=24, full=100),
            ),
            {"traffic": traffic, "balancing": name},
        )
        for traffic, (load, octets) in mixes.items()
        for name, (transport, switch) in WAYS.items()
    ]
    table = TrialTable(
        title="Links between rail switches and spines",
        columns=(
            *(i.setting("traffic", "traffic"), c.BALANCING, c.TRANSPORT, c.SWITCH),
            *(c.LINKS_JAIN, c.MMR, KV_P99, DISPATCH_P99, c.QUEUE, c.PAUSES, c.REORDERED),
        ),
        trials=trials,
        curves=[
            Curve("traffic", key, ("balancing",))
            for key in ("links_jain", "message_p99_us", "victim_p99_us")
        ],
    )
    return table.findings(
        [SHORT_TRIALS, "KV messages of 64 KiB instead of 16 MB, dispatches of 16 KiB a pair."]
    )


DECODERS = i.setting("decoders", "decode workers")


def fairness(choice: SuiteChoice) -> Procedure:
    """Measure how evenly decode workers get keys and values, and make tokens (9.4)."""
    workers = choice.pick(small=(2, 4, 8), medium=(4, 8, 16), full=(8, 16, 32))
    trials = []
    facts = {}
    for count in workers:
        fabric = f"rail_clos:hosts={count},gpus_per_host=2,spines=2"
        trial = served(
            choice,
            fabric,
            prefill=count,
            prefill_gpus=1,
            decode=count,
            decode_gpus=1,
            arrivals=",".join(["0us"] * (2 * count)),
        )
        trials.append(trial)
        facts[trial.key] = {"decoders": count}
    outcomes = yield trials
    columns = (
        *(DECODERS, c.TRANSPORT, c.SWITCH),
        SuiteColumn("kv_jain", "JFI of KV rates", "", Point.ENDPOINT),
        SuiteColumn("kv_max_min", "max / min of KV rates", "", Point.ENDPOINT),
        SuiteColumn("tokens_jain", "JFI of TPS", "", Point.ENDPOINT),
        SuiteColumn("tokens_max_min", "max / min of TPS", "", Point.ENDPOINT),
    )
    rows = [{**facts[one.trial.key], **row} for one in outcomes for row in worker_rows(one)]
    return Findings(
        tables=[
            SuiteTable(
                title="Decode workers, of which each gets two requests",
                columns=columns,
                rows=rows,
                curves=[Curve("decoders", "kv_jain"), Curve("decoders", "tokens_jain")],
            )
        ],
        deviations=[
            i.SCALED,
            i.FORMULA,
            "Requests arrive at once and are dealt out in turn, two for each worker: what is uneven"
            " is the fabric's doing. A sustained stream would add that of its arrivals.",
            f"{', '.join(map(str, workers))} workers. Use of accelerators is not given: they"
            " compute for as long as they are told.",
        ],
    )


def worker_rows(outcome: TrialOutcome) -> Iterator[dict[str, Any]]:
    """Yield a row for each transport: the evenness over the workers, of the first seed."""
    for rows in outcome.by_place():
        row = rows[0]
        rates, tokens = worker_rates(row)
        if not rates:
            continue
        yield {
            "transport": row["transport"],
            "switch": row["switch"],
            "kv_jain": jain(rates),
            "kv_max_min": max(rates) / min(rates),
            "tokens_jain": jain(tokens),
            "tokens_max_min": max(tokens) / min(tokens),
        }


def worker_rates(row: Row) -> tuple[list[float], list[float]]:
    """Return the octets/us of keys and values and the tokens/us of each decode worker."""
    decoders = int(str(row.get("placement")).partition("P")[2].removesuffix("D") or 1)
    received: dict[int, list[float]] = {}
    made: dict[int, list[float]] = {}
    for number, one in enumerate(row.get("request_times") or ()):
        worker = number % decoders
        tokens = one["tokens_us"]
        received.setdefault(worker, []).append(one["cached_us"] - one["prefill_us"][1])
        made.setdefault(worker, []).append(len(tokens) / (tokens[-1] - one["arrival_us"]))
    rates = [
        row["size_bytes"] * len(times) / sum(times) for times in received.values() if sum(times) > 0
    ]
    return rates, [sum(each) for each in made.values()]


def deadlock(choice: SuiteChoice) -> Procedure:
    """Measure a NIC that pauses its port for long (8.4)."""
    return storm(choice)


CONGESTION_TESTS = (
    SuiteTest(
        number="8.1",
        title="ECN under incast",
        objective="marks and queues of M transfers by the threshold",
        procedure=marking,
    ),
    SuiteTest(
        number="8.2",
        title="PFC under bursts",
        objective="pauses, and what they cost a flow to another port",
        procedure=bursts,
    ),
    SuiteTest(
        number="8.3",
        title="Congestion control under mixed traffic",
        objective="KV transfers at 80 % that dispatches join",
        procedure=onset,
    ),
    SuiteTest(
        number="8.4",
        title="PFC storm and deadlock",
        objective="what a storm stops, and what ends it",
        procedure=deadlock,
    ),
)
ROUTING_TESTS = (
    SuiteTest(
        number="9.1",
        title="KV-aware routing",
        objective="requests sent to where their keys and values are",
        reason="It compares request routers of the serving system; the fabric carries what either"
        " decides.",
    ),
    SuiteTest(
        number="9.2",
        title="Prefix-aware caching",
        objective="transfers that a cache saves",
        reason="A cache of prefixes is software of the serving system. A hit rate of h leaves 1 - h"
        " of the transfers of 6.1.",
    ),
    SuiteTest(
        number="9.3",
        title="ECMP and DLB under the inference mix",
        objective="how even links are under transfers, dispatches and both",
        procedure=mixed_paths,
    ),
    SuiteTest(
        number="9.4",
        title="Decode fairness",
        objective="how evenly decode workers get keys and values, and make tokens",
        procedure=fairness,
    ),
)
