"""Section 8 of the training draft: how paths are chosen, and how even the links are."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.suite.suite_model import (
    Curve,
    Findings,
    Procedure,
    SuiteChoice,
    SuiteTable,
    SuiteTest,
)
from scenarios.bmwg import bmwg_columns as c
from scenarios.bmwg.baseline import SHORT_TRIALS
from scenarios.bmwg.trial_rows import NamedTrial, TrialTable, lines
from scenarios.bmwg.uet_services import paths_fabric

COLUMNS = (
    *(c.PATHS, c.BALANCING, c.TRANSPORT, c.SWITCH, c.MMR, c.LINKS_JAIN),
    *(c.GOODPUT, c.GOODPUT_SHARE, c.TIME, c.CV, c.REORDERED, c.RESENT),
)


def _paths(choice: SuiteChoice) -> Sequence[int]:
    paths: Sequence[int] = choice.pick(small=(4, 8), medium=(8, 16), full=(8, 16, 32))
    return paths


def _trial(choice: SuiteChoice, paths: int, name: str, transport: str, switch: str) -> NamedTrial:
    size = choice.pick(small="512KiB", medium="2MiB", full="2MiB")
    # With fewer messages than are under way at once, no time is left at which the rate is steady.
    given = {"sizes": size, "message": "16KiB"}
    trial = choice.trial("permutation", paths_fabric(paths), transport, switch=switch, **given)
    return trial, {"paths": paths, "balancing": name}


def hashed(choice: SuiteChoice) -> list[NamedTrial]:
    """Return the trials of 8.1: queue pairs that are hashed onto paths."""
    return [
        _trial(choice, paths, f"ECMP, Q = {q}", f"rocev2:classic,qps={q}", "lossless")
        for paths in _paths(choice)
        for q in choice.pick(small=(1, 4, 16), medium=(1, 4, 16), full=(1, 4, 8, 16, 32))
    ]


def flowlets(choice: SuiteChoice) -> list[NamedTrial]:
    """Return the trials of 8.2: flowlets by their gap."""
    gaps = choice.pick(
        small=("500ns", "2us"), medium=("500ns", "2us", "8us"), full=("500ns", "2us", "8us", "32us")
    )
    return [
        _trial(
            choice,
            paths,
            f"DLB, gap {gap}",
            "rocev2:classic,qps=4",
            f"lossless:balance=flowlet,flowlet_gap={gap}",
        )
        for paths in _paths(choice)
        for gap in gaps
    ]


def sprayed(choice: SuiteChoice) -> list[NamedTrial]:
    """Return the trials of 8.3: a path for each packet."""
    return [
        _trial(choice, paths, name, transport, switch)
        for paths in _paths(choice)
        for name, transport, switch in (
            ("spray by switches", "rocev2:adaptive", "lossless:balance=packet"),
            ("least loaded path", "rocev2:adaptive", "lossless:balance=least-loaded"),
            ("spray by endpoints", "uet", "shallow"),
        )
    ]


def _procedure(choice: SuiteChoice, trials: Sequence[NamedTrial], title: str) -> Procedure:
    table = TrialTable(
        title=title,
        columns=COLUMNS,
        trials=trials,
        curves=[
            Curve("paths", key, ("balancing",))
            for key in ("goodput_share", "links_jain", "links_max_mean")
        ],
    )
    return table.findings(
        deviations=[
            f"{', '.join(map(str, _paths(choice)))} paths between two rail switches, a"
            f" permutation with {choice.seeds} seeds.",
            SHORT_TRIALS,
        ],
        notes=["Goodput is that while all flows are under way. n/a: there is no such time."],
    )


def entropy(choice: SuiteChoice) -> Procedure:
    """Measure how even hashing spreads queue pairs (8.1)."""
    return _procedure(choice, hashed(choice), "Hashed flows by queue pairs")


def dynamic(choice: SuiteChoice) -> Procedure:
    """Measure flowlets by their gap (8.2)."""
    return _procedure(choice, flowlets(choice), "Flowlets by gap")


def spraying(choice: SuiteChoice) -> Procedure:
    """Measure spraying and what reordering costs (8.3)."""
    return _procedure(choice, sprayed(choice), "A path for each packet")


def fairness(choice: SuiteChoice) -> Procedure:
    """Compare all strategies by Jain's index of the links (8.4)."""
    named = [*hashed(choice), *flowlets(choice), *sprayed(choice)]
    outcomes = yield [trial for trial, _ in named]
    facts = {trial.key: values for trial, values in named}
    columns = (c.PATHS, c.BALANCING, c.TRANSPORT, c.LINKS_JAIN, c.MMR)
    rows = sorted(
        lines(outcomes, columns, facts),
        key=lambda row: (row["paths"], -(row["links_jain"] or 0)),
    )
    return Findings(
        tables=[
            SuiteTable(
                title="Jain's index of parallel links, best first",
                columns=columns,
                rows=rows,
                curves=[Curve("balancing", "links_jain", ("paths",))],
            )
        ],
        deviations=["The trials are those of 8.1 to 8.3."],
    )


TESTS = (
    SuiteTest(
        number="8.1",
        title="ECMP entropy and polarisation",
        objective="how uneven hashing of five-tuples leaves the links",
        procedure=entropy,
    ),
    SuiteTest(
        number="8.2",
        title="DLB and flowlets",
        objective="flowlets beside ECMP, by their gap",
        procedure=dynamic,
    ),
    SuiteTest(
        number="8.3",
        title="Packet spraying",
        objective="use of the links against reordering",
        procedure=spraying,
    ),
    SuiteTest(
        number="8.4",
        title="Jain fairness index",
        objective="all strategies by one number",
        procedure=fairness,
    ),
)
