"""The kernel's own link under a port: changed to another rate while packets wait in it."""

import socket
import time
from dataclasses import replace

import pytest

from emulator.dataplane.kernel.port_counters import PortCounters, QueueCounters, read_ports
from emulator.dataplane.kernel.shaping import (
    DATA_SHARE,
    Egress,
    egress_requests,
    rate_requests,
)
from tests.harness.asic.port_bench import (
    BUDGET_S,
    MTU,
    NEAR,
    Bench,
    number_of,
    numbered,
    udp,
    within,
)

pytestmark = pytest.mark.root

SO_SNDBUFFORCE = 32
SIZE = 1400
FRAME = len(udp(SIZE)) + 24
EGRESS = Egress(rate_bps=1e6, mtu=MTU, buffer_bytes=64 << 20)  # 11 ms a frame


@pytest.fixture
def shaped(bench: Bench) -> Bench:
    """A port that has its queues, and no program's rules."""
    bench.out.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 64 << 20)
    for request in egress_requests(EGRESS):
        bench.near.kernel.queue(request.kind, request.flags, request.body(NEAR), "htb")
    bench.near.kernel.flush()
    return bench


def change(bench: Bench, egress: Egress) -> None:
    for request in rate_requests(egress):
        bench.near.kernel.queue(request.kind, request.flags, request.body(NEAR), "rate")
    bench.near.kernel.flush()


def port(bench: Bench) -> PortCounters:
    (found,) = read_ports(bench.near.kernel).values()
    return found


def full_rate(bench: Bench, octets: int) -> float:
    """Octets a second while a backlogged port sends ``octets``, the fastest of three times.

    On a busy machine a link may fall behind its rate, so that is what it can do.
    """
    rates = []
    for _ in range(3):
        before, since = port(bench).data, time.monotonic()
        while (now := port(bench).data).bytes - before.bytes < octets:
            assert time.monotonic() - since < BUDGET_S
            time.sleep(0.001)
        assert now.backlog_packets
        rates.append(sent(before, now) / (time.monotonic() - since))
    return max(rates)


def sent(before: QueueCounters, after: QueueCounters) -> int:
    return after.bytes - before.bytes + 24 * (after.packets - before.packets)


@pytest.mark.parametrize("share", [0.25, 4.0])
def test_what_waits_leaves_at_the_new_rate(shaped: Bench, share: float) -> None:
    count = 600
    for frame in numbered(count, SIZE):
        shaped.out.send(frame)
    before = full_rate(shaped, 30 * FRAME)
    change(shaped, replace(EGRESS, rate_bps=EGRESS.rate_bps * share))
    assert port(shaped).data.backlog_packets > count * 0.7
    after = full_rate(shaped, round(30 * share) * FRAME)
    assert 0.6 * share < after / before < 1.6 * share
    change(shaped, replace(EGRESS, rate_bps=10e9))
    arrived = [number_of(shaped.heard.recv(65536)) for _ in range(count)]
    assert arrived == list(range(count))
    assert port(shaped).data.drops == 0
    assert port(shaped).data.packets == count


def test_data_do_not_starve_under_control(shaped: Bench) -> None:
    """While control asks for the whole link, one frame in twenty is of data."""
    change(shaped, replace(EGRESS, rate_bps=2e6))
    data, control = udp(400), udp(400, dscp=46)  # 1.9 ms
    for frame in [data] * 200 + [control] * 550:
        shaped.out.send(frame)
    first = last = port(shaped)
    assert first.control.backlog_packets > 400
    while (now := port(shaped)).control.backlog_packets:
        last = now
        time.sleep(0.001)
    control_octets = sent(first.control, last.control)
    assert control_octets > 300 * len(control)
    data_octets = sent(first.data, last.data)
    share = data_octets / (control_octets + data_octets)
    assert 0.7 * DATA_SHARE < share < 1.4 * DATA_SHARE


def test_strict_priority_if_data_own_nothing(shaped: Bench) -> None:
    change(shaped, replace(EGRESS, rate_bps=4e6, data_share=0.0))
    data, control = udp(SIZE), udp(SIZE, dscp=46)
    for _ in range(50):
        shaped.out.send(data)
    for _ in range(100):
        shaped.out.send(control)
    before = last = port(shaped)
    assert before.control.backlog_packets > 50
    while (now := port(shaped)).control.backlog_packets > 5:
        last = now
    assert last.control.packets - before.control.packets > 20
    assert last.data.packets - before.data.packets <= 1
    within(lambda: not port(shaped).data.backlog_packets, "an empty queue")
