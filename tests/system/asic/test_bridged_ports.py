"""On the port of a bridge: frames that still belong to a socket, and the program that frees them.

::

    source --- 21 bridge 31 --- sink
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.kernel.release import release_requests
from emulator.dataplane.switch.bpf import port_program as ports
from emulator.dataplane.switch.bpf.layout import TrafficClass
from emulator.dataplane.switch.bpf.switch_program import SwitchProgram
from emulator.dataplane.switch.port_faults import Faults
from emulator.dataplane.switch.switch_counters import AsicCounters, read
from emulator.dataplane.switch.switch_profile import Profile, port_settings
from tests.harness.asic.port_bench import (
    LAST,
    WIRE,
    Namespace,
    at_a_standstill,
    await_ports,
    cable,
    profile,
    shape,
    udp,
)

pytestmark = pytest.mark.root

ARRIVAL, DEPARTURE, BRIDGE = 21, 31, 5
SIZE = 4000
OCTETS = SIZE + 28 + WIRE


class BridgedPort:
    """A bridge of two ports as a rail switch has it: HTB, release program, and ours behind it."""

    def __init__(self, program: SwitchProgram, stack: ExitStack) -> None:
        self.program = program
        self.source, self.switch, self.sink = (Namespace() for _ in range(3))
        for namespace in (self.source, self.switch, self.sink):
            stack.callback(namespace.close)
        kernel = self.switch.kernel
        for index, far in ((ARRIVAL, self.source), (DEPARTURE, self.sink)):
            cable(self.switch, far, index, index + 10)
        # a bridge without a port is never ready
        kernel_object.bridge(kernel, "rail", BRIDGE, "02:00:00:00:00:05", subject="bridge")
        kernel_object.raise_link(kernel, BRIDGE, subject="bridge")
        for index in (ARRIVAL, DEPARTURE):
            kernel_object.raise_link(kernel, index, bridge=BRIDGE, subject="port")
            shape(self.switch, index, 10e9)
            for request in release_requests():
                kernel.queue(request.kind, request.flags, request.body(index), "release")
            ports.attach(kernel, index, program, subject="port")
        kernel.flush()
        await_ports(self.switch)
        self.out = stack.enter_context(self.source.raw(ARRIVAL + 10))
        self.heard = stack.enter_context(self.sink.raw(DEPARTURE + 10))

    def configure(self, rules: Profile, faults: Faults | None = None) -> None:
        settings = port_settings(rules, rate_bps=1e9, dilation=1, seed=1, faults=faults or Faults())
        ports.configure(self.program, DEPARTURE, at_a_standstill(settings))

    def exchange(self, frames: list[bytes]) -> list[bytes]:
        for frame in frames:
            self.out.send(frame)
        self.out.send(LAST)
        arrived = []
        while (frame := self.heard.recv(65536)) != LAST:
            arrived.append(frame)
        return arrived

    def counters(self) -> AsicCounters:
        return read(self.program, DEPARTURE)


@pytest.fixture
def bridged(program: SwitchProgram) -> Iterator[BridgedPort]:
    with ExitStack() as stack:
        yield BridgedPort(program, stack)


def test_every_frame_is_seen_once(bridged: BridgedPort) -> None:
    bridged.configure(profile("lossless"))
    frames = [udp(SIZE, dscp=20, ecn=0, fill=n) for n in range(50)]
    assert bridged.exchange(frames) == frames
    row = bridged.counters().classes[TrafficClass.UNTRIMMED]
    assert (row.packets, row.bytes) == (50, 50 * OCTETS)


def test_trimmed_ones_go_round_once(bridged: BridgedPort) -> None:
    bridged.configure(profile(data__trim_bytes=10 * OCTETS + 100))
    arrived = bridged.exchange([udp(SIZE, fill=n) for n in range(50)])
    # through HTB's control class, which overtakes the data that waits there
    assert sorted(map(len, arrived)) == [14 + 20 + 24] * 40 + [14 + 28 + SIZE] * 10
    seen = bridged.counters().classes
    assert seen[TrafficClass.DATA].packets == 10
    assert seen[TrafficClass.DATA].trimmed == seen[TrafficClass.TRIMMED].packets == 40


@pytest.mark.parametrize("size", [SIZE, 4120])  # less and more than a page of memory
def test_marks_need_a_copy_of_their_own(bridged: BridgedPort, size: int) -> None:
    """The freed frame shares its octets with the first, which the mark must not reach."""
    bridged.configure(profile("deep", untrimmed__kmin_bytes=0, untrimmed__kmax_bytes=1))
    arrived = bridged.exchange([udp(size, dscp=20, ecn=2)] * 20)
    assert [frame[15] & 3 for frame in arrived] == [2] + [3] * 19
    assert bridged.counters().classes[TrafficClass.UNTRIMMED].marked == 19


def test_duplicates_and_trimming_together(bridged: BridgedPort) -> None:
    bridged.configure(profile(data__trim_bytes=10 * OCTETS + 100), Faults(duplication=1.0))
    arrived = bridged.exchange([udp(SIZE, fill=n) for n in range(40)])
    # LAST, too, is sent twice: the second may be heard in the next exchange only
    assert len(arrived) in (80, 81)
    seen = bridged.counters().classes
    assert seen[TrafficClass.DATA].packets == 10
    assert seen[TrafficClass.DATA].packets + seen[TrafficClass.TRIMMED].packets == 80
