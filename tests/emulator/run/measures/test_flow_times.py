"""Flow completion times, and slowdowns against the flow alone."""

import numpy as np
import pytest

from emulator.run.measures import flow_times
from emulator.run.measures.message_times import Iteration
from emulator.scenario import Outcome
from emulator.transports.wire_cost import WireCost
from topologies.catalogue import load
from topologies.parts.attachment import nic_rate_bps
from topologies.routing.paths import spans_from

FABRIC = load("rail_clos:hosts=3,gpus_per_host=1,spines=1")
WIRE = WireCost(around_bytes=100, payload_mtu=1000)


def outcome(*messages: tuple[int, int, int, int, int]) -> Outcome:
    """Return an outcome of messages: source, destination, octets, start and end (ns)."""
    source, destination, length, start, end = np.array(messages).T
    number = np.arange(len(messages))
    iteration = Iteration(
        0, source, destination, length, start, end, number, number, np.ones(len(messages), bool)
    )
    return Outcome(
        times_ns=(1,), ideal_ns=1, wrong=0, counters={}, iterations=(iteration,), wire=WIRE
    )


def alone_ns(packets: int, octets: int) -> float:
    names = [gpu.name for gpu in FABRIC.gpus]
    rate_bps = nic_rate_bps(FABRIC, names[0])
    wait = spans_from(FABRIC, names[0])[names[1]].delay_ns
    return (octets + 100 * packets) * 8e9 / rate_bps + wait


def test_a_flow_is_all_that_a_rank_sends_to_another() -> None:
    row = flow_times.measured(
        FABRIC, outcome((0, 1, 1500, 100, 5000), (0, 1, 200, 150, 7100), (2, 1, 800, 0, 4000))
    )
    assert (row["fct_p50_us"], row["fct_max_us"]) == (4.0, 7.0)
    assert row["slowdown_max"] == pytest.approx(7000 / alone_ns(3, 1700))
    (size,) = row["fct_by_size"]
    assert (size["up_to_bytes"], size["flows"]) == (10_000, 2)


def test_each_message_may_be_a_flow_by_itself() -> None:
    measured = outcome(
        (0, 1, 1000, 0, 3000), (0, 1, 20_000_000, 0, 900_000), (1, 0, 9, 0, -1), (1, 2, 8, 0, 50)
    )
    row = flow_times.measured(
        FABRIC, measured, each_message=True, own=lambda iteration: iteration.length != 8
    )
    small, large = row["fct_by_size"]
    assert small["slowdown_p99"] == pytest.approx(3000 / alone_ns(1, 1000))
    assert (large["up_to_bytes"], large["flows"]) == (None, 1)
    assert large["slowdown_p50"] == pytest.approx(900_000 / alone_ns(20_000, 20_000_000))


def test_without_flows_there_are_no_times() -> None:
    assert flow_times.measured(FABRIC, outcome((0, 1, 9, 0, -1))) == {}
