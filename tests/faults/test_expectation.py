"""What faults leave possible for a job, and how long a job without hope is waited for."""

from __future__ import annotations

import pytest

from emulator.endpoint.clock import Clock
from emulator.endpoint.spawn import AgentError
from emulator.faults.grammar import timeline
from emulator.run.disturbance import Expectation, changes_of
from emulator.run.ideal import WireCost
from emulator.run.patience import FORLORN_NS, TIMEOUT_S, patience_s
from scenarios.workloads.flows import Flow, Traffic
from topologies.catalogue import load

WIRE = WireCost(around_bytes=104, payload_mtu=4096)
MESSAGE = 4096
#: Two rails of two GPUs with an uplink to each of two spines: 1:1.
FABRIC = load("rail_clos:hosts=2,gpus_per_host=2,spines=2,uplinks_per_spine=1")
#: Ranks: host h has 2h on rail 0 and 2h + 1 on rail 1.
CROSSING = [(0, 3), (2, 1)]
ALONG = [(1, 3), (3, 1)]


def expected(fault: str, pairs: list[tuple[int, int]] = CROSSING) -> Expectation:
    flows = tuple(Flow(source=a, destination=b, length=100 * MESSAGE) for a, b in pairs)
    schedules = Traffic(FABRIC, flows, MESSAGE, 1000, 1).schedules()
    return Expectation.of(timeline([fault], FABRIC), FABRIC, schedules, WIRE)


def test_half_of_the_uplinks_allow_half_of_the_goodput() -> None:
    found = expected("t=0 link rail0:up0 down; t=1us up")
    assert found.allowed[0] == pytest.approx(0.5, abs=0.1)  # and the delays of the cables
    assert found.allowed[1] == 1
    assert found.cut_off == [[], []]
    assert found.severed == []
    words = found.sentence(AgentError("rank 1 failed"))
    assert words.startswith("rank 1 failed; routes are static, so while link rail0:up0 was down")


def test_who_is_cut_off_for_good_is_told_by_rank() -> None:
    found = expected("t=1us link rail0:up0 down; t=2us switch rail0 down")
    assert found.ideal_ns is None
    assert found.cut_off == [[], ["h0g0", "h1g0"]]
    assert set(found.severed) == {("h0g0", "h1g1"), ("h1g0", "h0g1")}
    assert found.sentence(AgentError("rank 1 failed")) == (
        "ranks 0, 2 (h0g0, h1g0) are cut off for good by 't=2us switch rail0 down', and the job "
        "cannot end without: rank 1 failed"
    )


def test_a_black_hole_cuts_off_as_well() -> None:
    found = expected("t=0 link h0g0:eth0 blackhole")
    assert found.sentence(AgentError("gone")).startswith("rank 0 (h0g0) is cut off for good by")


def test_a_job_that_does_not_need_them_goes_on() -> None:
    found = expected("t=0 switch rail0 down", ALONG)
    assert found.cut_off == [["h0g0", "h1g0"]]
    assert found.severed == []
    assert found.ideal_ns is not None


def test_a_job_without_hope_is_not_waited_for() -> None:
    clock = Clock.start(10_000)
    hopeless = expected("t=1ms switch rail0 down")
    assert patience_s(clock, 1000.0, hopeless) == pytest.approx(
        clock.host_seconds(1_000_000 + FORLORN_NS)
    )
    assert patience_s(clock, 1000.0, expected("t=1ms switch rail0 down; t=2ms up")) > TIMEOUT_S


def test_what_moments_do_to_rates() -> None:
    moments = timeline(["t=5ns link rail0:up0 rate=100Gbps loss=1%; t=9ns down; t=10ns up"], FABRIC)
    told = [(one.at_ns, str(one.end), one.share) for one in changes_of(moments, FABRIC)]
    assert told == [
        (at, end, share)
        for at, share in ((5, 0.25), (9, 0.0), (10, 0.25))
        for end in ("rail0:up0", "spine0:down0")
    ]
