"""Values of the suite that follow from several others: marks by depth, failover, estimates."""

from dataclasses import replace
from typing import Any

import pytest

from emulator.suite.trials import SuiteTrial
from scenarios.bmwg import bmwg_columns as c
from scenarios.bmwg.congestion_tests import configured_share
from scenarios.bmwg.failure_tests import add_excess, judge_failover
from scenarios.bmwg.inference.expert_tests import HIDDEN, TOP_K
from scenarios.bmwg.inference.expert_tests import TESTS as EXPERT_TESTS
from scenarios.bmwg.job_tests import compare_at_once
from scenarios.bmwg.trial_estimate import (
    CABLE_MEGABYTE_S,
    CONTROL_PLANE_S,
    MODEL_FACTOR,
    START_S,
    UET_FACTOR,
    estimated_s,
)
from scenarios.bmwg.trial_rows import line
from tests.scenarios.bmwg.test_training_suite import choice, findings_of


@pytest.mark.parametrize(
    ("depth", "low", "high", "share"),
    [
        (99, 100, 100, 0.0),
        (100, 100, 100, 1.0),
        (50, 50, 200, 0.0),
        (125, 50, 200, 0.5),
        (300, 50, 200, 1.0),
    ],
)
def test_a_mark_follows_from_the_depth(depth: int, low: int, high: int, share: float) -> None:
    assert configured_share(depth, low, high) == share


def test_a_failover_is_judged_by_the_slowest_undisturbed_iteration() -> None:
    rows: list[dict[str, Any]] = [
        {"time_us": 12.0, "undisturbed_us": 10.0, "samples": {"undisturbed_us": [10.0, 13.0]}},
        {"time_us": 12.0, "undisturbed_us": 10.0},
        {"time_us": 12.0, "undisturbed_us": None},
    ]
    judge_failover(rows)
    assert [row.get("within") for row in rows] == ["yes", "no", None]


def test_the_cost_of_a_failure_is_taken_seed_by_seed() -> None:
    samples = {"time_us": [12.0, 25.0, 30.0], "undisturbed_us": [11.0, 20.0, 29.0]}
    rows: list[dict[str, Any]] = [
        {"time_us": 25.0, "undisturbed_us": 20.0, "samples": samples},
        {"time_us": 12.0, "undisturbed_us": 10.0},
        {"time_us": 12.0, "undisturbed_us": None},
    ]
    add_excess(rows)
    assert [row.get("excess_us") for row in rows] == [1.0, 2.0, None]


def test_goodput_is_restored_when_the_last_fault_is_over() -> None:
    from_faults = {"faults": [{"restored_us": 3.0}, {"restored_us": 9.0}]}
    row = {"transport": "uet", "time_us": 1.0, **from_faults}
    assert line([row], (c.RESTORED,))["restored_us"] == 9.0
    row["faults"] = [{"restored_us": 3.0}, {"restored_us": None}]
    assert line([row], (c.RESTORED,))["restored_us"] is None


def test_packets_lost_to_a_failure_are_counted_for_every_reason() -> None:
    rows: list[dict[str, Any]] = [
        {"time_us": 1.0, "lost_packets": {"in_queue": 1, "no_route": 865}},
        {"time_us": 1.0, "lost_packets": {"no_route": 242, "in_flight": 17}},
        {"time_us": 1.0},
    ]
    assert line(rows, (c.LOST,))["lost_packets"] == 259


def test_an_end_that_did_not_come_counts_as_the_longest() -> None:
    def rows(*times: float | None) -> list[dict[str, Any]]:
        return [{"transport": "uet", "time_us": 1.0, "converged_us": time} for time in times]

    most = line(rows(10.0, None, 30.0), (c.CONVERGED,))
    assert most == {"converged_us": 30.0}
    assert line(rows(10.0, None, None), (c.CONVERGED,)) == {"converged_us": None}
    assert line(rows(10.0, 20.0), (c.CONVERGED,))["samples"] == {"converged_us": [10.0, 20.0]}


def test_contention_is_of_jobs_that_run_at_once() -> None:
    rows = [{"running": "1", "slowdown": 1.0}, {"running": "1+2", "slowdown": 1.2}]
    compare_at_once(rows)
    assert [row["slowdown"] for row in rows] == [None, 1.2]


def test_the_offered_load_is_that_of_the_draft() -> None:
    test = next(one for one in EXPERT_TESTS if one.number == "7.1")
    assert test.procedure is not None
    found, _ = findings_of(test.procedure(choice("small")), 0, dispatch_us=10.0)
    row = next(one for one in found.tables[0].rows if (one["members"], one["tokens"]) == (8, 128))
    # B k H P (N - 1) / N of each of N accelerators, BF16
    assert row["egress_bytes"] == 8 * 128 * TOP_K * HIDDEN * 2 * 7 // 8
    assert row["egress_gbps"] == pytest.approx(row["egress_bytes"] / 10.0 / 1000)


def test_an_estimate_grows_with_the_octets_their_way_seeds_and_transports() -> None:
    def trial(seeds: int, transport: str, size: str = "1000000", **changes: Any) -> SuiteTrial:
        given = (("senders", "2"), ("size", size), ("victim", "0"), ("warmups", "0"))
        fabric = "rail_clos:hosts=3,gpus_per_host=1,spines=1"
        return SuiteTrial(scenario="incast", fabric=fabric, transport=transport, seeds=seeds,
                          parameters=given, **changes)  # fmt: skip

    def megabytes(count: float) -> Any:
        return pytest.approx(START_S + count * CABLE_MEGABYTE_S)

    # two senders of a megabyte, and a switch between two cables
    assert estimated_s(trial(1, "rocev2")) == megabytes(2 * 2)
    assert estimated_s(trial(3, "uet,rocev2")) == megabytes(3 * 2 * 2 * (1 + UET_FACTOR))
    failed = trial(1, "rocev2", faults=("t=1us link rail0:up0 down",))
    assert estimated_s(failed) == megabytes(2 * 2 * 2)
    modelled = replace(failed, options=("--fabric", "model"))
    assert estimated_s(modelled) == pytest.approx(MODEL_FACTOR * estimated_s(failed))
    assert estimated_s(replace(failed, options=("--control-plane", "ebgp"))) == pytest.approx(
        estimated_s(failed) + CONTROL_PLANE_S
    )
    far = SuiteTrial(
        scenario="pairs", fabric="clos:segments=2,hosts=1,gpus_per_host=1,spines=1",
        transport="rocev2", parameters=(("size", "1000000"), ("warmups", "0")),
    )  # fmt: skip
    assert estimated_s(far) == megabytes(4)
    assert estimated_s(trial(1, "uet", size="nothing")) == START_S
