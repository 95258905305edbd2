"""Fields of tunnel packets repeat with a virtual clock, whatever the kernel would draw."""

import struct

import pytest

from emulator.dataplane.kernel.fabric.tunnel_fields import tunnel_hash
from emulator.dataplane.lab import Lab
from emulator.dataplane.switch.switch_choice import parse
from tests.harness.lab.wire_tap import (
    VXLAN_PORT,
    carried,
    datagram,
    ones_complement,
    tapped,
    tunnelled,
    virtual,
    with_source_port,
)
from tests.system.conftest import LabFactory
from topologies.model import CableEnd

pytestmark = pytest.mark.root

STRETCHED = "clos:segments=2,hosts=1,gpus_per_host=2,spines=2,rails_per_switch=2,subnets=stretched"
SOURCE_PORTS = 32_768, 60_999  # net.ipv4.ip_local_port_range
FLOWS = range(49_152, 49_168)


def outside(lab: Lab, sender: str, receiver: str) -> dict[int, tuple[CableEnd, bytes]]:
    """For each flow, where the first switch sends its packet, and the frame there."""
    found = {}
    with tapped(lab, 0) as tap:
        for flow in FLOWS:
            frame = with_source_port(datagram(lab, sender, receiver), flow)
            (found[flow],) = tap.send(lab.topology.far_end(CableEnd(sender, "eth0")), frame)
    return found


def test_tunnel_packets_repeat(lab: LabFactory) -> None:
    labs = [virtual(lab, tunnelled(STRETCHED)) for _ in range(2)]
    pair = "h0g0", "h1g0"
    first, second = (outside(made, *pair) for made in labs)
    assert first == second
    assert len({end for end, _ in first.values()}) == 2  # equal next hops share the flows
    inside = datagram(labs[0], *pair)
    for flow, (_, frame) in first.items():
        assert frame[14 + 28 + 8 + 14 :][20:22] == flow.to_bytes(2, "big")
        identification, protocol = frame[18:20], frame[23]
        assert (identification, protocol) == (bytes(2), 17)
        assert ones_complement(frame[14:34]) == 0xFFFF
        port, destination = struct.unpack_from("!2H", frame, 34)
        drawn = tunnel_hash(inside[26:30], inside[30:34], flow.to_bytes(2, "big") + inside[36:38])
        drawn ^= drawn << 16 & 0xFFFF_FFFF
        low, high = SOURCE_PORTS
        assert (port, destination) == (low + (drawn * (high - low) >> 32), VXLAN_PORT)


def test_switch_asic_gives_the_hash_where_it_balances(lab: LabFactory) -> None:
    made = virtual(lab, tunnelled(STRETCHED), switch=parse("shallow:balance=packet"))
    frames = []
    with tapped(made, 0) as tap:
        for _ in range(8):
            end = made.topology.far_end(CableEnd("h0g0", "eth0"))
            ((_, frame),) = tap.send(end, datagram(made, "h0g0", "h1g0"))
            frames.append(frame)
    assert len({frame[34:36] for frame in frames}) > 4  # one flow, many source ports
    assert {frame[18:20] for frame in frames} == {bytes(2)}


def test_frame_reaches_its_gpu_through_tunnels(lab: LabFactory) -> None:
    made = virtual(lab, tunnelled(STRETCHED))
    for sender, receiver in (("h0g0", "h1g0"), ("h1g1", "h0g1"), ("h0g0", "h1g1")):
        frame = datagram(made, sender, receiver)
        with tapped(made, 0) as tap:
            path, arrived = carried(tap, made, sender, frame)
        assert path[-1] == CableEnd(receiver, "eth0")
        assert len(path) == 3  # leaf, spine, leaf: a cable each
        assert arrived[26:] == frame[26:]
