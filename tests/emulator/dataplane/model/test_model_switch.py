"""Bridges of a modelled switch: standby links, and the carrier of VLANs of one bridge."""

from __future__ import annotations

import pytest

from emulator.dataplane.dataplane import NO_CARRIER
from emulator.dataplane.model.model_fabric import ModelFabric
from emulator.dataplane.model.model_frames import ModelFrames
from emulator.dataplane.model.model_switch import NO_ROUTE, octets_of
from emulator.dataplane.wires import Wires
from topologies.catalogue import load
from topologies.model import CableEnd, Link, Topology

#: A switch with a port without carrier may lose frames for no reason of its own.
ANY_PORT = CableEnd("rail0", "down0")
PAIR = load("clos:hosts=3,gpus_per_host=1,nic_ports=2,homing=bond,spines=1")


class Switched:
    """The fabric of ``topology``; ``left`` are the ports by which frames have left."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.wires = Wires.of(topology)
        self.fabric = ModelFabric(topology, self.wires, None)

    def sent(self, port: str, destination: str) -> list[str]:
        """Return where a frame to the MAC address leaves that comes in by ``port``."""
        node, _, name = port.partition(":")
        enter = ModelFrames(self.fabric, None).entrance(CableEnd(node, name), [ANY_PORT])
        out = enter(octets_of(destination) + bytes(60), 0)
        return [str(self.wires.end_of(wire)) for wire, _ in out]

    def link(self, port: str) -> Link:
        (link,) = [one for one in self.topology.links if port in map(str, one.ends)]
        return link


def mac_of(topology: Topology, gpu: str) -> str:
    return topology.node(gpu).ports[0].mac


def test_a_port_without_carrier_has_the_standby_link_for_its_backup() -> None:
    pair = Switched(PAIR)
    gpu = mac_of(PAIR, "h0g0")
    assert pair.sent("rail0:down1", gpu) == ["rail0:down0"]
    pair.fabric.pull([pair.link("rail0:down0")])
    assert pair.sent("rail0:down1", gpu) == ["rail0:peer0"]
    assert pair.sent("rail0:peer0", gpu) == []  # nothing goes back by the cable that it came by
    pair.fabric.pull([pair.link("rail0:peer0")])
    assert pair.sent("rail0:down1", gpu) == []
    pair.fabric.plug([pair.link("rail0:down0")])
    assert pair.sent("rail0:down1", gpu) == ["rail0:down0"]


def test_a_standby_link_is_flooded_nothing() -> None:
    pair = Switched(PAIR)
    assert pair.sent("rail0:down0", "02:ff:ff:ff:ff:ff") == ["rail0:down2", "rail0:down1"]


@pytest.mark.parametrize(("vlans", "reason"), [("on", NO_CARRIER), ("off", NO_ROUTE)])
def test_vlans_of_one_bridge_have_carrier_together(vlans: str, reason: str) -> None:
    spec = f"clos:segments=2,hosts=1,gpus_per_host=2,spines=1,rails_per_switch=2,vlans={vlans}"
    fabric = Switched(load(spec))
    topology = fabric.topology
    fabric.fabric.pull([fabric.link("rail0:down0")])  # the only port of its rail
    address = topology.node("h0g0").ports[0].address
    assert address is not None
    up = topology.node("rail0").port("up0")
    source = bytes(4)
    packet = b"\x45" + bytes(7) + b"\x40\x11" + bytes(2) + source + address.ip.packed + bytes(28)
    frames = ModelFrames(fabric.fabric, None)
    enter = frames.entrance(CableEnd("rail0", "up0"), [CableEnd("rail0", "down0")])
    assert not enter(octets_of(up.mac) + bytes(6) + b"\x08\x00" + packet, 0)
    assert frames.account.dropped == {f"rail0: {reason}": 1}
