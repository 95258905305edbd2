"""Test when goodput counts as restored, on delivery curves that are drawn by hand."""

import dataclasses

import numpy as np
import pytest

from emulator.run.faults.restoration import (
    WINDOW_RTTS,
    Curve,
    Goodput,
    Verdict,
    deliveries,
    reported,
    restored,
)
from emulator.run.measures.queue_depths import QueueSeries
from emulator.scenario import Outcome
from emulator.transports.wire_cost import WireCost
from tests.harness.runs.observed_messages import columns_of
from topologies.catalogue import load

RTT = 400  # ns: one step of a curve is 100 ns
STEP = 100
WINDOW = WINDOW_RTTS * RTT


def curve(*spans: tuple[int, float]) -> Curve:
    """(ns, rate) after each other, as a share of all."""
    rates = np.concatenate([np.full(ns // STEP, rate) for ns, rate in spans])
    grown = np.concatenate([[0.0], np.cumsum(rates)])
    return grown / grown[-1]


SMOOTH = curve((100_000, 1.0))


def after(
    disturbed: Curve, *, fault: int = 20_000, until: int | None = None, allowed: float = 1.0
) -> Verdict:
    return restored(
        disturbed, SMOOTH, base_rtt_ns=RTT, fault_ns=fault, until_ns=until, allowed=allowed
    )


def test_a_gap_ends_when_a_whole_window_is_full_again() -> None:
    verdict, time = after(curve((20_000, 1.0), (10_000, 0.0), (80_000, 1.0)))
    assert verdict is Goodput.RESTORED
    assert 10_000 - 0.2 * WINDOW <= time <= 10_000 + STEP


def test_what_does_not_fall_is_whole() -> None:
    assert after(SMOOTH) == (Goodput.WHOLE, 0)


def test_less_capacity_is_held_against_what_it_allows() -> None:
    three_quarters = curve((20_000, 1.0), (106_700, 0.75))
    assert after(three_quarters, allowed=0.75) == (Goodput.WHOLE, 0)
    assert after(three_quarters) == (Goodput.LOST, 0)


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_the_last_octets_restore_nothing(share: float) -> None:
    """Any goodput delivers what is left, once that is little enough."""
    assert after(curve((20_000, 1.0), (round(80_000 / share), share))) == (Goodput.LOST, 0)


def test_what_is_left_may_be_less_than_a_window() -> None:
    verdict, time = after(curve((97_000, 1.0), (10_000, 0.0), (3_000, 1.0)), fault=97_000)
    assert verdict is Goodput.RESTORED
    assert 10_000 - 0.2 * WINDOW <= time <= 10_000 + STEP


def test_the_end_may_come_too_soon() -> None:
    assert after(curve((99_000, 1.0), (1_000, 0.1)), fault=98_000) == (Goodput.UNKNOWN, 0)


def test_the_next_fault_may_come_too_soon() -> None:
    broken = curve((20_000, 1.0), (40_000, 0.0), (80_000, 1.0))
    assert after(broken, until=20_000 + 2 * WINDOW) == (Goodput.LOST, 0)
    assert after(broken, until=20_000 + WINDOW // 2) == (Goodput.UNKNOWN, 0)


def test_without_any_way_there_is_nothing_to_restore() -> None:
    assert after(SMOOTH, allowed=0.0) == (Goodput.CUT, 0)


def test_pauses_of_the_undisturbed_iteration_are_no_fault() -> None:
    steps = [(9_000, 1.0), (9_000, 0.0)] * 5
    uneven = curve(*steps)
    found = restored(uneven, uneven, base_rtt_ns=RTT, fault_ns=10_000, until_ns=None, allowed=1.0)
    assert found == (Goodput.WHOLE, 0)


@pytest.mark.parametrize(
    ("verdicts", "words", "time"),
    [
        ([(Goodput.RESTORED, 4000), (Goodput.WHOLE, 0)], "restored", 2.0),
        ([(Goodput.RESTORED, 4000), (Goodput.LOST, 0)], "not restored", None),
        ([], "not observed long enough", None),
        ([(Goodput.UNSEEN, 0)], "not observed: no switch ASIC", None),
    ],
)
def test_several_iterations_are_told_by_the_worst(
    verdicts: list[Verdict], words: str, time: float | None
) -> None:
    row = reported(verdicts)
    assert str(row["goodput"]).startswith(words)
    assert row["restored_us"] == time


def observed(queues: dict[str, QueueSeries]) -> Outcome:
    """One iteration of 8 us, of which only ``queues`` tell."""
    return Outcome(
        times_ns=(8000,),
        ideal_ns=8000,
        wrong=0,
        counters={},
        iterations=[columns_of()],
        queues=queues,
        wire=WireCost(100, 900),
    )


def test_what_a_fault_took_on_the_last_cable_was_not_delivered() -> None:
    """Two receivers; half of what the switch sends to the second is lost from the middle on."""
    fabric = load("rail_clos:hosts=2,gpus_per_host=1,spines=1")
    times = np.array([0.0, 4000.0, 8000.0])
    none, sent = np.zeros(3), np.array([0.0, 400.0, 800.0])
    outcome = observed(
        {
            "rail0:down0": QueueSeries(times, none, sent, none),
            "rail0:down1": QueueSeries(times, none, sent, np.array([0.0, 0.0, 200.0])),
        }
    )
    (curve,) = deliveries(fabric, outcome, RTT)
    assert curve[len(curve) // 2] == pytest.approx(800 / 1400)


def test_what_goes_to_a_shared_nic_is_delivered_once() -> None:
    """Two NICs with two GPUs each: all is counted at the two switch ports, and only once."""
    fabric = load("clos:hosts=2,gpus_per_host=2,gpus_per_nic=2,spines=0")
    none = np.zeros(3)
    times, steady = np.array([0.0, 4000.0, 8000.0]), np.array([0.0, 400.0, 800.0])
    outcome = observed(
        {
            "rail0:down0": QueueSeries(times, none, steady, none),
            "rail0:down1": QueueSeries(times, none, np.array([0.0, 0.0, 800.0]), none),
        }
    )
    (curve,) = deliveries(fabric, outcome, RTT)
    assert curve[len(curve) // 2] == pytest.approx(400 / 1600)
    assert deliveries(fabric, dataclasses.replace(outcome, queues={}), RTT) == []


def test_of_some_flows_alone_messages_tell_what_was_delivered() -> None:
    """Two flows of two messages; the second stands still after its first one."""
    fabric = load("rail_clos:hosts=4,gpus_per_host=1,spines=1")
    source, destination = np.array([0, 0, 2, 2]), np.array([1, 1, 3, 3])
    starts, ends = np.array([0, 0, 0, 0]), np.array([2000, 4000, 2000, 8000])
    times, none = np.array([500.0, 8500.0]), np.zeros(2)
    outcome = Outcome(
        times_ns=(8000,),
        ideal_ns=8000,
        wrong=0,
        counters={},
        iterations=[columns_of(source, destination, np.full(4, 100), starts, ends, origin_ns=500)],
        queues={"rail0:down1": QueueSeries(times, none, np.array([0.0, 200.0]), none)},
        wire=WireCost(100, 900),
    )
    (first,) = deliveries(fabric, outcome, RTT, lambda a, b: (a, b) == (0, 1))
    assert first[0, [0, 20, 40, 80]] == pytest.approx([0, 0.5, 1, 1])
    (both,) = deliveries(fabric, outcome, RTT, lambda a, b: True)
    assert both[0] == pytest.approx(first[0] / 2)
    assert both[1, [20, 40, 80]] == pytest.approx([0.25, 0.25 + 0.25 / 3, 0.5])
    assert deliveries(fabric, outcome, RTT, lambda a, b: False) == []


def test_who_was_cut_off_is_held_against_its_own_data() -> None:
    """One flow is in time; the other, which stood still, is at its rate again and ends alone."""
    even = 0.5 * SMOOTH
    late = 0.5 * curve((30_000, 1.0), (40_000, 0.0), (70_000, 1.0))
    there = np.concatenate([even, np.full(len(late) - len(even), 0.5)])
    apart = restored(
        np.array([there, late]),
        np.array([even, even]),
        base_rtt_ns=RTT,
        fault_ns=70_000,
        until_ns=None,
        allowed=1.0,
    )
    assert apart == (Goodput.WHOLE, 0)
    assert after(there + late, fault=70_000) == (Goodput.LOST, 0)  # of all together
