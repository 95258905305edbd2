"""The messages event of a row: times by shares, and what each flow delivered."""

import numpy as np
import pytest

from emulator.run.measures.message_times import Iteration
from emulator.run.report.written_rows import MOST_FLOWS, SHARES, messages_of
from emulator.scenario import Outcome
from tests.harness.runs.observed_messages import columns_of
from topologies import catalogue

TOPOLOGY = catalogue.load("rail_clos:hosts=3,gpus_per_host=1,spines=1,uplinks_per_spine=1")


def iteration(*messages: tuple[int, int, int, int, int]) -> Iteration:
    """Messages as source, destination, octets, start and end (ns)."""
    columns = np.array(messages, dtype=np.int64).reshape(-1, 5).T
    return columns_of(*columns)


def outcome(*iterations: Iteration, victims: tuple[Iteration, ...] = ()) -> Outcome:
    times = (10_000,) * max(1, len(iterations))
    return Outcome(
        times_ns=times, ideal_ns=1.0, wrong=0, counters={}, iterations=iterations, victims=victims
    )


def test_flows_are_summed_over_iterations_and_rated_over_their_own_time() -> None:
    first = iteration((1, 0, 1000, 0, 100), (1, 0, 1000, 50, 200), (2, 0, 4000, 100, 500))
    second = iteration((1, 0, 1000, 0, 300), (1, 0, 1000, 100, 400), (2, 0, 4000, 0, 400))
    event = messages_of(3, outcome(first, second), TOPOLOGY)
    assert event["row"] == 3
    assert event["times_us"] == [10.0, 10.0]
    assert event["count"] == 6
    assert event["flows"] == [
        {"from": "h2g0", "to": "h0g0", "bytes": 8000, "messages": 2, "time_us": 0.4,
         "goodput_gbps": 10.0},
        {"from": "h1g0", "to": "h0g0", "bytes": 4000, "messages": 4, "time_us": 0.3,
         "goodput_gbps": pytest.approx(4000 / 600)},
    ]  # fmt: skip
    assert "victims" not in event


def test_shares_are_nearest_ranks() -> None:
    durations = list(range(1, 1001))
    messages = [(1, 0, 1, 0, 1000 * one) for one in durations]
    event = messages_of(1, outcome(iteration(*messages)), TOPOLOGY)
    latency = dict(event["latency_us"])
    assert tuple(latency) == SHARES
    assert (latency[0.0], latency[0.5], latency[0.99], latency[0.999]) == (1, 500, 990, 999)
    assert latency[1.0] == 1000


def test_a_trial_without_messages_has_empty_lists() -> None:
    for one in (outcome(), outcome(iteration())):
        event = messages_of(1, one, TOPOLOGY)
        assert (event["count"], event["latency_us"], event["flows"]) == (0, [], [])


def test_victims_are_told_apart() -> None:
    event = messages_of(
        1, outcome(iteration((1, 0, 9, 0, 5)), victims=(iteration((1, 2, 7, 0, 2)),)), TOPOLOGY
    )
    assert [flow["to"] for flow in event["flows"]] == ["h0g0"]
    assert [flow["to"] for flow in event["victims"]["flows"]] == ["h2g0"]


def test_flows_are_bounded() -> None:
    big = catalogue.load("rail_clos:hosts=40,gpus_per_host=1,spines=1,uplinks_per_spine=1")
    pairs = [(a, b) for a in range(40) for b in range(40) if a != b]
    messages = [(a, b, 1 + number, 0, 5) for number, (a, b) in enumerate(pairs)]
    event = messages_of(1, outcome(iteration(*messages)), big)
    assert len(event["flows"]) == MOST_FLOWS
    assert event["flows_left_out"] == len(pairs) - MOST_FLOWS
    assert event["flows"][0]["bytes"] == len(pairs)
