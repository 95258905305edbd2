"""The program for a virtual clock: an engine holds the time and the queues, in mapped tables."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.dataplane.kernel.programs import bpf_syscall as kernel
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.bpf.layout import (
    VIRTUAL_VALUE_BYTES,
    DropReason,
    Queue,
    TrafficClass,
)
from emulator.dataplane.switch.bpf.switch_program import Size, SwitchProgram
from emulator.dataplane.switch.port_faults import Faults
from emulator.dataplane.switch.switch_counters import read, read_all, reset
from emulator.dataplane.switch.virtual_state import (
    DEPTH,
    DROPPED,
    KERNEL_LOST,
    NOW,
    OVERTAKES,
    PASSED,
    PEAK,
    PORT_WORDS,
    SWITCH_WORDS,
    VirtualState,
)
from emulator.errors import UserError
from tests.harness.asic.port_bench import NEAR, WIRE, Bench, numbered, profile, udp
from tests.system.asic.test_ecn_marking import CONGESTED, ecn_of
from tests.system.fabric.test_passage import OTHER, TRANSPORT

pytestmark = pytest.mark.root

SIZE = 4000
OCTETS = SIZE + 28 + WIRE
LOW = NEAR * PORT_WORDS + DEPTH + Queue.LOW
HIGH = NEAR * PORT_WORDS + DEPTH + Queue.HIGH


@pytest.fixture
def program(program_lab: str, cache: Path) -> Iterator[SwitchProgram]:
    with asic_program.load(program_lab, Size(ports=64), clock="virtual", cache=cache) as loaded:
        yield loaded


@pytest.fixture
def state(program: SwitchProgram) -> VirtualState:
    return VirtualState(program)


def account(state: VirtualState, switch: int = 0) -> tuple[int, int]:
    """Frames that switch number ``switch`` passed, and dropped."""
    at = switch * SWITCH_WORDS
    return state.switches[at + PASSED], state.switches[at + DROPPED]


def test_layouts_agree_with_the_object(program: SwitchProgram) -> None:
    directory = asic_program.pins_of(program.lab) / "maps"
    for name, octets in VIRTUAL_VALUE_BYTES.items():
        opened = kernel.Map(directory / name)
        assert opened.value_bytes == octets
        opened.close()


def test_program_of_the_hosts_clock_shares_nothing(program_lab: str, cache: Path) -> None:
    with asic_program.load(program_lab, Size(ports=64), cache=cache) as host:
        assert host.virtual_ports is None
        with pytest.raises(UserError, match="goes by the host's clock"):
            VirtualState(host)


def test_tables_outlive_the_program(program_lab: str, cache: Path) -> None:
    with asic_program.load(program_lab, Size(ports=64), clock="virtual", cache=cache) as loaded:
        state = VirtualState(loaded)
    asic_program.remove(program_lab)
    part = state.ports[:PORT_WORDS]
    state.close()
    part[DEPTH] = 5
    assert part[DEPTH] == 5


def test_admission_goes_by_the_mapped_depth(bench: Bench, state: VirtualState) -> None:
    limit = 10 * OCTETS
    bench.configure(profile("deep", untrimmed__limit_bytes=limit), measured=True)
    frame = udp(SIZE, dscp=20)
    state.ports[LOW] = limit - 3 * OCTETS
    assert len(bench.exchange([frame] * 5)) == 3
    assert state.ports[LOW] == limit
    assert account(state) == (3, 2)
    row = bench.counters().classes[TrafficClass.UNTRIMMED]
    assert (row.packets, row.bytes, row.drops[DropReason.TAIL]) == (3, 3 * OCTETS, 2)
    state.ports[LOW] -= OCTETS  # one has left
    assert len(bench.exchange([frame] * 2)) == 1
    assert account(state) == (4, 3)


def test_queues_are_those_of_the_code_points(bench: Bench, state: VirtualState) -> None:
    bench.configure(profile("deep"), measured=True)
    bench.exchange([udp(SIZE, dscp=46), udp(SIZE, dscp=20), udp(SIZE, dscp=20)])
    assert (state.ports[HIGH], state.ports[LOW]) == (OCTETS, 2 * OCTETS)
    assert list(state.ports[: NEAR * PORT_WORDS]) == [0] * (NEAR * PORT_WORDS)


def test_time_alone_drains_nothing(bench: Bench, state: VirtualState) -> None:
    bench.configure(profile("deep"), rate_bps=100e9, measured=True)
    bench.exchange([udp(SIZE, dscp=20)] * 10)
    state.switches[NOW] = 10**12
    bench.exchange([udp(SIZE, dscp=20)])
    assert state.ports[LOW] == 11 * OCTETS
    assert bench.counters().queues[Queue.LOW].bytes == 11 * OCTETS
    state.ports[LOW] = 0
    (one,) = read_all(bench.program, [NEAR])
    assert one.queues[Queue.LOW].bytes == 0
    assert one.queues[Queue.LOW].max_bytes == 11 * OCTETS
    assert one.queues[Queue.LOW].histogram[0] >= 1


def test_reset_leaves_the_engines_queues(bench: Bench, state: VirtualState) -> None:
    bench.configure(profile("deep"), measured=True)
    bench.exchange([udp(SIZE, dscp=20)] * 2)
    reset(bench.program, NEAR)
    assert state.ports[LOW] == 2 * OCTETS
    assert read(bench.program, NEAR).classes[TrafficClass.UNTRIMMED].packets == 0


def test_trimmed_frame_counts_once(bench: Bench, state: VirtualState) -> None:
    bench.configure(profile(data__trim_bytes=5 * OCTETS), measured=True)
    arrived = bench.exchange([udp(SIZE)] * 8)
    assert len(arrived) == 8
    assert sum(len(frame) < 100 for frame in arrived) == 3
    assert account(state) == (8, 0)
    assert state.ports[LOW] == 5 * OCTETS
    assert state.ports[HIGH] == 3 * 84
    bench.configure(profile(data__trim_bytes=5 * OCTETS, trimmed__limit_bytes=5000), measured=True)
    state.ports[HIGH] = 5000
    assert bench.exchange([udp(SIZE)]) == []
    assert account(state) == (8, 1)


def test_duplicates_count_each(bench: Bench, state: VirtualState) -> None:
    bench.configure(profile("deep"), faults=Faults(duplication=1), measured=True)
    assert len(bench.exchange([udp(SIZE, dscp=20)] * 3)) == 6
    assert account(state) == (6, 0)
    assert state.ports[LOW] == 6 * OCTETS


def test_frame_that_a_fault_took_does_not_wait(bench: Bench, state: VirtualState) -> None:
    bench.configure(profile("deep"), faults=Faults(loss=1), measured=True)
    for _ in range(3):
        bench.out.send(udp(SIZE, dscp=20))
    assert account(state) == (0, 3)
    assert state.ports[LOW] == 0
    assert bench.counters().classes[TrafficClass.UNTRIMMED].lost_bytes == 3 * OCTETS
    bench.configure(profile("deep"), faults=Faults(black_hole=True), measured=True)
    bench.out.send(udp(SIZE, dscp=20))
    assert account(state) == (0, 4)


def test_frames_of_others_pass_in_the_kernel(bench: Bench, state: VirtualState) -> None:
    """What comes by the host's clock leaves no trace in what a run reports."""
    bench.configure(profile("deep", untrimmed__limit_bytes=5000), measured=True)
    frame = bytearray(udp(SIZE, dscp=20))
    frame[36:38] = struct.pack("!H", 3784)  # BFD
    assert len(bench.exchange([bytes(frame)] * 5)) == 5
    assert account(state) == (0, 0)
    assert not any(state.ports)
    assert all(row.packets == 0 for row in bench.counters().classes.values())


def test_cables_and_switches_sort_frames_alike(bench: Bench, state: VirtualState) -> None:
    bench.configure(profile("deep"), measured=True)
    addresses = bytes.fromhex("020000000099") * 2
    for name, rest in (TRANSPORT | OTHER).items():
        before, _ = account(state)
        bench.out.send(addresses + rest)
        passed, dropped = account(state)
        if name != "pause":  # never sent to a switch
            assert (passed - before, dropped) == (name in TRANSPORT, 0), name


def test_marks_follow_the_mapped_depth_and_the_seed(bench: Bench, state: VirtualState) -> None:
    kmin, kmax, frame = 20_000, 220_000, udp(100, dscp=20)
    rules = profile("deep", untrimmed__kmin_bytes=kmin, untrimmed__kmax_bytes=kmax)

    def marks(depth: int, seed: int, count: int = 400) -> list[bool]:
        """For frames that each find ``depth``, whether they were marked."""
        reset(bench.program, NEAR)
        bench.configure(rules, seed=seed, measured=True)
        found = []
        for _ in range(count):
            state.ports[LOW] = depth
            (arrived,) = bench.exchange([frame])
            found.append(ecn_of(arrived) == CONGESTED)
        return found

    assert not any(marks(kmin, 1, 20))
    assert all(marks(kmax, 1, 20))
    between = marks((kmin + kmax) // 2, 1)
    assert abs(sum(between) - 200) < 50  # five standard deviations
    assert marks((kmin + kmax) // 2, 1) == between
    assert marks((kmin + kmax) // 2, 2) != between


def test_frames_to_go_ahead_are_counted(bench: Bench, state: VirtualState) -> None:
    bench.configure(profile("deep"), faults=Faults(reordering=1), measured=True)
    at = NEAR * PORT_WORDS + OVERTAKES
    bench.out.send(udp(SIZE, dscp=20))  # there is nothing to overtake
    assert state.ports[at] == 0
    bench.out.send(udp(SIZE, dscp=20))
    assert state.ports[at] == 1
    bench.out.send(udp(SIZE, dscp=46))  # control is served first anyway
    assert state.ports[at] == 1
    assert bench.counters().classes[TrafficClass.UNTRIMMED].reordered == 1


def test_peak_is_kept_until_it_is_set_back(bench: Bench, state: VirtualState) -> None:
    bench.configure(profile("deep"), measured=True)
    at = NEAR * PORT_WORDS + PEAK
    bench.exchange([udp(SIZE, dscp=20)] * 4)
    state.ports[LOW] = 0
    bench.exchange([udp(SIZE, dscp=20)])
    assert state.ports[at] == 4 * OCTETS
    state.ports[at] = 0
    bench.exchange([udp(SIZE, dscp=20)])
    assert state.ports[at] == 2 * OCTETS


def test_faults_strike_what_passes_in_the_kernel_by_a_sequence_of_its_own(
    bench: Bench, state: VirtualState
) -> None:
    def lost(between: int) -> list[int]:
        """Return which of 200 transport frames are lost with so many others between two of them."""
        reset(bench.program, NEAR)
        bench.configure(profile("deep"), faults=Faults(loss=0.3), seed=5, measured=True)
        gone = []
        for n, frame in enumerate(numbered(200, 64, dscp=20)):
            _, before = account(state)
            bench.out.send(frame)
            gone += [n] * (account(state)[1] - before)
            for _ in range(between):
                bench.out.send(bfd)
        return gone

    bfd = bytearray(udp(64, dscp=48))
    bfd[36:38] = struct.pack("!H", 3784)
    alone = lost(0)
    assert abs(len(alone) - 60) < 35
    assert lost(2) == alone
    others = state.ports[NEAR * PORT_WORDS + KERNEL_LOST]
    assert abs(others - 120) < 50
    assert bench.counters().classes[TrafficClass.CONTROL].packets == 0
    bench.configure(profile("deep"), faults=Faults(black_hole=True), measured=True)
    bench.out.send(bytes(bfd))
    assert state.ports[NEAR * PORT_WORDS + KERNEL_LOST] == others + 1
    assert bench.counters().classes[TrafficClass.CONTROL].drops[DropReason.BLACK_HOLE] == 0
