"""A pool in the switch program and in its model: random exchanges leave the same in both."""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from emulator.dataplane.model.port import ModelPort
from emulator.dataplane.model.program import ModelProgram
from emulator.dataplane.switch import switch_counters
from emulator.dataplane.switch.balancing import Balancing, LoadBalancing
from emulator.dataplane.switch.bpf import port_program as ports
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.bpf.layout import (
    ALPHA_SHIFT,
    PAUSE,
    POOL,
    PORT_KEY,
    VIRTUAL_PORT,
    Queue,
    pack,
)
from emulator.dataplane.switch.bpf.switch_program import Size, SwitchProgram
from emulator.dataplane.switch.bpf.switch_tables import SwitchTables
from emulator.dataplane.switch.switch_profile import port_settings
from emulator.dataplane.switch.virtual_state import (
    DEPTH,
    HELD,
    PAUSE_WORDS,
    POOL_WORDS,
    PORT_WORDS,
    SharedPool,
)
from tests.harness.asic.port_bench import profile, udp
from tests.system.asic.test_balancing import ARRIVAL, DEPARTURES, SWITCH, Router, finished

pytestmark = pytest.mark.root

FLOWS, EXCHANGES = 16, 150
SIZE, RESERVED, HEADROOM = 6000, 500, 2500
ALPHA = 0.4
LOW = DEPTH + Queue.LOW


@pytest.fixture
def program(program_lab: str, cache: Path) -> Iterator[SwitchProgram]:
    with asic_program.load(program_lab, Size(ports=64), clock="virtual", cache=cache) as loaded:
        yield loaded


def frame(number: int, flow: int, payload: int) -> bytes:
    made = bytearray(udp(payload, dscp=20, ecn=0, sport=flow))
    made[:6] = bytes.fromhex(f"0200000000{ARRIVAL:02x}")
    made[30:34] = IPv4Address("10.9.7.7").packed
    made[-4:] = number.to_bytes(4, "big")
    return finished(made)


def configure(program: SwitchTables, *, lossless: bool, size: int) -> None:
    """Give all ports a pool of ``size``, which counts by egress queue, or by port of arrival."""
    alphas: dict[str, Any] = (
        {} if lossless else {f"{name}__alpha": ALPHA for name in ("data", "untrimmed")}
    )
    for index in (ARRIVAL, *DEPARTURES):
        settings = port_settings(
            profile("jericho", **alphas),
            rate_bps=1e9,
            dilation=1,
            seed=index,
            balancing=LoadBalancing(method=Balancing.FLOW, switch=SWITCH, seed=1),
        )
        ports.configure(program, index, settings)
        if lossless:
            share = round(ALPHA * (1 << ALPHA_SHIFT))
            rules = pack(PAUSE, xoff=RESERVED, ceiling=2 * RESERVED, alpha=share, enabled=True)
            program.pause_rules.put(PORT_KEY.pack(index), rules)
        program.ports.put(PORT_KEY.pack(index), bytes(len(program.ports.get(PORT_KEY.pack(index)))))
    table = program.virtual_pools
    assert table is not None
    table.put(PORT_KEY.pack(SWITCH), POOL.pack(size, RESERVED, HEADROOM, 0, 0, 0, 0, 0))


def give_back(program: SwitchTables, index: int, octets: int, *, lossless: bool) -> None:
    """Have ``octets`` leave by port ``index``, as the engine does."""
    assert program.virtual_pools is not None
    assert program.virtual_ports is not None
    pool = SharedPool(program.virtual_pools.mapped().cast("Q"), SWITCH * POOL_WORDS)
    depths, at = program.virtual_ports.mapped().cast("Q"), index * PORT_WORDS + LOW
    if lossless:
        holds = program.pause_states.mapped().cast("q")
        pool.leave_buffer(holds, ARRIVAL * PAUSE_WORDS, RESERVED, octets)
        holds[ARRIVAL * PAUSE_WORDS + HELD] -= octets
    else:
        pool.leave_queue(depths[at], octets)
    depths[at] -= octets


def state(program: SwitchTables) -> object:
    assert program.virtual_pools is not None
    assert program.virtual_ports is not None
    return (
        POOL.unpack(program.virtual_pools.get(PORT_KEY.pack(SWITCH))),
        program.pause_states.get(PORT_KEY.pack(ARRIVAL)),
        [VIRTUAL_PORT.unpack(program.virtual_ports.get(PORT_KEY.pack(i)))[LOW] for i in DEPARTURES],
        [one.classes for one in switch_counters.read_all(program, DEPARTURES)],
    )


@pytest.mark.parametrize("lossless", [False, True], ids=["lossy", "lossless"])
def test_a_random_exchange_leaves_the_same(program: SwitchProgram, *, lossless: bool) -> None:
    drawn = random.Random(lossless)
    model = ModelProgram("model", Size(ports=64))
    with ExitStack() as stack:
        router = Router(program, stack)
        configure(program, lossless=False, size=1 << 30)
        way = router.paths(frame(number, number, 200) for number in range(FLOWS))
        assert len(set(way)) > 1
        for one in (program, model):
            configure(one, lossless=lossless, size=SIZE)
        virtual = program.virtual_ports
        assert virtual is not None
        for index in DEPARTURES:
            virtual.put(PORT_KEY.pack(index), bytes(len(virtual.get(PORT_KEY.pack(index)))))
        leaving = {index: ModelPort(model, index, SWITCH) for index in DEPARTURES}
        waiting: list[tuple[int, int]] = []
        refused = 0
        for number in range(EXCHANGES):
            flow = drawn.randrange(FLOWS)
            index = DEPARTURES[way[flow]]
            sent = frame(number, flow, drawn.randrange(60, 900))
            out: list[bytes] = []
            leaving[index].leave(sent, ARRIVAL if lossless else 0, out)
            assert len(router.paths([sent])) == len(out)
            assert state(program) == state(model)
            if out:
                waiting.append((index, len(sent) + 24))
            refused += not out
            if waiting and drawn.random() < 0.6:
                index, octets = waiting.pop(drawn.randrange(len(waiting)))
                for one in (program, model):
                    give_back(one, index, octets, lossless=lossless)
        assert refused > EXCHANGES // 10
