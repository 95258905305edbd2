"""Measured queues: as deep as the kernel's own, whatever the rate of an ideal link would be."""

import socket
import time
from contextlib import suppress

import pytest

from emulator.dataplane.kernel.port_counters import read_ports
from emulator.dataplane.switch.bpf import port_program as ports
from emulator.dataplane.switch.bpf.layout import Queue
from emulator.dataplane.switch.port_faults import Faults
from emulator.dataplane.switch.switch_profile import arrival_settings
from tests.harness.asic.port_bench import FAR, NEAR, WIRE, Bench, profile, shape, udp, within

pytestmark = pytest.mark.root

SO_SNDBUFFORCE = 32
RATE, SIZE, COUNT = 8e6, 4000, 60
OCTETS = SIZE + 28 + WIRE


@pytest.fixture
def measuring(bench: Bench) -> Bench:
    """The far end tells what arrives; the near end's settings are still to come."""
    ports.configure(bench.program, FAR, arrival_settings(peer=NEAR))
    ports.attach(bench.far.kernel, FAR, bench.program, subject="far")
    bench.far.kernel.flush()
    bench.out.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 64 << 20)
    return bench


def depth(bench: Bench) -> int:
    return bench.counters().queues[Queue.LOW].bytes


def kernels(bench: Bench) -> int:
    """Return what HTB holds, in octets on the wire."""
    (port,) = read_ports(bench.near.kernel).values()
    return port.data.backlog_bytes + 24 * port.data.backlog_packets


@pytest.mark.parametrize("rate", [RATE / 100, RATE, RATE * 100])
def test_depth_is_the_kernels_backlog(measuring: Bench, rate: float) -> None:
    shape(measuring.near, NEAR, RATE)
    measuring.configure(profile("lossless"), rate_bps=rate, measured=True)
    frame = udp(SIZE, dscp=20, ecn=0)
    for _ in range(COUNT):
        measuring.out.send(frame)
    found = set()

    def empty() -> bool:
        before, holds, after = depth(measuring), kernels(measuring), depth(measuring)
        found.add(holds)
        assert before >= holds  # and what is between HTB and the other end
        assert after <= holds + 2 * OCTETS
        return after == 0

    within(empty, "an empty queue")
    assert kernels(measuring) == 0
    assert len(found) > COUNT / 4


def test_frames_lost_on_the_cable_do_not_stay(measuring: Bench) -> None:
    shape(measuring.near, NEAR, 1e9)
    measuring.configure(profile("lossless"), faults=Faults(loss=0.5), measured=True)
    for _ in range(100):
        measuring.out.send(udp(SIZE, dscp=20, ecn=0))
    measuring.configure(profile("lossless"), measured=True)
    measuring.exchange([])
    within(lambda: depth(measuring) == 0, "an empty queue")


def test_trimmed_packets_leave_the_queue_they_were_in(measuring: Bench) -> None:
    shape(measuring.near, NEAR, RATE)
    measuring.configure(profile(data__trim_bytes=10 * OCTETS), measured=True)
    frame = udp(SIZE)
    for _ in range(40):
        measuring.out.send(frame)
    seen = measuring.counters().queues
    assert seen[Queue.HIGH].max_bytes > 0
    assert seen[Queue.LOW].max_bytes <= 10 * OCTETS
    within(lambda: all(q.bytes == 0 for q in measuring.counters().queues.values()), "empty queues")


def test_frames_lost_below_are_forgotten(measuring: Bench) -> None:
    # the kernel's queue has room for some ten frames, the program lets it overflow
    shape(measuring.near, NEAR, RATE, buffer_bytes=10 * OCTETS)
    measuring.configure(profile("lossless"), rate_bps=RATE, measured=True)
    frame = udp(SIZE, dscp=20, ecn=0)
    for _ in range(40):
        with suppress(OSError):  # a sender on the port itself is told of the kernel's drops
            measuring.out.send(frame)
    within(lambda: kernels(measuring) == 0, "an empty queue in the kernel")
    stuck = depth(measuring)
    assert stuck > 10 * OCTETS
    since, pause = time.monotonic(), 1.1 + stuck * 8 / RATE
    within(lambda: time.monotonic() - since > pause, "a pause of more than a second")
    measuring.exchange([])
    within(lambda: depth(measuring) == 0, "an empty queue")
