"""A fabric with a virtual clock: every frame that goes into a switch is accounted for."""

from functools import partial

import pytest

from emulator.dataplane.lab import Lab
from emulator.dataplane.switch.bpf.layout import Queue, TrafficClass
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.virtual_state import DEPTH, DROPPED, PASSED, PORT_WORDS, SWITCH_WORDS
from emulator.run.faults.condition import SOUND, from_data
from emulator.run.faults.fault_injector import FaultInjector
from tests.harness.lab.traffic import within
from tests.harness.lab.wire_tap import WireTap, datagram, tapped, virtual
from tests.system.conftest import LabFactory
from topologies.model import CableEnd

pytestmark = pytest.mark.root

RAIL = "rail_clos:hosts=3,gpus_per_host=2,nic_rate=800G,uplink_rate=800G"
OCTETS = 4000 + 28 + 38
BUDGET_S = 30.0


def asic_of(lab: Lab) -> FabricAsic:
    assert lab.asic is not None
    return lab.asic


def account(asic: FabricAsic, switch: str) -> tuple[int, int]:
    """Frames that ``switch`` passed, and dropped."""
    assert asic.virtual is not None
    names = [one.name for one in asic.topology.switches]
    at = names.index(switch) * SWITCH_WORDS
    return asic.virtual.switches[at + PASSED], asic.virtual.switches[at + DROPPED]


def test_bursts_fill_the_port_until_it_trims_and_drops(lab: LabFactory) -> None:
    made = virtual(
        lab, RAIL, switch=parse("shallow:data.trim_bytes=80KB,trimmed.limit_bytes=9100B")
    )
    asic = asic_of(made)
    assert asic.virtual is not None

    def is_accounted(
        sent: int, before: int, out: list[tuple[CableEnd, bytes]], ring: WireTap
    ) -> bool:
        """Whether what was ``sent`` is done with; before 6.5 kernels may still be at it."""
        passed, dropped = account(asic, "rail0")
        out += ring.heard()
        return passed + dropped == sent and before + len(out) == passed

    with tapped(made, 0) as ring:
        whole = cut = 0
        for count in range(1, 200):
            source = ("h0g0", "h1g0")[count % 2]
            port = CableEnd("rail0", f"down{count % 2}")
            out = ring.send(port, datagram(made, source, "h2g0", octets=4000))
            within(BUDGET_S, partial(is_accounted, count, whole + cut, out, ring), "accounted")
            assert {end for end, _ in out} <= {CableEnd("rail0", "down2")}
            whole += sum(len(frame) > 4000 for _, frame in out)
            cut += sum(len(frame) < 100 for _, frame in out)
            assert account(asic, "rail0") == (whole + cut, count - whole - cut)
    assert whole == 80_000 // OCTETS
    assert cut == 9100 // 84
    counted = asic.counters()["rail0:down2"]
    assert counted.classes[TrafficClass.DATA].packets == whole
    assert counted.classes[TrafficClass.TRIMMED].packets == cut
    at = asic.ports["rail0:down2"].index * PORT_WORDS + DEPTH
    assert asic.virtual.ports[at + Queue.LOW] == whole * OCTETS
    assert asic.virtual.ports[at + Queue.HIGH] == cut * 84


def test_ping_leaves_no_trace(lab: LabFactory) -> None:
    made = virtual(lab, RAIL, switch=parse("shallow:balance=round-robin"))
    address = made.topology.node("h1g1").ports[0].address
    assert address is not None
    answer = made.exec("h0g0", ["ping", "-c3", "-i0.01", "-W5", str(address.ip)])
    assert "3 received" in answer.stdout
    asic = asic_of(made)
    assert asic.virtual is not None
    assert not any(asic.virtual.switches)
    assert not any(asic.virtual.ports)
    rows = [row for port in asic.counters().values() for row in port.classes.values()]
    assert not any(row.packets or row.dropped for row in rows)


def test_struck_cable_loses_what_passes_in_the_kernel_too(lab: LabFactory) -> None:
    made = virtual(lab, RAIL, switch=parse("shallow"))
    address = made.topology.node("h1g0").ports[0].address
    assert address is not None
    ping = ["ping", "-c1", "-W1", str(address.ip)]
    injector = FaultInjector(made)
    hole = {"down": [], "faults": {"h1g0:eth0": {"black_hole": True}}}
    injector.apply(from_data(hole, made.topology))
    assert "0 received" in made.exec("h0g0", ping).stdout
    injector.apply(SOUND)
    assert "1 received" in made.exec("h0g0", ping).stdout
    assert account(asic_of(made), "rail0") == (0, 0)
