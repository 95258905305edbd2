"""Section 7 of the inference draft: dispatch to experts, alone and beside KV transfers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.suite.suite_model import Curve, Point, Procedure, SuiteChoice, SuiteColumn, SuiteTest
from emulator.suite.trials import SuiteTrial
from scenarios.bmwg import bmwg_columns as c
from scenarios.bmwg.baseline import SHORT_TRIALS
from scenarios.bmwg.inference import inference_columns as i
from scenarios.bmwg.trial_rows import NamedTrial, TrialTable

HIDDEN, EXPERTS, TOP_K, ELEMENT_BYTES = 1024, 64, 4, 2
EGRESS = SuiteColumn("egress_bytes", "T_egress of all", "B", Point.DERIVED)
EGRESS_RATE = SuiteColumn("egress_gbps", "T_egress / dispatch", "GB/s", Point.DERIVED)
MODEL = (
    f"A layer of {EXPERTS} experts, k = {TOP_K}, H = {HIDDEN} and BF16 instead of M1 to M4 with H ="
    " 4096 to 7168; routing is drawn by the seed, and balanced unless a row says skew. Forward"
    " only."
)


def dispatch(choice: SuiteChoice, hosts: int, tokens: int, **parameters: object) -> SuiteTrial:
    """Return a forward dispatch and combine over all accelerators of ``hosts`` hosts of two."""
    trial = choice.trial(
        "moe",
        f"rail_clos:hosts={hosts},gpus_per_host=2,spines=2",
        tokens=tokens,
        hidden=HIDDEN,
        experts=EXPERTS,
        top_k=TOP_K,
        dispatch_bytes=ELEMENT_BYTES,
        skew=0,
        dedup="none",
        node_limit=0,
        backward=0,
    )
    return trial.given(parameters)


def _named(choice: SuiteChoice, hosts: int, tokens: int) -> NamedTrial:
    ranks = 2 * hosts
    egress = tokens * TOP_K * HIDDEN * ELEMENT_BYTES * (ranks - 1)  # of N: N x (N - 1) / N
    facts = {"members": ranks, "tokens": tokens, "egress_bytes": egress}
    return dispatch(choice, hosts, tokens), facts


COLUMNS = (
    *(i.EXPERTS, i.BATCH, c.TRANSPORT, c.SWITCH, i.DISPATCH, i.DISPATCH_BOUND),
    *(EGRESS, EGRESS_RATE, c.TIME, c.CV, c.S_FABRIC, c.RESENT),
)


def _egress_rates(rows: list[dict[str, Any]]) -> None:
    """Set the offered load over the time of the dispatch."""
    for row in rows:
        if row.get("dispatch_us"):
            row["egress_gbps"] = row["egress_bytes"] / row["dispatch_us"] / 1000


def throughput(choice: SuiteChoice) -> Procedure:
    """Measure dispatch over a grid of group sizes and batches (7.1)."""
    groups = choice.pick(small=(2, 4, 8), medium=(4, 8, 16), full=(4, 8, 16, 32))
    tokens = choice.pick(small=(32, 128), medium=(32, 64, 128), full=(32, 64, 128, 256))
    table = TrialTable(
        title="Dispatch by EP and batch",
        columns=COLUMNS,
        trials=[_named(choice, hosts, count) for hosts in groups for count in tokens],
        curves=[
            Curve("members", "dispatch_us", ("transport", "tokens")),
            Curve("tokens", "egress_gbps", ("transport", "members")),
        ],
    )
    return table.findings(
        [MODEL, SHORT_TRIALS, f"EP = {', '.join(str(2 * one) for one in groups)}, hosts of 2."],
        ["T_egress = B k H P (N - 1) / N of each accelerator is the offered load."],
        _egress_rates,
    )


def modes(choice: SuiteChoice) -> Procedure:
    """Measure ways of dispatch and of routing (7.2)."""
    ways: Mapping[str, Mapping[str, object]] = {
        "to every expert, balanced": {},
        "to every expert, skew 1": {"skew": 1},
        "once to a node, balanced": {"dedup": "node"},
        "once to a node, skew 1": {"dedup": "node", "skew": 1},
        "once to 2 nodes at most": {"dedup": "node", "node_limit": 2},
    }
    tokens = choice.pick(small=64, medium=128, full=256)
    hosts = choice.pick(small=4, medium=8, full=16)
    trials: list[NamedTrial] = [
        (dispatch(choice, hosts, tokens, **parameters), {"mode": name})
        for name, parameters in ways.items()
    ]
    table = TrialTable(
        title="Dispatch by mode",
        columns=(
            *(i.setting("mode", "dispatch and routing"), c.TRANSPORT, c.SWITCH),
            *(i.DISPATCH, i.DISPATCH_BOUND, c.TIME, c.CV, c.S_FABRIC, c.RESENT),
            SuiteColumn("imbalance", "octets in, max / mean", "", Point.DERIVED),
        ),
        trials=trials,
        curves=[Curve("mode", "dispatch_us")],
    )
    return table.findings(
        [
            MODEL,
            "A dispatch to every expert stands for the low-latency mode, one to each node,"
            " which NVLink takes on, for the normal mode. Expert choice and dropped tokens are"
            " not run: both change how many octets go where, as skew does.",
        ]
    )


def scaling(choice: SuiteChoice) -> Procedure:
    """Measure how dispatch grows with the group (7.3)."""
    groups = choice.pick(small=(2, 4, 8), medium=(4, 8, 16), full=(8, 16, 32))
    tokens = choice.pick(small=128, medium=128, full=128)
    table = TrialTable(
        title=f"Dispatch of {tokens} tokens by EP",
        columns=(
            *COLUMNS,
            SuiteColumn("scaling", "latency(least EP) / latency", "", Point.DERIVED),
        ),
        trials=[_named(choice, hosts, tokens) for hosts in groups],
        curves=[Curve("members", key) for key in ("dispatch_us", "scaling")],
    )
    return table.findings(
        [
            MODEL,
            f"EP = {', '.join(str(2 * one) for one in groups)} instead of 16 to 96; the"
            " efficiency is over the least of them.",
        ],
        ["S_fabric of each size is what crossed NICs; the rest stayed inside hosts."],
        _efficiencies,
    )


def _efficiencies(rows: list[dict[str, Any]]) -> None:
    """Set the latency of the smallest group over that of each."""
    _egress_rates(rows)
    least = min((row["members"] for row in rows), default=0)
    first = {row["transport"]: row["dispatch_us"] for row in rows if row["members"] == least}
    for row in rows:
        if first.get(row["transport"]) and row["dispatch_us"]:
            row["scaling"] = first[row["transport"]] / row["dispatch_us"]


#: As many uplinks as prefill NICs of a rail switch, so that keys and values have room.
MIX = "rail_clos:hosts=4,gpus_per_host=2,spines=2,uplinks_per_spine=1"


def contention(choice: SuiteChoice) -> Procedure:
    """Measure KV transfers and periodic dispatches, each alone and both at once (7.4)."""
    trials: list[NamedTrial] = []
    for load in (0, 50, 75):
        for octets in ("0", "8KiB"):
            if load or octets != "0":
                trial = choice.trial(
                    "kvmix",
                    MIX,
                    load=load,
                    dispatch=octets,
                    rounds=choice.pick(small=8, medium=24, full=100),
                )
                mixed = "both" if load and octets != "0" else ("KV" if load else "dispatch")
                trials.append((trial, {"traffic": mixed, "load": load}))
    table = TrialTable(
        title="KV transfers at a share of the NICs beside dispatches of 8 KiB a pair",
        columns=(
            *(i.setting("traffic", "traffic"), i.setting("load", "KV load", "%")),
            *(c.TRANSPORT, c.SWITCH, KV_P50, KV_P99, DISPATCH_P50, DISPATCH_P99),
            *(c.MARKED, c.TRIMMED, c.DROPPED, c.PAUSES, c.QUEUE, c.RESENT),
        ),
        trials=trials,
        curves=[Curve("load", "victim_p99_us", ("transport", "traffic"))],
    )
    return table.findings(
        ["KV messages of 64 KiB and dispatches leave at fixed times.", SHORT_TRIALS],
        ["The penalty is the P99 of `both` over that of the traffic alone at the same load."],
    )


KV_P50 = SuiteColumn("message_p50_us", "KV P50", "us", Point.ENDPOINT)
KV_P99 = SuiteColumn("message_p99_us", "KV P99", "us", Point.ENDPOINT)
DISPATCH_P50 = SuiteColumn("victim_p50_us", "dispatch P50", "us", Point.ENDPOINT)
DISPATCH_P99 = SuiteColumn("victim_p99_us", "dispatch P99", "us", Point.ENDPOINT)

TESTS = (
    SuiteTest(
        number="7.1",
        title="MoE dispatch throughput",
        objective="dispatch over a grid of group sizes and batches",
        procedure=throughput,
    ),
    SuiteTest(
        number="7.2",
        title="Dispatch and routing modes",
        objective="what each way to dispatch and to route costs",
        procedure=modes,
    ),
    SuiteTest(
        number="7.3",
        title="Wide EP scaling",
        objective="how dispatch grows with the group",
        procedure=scaling,
    ),
    SuiteTest(
        number="7.4",
        title="EP and KV contention",
        objective="what transfers and dispatches cost each other",
        procedure=contention,
    ),
)
