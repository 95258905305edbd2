"""A frame that waits in a switch is the switch's: its sender's NIC goes on."""

from contextlib import ExitStack

import pytest

from emulator.sim.endpoint.nic.packet_nic import Nic
from tests.harness.lab.endpoint_lab import small_lab
from tests.harness.lab.traffic import within
from tests.system.endpoint.test_endpoint_nic import SIZE, header, open_nic

pytestmark = pytest.mark.root

QUEUE_FRAMES = 2


@pytest.mark.parametrize("target", ["h2g0", "h2g1"], ids=["bridged", "routed"])
def test_an_incast_fills_the_switch_not_the_senders(target: str) -> None:
    # two NICs into one port of the same rate: what one of them sends stays behind
    with ExitStack() as stack:
        spec = "rail_clos:hosts=3,gpus_per_host=2"
        # slow enough for an emulated processor to look at all queues while a frame leaves
        lab = stack.enter_context(small_lab(spec, dilation=1_000_000.0))
        head = {node: header(lab, node, target, SIZE) for node in ("h0g0", "h1g0")}
        gateway = bytes.fromhex(lab.topology.node("rail0").bridges[0].mac.replace(":", ""))
        if target == "h2g1":
            head = {node: gateway + octets[6:] for node, octets in head.items()}
        senders: dict[str, Nic] = {
            node: open_nic(lab, node, stack, queue_frames=QUEUE_FRAMES, frame_octets=SIZE + 42)
            for node in head
        }
        switches = {switch.name for switch in lab.topology.switches}

        def waiting() -> int:
            """Frames in the queues of switches, wherever the two flows meet."""
            rows = lab.counters().items()
            return sum(r.data.backlog_packets for end, r in rows if end.split(":")[0] in switches)

        def switches_fill() -> bool:
            for node, nic in senders.items():
                if room := nic.room():
                    nic.send([(head[node], bytes(SIZE))] * room)
            return waiting() > 6 * QUEUE_FRAMES

        within(30, switches_fill, "more waits in the switch than both NICs may queue")
        # and of that nothing counts against them once their own ports have sent it
        within(10, lambda: all(nic.room() == QUEUE_FRAMES for nic in senders.values()), "room")
        assert waiting() > QUEUE_FRAMES
        for node in senders:
            assert lab.counters()[f"{node}:eth0"].data.drops == 0
