"""Poisson arrivals: intervals, ends, loads, bursts, and runs of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.run.measures.message_times import Iteration
from emulator.run.plan.run_plan import RunRequest
from emulator.run.results import Result
from emulator.run.runner import prepare
from emulator.scenario import Outcome
from scenarios.poisson import Arrival, Parameters, arrivals, carried
from scenarios.workloads.flow_sizes import flow_sizes
from scenarios.workloads.flows import across_rails, scale_up_domains
from tests.harness.runs.unseen_run import result_of
from topologies.catalogue import load

FABRIC = load("rail_clos:hosts=2,gpus_per_host=2,spines=2")
DOMAINS = scale_up_domains(FABRIC)


def drawn(load: float = 0.5, seed: int = 1, **given: object) -> list[Arrival]:
    made = Parameters(**{"sizes": "hadoop", "flows": 4000, **given})  # type: ignore[arg-type]
    return arrivals(made, FABRIC, load, seed)


def test_intervals_are_exponential_at_the_load() -> None:
    flows = drawn()
    between = [after.at_ns - before.at_ns for before, after in pairwise(flows)]
    # 4 NICs of 400 Gbit/s, half of which is 100 octets in each ns.
    assert fmean(between) == pytest.approx(flow_sizes("hadoop").mean / 100, rel=0.05)
    assert stdev(between) == pytest.approx(fmean(between), rel=0.05)
    assert all(DOMAINS[one.source] != DOMAINS[one.destination] for one in flows)
    assert set(Counter(one.source for one in flows)) == {0, 1, 2, 3}


def test_a_duration_has_the_flows_that_arrive_in_it() -> None:
    flows = drawn(flows=400)
    until = (flows[99].at_ns + flows[100].at_ns) // 2
    made = Parameters(sizes="hadoop", duration=until, incast=2, incast_load=0.01)
    found = arrivals(made, FABRIC, 0.5, 1)
    assert [one for one in found if one.octets != made.incast_size] == flows[:100]
    assert found[-1].at_ns < until


def test_what_was_carried_is_whole_flows_and_parts_of_those_under_way() -> None:
    messages = Iteration(
        0,
        source=np.array([0, 1, 2]), destination=np.array([2, 3, 0]),
        length=np.array([1000, 500, 800]),
        start_ns=np.array([10, 50, 90]), end_ns=np.array([20, 150, 200]),
        send=np.zeros(3, int), receive=np.zeros(3, int), writes=np.ones(3, bool),
    )  # fmt: skip
    outcome = Outcome(times_ns=(200,), ideal_ns=1, wrong=0, counters={}, iterations=[messages])
    # Two fifths of the second, nothing of the last; 4 NICs of 50 octets in a ns.
    assert carried(FABRIC, outcome, 90) == pytest.approx((1000 + 500 * 0.4) / (90 * 200))


def test_the_seed_decides_the_flows() -> None:
    assert drawn(flows=9) == drawn(flows=9) != drawn(flows=9, seed=2)


def test_a_load_changes_when_flows_arrive_and_nothing_else() -> None:
    low, high = drawn(0.25, flows=9), drawn(0.5, flows=9)
    for one, other in zip(low, high, strict=True):
        assert one.at_ns == pytest.approx(2 * other.at_ns, abs=2)
        assert (one.source, one.destination, one.octets) == (
            other.source, other.destination, other.octets,
        )  # fmt: skip


def test_in_a_permutation_each_has_one_partner() -> None:
    partners = across_rails(FABRIC, 1)
    assert all(
        one.destination == partners[one.source] for one in drawn(flows=50, pattern="permutation")
    )


def test_bursts_meet_at_one_gpu() -> None:
    own = drawn()
    bursts = [one for one in drawn(incast=2, incast_size=9, incast_load=0.01) if one.octets == 9]
    assert len(bursts) * 9 / (own[-1].at_ns * 200) == pytest.approx(0.01, rel=0.1)
    for one, other in zip(bursts[::2], bursts[1::2], strict=True):
        assert (one.at_ns, one.destination) == (other.at_ns, other.destination)
        assert one.source != other.source


@pytest.mark.parametrize(
    ("given", "stated"),
    [
        ({"load": "0"}, "load is a share"),
        ({"load": "0.5,2"}, "load is a share"),
        ({"incast": "1", "incast_load": "3"}, "incast_load is a share"),
        ({"size_scale": "0"}, "size_scale"),
        ({"incast_size": "4KiB"}, "incast_size changes nothing"),
        ({"incast": "3"}, "incast is 3, and 2 GPUs"),
        ({"incast": "1", "incast_size": "1GiB"}, "in which seed 1 has none: take more flows"),
        ({"duration": "1us", "flows": "9"}, "flows changes nothing beside duration"),
        ({"duration": "1ns"}, "no flow arrives within the duration of 1 ns"),
        ({"duration": "1s", "sizes": "hadoop"}, "more than 16384 flows arrive within"),
    ],
)
def test_what_makes_no_load_is_refused(given: dict[str, str], stated: str) -> None:
    with pytest.raises(UserError, match=stated):
        arrivals(scenario.load("poisson").parameters(given), FABRIC, 0.5, 1)


def run(folder: Path, workers: int, transport: str) -> Result:
    form = scenario.load("poisson")
    parameters = form.parameters(
        {"load": "0.5", "sizes": "hadoop", "flows": "40", "incast": "2", "incast_load": "0.1"}
    )
    request = RunRequest(
        scenario=form, parameters=parameters, topology="rail_clos:hosts=2,gpus_per_host=2,spines=2",
        fabric="model", capture="none", output=folder, workers=workers,
        transport=transport,
    )  # fmt: skip
    return result_of(prepare(request))


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_flows_have_times_and_no_worker_changes_them(tmp_path: Path, transport: str) -> None:
    results: Sequence[Result] = [
        run(tmp_path / str(workers), workers, transport) for workers in (1, 2)
    ]
    one, other = results
    assert one.digest == other.digest
    (row,) = one.rows
    assert row["wrong"] == 0
    assert 1 <= row["slowdown_p50"] <= row["slowdown_p99"] <= row["slowdown_max"]  # type: ignore[operator]
    assert row["flows"] == sum(each["flows"] for each in row["fct_by_size"]) > 40  # type: ignore[attr-defined]
    assert 0 < row["carried_share"] <= 1  # type: ignore[operator]
