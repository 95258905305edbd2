"""Classification by DSCP (``rail_switch.classes`` of a fabric profile) in the kernel."""

from pathlib import Path

import pytest

from emulator.dataplane.fabric_choice import choose
from emulator.dataplane.lab import Lab
from emulator.dataplane.switch import switch_choice as choice
from emulator.dataplane.switch.bpf.layout import TrafficClass
from emulator.dataplane.switch.switch_counters import AsicCounters
from tests.harness.lab.traffic import blast, kill, within
from tests.system.conftest import LabFactory
from topologies.addressing import gpu_address

pytestmark = pytest.mark.root

AF31, EF, CS1 = 26, 46, 8
COUNT, SIZE, BUDGET_S = 20, 1400, 20.0
PROFILE = """\
segment:
  hosts: 2
  gpus_per_host: 1
  rail_switch:
    classes: {AF31: high, EF: low}
pod:
  spine: {spines: 0}
global: {switch: deep, mtu: 1500, buffer: 64KiB}
"""


@pytest.fixture
def classified(lab: LabFactory, tmp_path: Path) -> Lab:
    path = tmp_path / "classes.yaml"
    path.write_text(PROFILE)
    chosen = choose(str(path))
    assert chosen.switch == "deep:dscp.26=high,dscp.46=low"
    return lab(chosen.topology, switch=choice.parse(chosen.switch), dilation=100_000)


def last_hop(lab: Lab) -> AsicCounters:
    assert lab.asic is not None
    return lab.asic.counters()["rail0:down1"]


@pytest.mark.parametrize(
    ("dscp", "traffic_class"),
    [
        (AF31, TrafficClass.CONTROL),  # told to wait with control
        (EF, TrafficClass.UNTRIMMED),  # control, told to wait with data
        (CS1, TrafficClass.UNTRIMMED),  # nothing told
    ],
)
def test_packets_are_in_the_class_of_their_code_point(
    classified: Lab, dscp: int, traffic_class: TrafficClass
) -> None:
    to = str(gpu_address(classified.topology.node("h1g0")).ip)
    sender = blast(classified, "h0g0", to, size=SIZE, tos=dscp << 2, count=10)
    try:
        within(
            BUDGET_S,
            lambda: last_hop(classified).classes[traffic_class].packets >= 10,
            f"ten packets of DSCP {dscp} in {traffic_class.name}",
        )
    finally:
        kill(sender)
    others = {TrafficClass.CONTROL, TrafficClass.DATA, TrafficClass.UNTRIMMED} - {traffic_class}
    assert not any(last_hop(classified).classes[other].packets for other in others)


def test_the_kernel_queues_a_packet_by_its_code_point(classified: Lab) -> None:
    """HTB serves the class of control before that of data
    (:mod:`emulator.dataplane.kernel.shaping`)."""
    to = str(gpu_address(classified.topology.node("h1g0")).ip)
    for dscp, queue, other in ((AF31, "control", "data"), (EF, "data", "control")):
        before = sent(classified)
        sender = blast(classified, "h0g0", to, size=SIZE, tos=dscp << 2, count=COUNT)

        def all_sent(queue: str = queue, least: int = before[queue] + COUNT) -> bool:
            return sent(classified)[queue] >= least

        try:
            within(BUDGET_S, all_sent, f"packets of DSCP {dscp} in the class {queue}")
        finally:
            kill(sender)
        assert sent(classified)[other] == before[other]


def sent(lab: Lab) -> dict[str, int]:
    """Packets that each class of the port to h1g0 has sent."""
    port = lab.counters()["rail0:down1"]
    return {"control": port.control.packets, "data": port.data.packets}
