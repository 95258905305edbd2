"""Bonds of GPUs as Ethernet segments: two switches that tell each other of them by BGP EVPN."""

import socket
from dataclasses import replace

import pytest

from emulator.dataplane.control_plane.control_plane_choice import chosen
from emulator.dataplane.doctor import capabilities
from emulator.dataplane.lab import Lab
from emulator.run.faults.reach import reached
from tests.harness.lab.traffic import pings, send_flows, within
from tests.system.conftest import LabFactory
from topologies import catalogue
from topologies.addressing import gpu_address
from topologies.analysis.failure_domain import failure_domains
from topologies.interface_indices import interface_indices
from topologies.model import CableEnd, FabricProfile, Topology, TopologyError
from topologies.profile import fabric_file
from topologies.routing.paths import path_delays
from topologies.routing.static_routes import Hop, static_neighbours, static_routes
from topologies.stretch import Segment, segments_of, stretch_of

#: rail0 and rail1 are the switches of the first segment, rail2 and rail3 those of the second
SHAPE = (
    "clos:segments=2,hosts=1,gpus_per_host=2,nic_ports=2,rails_per_switch=2,spines=1,"
    "subnets=stretched,homing=esi"
)
PURPOSE = "make two ports of a GPU one (homing=esi; homing=paths uses both)"


@pytest.fixture(scope="module")
def homed() -> Topology:
    return catalogue.load(SHAPE)


# --- the model ---------------------------------------------------------------------------------


def test_switches_of_a_gpu_pose_as_one_system_and_number_their_segments(homed: Topology) -> None:
    first, second, third, _ = segments_of(homed)
    assert first == Segment(
        gpu=CableEnd("h0g0", "bond0"),
        number=1,
        system_mac="12:20:00:00:00:00",
        ports=(CableEnd("rail0", "down0"), CableEnd("rail1", "down0")),
    )
    assert (second.gpu.node, second.number, second.system_mac) == ("h0g1", 2, first.system_mac)
    assert (third.gpu.node, third.number, third.system_mac) == ("h1g0", 3, "12:20:00:02:00:00")
    assert homed.node("rail1").port("down0").interface == "es0"
    assert not homed.standby_ends
    assert len(set(interface_indices(homed).values())) == len(interface_indices(homed))


def test_rails_are_vlans_with_one_gateway_on_all_switches(homed: Topology) -> None:
    assert homed.profile == FabricProfile(control_plane="evpn", data_plane="vxlan", vlans="on")
    assert homed.parameters["vlans"] == "on"
    (bridges,) = {homed.node(f"rail{number}").bridges for number in range(4)}
    assert [(bridge.vlan, bridge.vni) for bridge in bridges] == [(101, 10_101), (102, 10_102)]
    assert len({bridge.mac for bridge in bridges}) == 1


def test_gpu_has_one_address_and_peers_on_its_bond(homed: Topology) -> None:
    assert [str(gpu_address(gpu)) for gpu in homed.gpus] == [
        *("10.0.1.2/24", "10.0.2.2/24", "10.0.1.3/24", "10.0.2.3/24")
    ]
    rows = static_neighbours(homed)["h0g0"]
    assert [(row.interface, str(row.address)) for row in rows] == [
        *(("bond0", "10.0.1.1"), ("bond0", "10.0.1.3"))
    ]
    (default,) = static_routes(homed)["h0g0"]
    assert {hop.port for hop in default.hops} == {"bond0"}
    assert {hop.port for hop in static_routes(homed)["spine0"][0].hops} >= {"down0", "down2"}
    assert isinstance(default.hops[0], Hop)


def test_ways_are_as_long_as_over_a_pair_of_switches(homed: Topology) -> None:
    stretch = stretch_of(homed)
    assert stretch is not None
    assert stretch.homes["h1g0"] == (("rail2", "rail3"), 10_101)
    pairs = catalogue.load(SHAPE.replace("subnets=stretched,homing=esi", "homing=bond"))
    assert sorted(path_delays(homed, "h0g0").values()) == sorted(
        path_delays(pairs, "h0g0").values()
    )
    assert {domain.kind: domain.reported() for domain in failure_domains(homed)} == {
        domain.kind: domain.reported()
        for domain in failure_domains(pairs)
        if domain.kind != "link rail - rail"
    }


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "stated"),
    [
        ("nic_ports=1", "homing is esi and nic_ports 1; a bond has two ports: take nic_ports=2"),
        ("subnets=apart", "homing is esi and subnets apart; .*: take subnets=stretched"),
        ("planes=own", "homing is esi and planes own; .*: take planes=shared"),
        ("homing=bond", "nic_ports 2 and homing bond; .*: take homing=esi, nic_ports=1 or"),
        ("spines=0", "subnets is stretched and spines 0"),
    ],
)
def test_parameters_that_do_not_agree(change: str, stated: str) -> None:
    name = change.partition("=")[0]
    words = [word for word in SHAPE.split(",") if not word.startswith(f"{name}=")]
    with pytest.raises(TopologyError, match=stated):
        catalogue.load(",".join([*words, change]))


def test_segments_take_vlans() -> None:
    homed = catalogue.load(SHAPE.replace("rails_per_switch=2", "gpus_per_nic=1"))
    with pytest.raises(TopologyError, match="on VLANs of one bridge only: take vlans=on"):
        replace(homed, profile=replace(homed.profile, vlans="off"))


def test_fabric_file_says_it_too(homed: Topology) -> None:
    text = """
        segment:
          hosts: 1
          gpus_per_host: 2
          gpu_io: {nic_ports: 2, homing: esi}
          rail_switch: {rails_per_switch: 2, subnets: stretched}
        pod: {segments: 2, spine: {spines: 1}}
        global: {control_plane: evpn, data_plane: vxlan}
    """
    read = fabric_file.read(text, "f").topology
    assert (read.nodes, read.links, read.profile) == (homed.nodes, homed.links, homed.profile)


def test_segments_take_a_network_in_common() -> None:
    """Access bonds at a pair of switches that are joined by a link, and tell each other nothing."""
    pairs = catalogue.load(SHAPE.replace("subnets=stretched,homing=esi", "homing=bond"))
    nodes = tuple(
        replace(
            node,
            ports=tuple(
                replace(port, bond="es0") if port.name == "down0" else port for port in node.ports
            ),
        )
        if node.name in ("rail0", "rail1")
        else node
        for node in pairs.nodes
    )
    with pytest.raises(TopologyError, match=r"h0g0:bond0 .* no network in common: join"):
        replace(pairs, nodes=nodes)


def test_all_cables_of_a_segment_end_in_access_bonds(homed: Topology) -> None:
    ports = tuple(replace(port, bond=None) for port in homed.node("rail1").ports)
    nodes = tuple(
        replace(node, ports=ports) if node.name == "rail1" else node for node in homed.nodes
    )
    with pytest.raises(TopologyError, match="rail1:down0 is no access bond, and h0g0:bond0 an"):
        replace(homed, nodes=nodes)


# --- in the kernel -----------------------------------------------------------------------------


@pytest.mark.root
class TestWithSegments:
    FLOWS = 60

    def test_port_or_a_switch_may_go_away(self, lab: LabFactory) -> None:
        if not capabilities.has("bonding"):
            pytest.skip("this kernel has no bonding")
        made = lab(chosen(catalogue.load(SHAPE), "evpn:bfd=off"))
        assert self._reach(made) == {0}
        routing = made.routing
        assert routing is not None
        shown = routing.vtysh("rail2", "show bgp l2vpn evpn route")
        for kind in ("[1]:[0]", "[1]:[4294967295]", "[4]"):  # per EVI, per segment; the segment
            assert f"{kind}:[{self.ESI}]" in shown
        assert self._switches(made, "rail0") == {"10.255.0.2"}
        assert self._switches(made, "rail2") == {"10.255.0.1", "10.255.0.2"}
        # every frame once, over both switches
        for source in ("h1g0", "h0g1"):
            ports = self._arrived(made, source)
            assert min(ports) > 0
            assert sum(ports) == self.FLOWS

        cable = made.topology.link_at(CableEnd("h0g0", "eth0"))
        made.cables.pull([cable])
        self._until(made, {"10.255.0.2"})
        assert self._reach(made) == {0}
        assert self._arrived(made, "h1g0") == [0, self.FLOWS]
        made.cables.plug([cable])
        self._until(made, {"10.255.0.1", "10.255.0.2"})
        within(60, lambda: not routing.member_differences(), "all members are known again")
        assert self._reach(made) == {0}

        # what h0g0 has left is a switch without uplinks, by which only its neighbour comes
        uplinks = [
            link
            for link, _, far in made.topology.neighbours("rail0")
            if made.topology.node(far.node).is_switch
        ]
        faulted = [*uplinks, made.topology.link_at(CableEnd("h0g0", "eth1"))]
        made.cables.pull(faulted)
        left = reached(made.topology, faulted)
        assert (left["h0g0"], left["h1g0"]) == ({"h0g1"}, {"h0g1", "h1g1"})
        within(60, lambda: self._joined(made) == left, f"some flows arrive: {left}")
        made.cables.plug(faulted)
        self._until(made, {"10.255.0.1", "10.255.0.2"})
        within(60, lambda: not routing.member_differences(), "all members are known again")

        made.cables.pull([link for link, _, _ in made.topology.neighbours("rail1")])
        self._until(made, {"10.255.0.1"})
        within(60, lambda: self._reach(made) == {0}, "all GPUs reach each other without rail1")
        assert self._arrived(made, "h1g0") == [self.FLOWS, 0]

    ESI = "03:12:20:00:00:00:00:00:00:01"  # of type 3: the pair's system MAC, h0g0's number

    def _switches(self, lab: Lab, switch: str) -> set[str]:
        """Return who else has the segment of h0g0, as ``switch`` sees it: the last column."""
        assert lab.routing is not None
        for line in lab.routing.vtysh(switch, "show evpn es").splitlines():
            if line.startswith(self.ESI):
                return set(line.split()[-1].split(","))
        return set()

    def _until(self, lab: Lab, switches: set[str]) -> None:
        within(60, lambda: self._switches(lab, "rail2") == switches, f"h0g0 is at {switches}")

    def _reach(self, lab: Lab) -> set[int]:
        names = [gpu.name for gpu in lab.topology.gpus]
        addresses = {name: str(gpu_address(lab.topology.node(name)).ip) for name in names}
        return set(pings(lab, [(a, addresses[b]) for a in names for b in names if a != b]).values())

    def _joined(self, lab: Lab) -> dict[str, set[str]]:
        """By GPU, the others of which some flows arrive there, and to which some arrive."""
        names = [gpu.name for gpu in lab.topology.gpus]
        pairs = {(a, b) for a in names for b in names if a != b and self._arrives(lab, a, b)}
        return {a: {b for b in names if {(a, b), (b, a)} <= pairs} for a in names}

    def _arrives(self, lab: Lab, source: str, destination: str) -> bool:
        """Whether something arrives of many flows, which leave by both ports of the bond."""
        to = str(gpu_address(lab.topology.node(destination)).ip)

        def listen() -> socket.socket:
            found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            found.bind((to, 4793))
            found.settimeout(1)
            return found

        with lab.inside(destination, listen) as here:
            send_flows(lab, source, to, range(20_000, 20_000 + self.FLOWS))
            try:
                return bool(here.recv(1))
            except TimeoutError:
                return False

    def _arrived(self, lab: Lab, source: str) -> list[int]:
        """Frames that each port of h0g0 received of flows from ``source``."""
        to = str(gpu_address(lab.topology.node("h0g0")).ip)

        def received() -> list[int]:
            counters = lab.counters(["h0g0"])
            return [counters[f"h0g0:eth{port}"].rx_packets for port in (0, 1)]

        def grown() -> list[int]:
            return [now - then for now, then in zip(received(), before, strict=True)]

        before = received()
        send_flows(lab, source, to, range(20_000, 20_000 + self.FLOWS))
        within(30, lambda: sum(grown()) >= self.FLOWS, "all flows arrived")
        return grown()
