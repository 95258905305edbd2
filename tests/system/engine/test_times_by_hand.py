"""Times that follow from rates, lengths and delays alone, to the nanosecond.

A write of 4096 octets is one packet: Ethernet 14, IPv4 20, UDP 8, PDS request 12 (UES 3.5.11), SES
standard header 44 (UES 3.4.2): a frame of 4194 octets, and 4218 on the wire with preamble, FCS and
gap, which last 84.36 ns at 400 Gb/s.  Cables to NICs are 200 ns long; switches store and forward.
"""

import pytest

from emulator.sim.endpoint.endpoint_spec import EndpointError
from emulator.sim.endpoint.operations.schedule import Operation, Receive, Region, Schedule, Write
from emulator.sim.event_queue import PS
from tests.harness.engine.bench_of_gpus import gpu_bench
from topologies.model import CableEnd

pytestmark = pytest.mark.root
RAIL = "rail_clos:hosts=3,gpus_per_host=1,spines=1,nic_delay=200ns"
PACKET = Region("x", 0, 4096)
FRAME, ON_WIRE_PS = 4194, 4218 * 20
CABLE_PS = 200 * PS
START_PS = 1000 * PS
EGRESS = "{ type filter hook egress device eth0 priority 0; policy drop; }"


def schedule(rank: int, *operations: Operation) -> Schedule:
    return Schedule(rank=rank, buffers={"x": 8192}, operations=operations)


def test_a_lone_packet(lab_name: str) -> None:
    """Two serialisations and two cables, and nothing else."""
    with gpu_bench(lab_name, RAIL) as bench:
        sent, passed = bench.departures("h1g0", "eth0"), bench.departures("rail0", "down0")
        received = bench.arrivals("rail0", "down0")
        results = bench.run(
            [
                schedule(0, Receive(peer=1, tag=1, into=PACKET)),
                schedule(1, Write(peer=0, tag=1, local=PACKET, remote=PACKET)),
                schedule(2),
            ]
        )
    at_the_switch = START_PS + ON_WIRE_PS + CABLE_PS
    at_the_receiver = at_the_switch + ON_WIRE_PS + CABLE_PS
    assert sent.frames[0] == (START_PS, FRAME)
    assert passed.frames[0] == (at_the_switch, FRAME)
    assert received.frames[0] == (at_the_receiver, FRAME)
    assert results[0].end_ns == at_the_receiver // PS == 1568


LATENCY_PS = 650 * PS


def test_a_lone_packet_through_a_pipeline(lab_name: str) -> None:
    """A switch queues a packet one latency after its last octet; its answer takes as long."""
    with gpu_bench(lab_name, RAIL, switch="shallow:latency=650ns") as bench:
        sent, arrived = bench.departures("h1g0", "eth0"), bench.arrivals("h1g0", "eth0")
        passed, answered = bench.departures("rail0", "down0"), bench.departures("h0g0", "eth0")
        back = bench.departures("rail0", "down1")
        results = bench.run(
            [
                schedule(0, Receive(peer=1, tag=1, into=PACKET)),
                schedule(1, Write(peer=0, tag=1, local=PACKET, remote=PACKET)),
                schedule(2),
            ]
        )
        bench.pool.settled()
    at_the_switch = START_PS + ON_WIRE_PS + CABLE_PS
    out_of_the_switch = at_the_switch + LATENCY_PS
    at_the_receiver = out_of_the_switch + ON_WIRE_PS + CABLE_PS
    assert sent.frames[0] == (START_PS, FRAME)
    assert arrived.frames[0] == (at_the_switch, FRAME)
    assert passed.frames[0] == (out_of_the_switch, FRAME)
    assert results[0].end_ns == at_the_receiver // PS == 2218
    (begun, octets), *_ = answered.frames
    assert back.frames[0] == (begun + (octets + 24) * 20 + CABLE_PS + LATENCY_PS, octets)


def test_frames_in_a_pipeline_are_lost_with_the_port_that_they_came_by(lab_name: str) -> None:
    """The kernel takes nothing in by a port without carrier."""
    two = Region("x", 0, 8192)
    with gpu_bench(lab_name, RAIL, switch="shallow:latency=650ns") as bench:
        passed = bench.departures("rail0", "down0")
        line = bench.network.lines[CableEnd("h1g0", "eth0")]
        last_arrival = START_PS + 2 * ON_WIRE_PS + CABLE_PS
        inside: list[int] = []

        def pull(_: object) -> None:
            line.pull()
            inside.extend((line.in_pipeline, bench.network.under_way(), line.counts.arrived))

        bench.events.at(last_arrival + 1, 0, pull, None)
        with pytest.raises(EndpointError, match="RTO_RETRIES_EXHAUSTED"):
            bench.run(
                [
                    schedule(0, Receive(peer=1, tag=1, into=two)),
                    schedule(1, Write(peer=0, tag=1, local=two, remote=two)),
                    schedule(2),
                ]
            )
    assert inside == [2, 2, 2]
    assert passed.frames == []
    assert (line.counts.arrived, line.counts.in_flight, line.in_pipeline) == (0, 2, 0)


def test_two_packets_for_one_port(lab_name: str) -> None:
    """The second waits for as long as the first one takes, whichever that is."""
    with gpu_bench(lab_name, RAIL) as bench:
        received = bench.arrivals("rail0", "down0")
        second = Region("x", 4096, 4096)
        results = bench.run(
            [
                schedule(
                    0,
                    Receive(peer=1, tag=1, into=PACKET),
                    Receive(peer=2, tag=1, into=second),
                ),
                schedule(1, Write(peer=0, tag=1, local=PACKET, remote=PACKET)),
                schedule(2, Write(peer=0, tag=1, local=PACKET, remote=second)),
            ]
        )
    first = START_PS + 2 * (ON_WIRE_PS + CABLE_PS)
    data = [frame for frame in received.frames if frame[1] == FRAME]
    assert data == [(first, FRAME), (first + ON_WIRE_PS, FRAME)]
    assert results[0].end_ns == (first + ON_WIRE_PS) // PS


def test_a_switch_holds_a_frame_until_its_last_octet_has_left(lab_name: str) -> None:
    """What the switch program sees of the queue is what waits, the frame on the line included."""
    with gpu_bench(lab_name, RAIL) as bench:
        assert bench.lab.asic is not None
        bench.run(
            [
                schedule(
                    0,
                    Receive(peer=1, tag=1, into=PACKET),
                    Receive(peer=2, tag=1, into=Region("x", 4096, 4096)),
                ),
                schedule(1, Write(peer=0, tag=1, local=PACKET, remote=PACKET)),
                schedule(
                    2,
                    Write(peer=0, tag=1, local=PACKET, remote=Region("x", 4096, 4096)),
                ),
            ]
        )
        queues = bench.lab.asic.counters()["rail0:down0"].queues
        deepest = max(queue.max_bytes for queue in queues.values())
        left = sum(queue.bytes for queue in queues.values())
    assert (deepest, left) == (2 * 4218, 0)


def test_filter_in_the_namespace_of_a_gpu_stops_its_frames(lab_name: str) -> None:
    """A person may do that; the account names the GPU, and the line's time passes all the same."""
    with gpu_bench(lab_name, RAIL) as bench:
        for words in (
            ("add", "table", "netdev", "t"),
            ("add", "chain", "netdev", "t", "c", EGRESS),
        ):
            assert bench.lab.exec("h1g0", ["nft", *words], timeout=30).returncode == 0
        sent = bench.departures("h1g0", "eth0")
        bench.pool.load(
            [
                schedule(0, Receive(peer=1, tag=1, into=PACKET)),
                schedule(1, Write(peer=0, tag=1, local=PACKET, remote=PACKET)),
                schedule(2),
            ]
        )
        with pytest.raises(EndpointError, match="RTO_RETRIES_EXHAUSTED"):
            bench.pool.run()
        dropped = bench.network.account.dropped
    assert sent.frames == []
    assert set(dropped) == {"h1g0: filtered in its namespace"}
    assert dropped.total() > 1
