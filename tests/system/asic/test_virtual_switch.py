"""A switch under a virtual clock: the choice among hops, lossless buffers, faults on arrival."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from emulator.dataplane.switch import switch_counters as asic_counters
from emulator.dataplane.switch.balancing import Balancing, LoadBalancing
from emulator.dataplane.switch.bpf import port_program as ports
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.bpf.layout import PAUSE, PORT_KEY, DropReason, Queue, pack
from emulator.dataplane.switch.bpf.switch_program import Size, SwitchProgram
from emulator.dataplane.switch.cable_counters import read as read_pauses
from emulator.dataplane.switch.pauses import change_rules
from emulator.dataplane.switch.port_faults import Faults
from emulator.dataplane.switch.switch_profile import port_settings
from emulator.dataplane.switch.virtual_state import (
    ASSERTED,
    DEEPEST,
    DEPTH,
    DROPPED,
    HELD,
    NOW,
    PASSED,
    PAUSE_WORDS,
    PORT_WORDS,
    SWITCH_WORDS,
    VirtualState,
)
from tests.harness.asic.port_bench import WIRE, profile, within
from tests.system.asic.test_balancing import (
    ARRIVAL,
    DEPARTURES,
    HOPS,
    SWITCH,
    Router,
    finished,
    packets,
)

pytestmark = pytest.mark.root

OCTETS = 200 + 28 + WIRE  # of a frame of `packets`
GAP_NS = 1_000


@pytest.fixture
def program(program_lab: str, cache: Path) -> Iterator[SwitchProgram]:
    with asic_program.load(program_lab, Size(ports=64), clock="virtual", cache=cache) as loaded:
        yield loaded


@pytest.fixture
def state(program: SwitchProgram) -> VirtualState:
    return VirtualState(program)


@pytest.fixture
def router(program: SwitchProgram) -> Iterator[Router]:
    with ExitStack() as stack:
        yield Router(program, stack)


def bfd(count: int) -> list[bytes]:
    """Frames that are not the engine's."""
    made = []
    for frame in packets(count, flows=1):
        changed = bytearray(frame)
        changed[36:38] = struct.pack("!H", 3784)
        changed[-8:-4] = b"bfd."
        made.append(finished(changed))
    return made


def set_time(state: VirtualState, now_ns: int) -> None:
    state.switches[SWITCH * SWITCH_WORDS + NOW] = now_ns


def account(state: VirtualState) -> tuple[int, int]:
    at = SWITCH * SWITCH_WORDS
    return state.switches[at + PASSED], state.switches[at + DROPPED]


def low(index: int) -> int:
    return index * PORT_WORDS + DEPTH + Queue.LOW


def test_flowlets_pause_by_the_virtual_clock(router: Router, state: VirtualState) -> None:
    router.configure(Balancing.FLOWLET, seed=1, flowlet_gap_ns=GAP_NS)
    first, *_, last = packets(60)
    set_time(state, 10**9)
    way = router.path(first)
    for step in range(20):  # never a pause, however long the host takes
        set_time(state, 10**9 + step * GAP_NS)
        assert router.path(first) == way
    ways = set()
    for step in range(20):
        set_time(state, 2 * 10**9 + step * (GAP_NS + 1))
        ways.add(router.path(last))
    assert len(ways) == HOPS


def test_least_loaded_goes_by_the_mapped_depths(router: Router, state: VirtualState) -> None:
    router.configure(Balancing.LEAST_LOADED)
    router.tell_routes()
    for index, waits in zip(DEPARTURES, (3, 1, 5, 2), strict=True):
        state.ports[low(index)] = waits * OCTETS
    taken = router.paths(packets(7))
    assert len(taken) == 7
    assert 2 not in taken
    waiting = [state.ports[low(index)] for index in DEPARTURES]
    assert sorted(waiting) == [4 * OCTETS, 4 * OCTETS, 5 * OCTETS, 5 * OCTETS]
    state.ports[low(DEPARTURES[2])] = 0  # all that waited there has left
    assert router.path(packets(1)[0]) == 2
    assert account(state) == (8, 0)


def test_frames_in_the_kernel_do_not_take_turns(router: Router, state: VirtualState) -> None:
    router.configure(Balancing.ROUND_ROBIN, seed=1)
    router.tell_routes()
    others = bfd(12)
    taken = []
    for n, frame in enumerate(packets(12)):
        taken.append(router.path(frame))
        if n % 3 == 0:
            assert router.path(others[n]) in range(HOPS)
    assert taken == [n % HOPS for n in range(12)]
    router.configure(Balancing.PACKET, seed=1)
    assert account(state) == (12, 0)


def pause(program: SwitchProgram, *, xoff: int, ceiling: int) -> None:
    for index in (ARRIVAL, *DEPARTURES):
        rules = pack(PAUSE, xoff=xoff, xon=xoff // 2, ceiling=ceiling, enabled=True)
        program.pause_rules.put(PORT_KEY.pack(index), rules)


def test_lossless_buffer_is_the_engines_to_empty(router: Router, state: VirtualState) -> None:
    router.configure(Balancing.FLOW, seed=1)
    pause(router.program, xoff=OCTETS, ceiling=3 * OCTETS)
    held = ARRIVAL * PAUSE_WORDS + HELD
    way = {router.path(frame) for frame in packets(3)}
    assert len(way) == 1
    assert state.pauses[held] == 3 * OCTETS
    assert router.paths(packets(2)) == []
    assert account(state) == (3, 2)
    index = DEPARTURES[way.pop()]
    assert state.ports[low(index)] == 3 * OCTETS
    state.ports[low(index)] -= OCTETS  # one has left
    state.pauses[held] -= OCTETS
    assert len(router.paths(packets(2))) == 1
    assert state.pauses[held] == 3 * OCTETS
    assert state.pauses[ARRIVAL * PAUSE_WORDS + DEEPEST] == 3 * OCTETS
    assert state.pauses[ARRIVAL * PAUSE_WORDS + ASSERTED] == 0  # the engine notices by itself
    (counted,) = read_pauses(router.program, [ARRIVAL])
    assert counted.max_held_bytes == 3 * OCTETS
    assert router.program.waiting_octets.all_keys() == []
    assert drops(router, DropReason.HEADROOM) == 3


def test_control_takes_no_lossless_buffer(router: Router, state: VirtualState) -> None:
    router.configure(Balancing.FLOW, seed=1)
    pause(router.program, xoff=OCTETS, ceiling=OCTETS)
    frames = [finished(bytearray(f[:15] + bytes([46 << 2]) + f[16:])) for f in packets(4)]
    assert len(router.paths(frames)) == 4
    assert state.pauses[ARRIVAL * PAUSE_WORDS + HELD] == 0


def test_watchdog_drops_what_wants_to_leave(router: Router, state: VirtualState) -> None:
    router.configure(Balancing.FLOW, seed=1)
    pause(router.program, xoff=OCTETS, ceiling=10 * OCTETS)
    for index in DEPARTURES:
        change_rules(router.program, index, dropping=True)
    assert router.paths(packets(2)) == []
    assert account(state) == (0, 2)
    assert drops(router, DropReason.WATCHDOG) == 2
    for index in DEPARTURES:
        change_rules(router.program, index, dropping=False)
    assert len(router.paths(packets(2))) == 2


def drops(router: Router, reason: DropReason) -> int:
    found = asic_counters.read_all(router.program, DEPARTURES)
    return sum(row.drops[reason] for port in found for row in port.classes.values())


def test_lossless_frame_that_a_fault_took_is_not_held(router: Router, state: VirtualState) -> None:
    router.configure(Balancing.FLOW, seed=1)
    pause(router.program, xoff=OCTETS, ceiling=10 * OCTETS)
    apply_fault(router, DEPARTURES, Faults(loss=1))
    for frame in packets(3):
        router.out.send(frame)
    within(lambda: account(state) == (0, 3), "all counted")
    assert state.pauses[ARRIVAL * PAUSE_WORDS + HELD] == 0
    assert not any(state.ports[low(index)] for index in DEPARTURES)


@pytest.mark.parametrize(
    "faults", [Faults(loss=1, arriving=True), Faults(black_hole=True, arriving=True)]
)
def test_frames_that_a_fault_takes_on_arrival_are_counted(
    router: Router, state: VirtualState, faults: Faults
) -> None:
    apply_fault(router, [ARRIVAL], faults)
    assert router.paths(packets(3)) == []
    assert account(state) == (0, 3)
    assert not any(state.ports[low(index)] for index in DEPARTURES)


def apply_fault(router: Router, indices: Sequence[int], faults: Faults) -> None:
    for index in indices:
        settings = port_settings(
            profile("lossless"),
            rate_bps=1e9,
            dilation=1,
            seed=index,
            balancing=LoadBalancing(method=Balancing.FLOW, switch=SWITCH, seed=1),
            faults=faults,
        )
        ports.configure(router.program, index, settings)
