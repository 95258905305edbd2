"""Section 6.5 of the training draft: link layer retry, trimming, and credits beside PFC."""

from __future__ import annotations

from emulator.suite.suite_model import (
    Findings,
    Point,
    Procedure,
    SuiteChoice,
    SuiteColumn,
    SuiteTest,
)
from scenarios.bmwg import bmwg_columns as c
from scenarios.bmwg.baseline import PAIRS, SHORT_TRIALS
from scenarios.bmwg.trial_rows import NamedTrial, TrialTable

#: Transports of (a) with the profile of their switches.
RETRIED = {"uet": "shallow", "rocev2:classic": "lossless", "rocev2:adaptive": "lossless"}
#: Switches of (b): what finds no room within one BDP is trimmed, or dropped.
TRIMMING = {"on": "shallow", "off": "shallow:trim=off,data.limit_bytes=1bdp"}
#: Switches of (c): pauses, credits for what cables ask for, and for about as much as PFC keeps.
CONTROLS = {
    "PFC": "lossless",
    "CBFC": "lossless:cbfc=on",
    "CBFC, larger": "lossless:cbfc=on,cbfc_buffer=384KiB",
}

BER = SuiteColumn("ber", "bit error ratio", "", Point.INPUT)
RETRY = SuiteColumn("llr", "LLR", "", Point.INPUT)
TRIM = SuiteColumn("trim", "trimming", "", Point.INPUT)
CONTROL = SuiteColumn("control", "flow control", "", Point.INPUT)
BUFFER = SuiteColumn("lossless_buffer_bytes", "buffer kept by a port", "B", Point.INPUT)
#: At both ends of a cable, a switch's or a NIC's: what the link layer itself observes.
REPLAYS = SuiteColumn("replays", "replays", "", Point.LINK)
REPLAYED = SuiteColumn("replayed_packets", "replayed frames", "", Point.LINK)
RECOVERY = SuiteColumn("link_recovery_us", "mean recovery", "us", Point.LINK)
LONGEST = SuiteColumn("link_recovery_max_us", "longest recovery", "us", Point.LINK)
STALLED = SuiteColumn("credit_stalled_us", "without credits", "us", Point.LINK)
HELD = SuiteColumn("lossless_held_bytes", "most held by a port", "B", Point.SWITCH)
VICTIM = SuiteColumn("victim_gbps", "victim", "GB/s", Point.ENDPOINT)
VICTIM_SHARE = SuiteColumn("victim_share", "victim of fair", "", Point.ENDPOINT)


def retry(choice: SuiteChoice) -> TrialTable:
    """Return the trials of (a): bit errors on every cable to a GPU, with and without retry."""
    bers = choice.pick(small=("1e-7",), medium=("1e-8", "1e-7"), full=("1e-9", "1e-8", "1e-7"))
    size = choice.pick(small="1MiB", medium="4MiB", full="16MiB")
    trials: list[NamedTrial] = []
    for transport, profile in RETRIED.items():
        for llr in ("off", "on"):
            trial = choice.trial(
                "losssweep",
                PAIRS,
                transport,
                switch=f"{profile}:llr={llr}",
                size=size,
                losses=0,
                bers=",".join(bers),
            )
            trials.append((trial, {"llr": llr}))
    columns = (
        *(c.TRANSPORT, RETRY, BER, c.TIME, c.CV, c.IDEAL, c.P50, c.P99),
        *(c.DROPPED, c.RESENT, c.TIMEOUTS, REPLAYS, REPLAYED, RECOVERY, LONGEST),
    )
    return TrialTable(
        title="(a) Bit errors, recovered by the link or end to end", columns=columns, trials=trials
    )


def trimming(choice: SuiteChoice) -> TrialTable:
    """Return the trials of (b): a bottleneck of 2:1 with trimming and without it."""
    trials: list[NamedTrial] = []
    for trim, switch in TRIMMING.items():
        trial = choice.trial(
            "incast",
            PAIRS.replace("hosts=4", "hosts=3"),
            "uet:cc=none",
            switch=switch,
            senders=2,
            size="1MiB",
            in_flight=64,
        )
        trials.append((trial, {"trim": trim}))
    columns = (
        *(TRIM, c.TRANSPORT, c.TIME, c.CV, c.IDEAL, c.GOODPUT),
        *(c.TRIMMED, c.DROPPED, c.QUEUE, c.RESENT, c.TIMEOUTS),
    )
    return TrialTable(
        title="(b) 2:1 bottleneck with a fixed window", columns=columns, trials=trials
    )


def credits_beside_pauses(choice: SuiteChoice) -> TrialTable:
    """Return the trials of (c): an incast with a victim, by pauses and by credits."""
    senders = choice.pick(small=4, medium=8, full=32)
    fabric = f"rail_clos:hosts={senders + 1},gpus_per_host=2,spines=2,uplinks_per_spine=1"
    trials: list[NamedTrial] = []
    for transport in ("rocev2:cc=none", "rocev2:classic", "uet"):
        for control, switch in CONTROLS.items():
            trial = choice.trial(
                "victim",
                fabric,
                transport,
                switch=switch,
                senders=senders,
                size=choice.pick(small="512KiB", medium="1MiB", full="1MiB"),
            )
            trials.append((trial, {"control": control}))
    columns = (
        *(CONTROL, c.TRANSPORT, c.SENDERS, BUFFER, HELD, VICTIM, VICTIM_SHARE),
        *(c.TIME, c.CV, c.PAUSES, c.PAUSED, STALLED, c.DROPPED, c.QUEUE),
    )
    return TrialTable(
        title="(c) N:1 with a victim, by PFC and by CBFC", columns=columns, trials=trials
    )


def link_layer(choice: SuiteChoice) -> Procedure:
    """Measure what retry, trimming and credits do for a loss and for a bottleneck (6.5)."""
    tables = [retry(choice), trimming(choice), credits_beside_pauses(choice)]
    outcomes = yield [trial for table in tables for trial, _ in table.trials]
    found, at = [], 0
    for table in tables:
        found.append(table.measured(outcomes[at : at + len(table.trials)]))
        at += len(table.trials)
    return Findings(
        tables=found,
        deviations=[
            SHORT_TRIALS,
            "(a) Flows run at line rate, not at 80 % of it: there is no generator with a rate of"
            " its own. Errors strike what leaves the switch.",
            "(c) CBFC here has one virtual channel with credits, that of data, on every cable, as"
            " PFC has one priority; the draft has it by destination.",
        ],
        notes=[
            "All is in software: LLR and CBFC by UES 5 as far as it is public, with ordered sets"
            " of 8 octets; the manual marks what was chosen.",
            "(a) Recovery by the link is observed at the cable, recovery end to end shows in"
            " message times: they are not in one column.",
            "(c) PFC keeps XOFF and headroom by the standards' bounds for devices, which the"
            " emulated ones do not need; CBFC keeps what cable and rate ask for.",
        ],
    )


LINK_LAYER = SuiteTest(
    number="6.5",
    title="Link-layer retry, trimming, CBFC",
    objective="what each does for a loss and for a bottleneck",
    procedure=link_layer,
)
