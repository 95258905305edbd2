"""Sections 12 and 13 of the inference draft: scale, failures and long runs."""

from __future__ import annotations

from emulator.suite.suite_model import Curve, Procedure, SuiteChoice, SuiteTest
from scenarios.bmwg import bmwg_columns as c
from scenarios.bmwg.baseline import SHORT_TRIALS
from scenarios.bmwg.failure_tests import (
    DEVIATIONS,
    EXCESS,
    FAULT,
    NOTES,
    UNDISTURBED,
    add_excess,
    failure_trials,
)
from scenarios.bmwg.inference.inference_columns import setting
from scenarios.bmwg.trial_rows import NamedTrial, TrialTable


def scale(choice: SuiteChoice) -> Procedure:
    """Measure KV transfers of all nodes as the fabric grows (12.1)."""
    nodes = choice.pick(small=(2, 4, 8, 16), medium=(4, 8, 16, 32), full=(8, 16, 32, 64))
    trials: list[NamedTrial] = [
        (
            choice.trial(
                "permutation",
                f"rail_clos:hosts={count},gpus_per_host=2,spines=2,uplinks_per_spine={count // 2}",
                sizes="512KiB",
                message="512KiB",
                in_flight=1,
            ),
            {"nodes": count},
        )
        for count in nodes
    ]
    table = TrialTable(
        title="A KV transfer of each NIC on a fabric without oversubscription",
        columns=(
            *(setting("nodes", "nodes"), c.TRANSPORT, c.SWITCH, c.GOODPUT, c.GOODPUT_SHARE),
            *(c.P50, c.P99, c.JAIN, c.TIME, c.CV, c.MMR, c.QUEUE, c.PAUSES, c.RESENT),
        ),
        trials=trials,
        curves=[Curve("nodes", key) for key in ("goodput_share", "message_p99_us")],
    )
    return table.findings(
        [f"{', '.join(map(str, nodes))} nodes of 2 NICs instead of 2 to 1024.", SHORT_TRIALS]
    )


def failure(choice: SuiteChoice) -> Procedure:
    """Fail an uplink or a spine while all NICs transfer (12.3)."""
    size = choice.pick(small="2MiB", medium="4MiB", full="8MiB")
    table = TrialTable(
        title="Uplink or spine fails while keys and values are transferred",
        columns=(
            *(FAULT, c.BALANCING, c.TRANSPORT, c.TIME, UNDISTURBED, EXCESS, c.SLOWDOWN, c.CV),
            *(c.P99, c.RESTORED, c.DROPPED, c.RESENT, c.TIMEOUTS),
        ),
        trials=failure_trials(choice, size),
        curves=[Curve("fault", key, ("balancing",)) for key in ("excess_us", "slowdown")],
    )
    return table.findings(
        [
            f"Transfers of {size} of all NICs at full rate, not serving at 80 % of 11.1: the"
            " excess of a transfer is that of a TTFT which waits for it.",
            f"{choice.seeds} seeds instead of 20 repetitions.",
            *DEVIATIONS,
        ],
        NOTES,
        add_excess,
    )


_A_DAY = "A day of one 400 Gb/s port is 1e12 packets, years of this emulator's time"

TESTS = (
    SuiteTest(
        number="12.1",
        title="Scale limits",
        objective="transfers of all nodes as the fabric grows",
        procedure=scale,
    ),
    SuiteTest(
        number="12.2",
        title="Autoscaling",
        objective="decode nodes that come and go",
        reason="Nodes join and leave by the serving system's scheduler, which is not emulated; the"
        " fabric's ports are up for the whole run.",
    ),
    SuiteTest(
        number="12.3",
        title="Link failure",
        objective="what a failure costs transfers, by load balancing",
        procedure=failure,
    ),
    SuiteTest(
        number="13.1", title="24 h load", objective="stability over a day", reason=f"{_A_DAY}."
    ),
    SuiteTest(
        number="13.2",
        title="KV memory leak",
        objective="registrations and pinned memory over a day",
        reason=f"{_A_DAY}, and memory is registered by software of the serving system.",
    ),
    SuiteTest(
        number="13.3",
        title="Long-run stability",
        objective="queue pairs, errors and flaps over a day",
        reason=f"{_A_DAY}. A link that flaps during a run is in 12.3.",
    ),
)
