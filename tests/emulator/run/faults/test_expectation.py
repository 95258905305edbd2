"""What faults leave possible for a job; those of one instant, and a flap, are one episode."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from emulator.run.faults import disturbance
from emulator.run.faults.expectation import FaultExpectation, changes_of, episodes
from emulator.run.faults.fault_timeline import Applied
from emulator.run.faults.grammar import Moment, timeline
from emulator.run.faults.restoration import WINDOW_RTTS, Goodput
from emulator.run.measures.queue_depths import QueueSeries
from emulator.run.pxn import Pxn
from emulator.scenario import Outcome
from emulator.sim.endpoint.endpoint_spec import EndpointError
from emulator.transports.wire_cost import WireCost
from scenarios.workloads.flows import Flow, Traffic
from tests.harness.runs.observed_messages import columns_of
from topologies.catalogue import load
from topologies.model import Topology

WIRE = WireCost(around_bytes=104, payload_mtu=4096)
MESSAGE = 4096
#: Two rails of two GPUs with an uplink to each of two spines: 1:1.
FABRIC = load("rail_clos:hosts=2,gpus_per_host=2,spines=2,uplinks_per_spine=1")
#: Ranks: host h has 2h on rail 0 and 2h + 1 on rail 1.
CROSSING = [(0, 3), (2, 1)]
ALONG = [(1, 3), (3, 1)]


def expected(fault: str, pairs: list[tuple[int, int]] = CROSSING) -> FaultExpectation:
    flows = tuple(Flow(source=a, destination=b, length=100 * MESSAGE) for a, b in pairs)
    schedules = Traffic(FABRIC, flows, MESSAGE, 1000, 1).schedules()
    return FaultExpectation.of(timeline([fault], FABRIC), FABRIC, schedules, WIRE)


def test_a_dead_gpu_is_cut_off_for_good_though_its_cable_stands() -> None:
    found = expected("t=2us gpu h1g1 dead")
    assert found.ideal_ns is None
    assert found.cut_off == [["h1g1"]]
    assert found.severed == [("h0g0", "h1g1")]
    words = found.sentence(EndpointError("rank 0 failed"))
    assert words == (
        "rank 3 (h1g1) is cut off for good by 't=2us gpu h1g1 dead', and the job cannot end "
        "without: rank 0 failed"
    )
    assert expected("t=2us gpu h1g1 dead", [(0, 2)]).severed == []


def test_half_of_the_uplinks_allow_half_of_the_goodput() -> None:
    found = expected("t=0 link rail0:up0 down; t=1us up")
    assert found.allowed[0] == pytest.approx(0.5, abs=0.1)  # and the delays of the cables
    assert found.allowed[1] == 1
    assert found.cut_off == [[], []]
    assert found.severed == []
    words = found.sentence(EndpointError("rank 1 failed"))
    assert words.startswith("rank 1 failed; routes are static, so while link rail0:up0 was down")


@pytest.mark.parametrize(
    ("plane", "faulted"), [("ebgp", "down"), ("ebgp", "blackhole"), ("static", "blackhole")]
)
def test_a_job_that_fails_though_there_is_a_way_is_told_with_its_fault(
    plane: str, faulted: str
) -> None:
    profile = dataclasses.replace(FABRIC.profile, control_plane=plane)
    fabric = dataclasses.replace(FABRIC, profile=profile)
    first = f"t=1us link rail0:up0 {faulted}"
    moments = timeline([f"t=0 link rail0:up1 loss=1%; {first}"], fabric)
    words = FaultExpectation.of(moments, fabric, [], WIRE).sentence(EndpointError("rank 1 failed"))
    assert words == f"rank 1 failed; the first fault that nothing came through was {first!r}"


def test_who_is_cut_off_for_good_is_told_by_rank() -> None:
    found = expected("t=1us link rail0:up0 down; t=2us switch rail0 down")
    assert found.ideal_ns is None
    assert found.cut_off == [[], ["h0g0", "h1g0"]]
    assert set(found.severed) == {("h0g0", "h1g1"), ("h1g0", "h0g1")}
    assert found.sentence(EndpointError("rank 1 failed")) == (
        "ranks 0, 2 (h0g0, h1g0) are cut off for good by 't=2us switch rail0 down', and the job "
        "cannot end without: rank 1 failed"
    )


def test_a_process_that_died_did_not_die_of_faults() -> None:
    killed = EndpointError("the agent of rank 2 was killed by SIGKILL", died=True)
    for fault in ("t=0 link rail0:up0 down; t=1us up", "t=0 switch rail0 down"):
        assert expected(fault).sentence(killed) == "the agent of rank 2 was killed by SIGKILL"


def test_a_black_hole_cuts_off_as_well() -> None:
    found = expected("t=0 link h0g0:eth0 blackhole")
    assert found.sentence(EndpointError("gone")).startswith("rank 0 (h0g0) is cut off for good by")


def test_a_job_that_does_not_need_them_goes_on() -> None:
    found = expected("t=0 switch rail0 down", ALONG)
    assert found.cut_off == [["h0g0", "h1g0"]]
    assert found.severed == []
    assert found.ideal_ns is not None


# --- pairs ---------------------------------------------------------------------------------------

RING = load("torus:x=4,y=1")
#: No spine is left that leads from one of three rails to another.
THIRD = load("rail_clos:hosts=2,gpus_per_host=3,spines=2,uplinks_per_spine=1")
NEIGHBOURS = [(0, 1), (1, 0), (2, 3), (3, 2)]


def on(fabric: Topology, fault: str, pairs: list[tuple[int, int]]) -> FaultExpectation:
    flows = tuple(Flow(source=a, destination=b, length=100 * MESSAGE) for a, b in pairs)
    schedules = Traffic(fabric, flows, MESSAGE, 1000, 1).schedules()
    return FaultExpectation.of(timeline([fault], fabric), fabric, schedules, WIRE)


def test_a_pair_that_needs_a_dead_cable_is_told_with_it() -> None:
    """Around a ring of four only neighbours have no second way."""
    fault = "t=1us link r2-0:xplus0 loss=1%; t=2us link r0-0:xplus0 down"
    found = on(RING, fault, NEIGHBOURS)
    assert found.cut_off == [[], []]
    assert found.cut_pairs == [(), (("h0g0", "h1g0"),)]
    assert found.severed == [("h0g0", "h1g0"), ("h1g0", "h0g0")]
    assert found.ideal_ns is None
    assert found.sentence(EndpointError("rank 1 failed")) == (
        "the pair h0g0 - h1g0 is cut off for good by 't=2us link r0-0:xplus0 down' (routes are "
        "static: routing=shortest and --control-plane ebgp would find another way), and the job "
        "cannot end without: rank 1 failed"
    )


def test_no_protocol_is_proposed_where_two_switches_look_like_one() -> None:
    """Bonds to rail0 and rail3, and so on, take static routes."""
    bonded = load(
        "clos:hosts=2,gpus_per_host=3,nic_ports=2,homing=bond,spines=2,uplinks_per_spine=1"
    )
    downs = "rail0:up0", "rail3:up0", "rail1:up1", "rail4:up1"
    fault = "; ".join(f"t=0 link {port} down" for port in downs)
    stated = on(bonded, fault, [(0, 4), (4, 0)]).sentence(EndpointError("rank 1 failed"))
    assert stated.startswith("the pair h0g0 - h1g1 is cut off for good by 't=0 link ")
    assert stated.endswith(" down', and the job cannot end without: rank 1 failed")


def test_a_pair_that_the_job_does_not_need_is_only_told() -> None:
    found = on(RING, "t=0 link r1-0:xplus0 down", NEIGHBOURS)
    assert found.cut_pairs == [(("h1g0", "h2g0"),)]
    assert found.severed == []
    assert found.ideal_ns is not None


def test_a_pair_that_is_cut_off_for_a_time_is_told_if_the_job_fails() -> None:
    found = on(RING, "t=0 link r0-0:xplus0 down; t=1us up", NEIGHBOURS)
    assert found.severed == []
    assert found.sentence(EndpointError("rank 1 failed")) == (
        "rank 1 failed; the faults cut off the pair h0g0 - h1g0 for a time"
    )


def test_all_cables_that_it_took_are_told_and_no_other() -> None:
    downs = "nic h1g2 down", "link rail0:up0 down", "link rail1:up1 down"
    fault = "; ".join(f"t={n}us {one}" for n, one in enumerate(downs))
    found = on(THIRD, fault, [(0, 4), (3, 1)])
    assert found.cut_off == [["h1g2"]] * 3
    assert [len(pairs) for pairs in found.cut_pairs] == [0, 0, 4]
    assert found.cut_pairs[-1][:2] == (("h0g0", "h1g1"), ("h0g1", "h1g0"))  # the job's first
    assert found.sentence(EndpointError("gone")) == (
        "2 pairs (h0g0 - h1g1, h0g1 - h1g0) are cut off for good by 't=1us link rail0:up0 down' "
        "and 't=2us link rail1:up1 down' (routes are static: --control-plane ebgp would find "
        "another way), and the job cannot end without: gone"
    )


def test_a_gpu_and_a_pair_are_told_together() -> None:
    fault = "t=0us nic h3g0 down; t=1us link r0-0:xplus0 down"
    found = on(RING, fault, NEIGHBOURS)
    assert found.cut_off == [["h3g0"], ["h3g0"]]
    assert found.sentence(EndpointError("gone")).startswith(
        "rank 3 (h3g0) is cut off for good by 't=0us nic h3g0 down', and the pair h0g0 - h1g0 is"
    )


def test_pairs_beyond_a_number_are_counted() -> None:
    pairs = [(f"a{n}", f"b{n}") for n in range(40)]
    reported = disturbance.reported_pairs(pairs)
    assert reported == {"count": 40, "named": [[f"a{n}", f"b{n}"] for n in range(16)]}
    assert disturbance.stated_pairs(reported) == [
        "40 pairs (a0 - b0, a1 - b1, a2 - b2 and 37 more)"
    ]
    assert disturbance.stated_pairs(disturbance.reported_pairs([])) == []
    assert disturbance.stated_pairs(None) == []  # in runs from before they were told


def test_goodput_of_others_is_not_held_against_that_of_pairs_cut_off() -> None:
    """Who has no way left takes nothing of what the links allow the rest."""
    nic = expected("t=0 nic h0g0 down; t=1us up")
    assert nic.lacking[0] == {("h0g0", "h1g1")}
    assert nic.allowed == [pytest.approx(1), 1]
    assert on(RING, "t=0 link r0-0:xplus0 down", NEIGHBOURS).allowed == pytest.approx([1])
    both = on(RING, "t=0 link r0-0:xplus0 down; t=0 link r2-0:xplus0 rate=100Gbps", NEIGHBOURS)
    assert both.allowed[-1] == pytest.approx(0.25, abs=0.05)  # and the delays of the cables
    assert expected("t=0 switch rail0 down; t=1us up").allowed == [0, 1]  # nobody is left


def test_what_is_said_of_goodput_says_whose_it_is() -> None:
    fault = {
        "said": "t=1us nic h0g0 down",
        "at_us": 1.0,
        "cut_off_gpus": ["h0g0"],
        "cut_off_pairs": disturbance.reported_pairs([]),
        "goodput": str(Goodput.RESTORED),
        "restored_us": 2.0,
        "goodput_without": disturbance.reported_pairs([("h0g0", "h1g1")]),
    }
    row = {
        **dict.fromkeys(("collective", "retransmitted_packets"), 0),
        **dict.fromkeys(("size_bytes", "undisturbed_retransmitted_packets"), 0),
        **dict.fromkeys(("slowdown", "undisturbed_us"), 1.0),
        "lost_packets": {},
    }

    def stated(**changes: Any) -> str:
        return disturbance.footer({**row, "faults": [{**fault, **changes}]})[1].strip()

    others = "t=1us nic h0g0 down: goodput of the others"
    assert stated() == f"{others} restored after 2.00 us; cuts off h0g0"
    assert stated(goodput=str(Goodput.WHOLE), restored_us=0.0).startswith(f"{others} did not fall")
    assert "goodput has no way left" in stated(goodput=str(Goodput.CUT), restored_us=None)
    assert ": goodput restored" in stated(goodput_without=disturbance.reported_pairs([]))


def test_what_moments_do_to_rates() -> None:
    moments = timeline(["t=5ns link rail0:up0 rate=100Gbps loss=1%; t=9ns down; t=10ns up"], FABRIC)
    reported = [(one.at_ns, str(one.end), one.share) for one in changes_of(moments, FABRIC)]
    assert reported == [
        (at, end, share)
        for at, share in ((5, 0.25), (9, 0.0), (10, 0.25))
        for end in ("rail0:up0", "spine0:down0")
    ]


RTT = 400  # ns
FLAP = "t=20us link rail0:up0 flap every=4us for=12us"  # ends at 30 us


def told_of(*texts: str) -> list[tuple[str, int, list[int], int, int]]:
    found = episodes(timeline(texts, FABRIC))
    return [(one.stated, one.steps, list(one.places), one.began, one.judged) for one in found]


def test_clauses_of_one_instant_are_one_episode() -> None:
    text = "t=2us link rail0:up0 down; t=2000ns link rail1:up0 loss=1%; t=5us link rail0:up0 up"
    first, second, third = text.split("; ")
    assert told_of(text) == [(f"{first}; {second}", 1, [0, 1], 1, 1), (third, 1, [2], 2, 2)]


def test_a_flap_is_one_episode_whatever_comes_meanwhile() -> None:
    other = "t=30us link rail1:up0 down"  # with the last step
    assert told_of(FLAP, "t=25us link rail1:up1 down", other) == [
        (FLAP, 6, [0, 1, 2, 4, 5, 6], 0, 7),
        ("t=25us link rail1:up1 down", 1, [3], 3, 3),
        (other, 1, [7], 7, 7),
    ]


def test_flaps_of_the_same_steps_are_one_episode() -> None:
    second = FLAP.replace("up0", "up1")
    (one,) = episodes(timeline([FLAP, second], FABRIC))
    assert (one.stated, one.steps, one.began, one.judged) == (f"{FLAP}; {second}", 6, 1, 11)


def outcome(*spans: tuple[int, float]) -> Outcome:
    """One iteration that delivers at (us, rate), one after the other."""
    octets = np.concatenate([[0.0], np.cumsum([us * rate for us, rate in spans])])
    times = 1000.0 * np.concatenate([[0.0], np.cumsum([us for us, _ in spans])])
    none = np.zeros(len(times))
    return Outcome(
        times_ns=(int(times[-1]),),
        ideal_ns=times[-1],
        wrong=0,
        counters={},
        iterations=[columns_of()],
        queues={"rail0:down0": QueueSeries(times, none, octets, none)},
        wire=WIRE,
    )


def rows(text: str, disturbed: Outcome, came: int | None = None) -> list[Mapping[str, Any]]:
    """Return the rows if the first ``came`` moments (None: all) of ``text`` came."""
    flows = tuple(Flow(source=a, destination=b, length=409_600) for a, b in ((0, 3), (2, 1)))
    schedules = Traffic(FABRIC, flows, 4096, 1000, 1).schedules()
    moments: Sequence[Moment] = timeline([text], FABRIC)
    found = disturbance.reported(
        FaultExpectation.of(moments, FABRIC, schedules, WIRE),
        FABRIC,
        disturbed,
        outcome((100, 1.0)),
        [[Applied(moment, moment.at_ns) for moment in moments[:came]]],
        lost={},
        missing=0,
        retransmitted="retransmitted",
        base_rtt_ns=RTT,
        pxn=Pxn(FABRIC),
    )["faults"]
    assert isinstance(found, list)
    return found


def line(fault: Mapping[str, Any]) -> str:
    row = {
        **dict.fromkeys(("collective", "size_bytes", "retransmitted_packets"), 0),
        **dict.fromkeys(("slowdown", "undisturbed_us"), 1.0),
        "undisturbed_retransmitted_packets": 0,
        "lost_packets": {},
        "faults": [fault],
    }
    return disturbance.footer(row)[1].strip()


def test_goodput_after_an_instant_is_judged_once_and_up_to_the_next() -> None:
    text = "t=20us link rail0:up0 loss=1%; t=20us link rail1:up0 loss=1%; t=60us heal"
    both, healed = rows(text, outcome((20, 1.0), (10, 0.0), (80, 1.0)))
    assert both["goodput"] == str(Goodput.RESTORED)
    assert both["restored_us"] == pytest.approx(10, abs=0.3 * WINDOW_RTTS * RTT / 1000)
    assert healed["goodput"] == str(Goodput.WHOLE)
    stated = "t=20us link rail0:up0 loss=1%; t=20us link rail1:up0 loss=1%: goodput restored after "
    assert line(both).startswith(stated)


def test_goodput_after_a_flap_is_that_from_its_last_step_on() -> None:
    (flap,) = rows(FLAP, outcome((20, 1.0), (15, 0.0), (80, 1.0)))
    assert (flap["steps"], flap["at_us"], flap["judged_us"]) == (6, 20, 30)
    assert flap["restored_us"] == pytest.approx(5, abs=0.3 * WINDOW_RTTS * RTT / 1000)
    stated = f"{FLAP}: from the last of 6 steps on, goodput restored after "
    assert line(flap).startswith(stated)


def test_a_flap_that_outlasts_the_iteration_is_told_so() -> None:
    (flap,) = rows(FLAP, outcome((27, 1.0)), came=3)
    assert (flap["at_us"], flap["judged_us"], flap["restored_us"]) == (20, None, None)
    assert line(flap) == f"{FLAP}: the iteration had ended before the last of 6 steps"
    (never,) = rows(FLAP, outcome((15, 1.0)), came=0)
    assert line(never) == f"{FLAP}: never came, as the iteration had ended"


def test_whom_any_step_of_a_flap_cuts_off_is_told() -> None:
    text = "t=20us nic h0g0 flap every=4us for=12us"
    (flap,) = rows(text, outcome((100, 1.0)))
    assert flap["cut_off_gpus"] == ["h0g0"]
    assert flap["goodput_without"]["count"] == 0  # it is there again
    assert line(flap).endswith("; cuts off h0g0")
