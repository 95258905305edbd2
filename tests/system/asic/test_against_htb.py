"""The modelled queue against the kernel's own, which holds the same frames.

HTB lets a frame go when its transmission begins, the model counts what is not yet sent of it: so
the model is deeper by nothing to one frame.  Besides, HTB catches up on what the link could have
carried in the last 100 us (:data:`emulator.dataplane.kernel.shaping.CATCH_UP_NS`), and what a timer
is late beyond that, its link loses.
"""

import socket
import statistics

import pytest

from emulator.dataplane.kernel.port_counters import read_ports
from emulator.dataplane.kernel.shaping import DATA_SHARE
from emulator.dataplane.switch.bpf.layout import Queue
from tests.harness.asic.port_bench import NEAR, WIRE, Bench, profile, shape, udp, within

pytestmark = pytest.mark.root

SO_SNDBUFFORCE = 32
#: A frame takes 32 ms, beside which timers of any machine are on time.
RATE, SIZE, COUNT = 1e6, 4000, 60
OCTETS = SIZE + 28 + WIRE


def test_model_follows_the_kernels_backlog(bench: Bench) -> None:
    shape(bench.near, NEAR, RATE)
    bench.configure(profile("lossless"), rate_bps=RATE)
    bench.out.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 64 << 20)
    frame = udp(SIZE, dscp=20, ecn=0)
    for _ in range(COUNT):
        bench.out.send(frame)
    deeper: list[float] = []
    backlogs = set()

    def both_are_empty() -> bool:
        before = bench.counters().queues[Queue.LOW].bytes
        (port,) = read_ports(bench.near.kernel).values()
        after = bench.counters().queues[Queue.LOW].bytes
        kernels = port.data.backlog_bytes + 24 * port.data.backlog_packets
        if kernels:
            deeper.append(((before + after) / 2 - kernels) / OCTETS)
            backlogs.add(port.data.backlog_packets)
        return not kernels and not after

    within(both_are_empty, "both queues empty")
    assert max(backlogs) > COUNT / 2  # there was something to compare
    assert len(backlogs) > COUNT / 4
    assert -0.5 < statistics.median(deeper) < 1.5


def test_data_have_their_share_in_both(bench: Bench) -> None:
    """While control waits, as much of data leaves the model as leaves the kernel.

    The model pours where HTB sends whole frames, so they differ by a frame or two.
    """
    rate, size, count = 1e6, 400, 300
    octets = size + 28 + WIRE  # 3.7 ms
    shape(bench.near, NEAR, rate)
    bench.configure(profile("lossless"), rate_bps=rate)
    bench.out.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 64 << 20)
    for frame in [udp(size, dscp=20, ecn=0)] * count + [udp(size, dscp=46, ecn=0)] * count:
        bench.out.send(frame)
    (first,) = read_ports(bench.near.kernel).values()
    deeper: dict[Queue, list[float]] = {Queue.LOW: [], Queue.HIGH: []}
    while True:
        before = bench.counters().queues
        (port,) = read_ports(bench.near.kernel).values()
        after = bench.counters().queues
        if not (port.control.backlog_packets and after[Queue.HIGH].bytes):
            break
        for queue, row in ((Queue.LOW, port.data), (Queue.HIGH, port.control)):
            mean = (before[queue].bytes + after[queue].bytes) / 2
            kernels = row.backlog_bytes + 24 * row.backlog_packets
            deeper[queue].append((mean - kernels) / octets)
        latest = port
    control, data = (
        before.backlog_packets - after.backlog_packets
        for before, after in ((first.control, latest.control), (first.data, latest.data))
    )
    assert control > count / 5
    assert 0.7 * DATA_SHARE < data / (data + control) < 1.4 * DATA_SHARE  # HTB itself
    assert -2 < statistics.median(deeper[Queue.LOW]) < 3
    assert min(deeper[Queue.LOW]) > -3
    assert max(deeper[Queue.LOW]) < 4
