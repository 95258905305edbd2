"""Test 5.2 pools the frames of all runs, and holds loaded fabrics against the idle one."""

from pathlib import Path
from typing import Any

import pytest

from emulator.run.measures.frame_latency import FILE, FrameTimes, LatencyFile
from emulator.sim.frame_taps import TaggedFrame
from emulator.suite.suite_model import Findings, Point, SuiteChoice
from emulator.suite.trials import SuiteTrial, TrialOutcome
from scenarios.bmwg.fabric_latency import FEW_SAMPLES, LOADED, SAMPLES_ASKED, latency
from topologies.units import parse_size

CHOICE = SuiteChoice(scale="small", transports=("uet", "rocev2"), seeds=2)


def taken(latencies_us: list[float]) -> FrameTimes:
    """Return frames of 162 octets with these latencies, one behind the other."""
    frames = []
    for number, one in enumerate(latencies_us):
        tag, begun = number.to_bytes(4, "big"), number * 10**9
        frames.append(TaggedFrame(begun, False, tag, 0, 162))
        frames.append(TaggedFrame(begun + round(one * 1e6), True, tag, 1, 162))
    return FrameTimes.of(frames)


def outcome(trial: SuiteTrial, folder: Path) -> TrialOutcome:
    """Return an outcome of two transports: each run under load has a frame of seed and 10 us."""
    folder.mkdir(parents=True)
    file = LatencyFile(folder / FILE, ["h0g0:eth0", "h4g0:eth0"])
    rows: list[dict[str, Any]] = []
    for name in CHOICE.transports:
        for seed in range(1, trial.seeds + 1):
            loaded = dict(trial.parameters)["pairs"] == "0"
            file.add(len(rows) + 1, taken([2.0] * 99 + [10.0 * seed if loaded else 2.0]))
            rows.append({
                "transport": name, "switch": "deep", "seed": seed, "time_us": 1.0,
                "goodput_share": 0.5, "goodput_at": "endpoint" if loaded else "fabric boundary",
                "message_p50_us": 3.0, "message_p99_us": 4.0, "message_p999_us": 5.0,
            })  # fmt: skip
    return TrialOutcome(trial=trial, folder=folder, seconds=1.0, result={"rows": rows})


def found(tmp_path: Path) -> tuple[list[SuiteTrial], Findings]:
    procedure = latency(CHOICE)
    trials = list(next(procedure))
    outcomes = [outcome(one, tmp_path / one.key) for one in trials]
    with pytest.raises(StopIteration) as end:
        procedure.send(outcomes)
    return trials, end.value.value


def test_runs_have_the_samples_that_are_asked_for() -> None:
    for trial in next(latency(CHOICE)):
        given = dict(trial.parameters)
        messages = int(given["size"]) // parse_size(given["message"])
        flows = 1 if given["pairs"] == "1" else 8
        wanted = FEW_SAMPLES if flows == 1 else SAMPLES_ASKED
        assert 0 <= messages * flows * trial.seeds - wanted < flows * trial.seeds
        assert trial.words[-2:] == ("--frame-latency", "1")


def test_samples_of_all_seeds_are_pooled(tmp_path: Path) -> None:
    _, findings = found(tmp_path)
    whole, over, shares, _ = findings.tables
    row = next(one for one in whole.rows if (one["load"], one["transport"]) == (LOADED, "rocev2"))
    assert (row["frames"], row["frame_octets"]) == (200, 162)
    assert (row["frame_p50_us"], row["frame_p99_us"], row["frame_max_us"]) == (2.0, 2.0, 20.0)
    assert row["frame_p999_us"] == 20.0
    assert row["frame_mean_us"] == pytest.approx((198 * 2 + 30) / 200)
    assert (row["least_p99_us"], row["most_p99_us"]) == (2.0, 2.0)
    assert (row["factor_p50"], row["factor_p999"]) == (1.0, 10.0)
    assert {one["load"] for one in over.rows} == {LOADED}
    ends = [(one["share"], one["latency_us"]) for one in shares.rows if one["transport"] == "uet"]
    assert (ends[0], ends[-1]) == ((0.0, 2.0), (1.0, 20.0))
    assert "smallest pool has 100" in " ".join(findings.deviations)


def test_values_of_endpoints_have_no_column_at_the_boundary(tmp_path: Path) -> None:
    _, findings = found(tmp_path)
    for table in findings.tables:
        points = {column.point for column in table.columns}
        assert not {Point.FABRIC, Point.ENDPOINT} <= points
    shares = {row["load"]: row["goodput_share"] for row in findings.tables[0].rows}
    assert shares == {"idle": 0.5, LOADED: None}


def test_a_trial_that_is_excluded_has_no_line() -> None:
    procedure = latency(CHOICE)
    failed = [
        TrialOutcome(trial=one, folder=Path(), seconds=1.0, excluded="no fabric")
        for one in next(procedure)
    ]
    with pytest.raises(StopIteration) as end:
        procedure.send(failed)
    assert all(table.rows == [] for table in end.value.value.tables)
