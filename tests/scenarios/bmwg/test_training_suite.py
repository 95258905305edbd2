"""The training suite has every test of the draft, and each asks for trials that can be run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emulator import scenario
from emulator.dataplane.fabric_choice import choose
from emulator.dataplane.switch.switch_choice import parse as parse_switch
from emulator.run.faults.grammar import timeline
from emulator.run.measures.frame_latency import FILE, FrameTime, FrameTimes, LatencyFile
from emulator.run.plan.variants import COMPARED, variants
from emulator.suite.suite_model import SCALES, Findings, Procedure, SuiteChoice, SuiteTest
from emulator.suite.suite_run import planned
from emulator.suite.trials import SuiteTrial, TrialOutcome
from emulator.transports import default_switch
from scenarios.bmwg import bmwg_columns as c
from scenarios.bmwg.baseline import BURST_STEP, burst
from scenarios.bmwg.training_suite import SUITE
from scenarios.bmwg.trial_rows import cv, line, lines

#: Sections of draft-calabria-bmwg-ai-fabric-training-bench, text of October 2026.
SECTIONS = {5: 3, 6: 7, 7: 4, 8: 4, 9: 4, 10: 3, 11: 3, 12: 2}
NUMBERS = [f"{section}.{test}" for section, last in SECTIONS.items() for test in range(1, last + 1)]


def choice(scale: str) -> SuiteChoice:
    return SuiteChoice(scale=scale, transports=COMPARED)


def outcome(trial: SuiteTrial, **values: Any) -> TrialOutcome:
    row = {
        "transport": "uet",
        "switch": "deep",
        "seed": 1,
        "size_bytes": 1,
        "time_us": 2.0,
        "ideal_us": 1.0,
        **values,
    }
    return TrialOutcome(trial=trial, folder=Path(), seconds=1.0, result={"rows": [row]})


def test_every_section_of_the_draft_has_its_test_in_order() -> None:
    assert [test.number for test in SUITE.tests] == NUMBERS


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("test", SUITE.tests, ids=lambda test: test.number)
def test_every_first_trial_can_be_read(test: SuiteTest, scale: str) -> None:
    assert_trials_can_be_read(test, scale)


def assert_trials_can_be_read(test: SuiteTest, scale: str) -> None:
    for trial in {one.key: one for one in planned(test, choice(scale))}.values():
        loaded = scenario.load(trial.scenario)
        loaded.parameters(dict(trial.parameters))
        topology = choose(trial.fabric).topology
        assert len(topology.gpus) >= 2
        for variant in variants(trial.transport):
            assert variant.transport is not None
            assert default_switch(variant.transport, topology)
        if trial.switch is not None:
            parse_switch(trial.switch)
        if trial.faults:
            assert timeline(trial.faults, topology)


def findings_of(procedure: Procedure, lost_above: int, **values: Any) -> tuple[Findings, int]:
    """Return findings where bursts above ``lost_above`` octets are lost, and how many trials.

    Every row has ``values``.
    """
    tried, trials = 0, next(procedure)
    while True:
        tried += len(trials)
        lost = [int(_octets(one) > lost_above) for one in trials]
        outcomes = [
            outcome(one, dropped_packets=n, **values) for one, n in zip(trials, lost, strict=True)
        ]
        try:
            trials = procedure.send(outcomes)
        except StopIteration as end:
            return end.value, tried


@pytest.mark.parametrize("test", SUITE.tests, ids=lambda test: test.number)
def test_a_test_ends_with_tables_and_says_where_it_deviates(
    test: SuiteTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the folder of every outcome
    frame = FrameTime(sent_ps=0, source=0, destination=1, octets=162, latency_ps=2_000_000)
    LatencyFile(Path(FILE), ["h0g0:eth0", "h1g0:eth0"]).add(1, FrameTimes([frame], 1, 0))
    if test.procedure is None:
        assert test.reason
        return
    found, _ = findings_of(test.procedure(choice("small")), 200_000)
    assert found.deviations
    for table in found.tables:
        assert table.rows
        keys = [column.key for column in table.columns]
        assert len(set(keys)) == len(keys)


def _octets(trial: SuiteTrial) -> int:
    text = dict(trial.parameters).get("size", "0")
    return int(text) if text.isdigit() else 0


def test_a_burst_is_searched_to_the_step() -> None:
    found, tried = findings_of(burst(choice("small")), 300_000)
    for row in found.tables[0].rows:
        assert row["lossless"] <= 300_000 < row["lossy"] <= row["lossless"] + BURST_STEP
        assert row["absorbed"] == row["senders"] * row["lossless"]
    assert tried < 40


def test_a_search_whose_trial_is_excluded_ends_without_a_number() -> None:
    procedure = burst(choice("small"))
    trials = next(procedure)
    failed = [replace(outcome(one), excluded="no fabric") for one in trials]
    with pytest.raises(StopIteration) as end:
        procedure.send(failed)
    (table,) = end.value.value.tables
    assert all(row["lossless"] is None and row["absorbed"] is None for row in table.rows)


def test_lines_are_medians_with_their_spread() -> None:
    trial = planned(SUITE.tests[0], choice("small"))[0]
    rows = [
        {
            "transport": "uet",
            "switch": "s",
            "seed": seed,
            "time_us": time,
            "ideal_us": 5.0,
            "n": seed,
        }
        for seed, time in ((1, 10.0), (2, 12.0), (3, 20.0))
    ]
    columns = (c.TRANSPORT, c.TIME, c.LEAST, c.MOST, c.CV, c.EFFICIENCY)
    values = line(rows, columns)
    assert values["time_us"] == 12.0
    assert (values["least"], values["most"]) == (10.0, 20.0)
    assert values["cv"] == pytest.approx(100 * 5.2915 / 14, rel=1e-4)
    assert values["efficiency"] == 5 / 12
    assert values["transport"] == "uet"
    result = TrialOutcome(trial=trial, folder=Path(), seconds=1.0, result={"rows": rows})
    (made,) = lines([result], columns, {trial.key: {"q": 4}})
    assert made["q"] == 4
    assert cv([1.0]) is None
