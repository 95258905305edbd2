"""Tenants with VRFs: their packets between subnets, and equal addresses that do not meet.

What the VRFs are is up to the kernel: Debian's has devices for them
(``tests/system/machine/test_stock_kernel.py`` boots it), others get a network namespace each.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from emulator.cli.labs import status_verb
from emulator.cluster.run.cluster_context import ClusterContext
from emulator.dataplane import lab_record
from emulator.dataplane.control_plane.lab_routing import Routing
from emulator.dataplane.control_plane.tenant_routes import places_of
from emulator.dataplane.doctor import capabilities
from emulator.dataplane.kernel import namespaces
from tests.harness.lab.running_cluster import running_cluster
from tests.harness.lab.traffic import stopped, within
from topologies.model import FRONTEND
from topologies.validation import vrf_named

pytestmark = pytest.mark.root

#: Each tenant has h0 or h1 behind one leaf, and h2 or h3 behind the other; all alike.
SPEC = (
    "cluster:hosts=4,gpus_per_host=1,spines=0,networks=frontend,users=0,"
    "tenant_subnets=2,tenant_addresses=equal"
)
NEAR, FAR = "100.66.0.2", "100.66.1.2"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterContext]:
    with running_cluster(SPEC, tmp_path_factory.mktemp("tenants")) as context:
        yield context


def reaches(run: ClusterContext, machine: str, address: str) -> bool:
    argv = ["ping", "-c", "1", "-W", "2", address]
    return run.cluster.lab_of(machine).exec(machine, argv, timeout=60).returncode == 0


def shown(path: Path, fields: str, condition: str) -> set[tuple[str, ...]]:
    """The distinct values of ``fields`` in the packets of ``path`` that meet ``condition``."""
    argv = ["tshark", "-r", str(path), "-Y", condition, "-T", "fields", "-E", "occurrence=l"]
    argv += [word for field in fields.split() for word in ("-e", field)]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return {tuple(line.split("\t")) for line in printed.splitlines()}


def test_servers_of_two_tenants_have_one_address(run: ClusterContext) -> None:
    addresses = {name: run.machines.address(name, FRONTEND) for name in run.machines.servers}
    assert addresses == {"h0": NEAR, "h1": NEAR, "h2": FAR, "h3": FAR}


def test_packets_between_subnets_pass_the_l3_vni_to_the_router_mac(run: ClusterContext) -> None:
    topology = run.cluster.labs[FRONTEND].topology
    macs = {
        leaf: vrf_named(topology.node(leaf), "tenant0").mac
        for leaf in ("front-leaf0", "front-leaf1")
    }
    with run.watched("front-leaf1", "routed", "udp port 4789") as path:
        assert reaches(run, "h0", FAR)
    found = shown(path, "vxlan.vni eth.dst ip.src ip.dst icmp.type", "icmp && vxlan")
    assert found == {
        ("30000", macs["front-leaf1"], NEAR, FAR, "8"),
        ("30000", macs["front-leaf0"], FAR, NEAR, "0"),
    }


@pytest.mark.parametrize(
    ("server", "own", "other", "vni"), [("h0", "h2", "h3", "30000"), ("h1", "h3", "h2", "30001")]
)
def test_equal_addresses_do_not_meet(
    server: str, own: str, other: str, vni: str, run: ClusterContext
) -> None:
    with (
        run.watched(own, f"own-{server}", "icmp") as right,
        run.watched(other, f"other-{server}", "icmp") as wrong,
        run.watched("front-leaf0", f"tunnels-{server}", "udp port 4789") as tunnels,
    ):
        assert reaches(run, server, FAR)
    assert shown(right, "ip.src ip.dst icmp.type", "icmp") == {(NEAR, FAR, "8"), (FAR, NEAR, "0")}
    assert shown(wrong, "ip.src", "icmp") == set()
    assert {row[0] for row in shown(tunnels, "vxlan.vni", "icmp")} == {vni}


def test_a_dead_spine_heals_for_both_tenants(run: ClusterContext) -> None:
    run.strike(FRONTEND, "switch front-spine1 down")
    try:
        within(60, lambda: reaches(run, "h0", FAR), "tenant0 goes on by the other spine")
        within(60, lambda: reaches(run, "h1", FAR), "tenant1 goes on by the other spine")
    finally:
        run.strike(FRONTEND, "heal")
    routing = run.cluster.labs[FRONTEND].routing
    assert routing is not None
    routing.await_convergence()
    assert routing.tenant_differences() == []


def test_an_l3_vni_that_is_made_anew_brings_routes_and_router_macs(run: ClusterContext) -> None:
    routing = run.cluster.labs[FRONTEND].routing
    assert routing is not None
    leaf = routing.switches["front-leaf0"]
    leaf.configure("vrf tenant0", "no vni 30000")
    within(60, lambda: not reaches(run, "h0", FAR), "nothing leads to the other subnet")
    assert reaches(run, "h1", FAR)  # the other tenant goes on
    leaf.configure("vrf tenant0", "vni 30000")
    routing.await_convergence()
    assert reaches(run, "h0", FAR)


def test_a_router_mac_that_a_leaf_has_lost_is_named_and_put_back(run: ClusterContext) -> None:
    lab = run.cluster.labs[FRONTEND]
    routing = lab.routing
    assert isinstance(routing, Routing)
    leaf = lab.topology.node("front-leaf0")
    other = vrf_named(lab.topology.node("front-leaf1"), "tenant0").mac
    place = places_of(lab.topology, leaf)["tenant0"].node
    removal = ["bridge", "fdb", "del", other, "dev", "vxlan30000", "self"]
    inside = ["nsenter", f"--net={namespaces.path_of(lab.name, place)}"]
    before = routing.routers_put_back()
    assert routing.lost_routers() == []
    # What is removed by another, zebra enters again where it hears of that.
    zebra = int((routing.switches[leaf.name].directory / "zebra.pid").read_text())
    watchers = [process.pid for process in lab_record.processes(lab.name)]
    with stopped(zebra):
        with stopped(*watchers):
            subprocess.run([*inside, *removal], check=True)
            stated = "tenant0 of front-leaf0 has routes to front-leaf1 and lacks its router MAC"
            assert stated in CliRunner().invoke(status_verb.command, [lab.name]).output
            assert not reaches(run, "h0", FAR)
        within(60, lambda: not routing.lost_routers(), "the router MAC is back")
        within(60, lambda: routing.routers_put_back() == before + 1, "that is counted")
    assert reaches(run, "h0", FAR)
    answer = CliRunner().invoke(status_verb.command, [lab.name]).output
    assert f"zebra had lost, put back: {before + 1}" in answer


def test_status_names_the_form_that_this_kernel_gets(run: ClusterContext) -> None:
    expected = "vrf" if capabilities.has("vrf") else "netns"
    name = run.cluster.labs[FRONTEND].name
    answer = CliRunner().invoke(status_verb.command, [name, "--format", "json"])
    assert json.loads(answer.output)["isolation"] == expected
    shown_lines = CliRunner().invoke(status_verb.command, [name]).output
    assert f"2 tenants: {'a VRF device' if expected == 'vrf' else 'a VRF'} for each" in shown_lines
