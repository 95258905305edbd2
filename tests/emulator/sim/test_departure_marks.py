"""Marks on departure, as the ECN test plan of SONiC has them (sonic-mgmt, ECN-test-plan.md)."""

import statistics
from functools import partial

import pytest

from emulator.dataplane.model.port import ModelPort
from emulator.dataplane.model.program import ModelProgram
from emulator.dataplane.switch import switch_counters
from emulator.dataplane.switch.bpf.layout import PORT_KEY, TrafficClass
from emulator.dataplane.switch.bpf.switch_program import Size
from emulator.dataplane.switch.parameters import ClassRules
from emulator.dataplane.switch.switch_profile import Profile, port_settings
from emulator.dataplane.switch.virtual_state import DEPTH, PORT_WORDS
from emulator.sim.departure_marks import DepartureMarks
from topologies.ethernet import FRAMING_OCTETS

PORT, OCTETS, LOW = 1, 1000, PORT_WORDS + DEPTH + 2
ECT, CE = 2, 3


def frame(ecn: int) -> bytes:
    head = b"\x02" * 12 + b"\x08\x00\x45" + bytes((ecn,))
    made = head + (OCTETS - FRAMING_OCTETS - 14).to_bytes(2)
    return made.ljust(OCTETS - FRAMING_OCTETS, b"\0")


class BlockedPort:
    """A port that lets nothing go until all is there; thresholds are packets of OCTETS."""

    def __init__(self, kmin: int, kmax: int, pmax: float = 1.0) -> None:
        rules = ClassRules(kmin_bytes=kmin * OCTETS, kmax_bytes=kmax * OCTETS, pmax=pmax)
        profile = Profile(mtu=9000, data=rules, untrimmed=rules)
        self.program = ModelProgram("marks", Size(ports=2, switches=1))
        settings = partial(port_settings, profile, rate_bps=4e11, dilation=1, seed=7, timed=False)
        self.program.settings.put(PORT_KEY.pack(PORT), settings(marking=False))
        self.words = self.program.virtual_ports.mapped().cast("Q")
        self.marks = DepartureMarks(self.words, PORT, settings())

    def sent(self, count: int, ecn: int = ECT) -> list[int]:
        """The ECN bits of ``count`` packets as they leave, one behind the other."""
        port = ModelPort(self.program, PORT, 0)
        waiting: list[bytes] = []
        left = []
        for _ in range(count):
            port.leave(frame(ecn), 0, waiting)
        assert {one[15] & CE for one in waiting} == {ecn}
        for one in waiting:
            left.append(self.marks.leaving(one)[15] & CE)
            self.words[LOW] -= OCTETS
        return left

    def counted(self) -> int:
        return switch_counters.read(self.program, PORT).classes[TrafficClass.DATA].marked


def test_the_first_of_a_full_queue_is_marked_and_the_last_is_not() -> None:
    port = BlockedPort(kmin=20, kmax=20)
    assert port.sent(40) == [CE] * 19 + [ECT] * 21  # 20 behind it is not beyond Kmin
    assert port.counted() == 19
    switch_counters.reset(port.program, PORT)
    assert port.counted() == 0


def test_what_is_not_ecn_capable_stays_as_it_is() -> None:
    port = BlockedPort(kmin=2, kmax=2)
    assert port.sent(10, ecn=0) == [0] * 10


@pytest.mark.parametrize("pmax", [0.2, 1.0])
def test_between_the_thresholds_marks_grow_with_what_waits_behind(pmax: float) -> None:
    port = BlockedPort(kmin=10, kmax=110, pmax=pmax)
    rounds = [port.sent(121) for _ in range(200)]
    share = [statistics.fmean(one[place] == CE for one in rounds) for place in range(121)]
    assert share[:11] == [1.0] * 11  # 110 behind it or more
    assert share[-11:] == [0.0] * 11
    middle = statistics.fmean(share[56:66])  # 64.5 to 54.5 behind: half way
    assert middle == pytest.approx(pmax / 2, rel=0.2)
