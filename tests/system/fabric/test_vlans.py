"""Rails of a switch as VLANs of one bridge: the same fabric, seen from everywhere but inside."""

import json
from dataclasses import replace

import pytest

from emulator.dataplane.doctor import capabilities
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from emulator.errors import UserError
from tests.harness.lab.traffic import pings
from tests.system.conftest import LabFactory
from topologies import catalogue
from topologies.interface_indices import VLAN_BRIDGE, interface_indices
from topologies.model import CableEnd, FabricProfile, TopologyError
from topologies.profile import fabric_file
from topologies.routing.static_routes import static_routes

SHAPE = "dual_rail_per_switch:hosts=2,gpus_per_host=4,spines=2"


def test_interfaces_and_routes_are_those_of_bridges() -> None:
    apart, tagged = catalogue.load(SHAPE), catalogue.load(f"{SHAPE},vlans=on")
    before, after = interface_indices(apart), interface_indices(tagged)
    added = {CableEnd("rail0", VLAN_BRIDGE), CableEnd("rail1", VLAN_BRIDGE)}
    assert {end: index for end, index in after.items() if end not in added} == before
    assert len(set(after.values())) == len(after) == len(before) + len(added)
    assert static_routes(tagged) == static_routes(apart)


def test_switch_with_vlans_has_one_mac() -> None:
    switch = catalogue.load(f"{SHAPE},vlans=on").node("rail0")
    assert len(switch.bridges) == 2
    assert len({bridge.mac for bridge in switch.bridges}) == 1


def test_rails_have_bridges_unless_asked_otherwise() -> None:
    assert catalogue.load(SHAPE).profile == FabricProfile(vlans="off")


def test_bridges_with_several_macs_are_no_vlans_of_one() -> None:
    apart = catalogue.load(SHAPE)
    with pytest.raises(TopologyError, match="rail0 have several MAC addresses"):
        replace(apart, profile=FabricProfile(vlans="on"))


def test_vlan_ids_end_at_4094() -> None:
    tagged = catalogue.load(f"{SHAPE},vlans=on")
    first, *others = tagged.node("rail0").bridges
    odd = replace(tagged.node("rail0"), bridges=(replace(first, vlan=4095), *others))
    nodes = tuple(odd if node.name == "rail0" else node for node in tagged.nodes)
    with pytest.raises(TopologyError, match=r"rail0:rail0: VLAN id 4095 is not in 1\.\.4094"):
        replace(tagged, nodes=nodes)


def test_fabric_profile_says_it_too() -> None:
    text = "segment: {gpus_per_host: 4, rail_switch: {rails_per_switch: 2, vlans: on}}"
    assert fabric_file.read(text, "f").topology.profile.vlans == "on"


@pytest.mark.root
def test_kernel_without_vlans_refuses_before_anything_is_built(lab_name: str) -> None:
    if capabilities.has("vlan"):
        pytest.skip("this kernel has VLANs")
    spec = f"{SHAPE},vlans=on"
    with pytest.raises(UserError) as refusal:
        Lab.create(lab_name, catalogue.load(spec), FabricSettings(dilation=1000, seed=1, spec=spec))
    assert str(refusal.value).startswith("vlan is needed to make rails VLANs of one bridge")
    assert "vlans=off" in str(refusal.value)


@pytest.mark.root
def test_auto_takes_what_the_kernel_has(lab: LabFactory) -> None:
    made = lab(f"{SHAPE},vlans=auto")
    bridges = {"br0"} if capabilities.has("vlan") else {"rail0", "rail1"}
    assert set(_bridges(made, "rail0")) == bridges
    assert _reach(made) == {0}


@pytest.mark.root
class TestWithVlans:
    @pytest.fixture
    def made(self, lab: LabFactory) -> Lab:
        if not capabilities.has("vlan"):
            pytest.skip("this kernel has no VLANs")
        return lab(f"{SHAPE},vlans=on")

    def test_rails_are_vlans_and_reach_each_other_by_the_switch(self, made: Lab) -> None:
        assert _reach(made) == {0}
        found = json.loads(made.exec("rail0", ["bridge", "-j", "vlan"]).stdout)
        members = {row["ifname"]: [each["vlan"] for each in row["vlans"]] for row in found}
        assert members == {
            "br0": [101, 102],
            **{"down0": [101], "down1": [101], "down2": [102], "down3": [102]},
        }
        indices = made.interface_indices()
        shown = json.loads(made.exec("rail0", ["ip", "-j", "-d", "link"]).stdout)
        found = {row["ifname"]: row for row in shown}
        assert found["rail1"]["link"] == "br0"
        assert found["rail1"]["ifindex"] == indices[CableEnd("rail0", "rail1")]
        assert {found[name]["mtu"] for name in ("br0", "rail0", "rail1", "down0")} == {9000}
        # or every frame that it forwards would be copied to the switch itself
        assert found["br0"]["promiscuity"] == 0

    def test_nothing_is_flooded_and_ports_alone_count(self, made: Lab) -> None:
        before = made.counters()
        assert not [end for end in before if end.startswith("rail0:rail") or ":br" in end]
        assert set(pings(made, [("h0g0", _address(made, "h1g1"))]).values()) == {0}
        after = made.counters()
        for silent in ("h1g0:eth0", "h0g1:eth0", "h0g2:eth0"):
            assert after[silent].rx_packets == before[silent].rx_packets


def _address(lab: Lab, gpu: str) -> str:
    address = lab.topology.node(gpu).ports[0].address
    assert address is not None
    return str(address.ip)


def _reach(lab: Lab) -> set[int]:
    others = [gpu.name for gpu in lab.topology.gpus[1:]]
    return set(pings(lab, [("h0g0", _address(lab, other)) for other in others]).values())


def _bridges(lab: Lab, switch: str) -> list[str]:
    shown = lab.exec(switch, ["ip", "-j", "link", "show", "type", "bridge"]).stdout
    return [row["ifname"] for row in json.loads(shown) if row]
