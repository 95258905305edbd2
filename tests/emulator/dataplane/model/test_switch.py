"""Modelled switches: bridges and their standby links, routes, the hash of their own packets."""

from ipaddress import IPv4Address, IPv4Network

import pytest

from emulator.dataplane.dataplane import NO_CARRIER
from emulator.dataplane.model import switch
from emulator.dataplane.model.fabric import ModelFabric, ModelFrames
from emulator.dataplane.model.switch import NO_ROUTE, ForwardingTable, octets_of, selected, udp_hash
from emulator.dataplane.wires import Wires
from topologies.catalogue import load
from topologies.model import CableEnd, Link, Topology
from topologies.routing.static_routes import Hop, Route, static_routes

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
        enter = ModelFrames(self.fabric).entrance(CableEnd(node, name), [ANY_PORT])
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
    frames = ModelFrames(fabric.fabric)
    enter = frames.entrance(CableEnd("rail0", "up0"), [CableEnd("rail0", "down0")])
    assert not enter(octets_of(up.mac) + bytes(6) + b"\x08\x00" + packet, 0)
    assert frames.account.dropped == {f"rail0: {reason}": 1}


HOPS = tuple(Hop(f"up{place}", IPv4Address(f"172.16.0.{place}")) for place in range(3))
SOURCE, DESTINATION = IPv4Address("10.0.1.3").packed, IPv4Address("10.9.0.1").packed


def table(dead: set[str]) -> ForwardingTable:
    routes = [
        Route(destination=IPv4Network("10.9.0.0/24"), hops=HOPS),
        Route(destination=IPv4Network("10.9.0.0/16"), hops=HOPS[:1]),
    ]
    spine = load("rail_clos:hosts=2,gpus_per_host=2").node("spine0")
    return ForwardingTable(spine, routes, (), lambda name: name not in dead)


def test_hashes_are_divided_evenly() -> None:
    choices = table(set()).choices("down0", SOURCE, DESTINATION)
    middles = [((2 * place + 1) << 31) // 3 for place in range(3)]
    assert [selected(choices, one).interface for one in middles] == ["up0", "up1", "up2"]
    assert selected(choices, 0).interface == "up0"
    assert selected(choices, 2**32 - 1).interface == "up2"


def test_hops_without_carrier_do_not_count() -> None:
    choices = table({"up1"}).choices("down0", SOURCE, DESTINATION)
    assert [hop.interface for _, hop in choices] == ["up0", "up2"]


def test_a_route_without_any_hop_is_passed_over_for_a_shorter_prefix() -> None:
    dead = {"up1", "up2"}
    looked_up = table(dead)
    assert len(looked_up.choices("down0", SOURCE, DESTINATION)) == 1
    dead.add("up0")
    looked_up.forget()
    assert looked_up.choices("down0", SOURCE, DESTINATION) == ()


def test_a_default_route_and_a_host_route_are_found_by_their_lengths() -> None:
    routes = [
        Route(destination=IPv4Network("0.0.0.0/0"), hops=HOPS[2:]),
        Route(destination=IPv4Network("10.9.0.1/32"), hops=HOPS[:1]),
        Route(destination=IPv4Network("10.9.0.0/31"), hops=HOPS[1:2]),
    ]
    spine = load("rail_clos:hosts=2,gpus_per_host=2").node("spine0")
    looked_up = ForwardingTable(spine, routes, (), lambda _: True)
    found = [
        looked_up.choices("down0", SOURCE, IPv4Address(destination).packed)[0][1].interface
        for destination in ("10.9.0.1", "10.9.0.0", "10.9.0.2")
    ]
    assert found == ["up0", "up1", "up2"]


def test_destinations_behind_the_same_hops_share_their_division() -> None:
    looked_up = table(set())
    first = looked_up.choices("down0", SOURCE, DESTINATION)
    assert looked_up.choices("down0", SOURCE, IPv4Address("10.9.0.2").packed) is first


def test_destinations_behind_the_same_hops_have_them_once() -> None:
    topology = load("fat_tree:radix=8,gpus_per_host=4")
    routes = static_routes(topology)["leaf0"]
    looked_up = ForwardingTable(topology.node("leaf0"), routes, (), lambda _: True)
    others = [one for one in routes if len(one.hops) > 1]
    assert len(others) > 4
    assert len({id(one.hops) for one in others}) == 1
    own = len(topology.node("leaf0").bridges) + sum(
        port.address is not None for port in topology.node("leaf0").ports
    )
    assert looked_up.next_hops == len({id(one.hops) for one in routes}) + own


def test_what_a_switch_remembers_is_bounded() -> None:
    looked_up = table(set())
    for number in range(switch.MOST_KNOWN + 5):
        destination = (int(IPv4Address("10.9.0.0")) + number).to_bytes(4)
        assert looked_up.choices("down0", SOURCE, destination)
    assert looked_up.known == 5


SEED, LOCAL, VXLAN = 123_456_789, IPv4Address("10.255.0.1").packed, 4789


@pytest.mark.parametrize(
    ("far", "port", "place"),
    [
        ("10.255.151.141", 40565, 7),
        ("10.255.94.236", 37041, 0),
        ("10.255.121.162", 52557, 4),
        ("10.255.66.143", 48143, 5),
        ("10.255.121.103", 50778, 6),
        ("10.255.138.216", 48177, 7),
    ],
)
def test_a_packet_takes_the_next_hop_that_linux_gives_it(far: str, port: int, place: int) -> None:
    """``ip route get`` of Linux 6.18 has told the places, among eight next hops."""
    assert udp_hash(SEED, LOCAL, IPv4Address(far).packed, (port, VXLAN)) >> 29 == place


def test_both_directions_have_one_hash() -> None:
    far = IPv4Address("10.255.0.200").packed
    assert udp_hash(1, LOCAL, far, (40_000, VXLAN)) == udp_hash(1, far, LOCAL, (VXLAN, 40_000))
    assert udp_hash(1, LOCAL, far, (40_000, VXLAN)) != udp_hash(2, LOCAL, far, (40_000, VXLAN))
