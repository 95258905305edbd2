"""Sections 6, 10 and 11 of the inference draft: requests, from their prompt to their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from scenarios.bmwg.inference import inference_columns as i
from scenarios.bmwg.inference.kv_transfer_tests import LOAD, SHARED_UPLINK
from scenarios.bmwg.trial_rows import NamedTrial, TrialTable, lines

PARTS = (i.WAIT, i.PREFILL, i.TRANSFER_TIME, i.DECODE_INIT)
PART_CURVES = tuple(
    Curve("prompt", key) for key in ("transfer_us", "ttft_p99_us", "ttft_fabric_share")
)


def _requests(choice: SuiteChoice) -> int:
    return int(choice.pick(small=8, medium=24, full=96))


def _deviations(choice: SuiteChoice) -> list[str]:
    return [i.SCALED, i.FORMULA, i.FEW_REQUESTS.format(count=_requests(choice), seeds=choice.seeds)]


def served(choice: SuiteChoice, fabric: str, **parameters: object) -> SuiteTrial:
    """Return a trial of ``inference`` with whole transfers, unless ``parameters`` say other."""
    trial = choice.trial("inference", fabric, transfer="whole", output=4, scale=i.SCALE)
    return trial.given(parameters)


def _fabric(gpus: int, a_host: int = 4) -> str:
    return f"rail_clos:hosts={max(2, -(-gpus // a_host))},gpus_per_host={a_host},spines=2"


def prompts(choice: SuiteChoice, **parameters: object) -> Sequence[NamedTrial]:
    """Return trials by the length of the prompt, each with ``parameters``."""
    lengths = choice.pick(
        small=(512, 2048, 8192), medium=(128, 512, 2048, 8192), full=(128, 512, 2048, 4096, 8192)
    )
    return [
        (served(choice, _fabric(16), prompt=length, **parameters), {"prompt": length})
        for length in lengths
    ]


def serving_ttft(choice: SuiteChoice) -> Procedure:
    """Measure TTFT and its parts while requests arrive at random (6.1)."""
    trials = prompts(choice, rate=2, requests=_requests(choice))
    table = TrialTable(
        title="TTFT by prompt, 3P1D, 2 requests a second",
        columns=(
            *(i.PROMPT, c.TRANSPORT, c.SWITCH, i.TTFT, *PARTS, i.TTFT_P50, i.TTFT_P99),
            *(i.FABRIC_SHARE, i.KV_RATE, c.RESENT),
        ),
        trials=trials,
        curves=PART_CURVES,
    )
    return table.findings(_deviations(choice))


def placements(choice: SuiteChoice) -> Procedure:
    """Measure the ratio of prefill to decode instances at a fixed number of nodes (6.2)."""
    total = choice.pick(small=4, medium=6, full=12)
    trials: list[NamedTrial] = [
        (
            served(
                choice,
                _fabric(total, 1),
                prefill=prefill,
                prefill_gpus=1,
                decode=total - prefill,
                decode_gpus=1,
                rate=2,
                requests=_requests(choice),
            ),
            {"placement": f"{prefill}P{total - prefill}D"},
        )
        for prefill in range(1, total)
    ]
    table = TrialTable(
        title=f"{total} accelerators as xPyD, 2 requests a second",
        columns=(
            *(i.PLACEMENT, c.TRANSPORT, i.TTFT_P99, i.ITL_P99, i.TOKENS, i.TRANSFER_TIME),
            *(i.KV_RATE, SuiteColumn("pareto", "in the Pareto set", "", Point.DERIVED)),
        ),
        trials=trials,
        curves=[Curve("placement", key) for key in ("ttft_p99_us", "tokens_per_second")],
    )
    return table.findings(
        [*_deviations(choice), f"{total} accelerators of an instance each, not 12 nodes."],
        ["The Pareto set is over TTFT P99, ITL P99 and TPS_output of one transport."],
        mark_pareto,
    )


def mark_pareto(rows: Sequence[dict[str, Any]]) -> None:
    """Set ``pareto`` of each row to yes, unless another of its transport is at least as good."""
    for row in rows:
        mine = _goodness(row)
        others = [_goodness(one) for one in rows if one["transport"] == row["transport"]]
        beaten = any(
            one != mine and all(a >= b for a, b in zip(one, mine, strict=True)) for one in others
        )
        row["pareto"] = "no" if beaten else "yes"


def _goodness(row: Mapping[str, Any]) -> tuple[float, float, float]:
    late = float("inf")
    values = row.get("ttft_p99_us"), row.get("itl_p99_us"), row.get("tokens_per_second")
    return -(values[0] or late), -(values[1] or late), values[2] or 0.0


def parallelism(choice: SuiteChoice) -> Procedure:
    """Measure transfers between instances that divide the model unequally (6.3)."""
    shapes = {"TP4 to TP4": (4, 1, 4), "TP4 to TP2 + DP2": (4, 2, 2), "TP2 to TP4": (2, 1, 4)}
    trials: list[NamedTrial] = [
        (
            served(
                choice,
                _fabric(16),
                prefill=2,
                prefill_gpus=prefill_gpus,
                decode=decode,
                decode_gpus=decode_gpus,
                arrivals="0us,0us",
            ),
            {"shape": name},
        )
        for name, (prefill_gpus, decode, decode_gpus) in shapes.items()
    ]
    table = TrialTable(
        title="Two requests at once",
        columns=(
            *(i.setting("shape", "prefill to decode"), c.TRANSPORT, c.SWITCH),
            *(i.TTFT_P99, i.TRANSFER_TIME, i.KV_RATE, i.ITL_P99, c.S_FABRIC, c.RESENT),
        ),
        trials=trials,
        curves=[Curve("shape", key) for key in ("transfer_us", "transfer_gbps")],
    )
    return table.findings(
        [i.SCALED, i.FORMULA, "Degrees of 2 and 4 instead of 8: hosts have four accelerators."]
    )


def oversubscribed(choice: SuiteChoice) -> Procedure:
    """Measure bursts of more prefill NICs than decode has (6.4)."""
    decode = choice.pick(small=4, medium=4, full=8)
    trials: list[NamedTrial] = []
    for quarters in range(4, 9, choice.pick(small=2, medium=1, full=1)):
        prefill = decode * quarters // 4
        trial = served(
            choice,
            _fabric(decode * 3, 1),
            prefill=prefill,
            prefill_gpus=1,
            decode=decode,
            decode_gpus=1,
            arrivals=",".join(["0us"] * prefill),
        )
        trials.append((trial, {"ratio": f"{quarters / 4:.2f}"}))
    table = TrialTable(
        title="One request of each prefill instance at the same time",
        columns=(
            *(i.setting("ratio", "prefill / decode NICs"), c.TRANSPORT, c.SWITCH),
            *(i.TRANSFER_TIME, i.KV_RATE, i.TTFT_P99, c.RESENT, c.TIMEOUTS, c.S_FABRIC),
        ),
        trials=trials,
        curves=[Curve("ratio", key) for key in ("transfer_us", "transfer_gbps")],
    )
    return table.findings(
        [
            i.SCALED,
            i.FORMULA,
            "The burst is one transfer of each prefill instance: its size and duration follow"
            " from S_fabric and T_transfer, and there is no gap before a next one.",
        ]
    )


def unloaded_ttft(choice: SuiteChoice) -> Procedure:
    """Measure one request on an idle fabric by the length of its prompt (10.1)."""
    trials = prompts(replace(choice, seeds=1), arrivals="0us")
    table = TrialTable(
        title="TTFT of a single request",
        columns=(
            *(i.PROMPT, c.TRANSPORT, c.SWITCH, i.TTFT, *PARTS[1:], i.FABRIC_SHARE, i.KV_RATE),
        ),
        trials=trials,
        curves=(Curve("prompt", "transfer_us"), Curve("prompt", "ttft_fabric_share")),
    )
    return table.findings(
        [i.SCALED, i.FORMULA, "One repetition instead of 100: on an idle fabric all are alike."]
    )


def token_tail(choice: SuiteChoice) -> Procedure:
    """Measure times between tokens while other requests' keys and values arrive (10.2)."""
    count = choice.pick(small=12, medium=48, full=200)
    cases: Mapping[str, Mapping[str, object]] = {
        "one request": {"arrivals": "0us"},
        "2 requests/s": {"rate": 2, "requests": count},
        "6 requests/s": {"rate": 6, "requests": count},
    }
    trials: list[NamedTrial] = [
        (
            served(
                choice,
                _fabric(20),
                models="8x7b",
                decode_by="experts",
                decode_gpus=8,
                transfer="whole,layers",
                output=8,
                **case,
            ),
            {"case": name},
        )
        for name, case in cases.items()
    ]
    table = TrialTable(
        title="Time between tokens, decode by experts over two hosts",
        columns=(
            *(i.setting("case", "load"), i.TRANSFER, c.TRANSPORT, c.SWITCH),
            *(i.ITL_P50, i.ITL_P95, i.ITL_P99, i.ITL_P999, i.ITL_MOST, i.ITL_SAMPLES, i.STALLS),
            *(i.TTFT_P99, i.TRANSFER_TIME, i.TOKENS, c.RESENT),
        ),
        trials=trials,
        curves=[Curve("case", "itl_p99_us", ("transport", "transfer"))],
    )
    return table.findings(
        [
            i.FORMULA,
            f"A mixture of experts (8x7b) over {i.SCALE}, 8 tokens an answer and {count}"
            " requests, instead of 2048 tokens and 10,000 samples.",
            "The load is that of other requests' transfers, not of a generator.",
            f"Samples are those of a seed, and values medians over seeds. A stall is 100 ms at"
            f" full size: a time between tokens of more than 100 ms / {i.SCALE} here.",
        ]
    )


def sensitivity(choice: SuiteChoice) -> Procedure:
    """Measure a prompt's transfer beside a background of 0 to 95 % (10.4)."""
    loads = choice.pick(
        small="0,25,50,75,90,95",
        medium="0,10,20,30,40,50,60,70,80,90,95",
        full=",".join(map(str, range(0, 96, 5))),
    )
    trial = choice.trial(
        "kvload",
        SHARED_UPLINK,
        message="256KiB",
        transfers=choice.pick(small=16, medium=50, full=200),
        load=loads,
    )
    (outcome,) = yield [trial]
    columns = (LOAD, c.TRANSPORT, c.SWITCH, c.P50, c.P99, c.SLOWDOWN, c.QUEUE, c.PAUSES)
    rows = list(lines([outcome], columns))
    idle = {row["transport"]: row["message_p99_us"] for row in rows if row["load"] == 0}
    for row in rows:
        if idle.get(row["transport"]) and row["message_p99_us"] is not None:
            row["slowdown"] = row["message_p99_us"] / idle[row["transport"]]
    return Findings(
        tables=[
            SuiteTable(
                title="T_transfer of 256 KiB by background load",
                columns=columns,
                rows=rows,
                curves=[Curve("load", key) for key in ("message_p99_us", "slowdown")],
            )
        ],
        deviations=[
            "T_transfer alone: the other parts of TTFT use no fabric here, and ITL's exchanges"
            " stand in 10.2. Slowdown is its P99 over that of the idle fabric.",
        ],
    )


#: The declared objectives of 11.1: P99 of TTFT and ITL at full size (ms).
SLO_TTFT_MS, SLO_ITL_MS = 1000, 50
#: Requests in 1000 s: where the search begins, its last step, and its limit.
FIRST_RATE, RATE_STEP, LARGEST_RATE = 1000, 500, 64_000


def most_tokens(choice: SuiteChoice) -> Procedure:
    """Search the largest request rate whose latencies keep to the declared objectives (11.1)."""
    kept: dict[str, tuple[int, TrialOutcome] | None] = dict.fromkeys(choice.transports)
    broken: dict[str, int | None] = dict.fromkeys(choice.transports)
    tried = dict.fromkeys(choice.transports, FIRST_RATE)
    while pending := [one for one in choice.transports if tried[one]]:
        outcomes = yield [_at_rate(choice, one, tried[one]) for one in pending]
        for transport, outcome in zip(pending, outcomes, strict=True):
            within = _keeps(outcome)
            if within is None:
                tried[transport] = 0  # the trial is excluded
                continue
            if within:
                kept[transport] = tried[transport], outcome
            else:
                broken[transport] = tried[transport]
            best = kept[transport]
            tried[transport] = _next_rate(0 if best is None else best[0], broken[transport])
    columns = (
        *(c.TRANSPORT, SuiteColumn("most", "largest rate", "requests/s", Point.DERIVED)),
        *(i.TOKENS, i.PROMPT_TOKENS, i.TTFT_P99, i.ITL_P99, i.TRANSFER_TIME, c.CV),
    )
    rows: list[dict[str, Any]] = []
    for transport, best in kept.items():
        if best is None:
            rows.append({"transport": transport})
        else:
            rows += [{**row, "most": best[0] / 1000} for row in lines([best[1]], columns)]
    return Findings(
        tables=[
            SuiteTable(
                title=f"Largest rate with TTFT P99 <= {SLO_TTFT_MS} ms and ITL P99 <="
                f" {SLO_ITL_MS} ms",
                columns=columns,
                rows=rows,
            )
        ],
        deviations=[
            *_deviations(choice),
            f"The objectives are declared, and divided by {i.SCALE} as the times are. The search"
            f" ends within {RATE_STEP / 1000} requests a second.",
            "Inference_Goodput is TPS_output: every request completes, and within the objectives.",
            "Fabric utilisation at the boundary is in each trial's own report.",
        ],
    )


def _at_rate(choice: SuiteChoice, transport: str, rate: int) -> SuiteTrial:
    return choice.trial(
        "inference",
        _fabric(16),
        transport,
        transfer="whole",
        output=4,
        scale=i.SCALE,
        rate=rate / 1000,
        requests=_requests(choice),
    )


def _keeps(outcome: TrialOutcome) -> bool | None:
    """Return whether all seeds keep to the objectives; None of a trial without rows."""
    if not outcome.rows:
        return None
    return all(
        row["ttft_p99_us"] * i.SCALE <= 1000 * SLO_TTFT_MS
        and row["itl_p99_us"] * i.SCALE <= 1000 * SLO_ITL_MS
        for row in outcome.rows
    )


def _next_rate(kept: int, broken: int | None) -> int:
    """Double until the objectives are missed, then halve the interval; 0 ends the search."""
    if broken is None:
        return 2 * kept if 2 * kept <= LARGEST_RATE else 0
    return (kept + broken) // 2 if broken - kept > RATE_STEP else 0


def batches(choice: SuiteChoice) -> Procedure:
    """Measure the number of requests that decode at a time (11.2)."""
    slots = choice.pick(small=(1, 2, 8), medium=(1, 2, 4, 8, 16), full=(1, 2, 4, 8, 16, 32))
    trials: list[NamedTrial] = [
        (
            served(choice, _fabric(16), slots=count, rate=6, requests=_requests(choice)),
            {"slots": count},
        )
        for count in slots
    ]
    table = TrialTable(
        title="Requests that decode at a time, 6 requests a second",
        columns=(
            *(i.setting("slots", "batch"), c.TRANSPORT, i.TOKENS, i.TTFT_P99, i.ITL_P99),
            *(i.TRANSFER_TIME, i.KV_RATE, c.RESENT),
        ),
        trials=trials,
        curves=[Curve("slots", key) for key in ("tokens_per_second", "ttft_p99_us")],
    )
    return table.findings(
        [
            *_deviations(choice),
            "Requests of a batch read the weights together, so that a step takes as long for"
            " any batch. Batching is continuous: a place is taken as soon as it is left.",
        ]
    )


_SIDE_BY_SIDE = "Serving instances of two owners have no scenario that runs them side by side yet"

SERVING_TESTS = (
    SuiteTest(
        number="6.1",
        title="Disaggregated TTFT",
        objective="the parts of TTFT under normal serving",
        procedure=serving_ttft,
    ),
    SuiteTest(
        number="6.2",
        title="xPyD ratio",
        objective="prefill against decode instances at a fixed number of accelerators",
        procedure=placements,
    ),
    SuiteTest(
        number="6.3",
        title="Heterogeneous parallelism",
        objective="transfers between instances that divide the model unequally",
        procedure=parallelism,
    ),
    SuiteTest(
        number="6.4",
        title="Prefill oversubscription",
        objective="bursts of more prefill NICs than decode has",
        procedure=oversubscribed,
    ),
)
LATENCY_TESTS = (
    SuiteTest(
        number="10.1",
        title="TTFT by prompt length",
        objective="one request on an idle fabric",
        procedure=unloaded_ttft,
    ),
    SuiteTest(
        number="10.2",
        title="ITL tail",
        objective="times between tokens beside transfers",
        procedure=token_tail,
    ),
    SuiteTest(
        number="10.3",
        title="Multi-tenant interference",
        objective="instances that share the fabric",
        reason=f"{_SIDE_BY_SIDE}; 10.3 of the training suite has it for training jobs.",
    ),
    SuiteTest(
        number="10.4",
        title="Sensitivity to congestion",
        objective="a prompt's transfer by background load",
        procedure=sensitivity,
    ),
    SuiteTest(
        number="11.1",
        title="Tokens a second under objectives",
        objective="the largest request rate that keeps to TTFT and ITL",
        procedure=most_tokens,
        searches=True,
    ),
    SuiteTest(
        number="11.2",
        title="Batch size and continuous batching",
        objective="requests that decode at a time",
        procedure=batches,
    ),
    SuiteTest(
        number="11.3",
        title="Goodput under preemption",
        objective="overload, evictions and repeated transfers",
        reason="A scheduler that evicts and preempts requests is software of the serving system,"
        " which is not emulated.",
    ),
)
