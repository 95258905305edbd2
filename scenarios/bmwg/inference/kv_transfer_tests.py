"""Section 5 of the inference draft: transfers of keys and values between NICs."""

from __future__ import annotations

from typing import Any

from emulator.suite.suite_model import Curve, Procedure, SuiteChoice, SuiteTest
from scenarios.bmwg import bmwg_columns as c
from scenarios.bmwg.baseline import SHORT_TRIALS, transfer_size, with_queue_pairs
from scenarios.bmwg.inference.inference_columns import setting
from scenarios.bmwg.trial_rows import NamedTrial, TrialTable
from scenarios.bmwg.uet_services import paths_fabric

PAIR = "rail_clos:hosts=2,gpus_per_host=1,spines=1,uplinks_per_spine=1"
LOAD = setting("load", "background", "%")
#: Two rail switches that share one uplink: measured and background transfers cross it.
SHARED_UPLINK = "rail_clos:hosts=4,gpus_per_host=2,spines=1,uplinks_per_spine=1"


def transfer_throughput(choice: SuiteChoice) -> Procedure:
    """Measure the goodput of one pair by message size and queue pairs (5.1)."""
    sizes = choice.pick(
        small=("64KiB", "256KiB", "1MiB", "4MiB"),
        medium=("64KiB", "256KiB", "1MiB", "4MiB", "16MiB"),
        full=("64KiB", "256KiB", "1MiB", "4MiB", "16MiB", "64MiB"),
    )
    widths = choice.pick(small=(1, 8), medium=(1, 4, 16), full=(1, 4, 8, 16, 32))
    trials: list[NamedTrial] = []
    for size in sizes:
        for width in widths:
            trial = choice.trial(
                "pairs",
                PAIR,
                with_queue_pairs(choice.transports, width),
                message=size,
                size=transfer_size(size, width),
                in_flight=width,
                seeds=1,  # nothing is drawn: all seeds are alike
            )
            trials.append((trial, {"message": size, "q": width}))
    table = TrialTable(
        title="KV transfers of one pair",
        columns=(
            *(c.MESSAGE, c.QPS, c.TRANSPORT, c.SWITCH, c.GOODPUT, c.GOODPUT_SHARE),
            *(c.TIME, c.P50, c.P99, c.IDEAL, c.EFFICIENCY),
        ),
        trials=trials,
        curves=[Curve("message", key, ("transport", "q")) for key in ("goodput_gbps",)],
    )
    return table.findings(
        deviations=[
            SHORT_TRIALS,
            f"Sizes {', '.join(sizes)} instead of up to 1 GB, Q = {', '.join(map(str, widths))}"
            " instead of up to 128, one trial: nothing is drawn.",
            "Processor and offload use are those of software, and not given.",
        ],
        notes=["Q is the number of writes under way, and for RoCEv2 of queue pairs as well."],
    )


def transfer_latency(choice: SuiteChoice) -> Procedure:
    """Measure times of KV transfers beside background of a known load (5.2)."""
    sizes = choice.pick(
        small=("64KiB", "1MiB"), medium=("64KiB", "1MiB", "4MiB"), full=("64KiB", "1MiB", "16MiB")
    )
    loads = choice.pick(small="0,50,90", medium="0,25,50,75,90", full="0,25,50,75,90")
    trials: list[NamedTrial] = [
        (
            choice.trial(
                "kvload",
                SHARED_UPLINK,
                message=size,
                transfers=choice.pick(small=12, medium=50, full=200),
                load=loads,
            ),
            {"message": size},
        )
        for size in sizes
    ]
    table = TrialTable(
        title="KV transfers, one at a time, beside background on the same uplink",
        columns=(
            *(c.MESSAGE, LOAD, c.TRANSPORT, c.SWITCH, c.P50, c.P99, c.P999, c.SPREAD),
            *(c.MARKED, c.PAUSES, c.DROPPED, c.QUEUE, c.RESENT),
        ),
        trials=trials,
        curves=[Curve("load", key, ("transport", "message")) for key in ("message_p99_us",)],
    )
    return table.findings(
        [
            SHORT_TRIALS,
            f"Background of {loads} % in messages at fixed times from one other pair, which"
            " shares the uplink between two rail switches.",
            f"Sizes {', '.join(sizes)} instead of up to 256 MB.",
        ],
        amend=_spreads,
    )


def _spreads(rows: list[dict[str, Any]]) -> None:
    """Set how far the P99 lies from the P50."""
    for row in rows:
        if row.get("message_p99_us") is not None:
            row["spread_us"] = row["message_p99_us"] - row["message_p50_us"]


def concurrent_transfers(choice: SuiteChoice) -> Procedure:
    """Measure N pairs at once across the spines (5.3)."""
    pairs = choice.pick(small=(4, 8, 16), medium=(8, 16, 32), full=(16, 32, 64))
    size = choice.pick(small="1MiB", medium="4MiB", full="16MiB")
    trials: list[NamedTrial] = [
        (
            choice.trial(
                "permutation", paths_fabric(count // 2), sizes=size, message=size, in_flight=1
            ),
            {"pairs": count},
        )
        for count in pairs
    ]
    table = TrialTable(
        title="One KV transfer of each pair at the same time",
        columns=(
            *(setting("pairs", "N pairs"), c.TRANSPORT, c.SWITCH, c.GOODPUT, c.GOODPUT_SHARE),
            *(c.P50, c.P99, c.JAIN, c.TIME, c.CV, c.MMR, c.LINKS_JAIN, c.QUEUE),
        ),
        trials=trials,
        curves=[Curve("pairs", key) for key in ("goodput_share", "message_p99_us", "jain")],
    )
    return table.findings(
        deviations=[
            f"N = {', '.join(map(str, pairs))} and {size} instead of 1 to 128 pairs and 16 MB;"
            f" a permutation with {choice.seeds} seeds, in which each NIC sends and receives.",
            SHORT_TRIALS,
        ]
    )


TESTS = (
    SuiteTest(
        number="5.1",
        title="KV transfer throughput, one pair",
        objective="goodput of one-sided writes between two NICs, by size and queue pairs",
        procedure=transfer_throughput,
    ),
    SuiteTest(
        number="5.2",
        title="KV transfer latency",
        objective="times of transfers on an idle and on a loaded fabric",
        procedure=transfer_latency,
    ),
    SuiteTest(
        number="5.3",
        title="Concurrent KV transfers",
        objective="what N pairs carry together, and how evenly",
        procedure=concurrent_transfers,
    ),
    SuiteTest(
        number="5.4",
        title="Multi-tier storage",
        objective="transfers between memory tiers of different nodes",
        reason="Tiers differ by the memory behind the NIC (HBM, DRAM, NVMe), which is not emulated:"
        " on the fabric all are the writes of 5.1.",
    ),
)
