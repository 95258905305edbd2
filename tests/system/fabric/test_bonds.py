"""Two ports of a GPU as one interface, plugged into two switches that look like one."""

import json
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from click.testing import CliRunner

from emulator.cli.main import cli
from emulator.dataplane import cleanup
from emulator.dataplane.doctor import capabilities
from emulator.dataplane.homing import Homing, resolved
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.fabric.fabric_plan import FabricPlan
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.wires import Wires
from emulator.errors import UserError
from emulator.run.endpoint_specs import endpoint_specs
from emulator.run.faults.grammar import timeline
from emulator.run.faults.reach import Reach, reached
from emulator.sim.endpoint.endpoint_spec import EndpointSpec
from emulator.transports import fit
from tests.harness.lab.traffic import pings, send_flows, within
from tests.harness.runs.processes import forked
from tests.system.conftest import LabFactory
from topologies import catalogue
from topologies.addressing import gpu_address
from topologies.analysis.capacity import bisection_bandwidth
from topologies.analysis.failure_domain import failure_domains
from topologies.interface_indices import interface_indices
from topologies.model import CableEnd, FabricProfile, Topology, TopologyError
from topologies.profile import fabric_file
from topologies.routing.paths import paths_from
from topologies.routing.static_routes import Hop, Route, static_neighbours, static_routes
from uet.congestion.spraying.port_entropy import evs_of

#: rail0 and rail1 are a pair with two rails, joined by peer0 for one and peer1 for the other
SHAPE = "clos:hosts=2,gpus_per_host=2,nic_ports=2,rails_per_switch=2,spines=2,homing=bond"
RAIL0 = IPv4Network("10.0.1.0/24")


@pytest.fixture(scope="module")
def bonded() -> Topology:
    return catalogue.load(SHAPE)


# --- the model ---------------------------------------------------------------------------------


def test_gpu_has_one_address_and_one_mac_on_both_ports(bonded: Topology) -> None:
    gpu = bonded.node("h0g1")
    eth0, eth1 = gpu.ports
    assert (eth0.bond, eth1.bond) == ("bond0", "bond0")
    assert (eth0.mac, eth0.address) == (eth1.mac, eth1.address)
    assert gpu.loopback is None
    assert gpu_address(gpu) == eth0.address
    assert {bonded.far_end(CableEnd("h0g1", port)).node for port in ("eth0", "eth1")} == {
        "rail0",
        "rail1",
    }


def test_pair_has_one_gateway_for_each_rail_and_addresses_of_its_own(bonded: Topology) -> None:
    first, second = bonded.node("rail0"), bonded.node("rail1")
    assert [(b.gateway, b.mac) for b in first.bridges] == [
        (b.gateway, b.mac) for b in second.bridges
    ]
    assert first.loopback != second.loopback
    standby = [str(link.a) + " " + str(link.b) for link in bonded.links if link.standby]
    assert standby == ["rail0:peer0 rail1:peer0", "rail0:peer1 rail1:peer1"]


def test_others_reach_a_rail_over_both_switches_of_its_pair(bonded: Topology) -> None:
    routes = static_routes(bonded)
    spine = {route.destination: route for route in routes["spine0"]}
    ways = {bonded.far_end(CableEnd("spine0", hop.port)).node for hop in spine[RAIL0].hops}
    assert ways == {"rail0", "rail1"}
    for switch in ("rail0", "rail1"):
        assert RAIL0 not in {route.destination for route in routes[switch]}
    (default,) = routes["h0g0"]
    assert default == Route(
        destination=IPv4Network("0.0.0.0/0"), hops=(Hop("bond0", IPv4Address("10.0.1.1")),)
    )


def test_neighbours_are_on_the_bond_and_each_once(bonded: Topology) -> None:
    rows = static_neighbours(bonded)["h0g0"]
    assert {(row.interface, str(row.address)) for row in rows} == {
        ("bond0", "10.0.1.1"),
        ("bond0", "10.0.1.3"),
    }
    assert len(rows) == 2


def test_each_switch_knows_a_gpu_behind_its_own_port(bonded: Topology) -> None:
    plan = FabricPlan("x", Wires.of(bonded), FabricSettings(spec="x", seed=1))
    (mac,) = {port.mac for port in bonded.node("h0g0").ports}
    assert list(plan.behind(bonded.far_end(CableEnd("h0g0", "eth0")))) == [mac]
    assert list(plan.behind(bonded.far_end(CableEnd("h0g0", "eth1")))) == [mac]
    assert list(plan.behind(CableEnd("rail0", "peer0"))) == []
    assert len(set(interface_indices(bonded).values())) == len(interface_indices(bonded))


def test_standby_links_carry_nothing_that_others_could(bonded: Topology) -> None:
    apart = catalogue.load(SHAPE.replace("bond", "paths"))
    assert bisection_bandwidth(bonded) == bisection_bandwidth(apart)
    reported = {domain.kind: domain.reported() for domain in failure_domains(bonded)}
    assert reported.pop("link rail - rail") == "nothing"
    assert reported == {domain.kind: domain.reported() for domain in failure_domains(apart)}


@pytest.mark.parametrize(
    "spec",
    [
        f"{SHAPE},vlans=on",
        "multi_pod:homing=bond",
        "multi_rail_per_switch:hosts=2,gpus_per_host=4,nic_ports=2,homing=bond",
        "fabric_planes:homing=bond",
        "host_segment:homing=bond",
    ],
)
def test_every_gpu_has_one_gateway_and_reaches_whom_it_would_over_two_paths(spec: str) -> None:
    found, apart = catalogue.load(spec), catalogue.load(spec.replace("bond", "paths"))
    for gpu in found.gpus:
        gateways = {found.gateway_of(CableEnd(gpu.name, port.name)) for port in gpu.ports}
        assert len({gateway and (gateway.gateway, gateway.mac) for gateway in gateways}) == 1
        assert set(paths_from(found, gpu.name)) == set(paths_from(apart, gpu.name))
    for routes in static_routes(found).values():
        assert len({(route.table, route.destination) for route in routes}) == len(routes)


# --- runs over bonds ---------------------------------------------------------------------------


def specs(topology: Topology) -> list[EndpointSpec]:
    return endpoint_specs(
        topology,
        fit("uet", topology, switch=None),
        namespace=lambda node: f"/nowhere/{node}",
        nic_delays=True,
        seed=1,
        memory_octets=1 << 20,
    )


def test_endpoint_sends_by_the_bond_at_the_rate_of_both_ports(bonded: Topology) -> None:
    apart = catalogue.load(SHAPE.replace("bond", "paths"))
    over_paths = {spec.node: spec for spec in specs(apart)}
    for spec in specs(bonded):
        (port,) = spec.ports
        first, second = over_paths[spec.node].ports
        assert (first.interface, second.interface) == ("eth0", "eth1")
        assert port.interface == "bond0"
        # both ways are equally long, and twice as much waits for two ports as for one
        delays = sorted(map(tuple, port.path_delays.values()))
        assert delays == sorted(map(tuple, first.path_delays.values()))
        assert spec.send_queue_frames == 2 * over_paths[spec.node].send_queue_frames
        assert spec.transport_config["link_rate"] == 2 * 400_000_000_000
    little = catalogue.load(f"{SHAPE},buffer=20000")  # of one port, by which all may leave
    assert {spec.send_queue_frames for spec in specs(little)} == {4}


def test_dead_port_of_a_pair_cuts_nobody_off_while_the_other_delivers(bonded: Topology) -> None:
    def lost(*downs: str) -> list[str]:
        moments = timeline([f"t=0 {down} down" for down in downs], bonded)
        return list(Reach(bonded).cut(moments[-1].condition).gpus)

    assert lost("nic h0g0:eth0") == []
    assert lost("nic h0g0:eth0", "nic h1g0:eth1") == []
    assert lost("switch rail0") == []
    assert lost("nic h0g0") == ["h0g0"]
    # without the standby link of its rail nobody brings over what comes to the dead port's switch
    one_way = reached(bonded, timeline(["t=0 nic h0g0:eth0 down"], bonded)[0].condition.dead)
    assert one_way["h0g0"] == {"h0g1", "h1g0", "h1g1"}
    downs = ["t=0 nic h0g0:eth0 down", "t=0 nic h1g0:eth1 down", "t=0 link rail0:peer0 down"]
    apart = reached(bonded, timeline(downs, bonded)[-1].condition.dead)
    assert "h1g0" not in apart["h0g0"]
    downs[-1] = "t=0 link rail0:peer1 down"  # that of the other rail
    assert "h1g0" in reached(bonded, timeline(downs, bonded)[-1].condition.dead)["h0g0"]


# --- what is refused ---------------------------------------------------------------------------


def test_bond_takes_two_ports() -> None:
    with pytest.raises(TopologyError, match="homing is bond and nic_ports 1; a bond has two ports"):
        catalogue.load("clos:homing=bond")


def test_control_plane_is_refused(bonded: Topology) -> None:
    with pytest.raises(TopologyError, match="need control_plane=static: take that, or homing=path"):
        replace(bonded, profile=FabricProfile(control_plane="ebgp"))


def test_one_gateway_at_two_switches_takes_a_standby_link(bonded: Topology) -> None:
    links = tuple(link for link in bonded.links if not link.standby)
    nodes = tuple(
        replace(node, ports=tuple(p for p in node.ports if not p.name.startswith("peer")))
        for node in bonded.nodes
    )
    with pytest.raises(TopologyError, match="rail1:rail0 has the MAC address of rail0:rail0"):
        replace(bonded, links=links, nodes=nodes)


@pytest.mark.root
def test_kernel_without_bonding_refuses_before_anything_is_built(
    lab_name: str, bonded: Topology, tmp_path: Path
) -> None:
    if capabilities.has("bonding"):
        pytest.skip("this kernel has bonding")
    with pytest.raises(UserError) as refusal:
        Lab.create(lab_name, bonded, FabricSettings(dilation=1000, seed=1, spec=SHAPE))
    assert str(refusal.value).startswith("bonding is needed to make two ports of a GPU one")
    assert "homing=paths" in str(refusal.value)
    folder = tmp_path / "run"
    words = ["run", "allreduce", "--topology", SHAPE, "--name", lab_name, "--output", str(folder)]
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, UserError)
    assert str(done.exception) == str(refusal.value)
    assert not folder.exists()


# --- as the kernel can -------------------------------------------------------------------------

DRAWN = "host_segment:hosts=2,gpus_per_host=2"


def with_bonds(name: str) -> bool:
    return True


def without_bonds(name: str) -> bool:
    return name != "bonding"


@pytest.mark.parametrize(
    ("spec", "plane", "has", "taken", "reason"),
    [
        (DRAWN, None, with_bonds, "bond", None),
        (DRAWN, None, without_bonds, "paths", "this kernel has no bonding"),
        (DRAWN, "ebgp:bfd=off", with_bonds, "paths", "the control plane is ebgp"),
        ("dual_rail_switch", "static", without_bonds, "paths", "no bonding"),
        (f"{DRAWN},nic_ports=4", None, with_bonds, "paths", "only two ports make one"),
    ],
)
def test_homing_that_is_left_to_the_machine(
    spec: str, plane: str | None, has: Callable[[str], bool], taken: str, reason: str | None
) -> None:
    topology, homing = resolved(catalogue.load(spec), plane, has=has)
    assert homing is not None
    assert (homing.asked, homing.taken) == ("auto", taken)
    assert (reason or "") in (homing.reason or "")
    assert (homing.reason is None) is (reason is None)
    assert topology.parameters["homing"] == taken
    stated = catalogue.load(f"{spec}{',' if ':' in spec else ':'}homing={taken}")
    assert topology == stated
    assert resolved(topology, plane, has=has)[0] is topology  # there is nothing left to choose


def test_homing_that_is_asked_for_stays(bonded: Topology) -> None:
    assert resolved(bonded, has=without_bonds) == (bonded, Homing(asked="bond", taken="bond"))
    assert resolved(catalogue.load("host_segment:nic_ports=1"), has=with_bonds)[1] is None
    assert resolved(catalogue.load("rail_clos"), has=with_bonds)[1] is None


def test_profile_with_routing_protocols_has_paths() -> None:
    text = "segment: {gpu_io: {nic_ports: 2, homing: auto}}\n"
    static = fabric_file.read(text, "f").topology
    assert static.parameters["homing"] == "auto"
    assert resolved(static, has=without_bonds)[0].profile == static.profile
    routed = fabric_file.read(f"{text}global: {{control_plane: ebgp}}\n", "f").topology
    assert routed.parameters["homing"] == "paths"


@pytest.mark.root
def test_lab_and_run_tell_what_homing_they_have(lab_name: str, tmp_path: Path) -> None:
    taken = "bond" if capabilities.has("bonding") else "paths"
    words = ["up", DRAWN, "--name", lab_name, "--format", "json"]
    try:
        up, stated = forked(*words).communicate()
        assert json.loads(up)["homing"]["taken"] == taken, stated
        assert Lab.attach(lab_name).topology.parameters["homing"] == taken
    finally:
        cleanup.take_down(lab_name)
    folder = tmp_path / "run"
    process = forked(
        *("run", "allreduce", "--topology", DRAWN, "--name", lab_name, "--sizes", "16KiB"),
        *("--iterations", "1", "--capture", "none"),
        *("--output", str(folder)),
    )
    out, stated = process.communicate()
    assert process.returncode == 0, stated
    result = json.loads((folder / "result.json").read_text())
    assert result["homing"]["taken"] == taken
    assert f"# Homing               : {taken}" in out
    if taken == "paths":
        assert result["homing"]["reason"] == "this kernel has no bonding"
        assert "paths, not a bond: this kernel has no bonding" in out


# --- in the kernel -----------------------------------------------------------------------------


@pytest.mark.root
class TestWithBonds:
    FLOWS = 60

    @pytest.mark.parametrize("vlans", ["off", "on"])
    def test_port_that_is_pulled_costs_nothing_but_its_rate(
        self, lab: LabFactory, vlans: str
    ) -> None:
        if not capabilities.has("bonding"):
            pytest.skip("this kernel has no bonding")
        made = lab(f"{SHAPE},vlans={vlans}")
        assert self._reach(made) == {0}
        # every frame once, over both switches, and none between them
        near, far = self._arrived(made, "h1g0"), self._arrived(made, "h0g1")
        for ports in (near, far):
            assert ports["h0g0:eth0"] > 0
            assert ports["h0g0:eth1"] > 0
            assert ports["h0g0:eth0"] + ports["h0g0:eth1"] == self.FLOWS
            assert ports["rail0:peer0"] == ports["rail1:peer0"] == 0

        own = made.topology.far_end(CableEnd("h0g0", "eth0"))
        made.exec(own.node, ["ip", "link", "set", own.port, "down"])
        within(30, lambda: self._status(made, "h0g0", "eth0") == "DOWN", "the bond saw it")
        assert self._reach(made) == {0}
        for source in ("h1g0", "h0g1"):
            ports = self._arrived(made, source)
            assert ports["h0g0:eth0"] == 0
            assert ports["h0g0:eth1"] == self.FLOWS
            # what came to the switch whose port died went over the standby link
            assert 0 < ports["rail1:peer0"] < self.FLOWS
            assert ports["rail0:peer0"] == 0

        made.exec(own.node, ["ip", "link", "set", own.port, "up"])
        within(30, lambda: self._status(made, "h0g0", "eth0") == "UP", "the bond saw it")
        # ports whose flows a transport takes to share a port of the NIC do share one of the bond
        for port in (0, 1):
            ports = self._arrived(made, "h1g0", evs_of(port, 2)[: self.FLOWS])
            assert sorted((ports["h0g0:eth0"], ports["h0g0:eth1"])) == [0, self.FLOWS]
            assert ports["rail1:peer0"] == 0

    def test_job_goes_on_when_a_port_is_pulled(self, tmp_path: Path) -> None:
        if not capabilities.has("bonding"):
            pytest.skip("this kernel has no bonding")
        pull = "t=5us nic h0g0:eth0 down"
        lab, folder = f"t{secrets.token_hex(5)}", tmp_path / "run"
        process = forked(
            *("run", "allreduce", "--topology", SHAPE, "--param", "warmups=0", "--name", lab),
            *("--sizes", "256KiB", "--iterations", "1"),
            *("--fault", pull, "--output", str(folder), "--format", "json"),
        )
        out, stated = process.communicate()
        assert process.returncode == 0, stated
        content = json.loads(out)
        (row,) = content["rows"]
        assert (row["wrong"], content["errors"], row["cut_off_gpus"]) == (0, [], [])
        (down,) = row["faults"]
        assert down["at_us"] >= 5
        ports = content["ports"]
        for gpu in ("h0g0", "h0g1", "h1g0", "h1g1"):
            for port in ("eth0", "eth1"):  # the bond gave to both, and to none more than it holds
                assert ports[f"{gpu}:{port}"]["tx_packets"] > 0
                assert ports[f"{gpu}:{port}"]["data"]["drops"] == 0
        assert ports["rail1:peer0"]["rx_packets"] > 0  # what came for the pulled port
        assert ports["rail1:peer1"]["rx_packets"] == 0
        assert not namespaces.of_lab(lab)

    def test_drawn_pair_is_built(self, lab: LabFactory) -> None:
        if not capabilities.has("bonding"):
            pytest.skip("this kernel has no bonding")
        made = lab(DRAWN)
        assert made.topology.parameters["homing"] == "bond"
        assert self._status(made, "h0g0", "eth1") == "UP"
        assert self._reach(made) == {0}

    def _reach(self, lab: Lab) -> set[int]:
        names = [gpu.name for gpu in lab.topology.gpus]
        addresses = {name: str(gpu_address(lab.topology.node(name)).ip) for name in names}
        pairs = [(a, addresses[b]) for a in names for b in names if a != b]
        return set(pings(lab, pairs).values())

    def _arrived(
        self, lab: Lab, source: str, flows: Iterable[int] = range(20_000, 20_000 + FLOWS)
    ) -> dict[str, int]:
        """Frames that ports received of ``flows`` (source ports) from ``source`` to h0g0."""
        watched = ("h0g0:eth0", "h0g0:eth1", "rail0:peer0", "rail1:peer0")
        to = str(gpu_address(lab.topology.node("h0g0")).ip)

        def received() -> dict[str, int]:
            counters = lab.counters()
            return {end: counters[end].rx_packets for end in watched}

        def grown() -> dict[str, int]:
            return {end: count - before[end] for end, count in received().items()}

        before = received()
        send_flows(lab, source, to, flows)
        within(
            30,
            lambda: sum(grown()[end] for end in watched[:2]) >= self.FLOWS,
            "all flows arrived",
        )
        return grown()

    def _status(self, lab: Lab, node: str, port: str) -> str:
        shown = lab.exec(node, ["ip", "-j", "-d", "link", "show", port]).stdout
        (found,) = json.loads(shown)
        return str(found["linkinfo"]["info_slave_data"]["mii_status"])
