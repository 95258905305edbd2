"""A cluster comes up whole, its machines are one in all networks, and it goes without a trace."""

import json
import os
import secrets
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from emulator.cli.labs import inject_verb
from emulator.cluster.cluster_lab import ClusterLab, dilations
from emulator.cluster.services.machine_map import MachineMap
from emulator.cluster.services.service_plan import plan_services
from emulator.cluster.services.service_runner import Services
from emulator.dataplane import cleanup, lab_record
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch.switch_choice import parse
from emulator.errors import UserError
from tests.harness.lab.traffic import within
from topologies import catalogue
from topologies.model import FRONTEND, MANAGEMENT, STORAGE

pytestmark = pytest.mark.root

SPEC = (
    "cluster:hosts=2,gpus_per_host=1,spines=0,tenants=0,"
    "storage_leaves=1,storage_spines=0,storage_nodes=1"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterLab]:
    topology = catalogue.load(SPEC)
    settings = FabricSettings(spec=SPEC, seed=1, dilation=1000)
    with ClusterLab.create(
        f"c-{secrets.token_hex(4)}", topology, dilations=dilations(topology, []), backend=settings
    ) as built:
        yield built


def ping(cluster: ClusterLab, machine: str, address: str) -> int:
    argv = ["ping", "-c", "1", "-W", "2", address]
    return cluster.lab_of(machine).exec(machine, argv, timeout=20).returncode


def test_a_machine_is_one_in_all_its_networks(cluster: ClusterLab) -> None:
    inodes = {
        namespaces.inode(cluster.labs[network].netns("h0"))
        for network in (FRONTEND, STORAGE, MANAGEMENT)
    }
    assert len(inodes) == 1
    assert None not in inodes
    shown = cluster.lab_of("h0").exec("h0", ["ip", "-json", "link"], timeout=20).stdout
    names = {row["ifname"] for row in json.loads(shown)}
    assert names == {"lo", "front0", "stor0", "mgmt0"}


def test_machines_reach_each_other_in_each_network(cluster: ClusterLab) -> None:
    machines = MachineMap(cluster.backend.topology)
    for network, peer in ((FRONTEND, "h1"), (STORAGE, "storage0"), (MANAGEMENT, "telemetry0")):
        assert ping(cluster, "h0", machines.address(peer, network)) == 0, network
    assert ping(cluster, "user0", machines.address("h1", FRONTEND)) == 0


def test_no_machine_forwards_from_one_network_to_another(cluster: ClusterLab) -> None:
    storage = MachineMap(cluster.backend.topology).address("storage0", STORAGE)
    assert ping(cluster, "telemetry0", storage) != 0
    assert ping(cluster, "user0", storage) != 0


def test_a_pulled_uplink_heals(cluster: ClusterLab) -> None:
    frontend = cluster.labs[FRONTEND]
    address = MachineMap(cluster.backend.topology).address("h1", FRONTEND)
    link = next(
        one
        for one in frontend.topology.links
        if {one.a.node, one.b.node} == {"front-leaf0", "front-spine0"}
    )
    frontend.cables.pull([link])
    try:
        within(20, lambda: ping(cluster, "h0", address) == 0, "h0 reaches h1 by the other spine")
    finally:
        frontend.cables.plug([link])


def test_services_start_answer_and_are_named_when_they_die(cluster: ClusterLab) -> None:
    machines = MachineMap(cluster.backend.topology)
    services = Services.start(cluster, plan_services("files", machines))
    (record,) = services.records
    offered = services.folder(record.name) / "offered" / "motd"
    offered.write_text("rolled out\n")
    url = f"http://{record.address}:{record.port}/motd"
    got = cluster.lab_of("h1").exec("h1", ["curl", "-s", url], timeout=20)
    assert got.stdout == "rolled out\n"
    os.kill(record.process.pid, 9)
    within(10, lambda: not record.alive, "the service has ended")
    with pytest.raises(UserError, match=r"service files@head0 has died; the last it printed"):
        Services.of_lab(cluster.backend.directory).check_alive()


def test_a_network_of_a_cluster_does_not_go_alone(cluster: ClusterLab) -> None:
    with pytest.raises(UserError, match=f"uetemu down {cluster.name}"):
        cleanup.take_down(cluster.labs[STORAGE].name)


def test_a_fault_of_another_network_is_told_where_it_can_be_injected(cluster: ClusterLab) -> None:
    ended = CliRunner().invoke(inject_verb.command, [cluster.name, "switch front-leaf0 down"])
    assert str(ended.exception).endswith(
        f"front-leaf0 is in lab {cluster.name}-front: uetemu inject {cluster.name}-front"
    )


def test_nothing_is_left_of_a_cluster_that_cannot_be_built() -> None:
    name = f"c-{secrets.token_hex(4)}"
    topology = catalogue.load(SPEC)
    settings = FabricSettings(spec=SPEC, seed=1, dilation=1000, switch=parse("shallow:latency=1us"))
    with pytest.raises(UserError, match="virtual clock"):
        ClusterLab.create(name, topology, dilations=dilations(topology, []), backend=settings)
    assert not [lab for lab in lab_record.recorded() if lab.startswith(name)]
    assert not [lab for lab in namespaces.everywhere() if lab.startswith(name)]
