"""Pauses of one port beside another, on a cable that loses frames, and in a circle."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.sim.endpoint.endpoint_spec import EndpointError
from emulator.sim.endpoint.operations.schedule import Operation, Receive, Region, Schedule, Write
from emulator.sim.event_queue import PS
from emulator.sim.line_faults import LineFaults
from emulator.sim.pfc import STANDSTILL_NS
from tests.harness.engine.bench_of_gpus import GpuBench, gpu_bench
from tests.harness.engine.paused_flow import EGRESS, RECEIVER, PausedFlow
from tests.system.conftest import LabFactory
from topologies.ethernet import FRAMING_OCTETS
from topologies.model import CableEnd

pytestmark = pytest.mark.root
TWO_PORTS = "clos:hosts=2,gpus_per_host=1,nic_ports=2,spines=1"
CIRCLE = "lossless:pfc_deadlock=allow,xoff=40KiB"
MESSAGE = Region("x", 0, 256 << 10)


def schedule(rank: int, *operations: Operation) -> Schedule:
    return Schedule(rank=rank, buffers={"x": 256 << 10, "y": 256 << 10}, operations=operations)


def test_a_paused_port_keeps_nobody_from_the_other(lab_name: str) -> None:
    """A paused port holds its own of 64 packets, and the other port sends the rest meanwhile."""
    with gpu_bench(
        lab_name, TWO_PORTS, switch="lossless", transport="rocev2:qps=4,cc=none"
    ) as bench:
        assert bench.lab.asic is not None
        paused, free = CableEnd("h0g0", "eth0"), bench.departures("h0g0", "eth1")
        stopped = bench.network.lines[paused]
        bench.events.at(0, 0, lambda _: setattr(stopped, "low_stopped", True), None)
        halves = [Region("x", at << 15, 1 << 15) for at in range(8)]
        bench.pool.load(
            [
                schedule(
                    0,
                    *(
                        Write(peer=1, tag=tag, local=part, remote=part)
                        for tag, part in enumerate(halves)
                    ),
                ),
                schedule(
                    1, *(Receive(peer=0, tag=tag, into=part) for tag, part in enumerate(halves))
                ),
            ]
        )
        with pytest.raises(EndpointError):
            bench.pool.run(timeout=20e-6)
        data = [frame for frame in free.frames if frame[1] > 4000]
    assert stopped.queued > 8
    assert len(data) + stopped.queued == 64
    for (before, octets), (after, _) in pairwise(data):
        assert after - before == (octets + FRAMING_OCTETS) * 20  # at 400 Gb/s: nothing between


@pytest.fixture
def flow(lab: LabFactory) -> Iterator[PausedFlow]:
    made = PausedFlow(lab, "lossless", 5, 1000)
    yield made
    made.close()


@pytest.mark.parametrize(("loss", "least", "most"), [(0.5, 2, 18), (1.0, 0, 0), (0.0, 20, 20)])
def test_loss_takes_pauses_like_all_frames(
    flow: PausedFlow, loss: float, least: int, most: int
) -> None:
    """A storm of 20 PAUSE frames over a cable that loses so many of them."""
    asic = flow.lab.asic
    assert asic is not None
    faulted = Faults(pause_storm=True, arriving=True, loss=loss)
    flow.at(0, lambda: flow.apply_fault(EGRESS, faulted))
    flow.at(41_942 * 19.5, lambda: flow.apply_fault(EGRESS, NONE))
    flow.run(1_000_000)
    counters = asic.pauses.counters()
    assert counters[str(RECEIVER)].xoff_sent == 20
    assert least <= counters[str(EGRESS)].xoff_received <= most


def deadlocked(bench: GpuBench) -> None:
    """Load flows of a ring that all go two links in the same direction."""
    ranks = len(bench.lab.topology.gpus)
    bench.pool.load(
        [
            schedule(
                rank,
                Write(peer=(rank + 2) % ranks, tag=1, local=MESSAGE, remote=Region("y", 0, 262144)),
                Receive(peer=(rank - 2) % ranks, tag=1, into=Region("y", 0, 262144)),
            )
            for rank in range(ranks)
        ]
    )


def test_paused_time_of_a_deadlock_has_not_the_patience_with_it(lab_name: str) -> None:
    with gpu_bench(lab_name, "torus:x=5,y=1", transport="uet:cc=none", switch=CIRCLE) as bench:
        deadlocked(bench)
        with pytest.raises(EndpointError, match="a PFC deadlock of 5 links"):
            bench.pool.run()
        assert bench.lab.asic is not None
        counters = bench.lab.asic.pauses.counters().values()
    assert 0 < max(port.longest_pause_ns for port in counters) < STANDSTILL_NS
    assert max(port.paused_ns for port in counters) < STANDSTILL_NS


def test_a_deadlock_ends_with_a_cable_of_its_circle(lab_name: str) -> None:
    with gpu_bench(lab_name, "torus:x=5,y=1", transport="uet:cc=none", switch=CIRCLE) as bench:
        deadlocked(bench)
        lines = LineFaults(bench.fabric)
        seen: list[bool] = []
        cable = bench.lab.topology.link_at(CableEnd(bench.lab.topology.switches[0].name, "xplus0"))

        def pull(_: object) -> None:
            seen.append(bench.fabric.deadlocked)
            lines.pull([cable])

        def plug(_: object) -> None:
            seen.append(bench.fabric.deadlocked)
            lines.follow([cable])

        for when_us, act in ((400, pull), (600, plug)):
            bench.events.at(when_us * 1000 * PS, 0, act, None)
        results = bench.pool.run()
    assert seen == [True, False]
    assert not any(result.error for result in results)
