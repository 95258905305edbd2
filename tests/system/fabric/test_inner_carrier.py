"""Cables of a virtual clock are pulled and plugged in, and the kernel has carried it out."""

import json
import socket
from typing import Any

import pytest

from emulator.dataplane.doctor import capabilities
from emulator.dataplane.lab import Lab
from tests.harness.lab.wire_tap import UET_PORT, datagram, tapped, virtual
from tests.system.conftest import LabFactory
from topologies.model import CableEnd, Link

pytestmark = pytest.mark.root

RAIL = "rail_clos:hosts=2,gpus_per_host=2,spines=2,uplinks_per_spine=1"
VLANS = f"{RAIL},vlans=on"
BONDED = "clos:hosts=2,gpus_per_host=2,nic_ports=2,homing=bond"
TIMES = 20
FLOWS = range(50_000, 50_016)


def link_at(lab: Lab, node: str, port: str) -> Link:
    return lab.topology.link_at(CableEnd(node, port))


def shown(lab: Lab, node: str, *what: str) -> list[dict[str, Any]]:
    """Return what ``ip`` shows in the node."""
    return json.loads(lab.exec(node, ["ip", "-j", *what]).stdout)


def up(lab: Lab, node: str, interface: str) -> bool:
    return shown(lab, node, "link", "show", interface)[0]["operstate"] == "UP"


def everything(lab: Lab) -> dict[str, list[object]]:
    """Links, addresses, neighbours and routes of every node; no times, no counters."""
    return {
        node.name: [
            shown(lab, node.name, "addr"),
            shown(lab, node.name, "neigh", "show", "nud", "permanent"),
            shown(lab, node.name, "route", "show", "table", "all"),
        ]
        for node in lab.topology.nodes
    }


def test_both_ports_lose_carrier_and_nothing_else(lab: LabFactory) -> None:
    made = virtual(lab, RAIL)
    before = everything(made)
    cables = [link_at(made, "rail0", "up0"), link_at(made, "h0g0", "eth0")]
    made.cables.pull(cables)
    for link in cables:
        for end in link.ends:
            (row,) = shown(made, end.node, "link", "show", end.port)
            assert "UP" in row["flags"]
            assert row["operstate"] != "UP"
    for node in ("rail0", "spine0", "h0g0"):
        assert shown(made, node, "neigh", "show", "nud", "permanent") == before[node][1]
    made.cables.pull(cables)  # no harm
    made.cables.plug(cables)
    assert everything(made) == before


def test_multipath_route_avoids_a_pulled_cable_at_once(lab: LabFactory) -> None:
    made = virtual(lab, RAIL)
    frame = datagram(made, "h0g0", "h1g1")
    with tapped(made, 0) as tap:
        for _ in range(TIMES):
            ((port, _),) = tap.send(CableEnd("rail0", "down0"), frame)
            cable = made.topology.link_at(port)
            made.cables.pull([cable])
            ((other, _),) = tap.send(CableEnd("rail0", "down0"), frame)
            assert other != port
            assert other.port.startswith("up")
            made.cables.plug([cable])
            assert [end for end, _ in tap.send(CableEnd("rail0", "down0"), frame)] == [port]


def test_switch_without_a_way_sends_nothing(lab: LabFactory) -> None:
    made = virtual(lab, RAIL)
    uplinks = [link_at(made, "rail0", port) for port in ("up0", "up1")]
    frame = datagram(made, "h0g0", "h1g1")
    with tapped(made, 0) as tap:
        made.cables.pull(uplinks)
        assert tap.send(CableEnd("rail0", "down0"), frame) == []
        made.cables.plug(uplinks, out=uplinks[:1])
        assert [end for end, _ in tap.send(CableEnd("rail0", "down0"), frame)] == [
            CableEnd("rail0", "up1")
        ]
        made.cables.plug(uplinks[:1])


@pytest.mark.parametrize("spec", [RAIL, VLANS])
def test_bridge_avoids_a_pulled_cable_at_once(lab: LabFactory, spec: str) -> None:
    if spec == VLANS and not capabilities.has("vlan"):
        pytest.skip("the kernel has no VLANs")
    made = virtual(lab, spec)
    frame = datagram(made, "h0g0", "h1g0")
    cable = link_at(made, "rail0", "down1")
    with tapped(made, 0) as tap:
        for _ in range(TIMES):
            made.cables.pull([cable])
            assert tap.send(CableEnd("rail0", "down0"), frame) == []
            made.cables.plug([cable])
            assert tap.send(CableEnd("rail0", "down0"), frame) == [
                (CableEnd("rail0", "down1"), frame)
            ]


@pytest.mark.parametrize("spec", [RAIL, VLANS])
def test_bridge_loses_carrier_with_its_last_port(lab: LabFactory, spec: str) -> None:
    if spec == VLANS and not capabilities.has("vlan"):
        pytest.skip("the kernel has no VLANs")
    made = virtual(lab, spec)
    downs = [link_at(made, "rail0", f"down{number}") for number in range(2)]
    made.cables.pull(downs[:1])
    assert up(made, "rail0", "rail0")
    made.cables.pull(downs[1:])
    assert not up(made, "rail0", "rail0")
    made.cables.plug(downs[:1])
    assert up(made, "rail0", "rail0")


def test_bond_has_heard_of_a_pulled_cable(lab: LabFactory) -> None:
    if not capabilities.has("bonding"):
        pytest.skip("the kernel has no bonds")
    made = virtual(lab, BONDED)
    ports = [port.name for port in made.topology.node("h0g0").ports]
    first, second = (link_at(made, "h0g0", port) for port in ports)
    address = str(made.topology.node("h1g0").ports[0].address).partition("/")[0]
    with tapped(made, 0) as tap:

        def used() -> set[str]:
            """The ports by which flows of the GPU leave."""
            found: list[CableEnd] = []
            for flow in FLOWS:
                with made.inside("h0g0", lambda: socket.socket(type=socket.SOCK_DGRAM)) as sender:
                    sender.bind(("", flow))
                    sender.sendto(b"", (address, UET_PORT))
            while len(found) < len(FLOWS):
                assert tap.hears_within(5)
                found += [end for end, _ in tap.heard()]
            return {end.port for end in found}

        assert used() == set(ports)
        for cable, other in ((first, ports[1]), (second, ports[0])):
            made.cables.pull([cable])
            assert used() == {other}
            made.cables.plug([cable])
            assert used() == set(ports)
    made.cables.pull([first, second])
    assert not up(made, "h0g0", "bond0")


def test_another_process_pulls_and_plugs(lab: LabFactory) -> None:
    made = virtual(lab, RAIL)
    cable = link_at(made, "rail0", "up0")
    with Lab.attach(made.name) as found:
        found.cables.pull([cable])
        assert not up(made, "spine0", cable.b.port if cable.b.node == "spine0" else cable.a.port)
        found.cables.plug([cable])
    assert up(made, "rail0", "up0")
