"""Test that faults of one instant, and a flap, are reported as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from emulator.run.faults import disturbance
from emulator.run.faults.expectation import FaultExpectation, episodes
from emulator.run.faults.fault_timeline import Applied
from emulator.run.faults.grammar import Moment, timeline
from emulator.run.faults.restoration import WINDOW_RTTS, Goodput
from emulator.run.measures.queue_depths import QueueSeries
from emulator.run.pxn import Pxn
from emulator.scenario import Outcome
from emulator.transports.wire_cost import WireCost
from scenarios.workloads.flows import Flow, Traffic
from tests.harness.runs.observed_messages import columns_of
from topologies.catalogue import load

FABRIC = load("rail_clos:hosts=2,gpus_per_host=2,spines=2,uplinks_per_spine=1")
WIRE = WireCost(around_bytes=104, payload_mtu=4096)
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
