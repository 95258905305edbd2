"""Packets of a tunnel that were changed on the way have one fate in the kernel and on the model."""

import random
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from emulator.dataplane.dataplane import Dataplane, Taken
from emulator.dataplane.model.fabric import ModelDataplane
from emulator.dataplane.model.switch import octets_of
from emulator.dataplane.model.tunnel import BACK_INTO_TUNNEL, REFUSED_IN_TUNNEL
from emulator.dataplane.switch.bpf.layout import DropReason, Queue, TrafficClass
from emulator.dataplane.switch.switch_choice import parse
from emulator.run.faults.condition import SOUND
from emulator.sim.event_queue import EventQueue
from emulator.sim.line import LOW
from emulator.sim.network import Network
from tests.harness.lab.wire_tap import datagram, tunnelled, virtual
from tests.harness.nightly import nightly
from tests.system.conftest import LabFactory
from tests.system.engine.test_faults_in_labs import SPINES, benched
from topologies.model import CableEnd

pytestmark = pytest.mark.root

STRETCHED = (
    "clos:segments=2,hosts=2,gpus_per_host=2,spines=1,rails_per_switch=2,uplinks_per_spine=1,"
    "subnets=stretched"
)
#: Octets of a tunnel packet: behind its IPv4 header, and to the end of the UDP header inside.
HEADERS = range(34, 34 + 8 + 8 + 14 + 20 + 8)
UPLINK = CableEnd("rail1", "up0")
#: The UDP checksum, the flags of VXLAN, the last octet of the VNI, the group bit of a source.
CHECKSUM, FLAGS, VNI, GROUP_SOURCE = 40, 42, 48, 56
MAC_INSIDE, IP_INSIDE = 50, 64
Fate = tuple[list[Taken], dict[str, int]]


class Fabric:
    """A network of its own, whose frames are looked at as they come out of a switch."""

    def __init__(self, lab: Dataplane) -> None:
        self.network = Network(lab, EventQueue())
        self.out: list[Taken] = []
        self.network.outlets.changes = self.out.extend

    def fate(self, end: CableEnd, frame: bytes) -> Fate:
        """Return what comes of ``frame``, which arrives at ``end``: frames, or a drop's reason."""
        self.out.clear()
        dropped = self.network.account.dropped
        before = dropped.copy()
        self.network.inlets[end](frame)
        return sorted(self.out), dict(dropped - before)

    def tunnelled(self, sender: str, receiver: str) -> bytes:
        """Return a frame from ``sender`` as it arrives at the far end of its tunnel."""
        lab = self.network.lab
        frame = datagram(lab, sender, receiver)
        end = lab.topology.far_end(CableEnd(sender, "eth0"))
        while end != UPLINK:
            ((index, frame),), _ = self.fate(end, frame)
            end = lab.topology.far_end(lab.wires.end_of(index))
        return frame


@pytest.fixture(params=["shallow", "shallow:balance=packet"])
def fabrics(request: pytest.FixtureRequest, lab: LabFactory) -> Iterator[tuple[Fabric, Fabric]]:
    switch = parse(request.param)
    with ExitStack() as stack:
        kernel = virtual(lab, tunnelled(STRETCHED), switch=switch)
        modelled = ModelDataplane("m", kernel.topology, kernel.settings)
        made = Fabric(kernel), Fabric(modelled)
        for one in made:
            stack.callback(one.network.close)
        yield made


def inverted(frame: bytes, *bits: int) -> bytes:
    changed = bytearray(frame)
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("receiver", ["h2g0", nightly("h2g1")])
def test_each_bit_of_the_headers(fabrics: tuple[Fabric, Fabric], receiver: str) -> None:
    kernel, model = fabrics
    frame = kernel.tunnelled("h0g0", receiver)
    single = [(8 * at + bit,) for at in HEADERS for bit in range(8)]
    rng = random.Random(7)
    pairs = [tuple(8 * rng.choice(HEADERS) + rng.randrange(8) for _ in range(2)) for _ in range(99)]
    for bits in (*single, *pairs):
        changed = inverted(frame, *bits)
        assert kernel.fate(UPLINK, changed) == model.fate(UPLINK, changed), bits
    for at in (CHECKSUM, FLAGS, VNI, GROUP_SOURCE):
        reason = f"rail1: {REFUSED_IN_TUNNEL}"
        assert kernel.fate(UPLINK, inverted(frame, 8 * at)) == ([], {reason: 1})
    beside = kernel.network.topology.node(receiver.replace("h2", "h0")).ports[0].mac
    back = frame[:MAC_INSIDE] + octets_of(beside) + frame[MAC_INSIDE + 6 :]
    assert kernel.fate(UPLINK, back) == ([], {f"rail1: {BACK_INTO_TUNNEL}": 1})
    assert model.fate(UPLINK, back) == ([], {f"rail1: {BACK_INTO_TUNNEL}": 1})
    assert len(kernel.fate(UPLINK, frame)[0]) == 1


def test_a_broken_header_from_a_tunnel_waits_where_the_switch_counts_it(
    fabrics: tuple[Fabric, Fabric],
) -> None:
    """The switch program goes by no DSCP of a header that has another version."""
    for fabric in fabrics:
        network = fabric.network
        frame = bytearray(fabric.tunnelled("h0g0", "h2g0"))
        asic = network.lab.asic
        assert asic is not None
        queues = list(asic.queue_of_code_point("rail1:down0"))
        frame[IP_INSIDE + 1] = queues.index(Queue.HIGH) << 2
        arrived: list[bytes] = []
        for gpu in network.topology.gpus:
            network.arrives(CableEnd(gpu.name, "eth0"), arrived.append)
        changed = inverted(bytes(frame), 8 * IP_INSIDE + 4)
        assert len(fabric.fate(UPLINK, changed)[0]) == 1
        network.events.run()  # what leaves a queue was counted there
        assert changed[MAC_INSIDE:] in arrived
        assert network.under_way() == 0


def test_a_frame_that_is_no_transports_any_more_is_lost_to_its_fault(lab: LabFactory) -> None:
    """A kernel would go on with it by the host's clock, as with a ping."""
    count = 1000
    with benched(lab, SPINES) as bench:
        links = bench.element("link", "rail0:up0").links + bench.element("link", "rail0:up1").links
        bench.injector.apply(SOUND.faulted(links, corruption=1.0))
        frame = datagram(bench.lab, "h0g0", "h0g1", octets=4)
        for _ in range(count):
            bench.network.lines[CableEnd("h0g0", "eth0")].enqueue(frame, LOW)
        bench.events.run()
        assert bench.lab.asic is not None
        classes = [
            port.classes[kind]
            for name, port in bench.lab.asic.counters().items()
            if name.startswith("rail0:up")
            for kind in TrafficClass
        ]
        lost = sum(one.drops[DropReason.LOSS] for one in classes)
        assert 0 < lost < count
        assert lost + sum(one.corrupted for one in classes) == count
        assert bench.dropped["rail0: switch"] == lost
