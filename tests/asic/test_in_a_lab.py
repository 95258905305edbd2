"""The program on every switch port of a real fabric, under an incast."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from emulator.asic import ports
from emulator.asic import program as asic_program
from emulator.asic.balancing import LoadBalancing
from emulator.asic.counters import AsicCounters, read
from emulator.asic.layout import Balancing, DropReason, TrafficClass
from emulator.asic.profile import CodePoints, arrival_settings, named, port_settings
from emulator.asic.program import Program, Size
from emulator.lab import Lab
from tests.asic.bench import needs_root, root, within
from tests.fabric.traffic import blast, kill
from topologies import catalogue
from topologies.addressing import gpu_address
from topologies.model import End

pytestmark = [root, needs_root]

SPEC = "rail_clos:hosts=3,gpus_per_host=2"
DILATION, BDP, SIZE = 20_000, 60_000, 4000
ECT = 2  # ECN-capable (RFC 3168)
POINTS = CodePoints(data=0, control=46, trimmed=10, trimmed_last_hop=12)


class Fabric:
    """A lab, and the program on its switches."""

    def __init__(self, lab: Lab, program: Program, *, measured: bool) -> None:
        self.lab, self.program = lab, program
        assert lab.fabric is not None
        self.indices = lab.interface_indices()
        rules = named("shallow", bdp_bytes=BDP, mtu=4200, code_points=POINTS)
        for number, switch in enumerate(lab.topology.switches):
            kernel = lab.fabric[switch.name].kernel
            way = LoadBalancing(method=Balancing.PACKET, switch=number, seed=number)
            for cable, ours, theirs in lab.topology.neighbours(switch.name):
                index = self.indices[ours]
                settings = port_settings(
                    rules,
                    rate_bps=cable.rate_bps,
                    dilation=DILATION,
                    seed=index,
                    faces_nic=not lab.topology.node(theirs.node).is_switch,
                    balancing=way,
                    measured=measured,
                    peer=self.indices[theirs],
                )
                ports.configure(program, index, settings)
                ports.attach(kernel, index, program, subject=str(ours))
            kernel.flush()
        for gpu in lab.topology.nodes if measured else ():
            if not gpu.is_switch:
                kernel = lab.fabric[gpu.name].kernel
                ((_, ours, theirs),) = lab.topology.neighbours(gpu.name)
                settings = arrival_settings(peer=self.indices[theirs])
                ports.configure(program, self.indices[ours], settings)
                ports.attach(kernel, self.indices[ours], program, subject=str(ours))
                kernel.flush()

    def counters(self, end: End) -> AsicCounters:
        return read(self.program, self.indices[end])

    def port_to(self, node: str) -> End:
        """The switch port that ``node`` is plugged into."""
        ((_, _, theirs),) = self.lab.topology.neighbours(node)
        return theirs


@pytest.fixture(params=[False, True], ids=["computed", "measured"])
def fabric(request: pytest.FixtureRequest) -> Iterator[Fabric]:
    topology = catalogue.load(SPEC)
    name = f"t{secrets.token_hex(5)}"
    with ExitStack() as stack:
        stack.callback(asic_program.remove, name)
        lab = stack.enter_context(Lab.create(name, topology, dilation=DILATION, seed=1, spec=SPEC))
        size = Size(ports=max(lab.interface_indices().values()) + 1, switches=8)
        program = stack.enter_context(asic_program.load(name, size))
        yield Fabric(lab, program, measured=request.param)


def test_incast_is_trimmed_at_the_last_hop(fabric: Fabric) -> None:
    lab, target = fabric.lab, "h2g0"
    to = str(gpu_address(lab.topology.node(target)).ip)
    # one sender on the same rail (bridged), two from the other (routed)
    senders = [blast(lab, node, to, size=SIZE, tos=ECT) for node in ("h0g0", "h0g1", "h1g1")]
    last = fabric.port_to(target)
    try:
        within(
            lambda: fabric.counters(last).classes[TrafficClass.DATA].trimmed > 50, "trimmed packets"
        )
    finally:
        kill(*senders)

    def settled() -> bool:
        rows = lab.counters().values()
        return not any(row.data.backlog_packets or row.control.backlog_packets for row in rows)

    within(settled, "empty queues everywhere")
    seen, kernels = fabric.counters(last).classes, lab.counters()[str(last)]
    data, trimmed = seen[TrafficClass.DATA], seen[TrafficClass.TRIMMED]
    assert data.marked > 0
    assert data.drops[DropReason.TAIL] == 0
    # every one that the model admitted went through the kernel's queue, once, nothing else did
    assert kernels.control.packets == trimmed.packets
    assert kernels.data.packets == data.packets
    depths = [depth.bytes for depth in fabric.counters(last).queues.values()]
    within(lambda: not any(d.bytes for d in fabric.counters(last).queues.values()), f"no {depths}")
    assert kernels.data.drops == kernels.control.drops == 0


def test_one_flow_takes_all_spines(fabric: Fabric) -> None:
    lab = fabric.lab
    to = str(gpu_address(lab.topology.node("h2g0")).ip)
    rail = fabric.port_to("h0g1").node
    up = [
        ours
        for _, ours, theirs in lab.topology.neighbours(rail)
        if lab.topology.node(theirs.node).is_switch
    ]
    sender = blast(lab, "h0g1", to, size=SIZE)
    try:
        within(
            lambda: all(fabric.counters(end).classes[TrafficClass.DATA].packets > 20 for end in up),
            "packets on every uplink",
        )
    finally:
        kill(sender)
