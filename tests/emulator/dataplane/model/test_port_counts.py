"""What modelled ports count is in the tables before anybody looks."""

import pytest

from emulator.dataplane.model.port import ModelPort
from emulator.dataplane.model.program import ModelProgram
from emulator.dataplane.switch import switch_counters
from emulator.dataplane.switch.bpf.layout import PORT_KEY, Queue, TrafficClass
from emulator.dataplane.switch.bpf.switch_program import Size
from emulator.dataplane.switch.switch_profile import named, port_settings
from emulator.dataplane.switch.virtual_state import DEPTH, NOW, PASSED, PEAK, PORT_WORDS
from topologies.ethernet import FRAMING_OCTETS

INDEX, OCTETS = 1, 1000
FRAME = b"\x02" * 12 + b"\x08\x00\x45\x00" + (OCTETS - FRAMING_OCTETS - 14).to_bytes(2)
FRAME = FRAME.ljust(OCTETS - FRAMING_OCTETS, b"\0")
LOW_AT = INDEX * PORT_WORDS + DEPTH + Queue.LOW
PEAK_AT = INDEX * PORT_WORDS + PEAK


@pytest.fixture
def program() -> ModelProgram:
    made = ModelProgram("counts", Size(ports=2, switches=1))
    profile = named("deep", bdp_bytes=10**6, mtu=9000)
    settings = port_settings(profile, rate_bps=4e11, dilation=1, seed=1, timed=False)
    made.settings.put(PORT_KEY.pack(INDEX), settings)
    return made


def send(program: ModelProgram, frames: int) -> None:
    """Let ``frames`` leave by the port, at times of 7 ns and on."""
    port = ModelPort(program, INDEX, 0)
    for number in range(frames):
        port.of_switch.begin(7 + number)
        port.leave(FRAME, 0, [])


def test_counters_have_what_has_passed_and_go_on_after_each_look(program: ModelProgram) -> None:
    for round_ in (1, 2):
        send(program, 3)
        counters = switch_counters.read(program, INDEX)
        of_class = counters.classes[TrafficClass.DATA]
        assert (of_class.packets, of_class.bytes) == (3 * round_, 3 * OCTETS * round_)
        low = counters.queues[Queue.LOW]
        assert low.max_bytes == 3 * OCTETS * round_
        assert sum(low.histogram) == 3 * round_
        words = program.virtual_switches.mapped().cast("Q")
        assert (words[NOW], words[PASSED]) == (9, 3 * round_)


def test_a_reset_leaves_nothing_of_what_was_counted_before(program: ModelProgram) -> None:
    send(program, 3)
    switch_counters.reset(program, INDEX)
    send(program, 1)
    counters = switch_counters.read(program, INDEX)
    assert counters.classes[TrafficClass.DATA].packets == 1
    assert sum(counters.queues[Queue.LOW].histogram) == 1


@pytest.mark.parametrize("alone", [False, True])
def test_depths_and_peak_are_the_same_whoever_takes_off(program: ModelProgram, alone: bool) -> None:
    depths = program.depths(INDEX)
    depths.keep(alone)
    send(program, 3)
    depths.take_off(Queue.LOW, OCTETS)
    words = program.virtual_ports.mapped().cast("Q")
    assert (words[LOW_AT], words[PEAK_AT]) == (2 * OCTETS, 3 * OCTETS)
    words[PEAK_AT] = words[LOW_AT]  # as a sample does
    send(program, 1)
    depths.take_off(Queue.LOW, 2 * OCTETS)
    words = program.virtual_ports.mapped().cast("Q")
    assert (words[LOW_AT], words[PEAK_AT]) == (OCTETS, 3 * OCTETS)


def test_depths_that_somebody_writes_are_those_from_then_on(program: ModelProgram) -> None:
    depths = program.depths(INDEX)
    depths.keep(alone=True)
    send(program, 2)
    key = PORT_KEY.pack(INDEX)
    program.virtual_ports.put(key, bytes(len(program.virtual_ports.get(key))))
    assert depths.of(Queue.LOW) == 0
    send(program, 1)
    depths.keep(alone=False)
    assert program.virtual_ports.mapped().cast("Q")[LOW_AT] == OCTETS
