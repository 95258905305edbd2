"""A flow of equal frames from one NIC to another over a real switch, the receiver's link slower.

Numbers for calculation by hand: a frame takes 84 ns at 400 Gb/s and 448 ns at 75, a PAUSE frame
1.68 ns at 400 Gb/s; a cable is 200 ns long.  Times are in ns from the first octet that leaves.
"""

from collections.abc import Callable

from emulator.dataplane.switch.bpf.layout import DropReason
from emulator.dataplane.switch.pause import frame as pause_frame
from emulator.dataplane.switch.pause import quanta
from emulator.dataplane.switch.port_faults import Faults
from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.switch_counters import AsicCounters
from emulator.sim.event_queue import EventQueue, Source
from emulator.sim.line import LOW, Line, octets_on_wire
from emulator.sim.pfc import PriorityFlowControl, pause_settings_of
from emulator.workers.virtual_fabric import VirtualFabric
from tests.harness.lab.wire_tap import datagram, virtual
from tests.system.conftest import LabFactory
from topologies.model import CableEnd

FABRIC = "rail_clos:hosts=2,gpus_per_host=1,nic_rate=400G,uplink_rate=400G,nic_delay=200ns"
FRAME_OCTETS, FRAME_NS, SLOW_NS = 4200, 84, 448
PAUSE_NS, CABLE_NS = 1.68, 200
SLOW_BPS = 75 * 10**9
SENDER, RECEIVER = CableEnd("h0g0", "eth0"), CableEnd("h1g0", "eth0")
INGRESS, EGRESS = CableEnd("rail0", "down0"), CableEnd("rail0", "down1")
_UDP_AND_BELOW = 42


class Recorder:
    """Hold when frames begin to leave a port, or have arrived there (ns), data and PAUSE frames."""

    def __init__(self) -> None:
        self.data: list[float] = []
        self.pauses: list[tuple[float, int]] = []

    def frame(self, when_ps: int, frame: bytes) -> None:
        if frame[12:14] == b"\x88\x08":
            times = quanta(frame[:6], frame[14:])
            assert times is not None
            ((_, time),) = times.items()
            assert frame == pause_frame(frame[6:12], times)
            self.pauses.append((when_ps / 1000, time))
        else:
            self.data.append(when_ps / 1000)


class PausedFlow:
    """``frames`` of :data:`FRAME_OCTETS` from :data:`SENDER`, which obeys pauses as a NIC does."""

    def __init__(self, lab: LabFactory, switch: str, frames: int, start_ns: float = 0) -> None:
        self.lab = virtual(lab, FABRIC, switch=parse(switch))
        self.events = EventQueue()
        self.fabric = VirtualFabric(self.lab, self.events)
        self.network = self.fabric.network
        self.left = frames
        self.forth = self._datagram(SENDER, RECEIVER)
        self.back = self._datagram(RECEIVER, SENDER)
        self.received = 0
        self.network.arrives(RECEIVER, self._receive)
        self.network.arrives(SENDER, lambda _: None)
        self.line(EGRESS).change_rate(SLOW_BPS)
        self.line(SENDER).idle = self._feed
        self.sent, self.asked, self.heard, self.out = (Recorder() for _ in range(4))
        self.line(SENDER).departing = self.sent
        self.line(INGRESS).departing, self.line(INGRESS).arriving = self.asked, self.heard
        self.line(EGRESS).departing = self.out
        self._source = Source()
        self.at(start_ns, self._feed)

    def _datagram(self, source: CableEnd, destination: CableEnd) -> bytes:
        payload = FRAME_OCTETS - 24 - _UDP_AND_BELOW
        made = datagram(self.lab, source.node, destination.node, octets=payload)
        assert octets_on_wire(made) == FRAME_OCTETS
        return made

    def line(self, end: CableEnd) -> Line:
        return self.network.lines[end]

    def at(self, when_ns: float, act: Callable[[], object]) -> None:
        """Call ``act`` at ``when_ns``."""
        self.events.at(round(when_ns * 1000), self._source.next(), lambda _: act(), None)

    def _feed(self) -> None:
        line = self.line(SENDER)
        if self.left and not line.busy and not line.low_stopped:
            self.left -= 1
            line.enqueue(self.forth, LOW)

    def _receive(self, frame: bytes) -> None:
        assert frame[12:14] == b"\x08\x00"
        self.received += 1

    def run(self, until_ns: float) -> None:
        """Let time pass up to and with ``until_ns``."""
        self.events.run(round(until_ns * 1000))

    def apply_fault(self, end: CableEnd, faults: Faults) -> None:
        """Have ``faults`` strike switch port ``end``, and the PAUSE frames there."""
        asic = self.lab.asic
        assert asic is not None
        asic.inject(str(end), faults)
        settings = pause_settings_of(asic, end)
        self.fabric.each_of_pauses(PriorityFlowControl.apply_fault, end, settings)

    def counters(self, end: CableEnd) -> AsicCounters:
        assert self.lab.asic is not None
        return self.lab.asic.counters()[str(end)]

    def drops(self, end: CableEnd, reason: DropReason) -> int:
        return sum(row.drops[reason] for row in self.counters(end).classes.values())

    def close(self) -> None:
        self.fabric.close()
