"""Section 5 of the training draft: throughput and bursts, without collectives."""

from __future__ import annotations

from collections.abc import Sequence

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
from scenarios.bmwg.fabric_latency import latency
from scenarios.bmwg.trial_rows import lines

PAIRS = "rail_clos:hosts=4,gpus_per_host=1,spines=1,uplinks_per_spine=1"
NO_GENERATOR = (
    "No rate is searched (RFC 2544, 26.1): there is no generator with a rate of its own. Each"
    " transport sends as fast as its windows and its congestion control let it."
)
SHORT_TRIALS = (
    "Trials end with their transfer, not after 60 s: 60 s of a 400 Gb/s port are 7e8 packets."
)


def throughput(choice: SuiteChoice) -> Procedure:
    """Measure the goodput of host pairs by message size, queue pairs and direction (5.1)."""
    sizes = choice.pick(
        small=("4KiB", "64KiB", "1MiB"),
        medium=("1KiB", "4KiB", "64KiB", "256KiB", "1MiB"),
        full=("256", "1KiB", "4KiB", "64KiB", "256KiB", "1MiB", "4MiB"),
    )
    widths = choice.pick(small=(1, 4), medium=(1, 4, 16), full=(1, 4, 16, 32))
    trials, facts = [], {}
    for size in sizes:
        for width in widths:
            for direction in ("one", "both"):
                trial = choice.trial(
                    "pairs",
                    PAIRS,
                    with_queue_pairs(choice.transports, width),
                    message=size,
                    size=transfer_size(size, width),
                    in_flight=width,
                    direction=direction,
                    seeds=1,  # nothing is drawn: all seeds are alike
                )
                trials.append(trial)
                facts[trial.key] = {"message": size, "q": width, "direction": direction}
    outcomes = yield trials
    columns = (
        *(c.MESSAGE, c.QPS, c.DIRECTION, c.TRANSPORT),
        *(c.GOODPUT, c.GOODPUT_SHARE, c.TIME, c.IDEAL, c.EFFICIENCY),
    )
    rows = list(lines(outcomes, columns, facts))
    return Findings(
        tables=[
            SuiteTable(
                title=f"Goodput of two host pairs, {words}",
                columns=columns,
                rows=[row for row in rows if row["direction"] == direction],
                curves=[Curve("message", "goodput_share", ("transport", "q"))],
            )
            for direction, words in (("one", "one direction"), ("both", "both directions"))
        ],
        deviations=[
            NO_GENERATOR,
            SHORT_TRIALS,
            f"Sizes {', '.join(sizes)} and Q = {', '.join(map(str, widths))}, on two pairs.",
        ],
        notes=[
            "Q is the number of writes under way, and for RoCEv2 of queue pairs as well. UET opens"
            " contexts as it needs them."
        ],
    )


def with_queue_pairs(transports: Sequence[str], width: int) -> str:
    """Return ``transports`` for one run; RoCEv2 gets ``width`` queue pairs to each peer."""
    return ",".join(
        f"{one}{',' if ':' in one else ':'}qps={width}" if one.startswith("rocev2") else one
        for one in transports
    )


def transfer_size(size: str, width: int) -> str:
    """Return the size of a flow: so many messages that one round trip weighs little."""
    octets = {"KiB": 2**10, "MiB": 2**20}
    unit = next((unit for unit in octets if size.endswith(unit)), "")
    message = int(size.removesuffix(unit)) * octets.get(unit, 1)
    messages = max(4 * width, -(-(2**18) // message))
    return str(message * min(messages, max(2 * width, 2**22 // message)))


def burst(choice: SuiteChoice) -> Procedure:
    """Search the longest burst of each of N senders that one port takes without loss (5.3)."""
    ratios = choice.pick(small=(2, 4, 8), medium=(2, 4, 8, 16), full=(2, 4, 8, 16, 32))
    lossless: dict[int, int | None] = dict.fromkeys(ratios)
    lossy: dict[int, int | None] = dict.fromkeys(ratios)
    tried: dict[int, int] = dict.fromkeys(ratios, FIRST_BURST)
    while pending := [ratio for ratio in ratios if tried[ratio]]:
        outcomes = yield [_burst(choice, ratio, tried[ratio]) for ratio in pending]
        for ratio, outcome in zip(pending, outcomes, strict=True):
            lost = _lost(outcome)
            if lost is None:
                tried[ratio] = 0  # the trial is excluded
                continue
            (lossy if lost else lossless)[ratio] = tried[ratio]
            tried[ratio] = _next_burst(lossless[ratio] or 0, lossy[ratio])
    columns = (
        c.SENDERS,
        SuiteColumn("lossless", "longest burst without loss", "B a sender", Point.SWITCH),
        SuiteColumn("lossy", "shortest burst with loss", "B a sender", Point.SWITCH),
        SuiteColumn("absorbed", "burst of all senders", "B", Point.DERIVED),
    )
    rows = [
        {
            "senders": ratio,
            "lossless": lossless[ratio],
            "lossy": lossy[ratio],
            "absorbed": None if lossless[ratio] is None else ratio * lossless[ratio],
        }
        for ratio in ratios
    ]
    return Findings(
        tables=[
            SuiteTable(
                title="Bursts at line rate to one port",
                columns=columns,
                rows=rows,
                curves=[Curve("senders", "lossless", ()), Curve("senders", "absorbed", ())],
            )
        ],
        deviations=[
            "A burst is an RDMA write of each sender at line rate (RoCEv2 without rate control),"
            " through a deep switch without PFC.",
            f"The search ends within {BURST_STEP} octets. A length is tried once, without chance.",
        ],
    )


FIRST_BURST, BURST_STEP, LARGEST_BURST = 2**16, 2**13, 2**24


def _burst(choice: SuiteChoice, senders: int, octets: int) -> SuiteTrial:
    return choice.trial(
        "incast",
        f"rail_clos:hosts={senders + 1},gpus_per_host=1,spines=1,uplinks_per_spine=1",
        "rocev2:cc=none",
        switch="deep:trim=off",
        senders=senders,
        size=octets,
        message=octets,
        in_flight=1,
        victim=0,
        warmups=0,
        seeds=1,
    )


def _lost(outcome: TrialOutcome) -> int | None:
    rows = outcome.rows
    return None if not rows else int(rows[0]["dropped_packets"] or 0)


def _next_burst(lossless: int, lossy: int | None) -> int:
    """Double until something is lost, then halve the interval; 0 ends the search."""
    if lossy is None:
        return 2 * lossless if 2 * lossless <= LARGEST_BURST else 0
    return (lossless + lossy) // 2 if lossy - lossless > BURST_STEP else 0


TESTS = (
    SuiteTest(
        number="5.1",
        title="Baseline throughput",
        objective="the most that host pairs carry, by message size",
        procedure=throughput,
    ),
    SuiteTest(
        number="5.2",
        title="Latency",
        objective="the way of frames from NIC to NIC, idle and loaded",
        procedure=latency,
    ),
    SuiteTest(
        number="5.3",
        title="Back-to-back burst absorption",
        objective="the longest burst at line rate that a port takes without loss",
        procedure=burst,
        searches=True,
    ),
)
