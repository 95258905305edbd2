"""The suite of published measurements: values, ratios and verdicts from the rows of runs."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emulator.errors import UserError
from emulator.report.suite.folder import SuiteFolder
from emulator.suite.suite_model import Findings, SuiteChoice
from emulator.suite.suite_run import SuiteRun
from emulator.suite.trials import SuiteTrial, TrialEnd, TrialOutcome
from scenarios.hardware.hardware_suite import FAILED, NOT_RUN, SUITE, counted, line
from scenarios.hardware.manual_table import MANUAL, measured, with_table
from scenarios.hardware.points import AGREES, NEAR, OFF, HardwarePoint, points

CHOICE = SuiteChoice(scale="small", transports=["uet"], nodes="model")
RUN = {"scenario": "pairs", "fabric": "rail_clos", "params": {}}
POINT = HardwarePoint(
    number="1.1", title="rate", cite="a paper", conditions="two hosts", unit="Gb/s", low=100,
    high=100, metric="goodput_gbps", times=8, run=RUN,
)  # fmt: skip


def outcome(*rows: Mapping[str, Any], excluded: str | None = None) -> TrialOutcome:
    trial = SuiteTrial(scenario="pairs", fabric="rail_clos", transport="uet")
    return TrialOutcome(
        trial=trial, folder=Path(), seconds=1.0, result={"rows": rows}, excluded=excluded
    )


def test_a_value_is_the_median_of_the_seeds_in_the_units_of_the_point() -> None:
    row = line(POINT, [outcome(*({"goodput_gbps": value} for value in (10.0, 12.0, 11.0)))])
    assert (row["value"], row["ratio"], row["verdict"]) == (88.0, 0.88, NEAR)
    assert (row["least"], row["most"]) == (80.0, 96.0)


def test_a_row_is_chosen_by_its_values() -> None:
    point = replace(POINT, row={"senders": 7})
    rows = [{"senders": 0, "goodput_gbps": 1.0}, {"senders": 7, "goodput_gbps": 12.5}]
    assert line(point, [outcome(*rows)])["verdict"] == AGREES


def test_a_ratio_is_taken_seed_by_seed() -> None:
    point = replace(POINT, low=0.5, high=0.6, times=1, per={"transport": "rocev2"})
    one = outcome({"goodput_gbps": 5.0}, {"goodput_gbps": 9.0})
    other = outcome({"goodput_gbps": 10.0}, {"goodput_gbps": 10.0})
    assert len(point.trials(CHOICE)) == 2
    assert line(point, [one, other])["value"] == pytest.approx(0.7)


def test_the_slowest_of_equal_flows_ends_the_row() -> None:
    point = replace(POINT, metric="slowest_gbitps", times=1)
    row = line(point, [outcome({"size_bytes": 1_000_000, "time_us": 80.0})])
    assert (row["value"], row["verdict"]) == (100.0, AGREES)


def test_what_has_no_value_says_why() -> None:
    assert line(POINT, [outcome(excluded="no fabric")])["why"] == "no fabric"
    missing = line(POINT, [outcome({"goodput_gbps": None})])
    assert (missing["verdict"], missing["why"]) == (FAILED, "a row has no goodput_gbps")
    unknown = replace(POINT, run={}, reason="no parameters are published")
    assert line(unknown, [])["verdict"] == NOT_RUN


def test_a_miss_is_explained_by_the_point_and_a_fitted_one_does_not_count() -> None:
    point = replace(POINT, explained="NICs take no time", fitted=True)
    row = line(point, [outcome({"goodput_gbps": 50.0})])
    assert (row["verdict"], row["why"]) == (OFF, "NICs take no time")
    assert row["counts"] == "no: fitted"


def test_a_measurement_that_is_run_again_counts_once() -> None:
    found = [outcome({"goodput_gbps": 1.0})]
    rows = [line(replace(POINT, again=again), found) for again in ("", "8.4")]
    assert [row["counts"] for row in rows] == ["yes", "no: again as 8.4"]
    total = counted("all", rows)
    assert (total["off"], total["share"]) == (1, 0)
    assert counted("none", rows[1:])["share"] is None


def test_points_name_their_own_fabric() -> None:
    procedure = SUITE.tests[0].procedure
    assert procedure is not None
    with pytest.raises(UserError, match="leave --fabric out"):
        next(procedure(replace(CHOICE, fabric="pod")))


class EveryValueIsOne:
    """Runs no trial, and leaves a result whose metrics are all 1."""

    at_once = 4
    ranks: Mapping[str, Mapping[str, object]] = {}

    def run(self, words: Any, folder: Path) -> TrialEnd:
        metrics = {point.metric: 1.0 for point in points() if point.metric}
        keys = {"transport": "uet", "switch": "deep", "seed": 1, "size_bytes": 1, "time_us": 1.0}
        chosen = [point.row for point in points()]
        folder.mkdir(parents=True)
        rows = [{**metrics, **keys, **row} for row in chosen]
        rows.append({**metrics, **keys, "size_bytes": 1001, "time_us": 2.0, "algbw_gbps": 1.0})
        (folder / "result.json").write_text(json.dumps({"rows": rows}))
        return TrialEnd(status=0, seconds=1.0)

    def stop(self) -> None:
        """Nothing runs."""


def test_the_manual_has_the_table_of_a_whole_suite(tmp_path: Path) -> None:
    run = SuiteRun(SUITE, SUITE.tests, CHOICE, tmp_path, EveryValueIsOne())
    run.run()
    summary = run.records[-1].findings
    assert isinstance(summary, Findings)
    assert summary.tables[0].rows[-1]["not_run"] == sum(bool(one.reason) for one in points())
    text = with_table("<!-- measured -->\nof before\n<!-- end -->", SuiteFolder.read(tmp_path))
    assert "of before" not in text
    assert [one.number for one in points() if f"| {one.number} | {one.title} |" not in text] == []
    found = measured(text)
    assert list(found) == [one.number for one in points() if not one.reason]
    assert found["5.1"] == 8  # GB/s in Gb/s


def test_a_source_alone_has_its_table_made_anew(tmp_path: Path) -> None:
    SuiteRun(SUITE, SUITE.tests[4:5], CHOICE, tmp_path, EveryValueIsOne()).run()
    before = MANUAL.read_text()
    text = with_table(before, SuiteFolder.read(tmp_path))
    found, old = measured(text), measured(before)
    assert {number for number, value in old.items() if found[number] != value} <= {
        point.number for point in points() if point.number.startswith("5.")
    }
    assert found["5.1"] == 8  # GB/s in Gb/s
    counts = [line for line in text.splitlines() if line.startswith("| Rates and times")]
    assert counts == ["| Rates and times of one connection | 0 | 0 | 6 | 1 | 0 | 0.000 |"]


def test_half_a_suite_makes_no_table_where_there_was_none(tmp_path: Path) -> None:
    SuiteRun(SUITE, SUITE.tests[:1], CHOICE, tmp_path, EveryValueIsOne()).run()
    with pytest.raises(UserError, match="is no suite of hardware with source 2, 3, 4"):
        with_table("<!-- measured -->\n<!-- end -->", SuiteFolder.read(tmp_path))


def test_the_manual_shows_every_point_as_it_was_published() -> None:
    text = MANUAL.read_text()
    for point in points():
        assert f"| {point.number} | {point.title} | {point.published} {point.unit} |" in text
