"""The memory that the ports of a modelled switch share."""

import random
from dataclasses import replace

import pytest

from emulator.dataplane.model.port import ModelPort
from emulator.dataplane.model.program import ModelProgram
from emulator.dataplane.switch import switch_counters
from emulator.dataplane.switch.bpf.layout import (
    ALPHA_SHIFT,
    PAUSE,
    POOL,
    PORT_KEY,
    DropReason,
    Queue,
    pack,
)
from emulator.dataplane.switch.bpf.switch_program import Size
from emulator.dataplane.switch.parameters import ClassRules
from emulator.dataplane.switch.switch_profile import named, port_settings
from emulator.dataplane.switch.virtual_state import (
    DEPTH,
    HELD,
    HELD_IN_HEADROOM,
    IN_HEADROOM,
    PAUSE_WORDS,
    PORT_WORDS,
    USED,
    SharedPool,
)
from topologies.ethernet import FRAMING_OCTETS

SIZE = 1_000_000
OCTETS = 1000
FRAME = b"\x02" * 12 + b"\x08\x00\x45\x00" + (OCTETS - FRAMING_OCTETS - 14).to_bytes(2)
FRAME = FRAME.ljust(OCTETS - FRAMING_OCTETS, b"\0")
WHOLE = 1 << ALPHA_SHIFT


class Switch:
    """Switch 0 with ``ports`` that have one queue each; ``pauses`` are their rules, if any."""

    def __init__(
        self,
        ports: int,
        *,
        alpha: float | None = 1.0,
        reserved: int = 0,
        headroom: int = 0,
        pauses: bytes = b"",
        size: int = SIZE,
    ) -> None:
        self.program = ModelProgram("pool", Size(ports=ports + 1, switches=1))
        rules = ClassRules(alpha=alpha)
        profile = replace(named("jericho", bdp_bytes=SIZE, mtu=9000), data=rules, untrimmed=rules)
        settings = port_settings(profile, rate_bps=4e11, dilation=1, seed=1, timed=False)
        self.indices = range(1, ports + 1)
        for index in self.indices:
            self.program.settings.put(PORT_KEY.pack(index), settings)
            if pauses:
                self.program.pause_rules.put(PORT_KEY.pack(index), pauses)
        head = size, reserved, headroom
        self.program.virtual_pools.put(PORT_KEY.pack(0), POOL.pack(*head, 0, 0, 0, 0, 0))
        self.ports = {index: ModelPort(self.program, index, 0) for index in self.indices}
        self.depths = self.program.virtual_ports.mapped().cast("Q")
        self.pools = self.program.virtual_pools.mapped().cast("Q")
        self.holds = self.program.pause_states.mapped().cast("q")
        self.pool = SharedPool(self.pools, 0)

    def send(self, egress: int, origin: int = 0) -> bool:
        """Return whether a frame is admitted at port ``egress``."""
        out: list[bytes] = []
        self.ports[egress].leave(FRAME, origin, out)
        return bool(out)

    def depth(self, index: int) -> int:
        return self.depths[index * PORT_WORDS + DEPTH + Queue.LOW]

    def depart(self, index: int) -> None:
        self.pool.leave_queue(self.depth(index), OCTETS)
        self.depths[index * PORT_WORDS + DEPTH + Queue.LOW] -= OCTETS

    def held(self, index: int) -> tuple[int, int]:
        """What came in by port ``index``, and how much of it is in the headroom."""
        at = index * PAUSE_WORDS
        return self.holds[at + HELD], self.holds[at + HELD_IN_HEADROOM]

    def give_back(self, index: int, own: int) -> None:
        at = index * PAUSE_WORDS
        self.pool.leave_buffer(self.holds, at, own, OCTETS)
        self.holds[at + HELD] -= OCTETS

    def drops(self, reason: DropReason) -> int:
        found = switch_counters.read_all(self.program, self.indices)
        return sum(row.drops[reason] for port in found for row in port.classes.values())


@pytest.mark.parametrize("queues", [1, 2, 5])
@pytest.mark.parametrize("alpha", [0.25, 1.0, 4.0])
def test_full_queues_leave_as_much_free_as_theory_has_it(queues: int, alpha: float) -> None:
    """Each of n queues gets alpha x B / (1 + n x alpha) (Choudhury and Hahne, section III)."""
    switch = Switch(queues, alpha=alpha)
    full: set[int] = set()
    while len(full) < queues:
        full = {index for index in switch.indices if not switch.send(index)}
    share = alpha * SIZE / (1 + queues * alpha)
    for index in switch.indices:
        assert share - (1 + alpha) * OCTETS <= switch.depth(index) <= share + OCTETS
    assert switch.drops(DropReason.POOL) >= queues
    read = switch_counters.read(switch.program, 1).pool
    assert read is not None
    assert read.max_bytes == read.bytes == sum(map(switch.depth, switch.indices))


def test_reserved_octets_are_there_when_the_pool_is_full() -> None:
    switch = Switch(2, alpha=128.0, reserved=3 * OCTETS, size=10 * OCTETS)
    while switch.send(1):
        pass
    assert switch.depth(1) == 13 * OCTETS
    assert [switch.send(2) for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("seed", range(3))
def test_queues_give_back_what_they_took(seed: int) -> None:
    drawn, own = random.Random(seed), 2500
    switch = Switch(4, alpha=0.5, reserved=own, size=40_000)
    for _ in range(2000):
        index = drawn.choice(switch.indices)
        if drawn.random() < 0.6:
            switch.send(index)
        elif switch.depth(index):
            switch.depart(index)
        shared = sum(max(0, switch.depth(index) - own) for index in switch.indices)
        assert switch.pools[USED] == shared <= 40_000
    assert switch.drops(DropReason.POOL) > 0


def rules(own: int, headroom: int, alpha: float) -> bytes:
    share = round(alpha * WHOLE)
    return pack(PAUSE, xoff=own, ceiling=own + headroom, alpha=share, enabled=True)


def test_what_is_above_xoff_takes_headroom_and_leaves_it_first() -> None:
    own, headroom = OCTETS, 3 * OCTETS
    pauses = rules(own, headroom, 1.0)
    switch = Switch(2, alpha=None, headroom=10 * OCTETS, pauses=pauses, size=20 * OCTETS)
    taken = sum(switch.send(2, origin=1) for _ in range(30))
    held, in_headroom = switch.held(1)
    assert in_headroom == headroom
    assert held - in_headroom == 11 * OCTETS  # its own, and half of the pool
    assert taken == 14
    assert switch.drops(DropReason.HEADROOM) == 16
    for left in (2, 1, 0, 0):
        switch.give_back(1, own)
        assert switch.held(1)[1] == left * OCTETS
    assert switch.pools[USED] == 9 * OCTETS


def test_headroom_of_all_ports_has_an_end() -> None:
    pauses = rules(0, 5 * OCTETS, 0.001)
    switch = Switch(2, alpha=None, headroom=7 * OCTETS, pauses=pauses, size=20 * OCTETS)
    assert sum(switch.send(2, origin=1) for _ in range(9)) == 5
    assert sum(switch.send(1, origin=2) for _ in range(9)) == 2


@pytest.mark.parametrize("seed", range(3))
def test_ports_give_back_what_they_took(seed: int) -> None:
    drawn, own = random.Random(seed), 1500
    pauses = rules(own, 8 * OCTETS, 0.5)
    switch = Switch(4, alpha=None, headroom=20 * OCTETS, pauses=pauses, size=30_000)
    for _ in range(2000):
        index = drawn.choice(switch.indices)
        if drawn.random() < 0.6:
            switch.send(drawn.choice(switch.indices), origin=index)
        elif switch.held(index)[0]:
            switch.give_back(index, own)
        buffers = [switch.held(index) for index in switch.indices]
        assert switch.pools[USED] == sum(max(0, held - above - own) for held, above in buffers)
        assert switch.pools[USED] <= 30_000
        assert switch.pools[IN_HEADROOM] == sum(above for _, above in buffers) <= 20 * OCTETS
    assert switch.drops(DropReason.HEADROOM) > 0
