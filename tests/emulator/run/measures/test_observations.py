"""From what ranks and ports report to what a row says."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from emulator.dataplane.kernel.port_counters import PortCounters, QueueCounters
from emulator.dataplane.switch.bpf.layout import BINS, DropReason, Queue, TrafficClass
from emulator.dataplane.switch.switch_counters import AsicCounters, ClassCounters, QueueDepth
from emulator.dataplane.switch.telemetry import COLUMNS, Telemetry
from emulator.run.faults.disturbance import lost_packets
from emulator.run.measurement import differences, summed
from emulator.run.measures.message_times import Iteration, Recorder
from emulator.run.measures.port_record import PortRecord, balance, changes, total
from emulator.run.measures.queue_depths import QueueReader, QueueSeries
from emulator.run.report.traffic import carried_gbps, measured, steady_part
from emulator.scenario import Outcome
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.transports.wire_cost import WireCost
from scenarios.workloads.flows import Flow, Traffic
from tests.harness.runs.observed_messages import columns_of
from topologies.catalogue import load

TOPOLOGY = load("rail_clos:hosts=2,gpus_per_host=2,spines=2,uplinks_per_spine=1")
NOTHING = dict.fromkeys(DropReason, 0)


def port(tx_bytes: int = 0, drops: int = 0, rx_dropped: int = 0) -> PortCounters:
    return PortCounters(
        rx_packets=0,
        rx_bytes=0,
        rx_dropped=rx_dropped,
        tx_packets=0,
        tx_bytes=tx_bytes,
        tx_dropped=0,
        data=QueueCounters(packets=tx_bytes // 100, drops=drops, backlog_packets=3),
    )


def asic(marked: int = 0, deepest: int = 0, bins: int = 0, **drops: int) -> AsicCounters:
    lost = NOTHING | {DropReason[name.upper()]: count for name, count in drops.items()}
    row = ClassCounters(10, 1000, marked, 2, 0, 0, 0, 0, drops=lost)
    quiet = ClassCounters(0, 0, 0, 0, 0, 0, 0, 0, drops=NOTHING)
    depth = QueueDepth(0, deepest, (bins, *[0] * (BINS - 1)), 64)
    calm = QueueDepth(0, 0, (0,) * BINS, 64)
    return AsicCounters(
        {kind: row if kind is TrafficClass.DATA else quiet for kind in TrafficClass},
        {queue: depth if queue is Queue.LOW else calm for queue in Queue},
    )


def test_what_ports_saw_in_between() -> None:
    found = changes(
        ({"a:b": port(500, 1), "c:d": port()}, {"a:b": port(900, 4), "c:d": port(7)}),
        ({"a:b": asic(5, 100, 1, tail=1)}, {"a:b": asic(9, 300, 6, tail=4, black_hole=2)}),
    )
    one = found["a:b"]
    assert (one.bytes, one.kernel.data.drops, one.kernel.data.backlog_packets) == (400, 3, 3)
    assert (one.marked, one.trimmed, one.dropped) == (4, 0, 5)
    assert one.drops == NOTHING_BY_NAME | {"tail": 3, "black_hole": 2}
    assert one.max_queue_bytes == 300
    assert one.asic is not None
    assert one.asic.queues[Queue.LOW].histogram[0] == 5
    assert (found["c:d"].asic, found["c:d"].marked, found["c:d"].bytes) == (None, 0, 7)


def test_a_loss_is_told_by_the_cause_in_force_when_it_happened() -> None:
    """A port that was a black hole and was pulled in one run, and one that was only pulled."""
    ports = {
        "a:b": PortRecord(kernel=port(), asic=asic(black_hole=5, link_down=2)),
        "c:d": PortRecord(kernel=port(), asic=asic(link_down=1, loss=1)),
    }
    lost = lost_packets(ports, {"no_route": 4, "in_queue": 0})
    assert lost == {"black_hole": 5, "link_down": 3, "loss": 1, "no_route": 4}


NOTHING_BY_NAME = {reason.name.lower(): 0 for reason in DropReason}


def test_spans_add_up() -> None:
    both = total(asic(5, 300, 1, loss=1), asic(2, 100, 2, loss=2))
    assert both.classes[TrafficClass.DATA].marked == 7
    assert both.classes[TrafficClass.DATA].drops[DropReason.LOSS] == 3
    assert both.queues[Queue.LOW].max_bytes == 300
    assert both.queues[Queue.LOW].histogram[0] == 3
    assert total(None, both) is both


def quiet_ports() -> dict[str, PortRecord]:
    return {
        f"{node.name}:{one.name}": PortRecord(kernel=port())
        for node in TOPOLOGY.nodes
        for one in node.ports
    }


def test_balance_of_the_busiest_tier() -> None:
    ports = quiet_ports()
    assert balance(TOPOLOGY, ports) is None
    for name, octets in (("rail0:up0", 300), ("rail0:up1", 100), ("rail1:up0", 4)):
        ports[name] = PortRecord(kernel=port(octets))  # the last: acknowledgements
    found = balance(TOPOLOGY, ports)
    assert found is not None
    assert (found.tier, found.max_mean, found.jain) == ("rail", 1.5, 0.8)


def test_counters_of_ranks() -> None:
    before: dict[int, dict[str, dict[str, int]]] = {
        0: {"transport": {"sent": 5, "window_max": 9}},
        1: {"transport": {}},
    }
    after = {
        0: {"transport": {"sent": 7, "window_max": 12}},
        1: {"transport": {"sent": 4, "window_max": 3}},
    }
    ranks = differences(before, after)
    assert ranks == {0: {"sent": 2, "window_max": 12}, 1: {"sent": 4, "window_max": 3}}
    assert summed(ranks) == {"sent": 6, "window_max": 12}


def result(rank: int, start: list[int], end: list[int]) -> RankResult:
    return RankResult(
        rank=rank,
        node=f"n{rank}",
        execution=1,
        start_ns=1000,
        end_ns=max(end, default=1000),
        operation_start=np.array(start, np.int64),
        operation_end=np.array(end, np.int64),
    )


def iterations() -> list[Iteration]:
    """Ranks 0 and 1 send two messages of 1000 octets each, to 3 and 2."""
    flows = (Flow(source=0, destination=3, length=2000), Flow(source=1, destination=2, length=2000))
    schedules = Traffic(TOPOLOGY, flows, 1000, 2, 1).schedules()
    recorder = Recorder(schedules)
    recorder.add(
        [
            result(0, [1000, 1000], [1150, 1250]),
            result(1, [1000, 1010], [1150, 1250]),
            result(2, [1000, 1000], [1100, 1500]),
            result(3, [1000, 1000], [1200, 1400]),
        ]
    )
    return list(recorder)


def test_messages_and_their_flows() -> None:
    (one,) = iterations()
    assert len(one) == 4
    assert one.origin_ns == 1000
    rows = sorted(
        zip(one.source, one.destination, one.length, one.start_ns, one.end_ns, strict=True)
    )
    assert rows == [
        (0, 3, 1000, 0, 200),
        (0, 3, 1000, 0, 400),
        (1, 2, 1000, 0, 100),
        (1, 2, 1000, 10, 500),
    ]
    flows = one.flows()
    assert flows[0, 3].rate == 5
    assert flows[1, 2].points == ((0, 0), (100, 1000), (500, 2000))


def test_a_row_of_traffic() -> None:
    outcome = Outcome(
        times_ns=(500,),
        ideal_ns=250,
        wrong=0,
        counters={"rto_expirations": 3},
        iterations=iterations(),
        ports={
            **quiet_ports(),
            "rail0:down0": PortRecord(kernel=port(9), asic=asic(6, 700, tail=2)),
        },
        queues={"rail0:down0": QueueSeries(np.array([0.0, 1300.0]), np.array([10.0, 30.0]))},
        wire=WireCost(104, 4096),
    )
    # Steady from 200 to 400 would be no longer than the first messages took.
    short = measured(TOPOLOGY, outcome, bottleneck="rail0:down0", capacity_gbps=20)
    assert short["goodput_gbps"] is short["goodput_share"] is short["steady_queue_bytes"] is None
    assert short["jain"] == pytest.approx((5 + 4) ** 2 / (2 * (25 + 16)))
    assert (short["message_p50_us"], short["message_p99_us"]) == (0.2, 0.49)
    assert (short["marked_packets"], short["trimmed_packets"], short["dropped_packets"]) == (
        6,
        2,
        2,
    )
    assert short["drops"] == {"tail": 2}
    assert (short["max_queue_bytes"], short["max_queue_port"]) == (700, "rail0:down0")
    assert short["timeouts"] == 3


def test_a_steady_state_by_hand() -> None:
    """Two flows of four messages, one per 100 ns and one per 50 ns."""
    columns = [(0, 3, 1000, 0, 100 * k) for k in range(1, 6)]
    columns += [(1, 2, 1000, 0, 50 * k) for k in range(1, 11)]
    one = columns_of(*zip(*columns, strict=True), origin_ns=1000)
    outcome = Outcome(
        times_ns=(500,),
        ideal_ns=250,
        wrong=0,
        counters={},
        iterations=[one],
        queues={"p": QueueSeries(np.array([0.0, 1300.0]), np.array([10.0, 30.0]))},
    )
    row = measured(TOPOLOGY, outcome, bottleneck="p", capacity_gbps=60)
    assert row["goodput_gbps"] == pytest.approx(10 + 20)
    assert row["goodput_share"] == pytest.approx(0.5)
    assert row["jain"] == pytest.approx(30**2 / (2 * 500))
    assert row["steady_queue_bytes"] == pytest.approx((10 * 200 + 30 * 200) / 400)
    assert steady_part(outcome, [(0, 3)]) == 1
    assert steady_part(outcome, [(0, 3), (1, 2)]) == 1
    assert steady_part(outcome, []) is None


def test_a_series_begins_anew_where_the_switches_do(tmp_path: Path) -> None:
    class Written:
        path = tmp_path / "telemetry.csv"

        def flush(self) -> None:
            pass

    def wrote(*samples: tuple[float, str, int, int]) -> None:
        with Written.path.open("a") as stream:
            for t_us, name, queue, data in samples:
                fields = {"t_us": t_us, "port": name, "queue_bytes": queue, "data_bytes": data}
                stream.write(",".join(str(fields.get(key, 0)) for key in COLUMNS) + "\n")

    reader = QueueReader(cast(Telemetry, Written()))
    wrote((1, "a", 0, 9000), (1, "b", 0, 50))
    reader.restart()
    wrote((3, "a", 100, 700), (5, "a", 100, 1700), (7, "a", 0, 1700))
    series = reader.read()
    assert series["a"].rate(1000, 3000) == pytest.approx(0.3)
    assert series["a"].rate(3000, 5000) == pytest.approx(0.5)
    assert series["b"].rate(1000, 7000) == 0  # no line: it did not change
    wrote((9, "a", 0, 40))  # a count that is less than it was tells by itself
    assert reader.read()["a"].rate(7000, 9000) == pytest.approx(0.02)


def test_goodput_is_what_the_ports_of_the_receivers_sent() -> None:
    """Both ports admit 10 octets/ns, of which one still holds what the other has sent."""
    columns = [(0, 3, 1000, 0, 100 * k) for k in range(1, 6)]
    columns += [(1, 2, 1000, 0, 50 * k) for k in range(1, 11)]
    columns += [(0, 2, 1000, 0, 100 * k) for k in range(1, 6)]
    one = columns_of(*zip(*columns, strict=True), origin_ns=1000)
    moments = np.array([1000.0, 1300.0, 1500.0])
    ports = {rank: str(next(TOPOLOGY.neighbours(TOPOLOGY.gpus[rank].name))[2]) for rank in (2, 3)}
    outcome = Outcome(
        times_ns=(500,),
        ideal_ns=250,
        wrong=0,
        counters={},
        iterations=[one],
        queues={
            ports[2]: QueueSeries(moments, np.zeros(3), 10 * moments),
            ports[3]: QueueSeries(moments, np.array([0.0, 1500, 2500]), 10 * moments),
        },
        wire=WireCost(100, 900),
    )
    assert carried_gbps(TOPOLOGY, outcome, {2}) == pytest.approx(0.9 * 10)
    assert carried_gbps(TOPOLOGY, outcome, {3}) == pytest.approx(0.9 * 5)
    row = measured(TOPOLOGY, outcome, capacity_gbps=18)
    assert row["goodput_share"] == pytest.approx(0.75)
    assert carried_gbps(TOPOLOGY, outcome, {0}) is None
    assert steady_part(outcome, [(0, 2)]) == pytest.approx(1 / 3)


def test_victims_are_told_by_themselves() -> None:
    columns = [(0, 3, 1000, 0, 100 * k) for k in range(1, 6)]
    columns += [(1, 2, 10, 50 * k, 50 * k + 7) for k in range(1, 4)]
    one = columns_of(*zip(*columns, strict=True), origin_ns=1000)
    victims, others = one.of({(1, 2)}), one.of({(1, 2)}, others=True)
    assert (len(victims), len(others)) == (3, 5)
    assert set(others.flows()) == {(0, 3)}
    assert len(one.of((), others=True)) == len(one)
    plain: dict[str, Any] = {"times_ns": (500,), "ideal_ns": 250, "wrong": 0, "counters": {}}
    row = measured(TOPOLOGY, Outcome(**plain, iterations=[others], victims=[victims]))
    assert (row["victim_p50_us"], row["victim_p99_us"]) == (0.007, 0.007)
    assert row["message_p50_us"] == 0.3
    assert "victim_p99_us" not in measured(TOPOLOGY, Outcome(**plain, iterations=[others]))
