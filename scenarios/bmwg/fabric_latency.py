"""Test 5.2 of the training draft: one-way latency of the fabric, by frames that cross it.

::

    h0 .. h3 -- rail0 ==== spine0, spine1 ==== rail1 -- h4 .. h7       idle: h0 -> h4 alone
                                                                       loaded: all pairs, both ways

Every frame of data is timed from its first octet at the sender's port to its last at the
receiver's.  Samples of all seeds are pooled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from emulator.arithmetic import nearest_rank
from emulator.dataplane.fabric_choice import choose
from emulator.run.measures.frame_latency import (
    FILE,
    PERCENTILES,
    TimedFrame,
    frames_by_row,
    statistics,
)
from emulator.suite.suite_model import (
    Curve,
    Findings,
    Point,
    Procedure,
    SuiteChoice,
    SuiteColumn,
    SuiteTable,
)
from emulator.suite.trials import SuiteTrial, TrialOutcome
from scenarios.bmwg import bmwg_columns as c
from scenarios.bmwg.trial_rows import line, lines
from scenarios.pairs import opposite
from topologies.units import parse_size

FABRIC = "clos:segments=2,hosts=4,gpus_per_host=1,spines=2"
IDLE, LOADED = "idle", "loaded"
#: Samples that the draft asks for; and those of an idle fabric at scale small, which are all alike.
SAMPLES_ASKED, FEW_SAMPLES = 10_000, 1_000
#: Payload of a frame, at most: a message of more octets takes several frames.
FRAME_PAYLOAD = 4096
#: Octets that a flow keeps under way beside load: two bandwidth-delay products of 400 Gb/s and
#: 5 us; and writes at most, which bound what small messages load the fabric with.
UNDER_WAY, MOST_WRITES = 2**19, 256
#: Shares of the samples at which the distribution is drawn.
SHARES = (*(step / 10 for step in range(10)), 0.95, 0.99, 0.999, 1.0)

LOAD = SuiteColumn("load", "load", "", Point.INPUT)


def _fabric(key: str, heading: str, unit: str = "us") -> SuiteColumn:
    return SuiteColumn(key, heading, unit, Point.FABRIC)


LATENCY = (
    *(_fabric("frame_octets", "frame without FCS", "B"), _fabric("frames", "samples", "")),
    *(_fabric("frame_min_us", "least"), _fabric("frame_mean_us", "mean")),
    *(_fabric("frame_p50_us", "P50"), _fabric("frame_p95_us", "P95")),
    *(_fabric("frame_p99_us", "P99"), _fabric("frame_p999_us", "P99.9")),
    *(_fabric("frame_max_us", "most"), c.GOODPUT_SHARE),
)
RUNS = (_fabric("least_p99_us", "least P99 of a run"), _fabric("most_p99_us", "most P99 of a run"))
FACTORS = tuple(
    SuiteColumn(f"factor_{name}", f"{words} over idle", "", Point.DERIVED)
    for name, words in (("p50", "P50"), ("p99", "P99"), ("p999", "P99.9"))
)
MESSAGE_TIMES = (c.P50, c.P99, c.P999)


@dataclass(kw_only=True)
class _Series:
    """The frames of one transport under one load, run by run."""

    facts: Mapping[str, Any]
    runs: list[Sequence[TimedFrame]] = field(default_factory=list)

    def line(self) -> dict[str, Any]:
        """Return the line of the table: statistics of all runs together."""
        frames = [one for run in self.runs for one in run]
        of_runs = [_percentile(run, PERCENTILES["p99"]) for run in self.runs if run]
        return {
            **self.facts,
            "frame_octets": max((one.octets for one in frames), default=None),
            "frames": len(frames),
            **statistics([one.latency_ps for one in frames]),
            "least_p99_us": min(of_runs, default=None),
            "most_p99_us": max(of_runs, default=None),
        }

    def distribution(self) -> Iterator[dict[str, Any]]:
        """Yield points of the cumulative distribution."""
        frames = [one for run in self.runs for one in run]
        for share in SHARES if frames else ():
            yield {**self.facts, "latency_us": _percentile(frames, share), "share": share}


def latency(choice: SuiteChoice) -> Procedure:
    """Time frames from NIC to NIC, on an idle fabric and on one whose NICs all send (5.2)."""
    messages = choice.pick(
        small=("64", "1KiB", "4KiB"),
        medium=("64", "256", "1KiB", "4KiB", "64KiB"),
        full=("64", "256", "1KiB", "4KiB", "64KiB", "256KiB", "1MiB", "4MiB"),
    )
    trials, facts = [], {}
    for message in messages:
        for load in (IDLE, LOADED):
            trial = _trial(choice, message, load)
            trials.append(trial)
            facts[trial.key] = {"message": message, "load": load}
    outcomes = yield trials
    series = [one for outcome in outcomes for one in _series(outcome, facts[outcome.trial.key])]
    rows = [one.line() for one in series]
    add_factors(rows)
    settings = (c.MESSAGE, LOAD, c.TRANSPORT)
    largest = [
        one for one in series if (one.facts["message"], one.facts["load"]) == (messages[-1], LOADED)
    ]
    least = min((row["frames"] for row in rows), default=0)
    return Findings(
        tables=[
            SuiteTable(
                title="Latency from NIC to NIC: first octet out to last octet in",
                columns=(*settings, *LATENCY),
                rows=rows,
                curves=[Curve("message", "frame_p99_us", ("transport", "load"))],
            ),
            SuiteTable(
                title="Loaded: variation between runs, and latency over that of the idle fabric",
                columns=(*settings, *RUNS, *FACTORS),
                rows=[row for row in rows if row["load"] == LOADED],
                curves=[Curve("message", "factor_p99")],
            ),
            SuiteTable(
                title=f"Loaded: share of the frames of {messages[-1]} messages that take no longer",
                columns=(
                    c.TRANSPORT,
                    _fabric("latency_us", "latency"),
                    _fabric("share", "share", ""),
                ),
                rows=[point for one in largest for point in one.distribution()],
                curves=[Curve("latency_us", "share", measured=True)],
            ),
            SuiteTable(
                title="Messages of the same runs, from start until the receiver verified them",
                columns=(*settings, *MESSAGE_TIMES),
                rows=_message_times(outcomes, facts),
            ),
        ],
        deviations=[
            "A latency contains the serialisation at every hop, the first one included. The draft's"
            " reference (RFC 1242) has it from the last bit in to the first bit out.",
            "Every frame of data is a tagged one, from the start of a trial on; RFC 2544, 26.2, has"
            " one frame at 60 s of a stream of 120 s.",
            f"Samples under load are pooled over {choice.seeds} seeds, instead of 20 runs of"
            f" {SAMPLES_ASKED} each. The idle fabric has one run: nothing is drawn there, and all"
            f" samples of a message are alike. The smallest pool has {least}.",
            "Round trips are not measured at the boundary: an acknowledgement may stand for several"
            " frames. The last table has the time of messages, at endpoints.",
            f"Loaded: all pairs write both ways, each flow with up to {MOST_WRITES} writes under"
            " way. No rate is searched (5.1): the share of NICs is what the transports come to.",
            "No histogram: the distribution is that of the largest message, as a cumulative one.",
        ],
        notes=[
            "Retransmissions of RoCEv2 that could be mistaken for their first copy are left out;"
            " a trimmed frame is no sample."
        ],
    )


def _trial(choice: SuiteChoice, message: str, load: str) -> SuiteTrial:
    octets = int(parse_size(message))
    idle = load == IDLE
    flows = 1 if idle else 2 * max(1, _pairs(choice))
    frames = -(-octets // FRAME_PAYLOAD)
    runs = 1 if idle else choice.seeds
    wanted = FEW_SAMPLES if idle and choice.scale == "small" else SAMPLES_ASKED
    count = -(-wanted // (runs * flows * frames))
    in_flight = 1 if idle else min(MOST_WRITES, max(16, UNDER_WAY // octets))
    return choice.trial(
        "pairs",
        FABRIC,
        message=message,
        size=count * octets,
        in_flight=in_flight,
        pairs=int(idle),
        direction="one" if idle else "both",
        warmups=0,
        seeds=runs,
        options=("--frame-latency", "1"),
    )


def _pairs(choice: SuiteChoice) -> int:
    return len(opposite(choose(choice.fabric or FABRIC).topology))


def _series(outcome: TrialOutcome, facts: Mapping[str, Any]) -> Iterable[_Series]:
    """Return the frames of a trial's transports, each with those of all seeds."""
    if not outcome.rows:
        return ()
    found: dict[str, _Series] = {}
    frames = frames_by_row(outcome.folder / FILE)
    for rows in outcome.by_place():
        share = line(rows, (c.GOODPUT_SHARE,))["goodput_share"]
        if any(row.get("goodput_at") != Point.FABRIC for row in rows):
            share = None  # from the ends of messages, which are of another point
        name = str(rows[0]["transport"])
        found[name] = _Series(facts={**facts, "transport": name, "goodput_share": share})
    for number, row in enumerate(outcome.rows, start=1):
        found[row["transport"]].runs.append(frames.get(number, ()))
    return found.values()


def _percentile(frames: Sequence[TimedFrame], share: float) -> float:
    """Return the latency (us) that ``share`` of ``frames``, which are some, do not exceed."""
    return nearest_rank([one.latency_ps for one in frames], share) / 1e6


def add_factors(rows: Sequence[dict[str, Any]]) -> None:
    """Add to loaded lines their latency over that of the idle fabric, message and transport."""
    idle = {(row["message"], row["transport"]): row for row in rows if row["load"] == IDLE}
    for row in rows:
        before = idle.get((row["message"], row["transport"]))
        if row["load"] == IDLE or before is None:
            continue
        for name in ("p50", "p99", "p999"):
            now, then = row[f"frame_{name}_us"], before[f"frame_{name}_us"]
            row[f"factor_{name}"] = now / then if now and then else None


def _message_times(
    outcomes: Iterable[TrialOutcome], facts: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    return list(lines(outcomes, (c.TRANSPORT, *MESSAGE_TIMES), facts))
