"""Faults of a lab with a virtual clock: the kernel, the switch program and the lines together."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from emulator.dataplane.lab import Lab
from emulator.dataplane.switch.bpf.layout import DropReason, TrafficClass
from emulator.dataplane.switch.port_faults import Faults
from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.virtual_state import DEPTH, PORT_WORDS
from emulator.run.faults.condition import SOUND, Condition, Element, element
from emulator.run.faults.fault_injector import FaultInjector
from emulator.sim.event_queue import PS, EventQueue
from emulator.sim.line import LOW
from emulator.sim.line_faults import LineFaults
from emulator.sim.network import Network
from tests.harness.lab.wire_tap import datagram, virtual
from tests.system.conftest import LabFactory
from topologies.model import CableEnd, Topology

pytestmark = pytest.mark.root

#: On 8 Gb/s an octet lasts 1 ns.
RAIL = "rail_clos:hosts=2,gpus_per_host=1,nic_rate=8Gbps,nic_delay=100ns"
RAIL3 = "rail_clos:hosts=3,gpus_per_host=1,nic_rate=8Gbps,nic_delay=100ns"
SPINES = "rail_clos:hosts=1,gpus_per_host=2,spines=2,uplinks_per_spine=1,nic_rate=8Gbps"
OCTETS = 958  # of payload: 1000 octets of frame, 1024 on the wire
TOOK_NS = 1024


class Bench:
    """A lab, its lines, and what arrives at GPUs (ns, GPU)."""

    def __init__(self, lab: Lab, network: Network) -> None:
        self.lab, self.network, self.events = lab, network, network.events
        lines = LineFaults(network)  # type: ignore[arg-type]  # which lacks GPUs to be ended
        self.injector = FaultInjector(lab, lines)
        self.arrived: list[tuple[int, str]] = []
        for link in lab.topology.links:
            for end, other in (link.ends, link.ends[::-1]):
                if not lab.topology.node(end.node).is_switch:
                    network.lines[other].far = partial(self._arrive, end.node)

    def _arrive(self, gpu: str, _: bytes) -> None:
        self.arrived.append((self.events.now // PS, gpu))

    def send(self, source: str, destination: str, count: int = 1, port: int = 4793) -> None:
        frame = datagram(self.lab, source, destination, octets=OCTETS, port=port)
        for _ in range(count):
            self.network.lines[CableEnd(source, "eth0")].enqueue(frame, LOW)

    def at(self, ns: int, requested: Condition) -> None:
        self.events.at(ns * PS, 0, lambda _: self.injector.apply(requested), None)

    def down(self, kind: str, name: str) -> Condition:
        return SOUND.lowered(self.element(kind, name))

    def element(self, kind: str, name: str) -> Element:
        return element(kind, name, self.lab.topology)

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.network.account.dropped)

    def depth(self, port: str) -> int:
        asic = self.lab.asic
        assert asic is not None
        assert asic.virtual is not None
        at = asic.ports[port].index * PORT_WORDS + DEPTH
        return sum(asic.virtual.ports[at : at + 3])


@contextmanager
def benched(
    lab: LabFactory, spec: str | Topology, switch: str | None = "shallow"
) -> Iterator[Bench]:
    chosen = None if switch is None else parse(switch)
    with ExitStack() as stack:
        made = virtual(lab, spec, switch=chosen)
        network = Network(made, EventQueue())
        stack.callback(network.close)
        yield Bench(made, network)


# One hop: 1024 ns on the NIC's cable, 100 ns of delay, and the same from the switch.
ARRIVES_NS = 2 * (TOOK_NS + 100)


@pytest.mark.parametrize(("cut_ns", "arrives"), [(ARRIVES_NS, False), (ARRIVES_NS + 1, True)])
def test_frame_in_flight_at_the_cut_is_lost(lab: LabFactory, cut_ns: int, arrives: bool) -> None:
    with benched(lab, RAIL) as bench:
        bench.send("h0g0", "h1g0")
        bench.at(cut_ns, bench.down("nic", "h1g0"))
        bench.events.run()
        assert bench.arrived == ([(ARRIVES_NS, "h1g0")] if arrives else [])
        assert bench.injector.lost_in_flight == (not arrives)
        assert bench.depth("rail0:down1") == 0


def test_queue_goes_with_its_cable_and_the_account_says_so(lab: LabFactory) -> None:
    with benched(lab, RAIL3) as bench:
        bench.send("h0g0", "h2g0", 4)
        bench.send("h1g0", "h2g0", 4)
        # Two come at a time, from 1124 ns on: six are at the switch, of which one has left.
        cut_ns = 3 * TOOK_NS + 100
        bench.at(cut_ns + 1, bench.down("link", "rail0:down2"))
        bench.events.run(cut_ns * PS)
        line = bench.network.lines[CableEnd("rail0", "down2")]
        assert bench.depth("rail0:down2") == (line.queued + 1) * TOOK_NS
        waiting = line.queued
        assert waiting == 3
        bench.events.run()
        assert bench.injector.flushed == waiting
        assert bench.arrived == [(ARRIVES_NS, "h2g0")]
        # One was leaving the switch and one on the cable; two came to it later, and had no port.
        assert bench.injector.lost_in_flight == 2
        assert bench.dropped == {"rail0: port without carrier": 2}
        assert bench.depth("rail0:down2") == 0
        assert bench.network.under_way() == 0
        assert bench.lab.asic is not None
        data = bench.lab.asic.counters()["rail0:down2"].classes[TrafficClass.DATA]
        assert data.lost_bytes == waiting * TOOK_NS


def test_many_frames_without_a_way_are_accounted_for(lab: LabFactory) -> None:
    with benched(lab, SPINES) as bench:
        bench.at(0, bench.down("switch", "spine0").lowered(bench.element("switch", "spine1")))
        bench.send("h0g0", "h0g1", 300)
        bench.events.run()
        assert bench.arrived == []
        assert bench.dropped == {"rail0: no route": 300}


def test_frames_for_a_bridge_port_without_carrier_are_accounted_for(lab: LabFactory) -> None:
    with benched(lab, RAIL) as bench:
        bench.at(0, bench.down("nic", "h1g0"))
        bench.send("h0g0", "h1g0", 50)
        bench.events.run()
        assert bench.dropped == {"rail0: port without carrier": 50}


def test_flap_ends_as_it_began(lab: LabFactory) -> None:
    with benched(lab, RAIL) as bench:
        pulled = bench.down("nic", "h1g0")
        for step in range(10):
            bench.at(step * 5000, SOUND if step % 2 else pulled)
            bench.events.at(step * 5000 * PS + 1, 1, lambda _: bench.send("h0g0", "h1g0"), None)
        bench.events.run()
        sent = [step * 5000 for step in range(10) if step % 2]
        assert bench.arrived == [(ns + ARRIVES_NS, "h1g0") for ns in sent]
        assert bench.dropped == {"rail0: port without carrier": 5}


def test_rate_of_a_nics_cable_falls_both_ways(lab: LabFactory) -> None:
    with benched(lab, RAIL) as bench:
        slow = SOUND.faulted(bench.element("link", "rail0:down1").links, rate=0.25)
        bench.injector.apply(slow)
        bench.send("h0g0", "h1g0")
        bench.send("h1g0", "h0g0")
        bench.at(20_000, SOUND)
        bench.events.at(20_001 * PS, 1, lambda _: bench.send("h0g0", "h1g0"), None)
        bench.events.run()
        slowed = 5 * TOOK_NS + 200
        assert sorted(bench.arrived) == [
            (slowed, "h0g0"),
            (slowed, "h1g0"),
            (20_001 + ARRIVES_NS, "h1g0"),
        ]


@pytest.mark.parametrize("balance", ["packet", "round-robin"])
def test_black_uplink_takes_its_share_of_what_is_sprayed(lab: LabFactory, balance: str) -> None:
    with benched(lab, SPINES, f"shallow:balance={balance}") as bench:
        bench.at(0, SOUND.faulted(bench.element("link", "rail0:up0").links, black_hole=True))
        bench.send("h0g0", "h0g1", 100)
        bench.events.run()
        lost = bench.dropped["rail0: switch"]
        assert len(bench.arrived) == 100 - lost
        assert lost == 50 if balance == "round-robin" else 25 < lost < 75


def test_loss_duplication_and_reordering_keep_the_account(lab: LabFactory) -> None:
    with benched(lab, RAIL3) as bench:
        faulted = Faults(loss=0.2, duplication=0.2, reordering=0.3)
        bench.injector.inject("rail0:down2", faulted)
        bench.send("h0g0", "h2g0", 100)
        bench.send("h1g0", "h2g0", 100)
        bench.events.run()
        assert bench.lab.asic is not None
        classes = bench.lab.asic.counters()["rail0:down2"].classes
        data = classes[TrafficClass.DATA]
        assert min(data.drops[DropReason.LOSS], data.duplicated, data.reordered) > 10
        assert len(bench.arrived) == sum(
            one.packets - one.drops[DropReason.LOSS] for one in classes.values()
        )
        assert bench.network.account.injected == 200
        assert bench.depth("rail0:down2") == 0


def test_cable_is_pulled_without_switch_program(lab: LabFactory) -> None:
    with benched(lab, RAIL, None) as bench:
        bench.at(5000, bench.down("nic", "h1g0"))
        bench.at(20_000, SOUND)
        for ns in (0, 6000, 21_000):
            bench.events.at(ns * PS, 1, lambda _: bench.send("h0g0", "h1g0"), None)
        bench.events.run()
        assert bench.arrived == [(ARRIVES_NS, "h1g0"), (21_000 + ARRIVES_NS, "h1g0")]
        assert bench.dropped == {"rail0: port without carrier": 1}
