"""Packets of one flow that Valiant routing sends over other groups arrive later, by their paths.

A write of 4096 octets is one packet: a frame of 4194 octets, 4218 on the wire, 84.36 ns at 400 Gb/s
(:mod:`tests.system.engine.test_times_by_hand`).  Packets are so far apart that none waits.
"""

from collections.abc import Iterator

import pytest

from emulator.sim.endpoint.operations.schedule import (
    Compute,
    Operation,
    Receive,
    Region,
    Schedule,
    Write,
)
from emulator.sim.event_queue import PS
from tests.harness.engine.bench_of_gpus import GpuBench, Seen, gpu_bench

pytestmark = pytest.mark.root
DRAGONFLY = "dragonfly:gpus_per_host=1,groups=4,global_links=3,routers=1,routing={routing}"
PACKETS = 24
#: Between two packets (ns): far longer than any path.
APART = 50_000
FRAME, ON_WIRE_PS = 4194, 4218 * 20


def schedules(gpus: int, receiver: int) -> Iterator[Schedule]:
    """Yield a sender, rank 0, whose writes are ``APART`` one after the other, and the others."""
    regions = [Region("x", 4096 * number, 4096) for number in range(PACKETS)]
    for rank in range(gpus):
        operations: list[Operation] = []
        for tag, region in enumerate(regions):
            if rank == 0:
                before = (2 * tag - 2,) if tag else ()
                operations.append(Compute(duration_ns=APART, after=before))
                operations.append(
                    Write(peer=receiver, tag=tag, local=region, remote=region, after=(2 * tag,))
                )
            elif rank == receiver:
                operations.append(Receive(peer=0, tag=tag, into=region))
        yield Schedule(rank=rank, buffers={"x": 4096 * PACKETS}, operations=tuple(operations))


def paths(bench: GpuBench) -> list[tuple[int, int]]:
    """Return for each packet how many links it took, and its time to the receiver (ps)."""
    topology = bench.lab.topology
    ends = [end for link in topology.links for end in link.ends]
    sent = {end: bench.departures(end.node, end.port) for end in ends}
    receiver = len(topology.gpus) - 1
    _, _, theirs = next(topology.neighbours(topology.gpus[receiver].name))
    arrived: Seen = bench.arrivals(theirs.node, theirs.port)
    bench.run(list(schedules(len(topology.gpus), receiver)))
    _, first, _ = next(topology.neighbours(topology.gpus[0].name))
    starts = [when for when, length in sent[first].frames if length == FRAME]
    found = []
    for start in starts:
        window = range(start, start + APART * PS // 2)
        links = sum(
            when in window and length == FRAME
            for seen in sent.values()
            for when, length in seen.frames
        )
        (end,) = [when for when, length in arrived.frames if when in window and length == FRAME]
        found.append((links, end - start))
    return found


@pytest.mark.parametrize(("routing", "lengths"), [("minimal", {3}), ("valiant", {3, 4})])
def test_each_packet_takes_as_long_as_its_path(
    lab_name: str, routing: str, lengths: set[int]
) -> None:
    with gpu_bench(lab_name, DRAGONFLY.format(routing=routing)) as bench:
        found = paths(bench)
    assert len(found) == PACKETS
    assert {links for links, _ in found} == lengths
    for links, took in found:
        assert took == links * (ON_WIRE_PS + 600 * PS)
