"""The frontend: tenants are apart, tunnels carry them, users meet a firewall; shown by packets."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.cluster import isolation
from emulator.cluster.run.cluster_context import ClusterContext
from tests.harness.lab.running_cluster import running_cluster
from tests.harness.lab.traffic import within
from topologies.model import FRONTEND

pytestmark = pytest.mark.root

SPEC = "cluster:hosts=4,gpus_per_host=1,spines=0,networks=frontend"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterContext]:
    parameters = ["llm.ttft=0.001", "llm.itl=0.0005"]
    folder = tmp_path_factory.mktemp("frontend")
    with running_cluster(SPEC, folder, services="llm", parameters=parameters) as context:
        yield context


def reaches(run: ClusterContext, machine: str, peer: str) -> bool:
    address = run.machines.address(peer, FRONTEND)
    lab = run.cluster.lab_of(machine)
    argv = ["ping", "-c", "1", "-W", "1", address]
    return lab.exec(machine, argv, timeout=20).returncode == 0


def shown(path: Path, *options: str) -> list[str]:
    argv = ["tshark", "-r", str(path), *options]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return printed.split()


def test_a_tenant_is_one_network_over_both_leaves(run: ClusterContext) -> None:
    topology = run.cluster.labs[FRONTEND].topology
    leaves = {
        topology.far_end(end).node
        for link in topology.links
        for end in link.ends
        if end.node in ("h0", "h2")
    }
    assert leaves == {"front-leaf0", "front-leaf1"}
    with run.watched("front-leaf0", "tunnel", "udp port 4789") as path:
        assert reaches(run, "h0", "h2")
    fields = shown(path, "-Y", "icmp", "-T", "fields", "-e", "vxlan.vni")
    assert set(fields) == {"20000"}


def test_tenants_do_not_reach_each_other(run: ClusterContext) -> None:
    with run.watched("h1", "other-tenant", "icmp") as path:
        assert not reaches(run, "h0", "h1")
        assert not reaches(run, "h2", "h1")
    assert shown(path, "-Y", "icmp", "-T", "fields", "-e", "ip.src") == []


def test_tenants_reach_what_all_share_over_their_vrf(run: ClusterContext) -> None:
    with run.watched("border0", "shared", "udp port 4789") as path:
        assert reaches(run, "h0", "user0")
        assert reaches(run, "h1", "head0")
    fields = shown(path, "-Y", "icmp", "-T", "fields", "-e", "vxlan.vni")
    assert set(fields) == {"30000", "30001"}


def test_users_reach_model_servers_of_every_tenant(run: ClusterContext) -> None:
    for server in ("h0", "h1", "h2", "h3"):
        url = f"http://{run.machines.address(server, FRONTEND)}:8080/v1/chat/completions"
        body = json.dumps({"max_tokens": 3, "stream": True})
        printed = run.execute("user0", ["curl", "-sN", "-m", "20", "-d", body, url])
        events = [line for line in printed.splitlines() if line]
        assert len(events) == 4
        assert events[-1] == "data: [DONE]"


def test_the_firewall_counts_what_users_may_not_begin(run: ClusterContext) -> None:
    frontend = run.cluster.labs[FRONTEND]
    before = isolation.refused_by_border(frontend).packets
    address = run.machines.address("h0", FRONTEND)
    with run.watched("h0", "refused", "tcp port 22") as path:
        lab = run.cluster.lab_of("user0")
        done = lab.exec("user0", ["curl", "-s", "-m", "1", f"http://{address}:22/"], timeout=20)
    assert done.returncode != 0
    assert shown(path) == []
    assert isolation.refused_by_border(frontend).packets > before
    assert reaches(run, "h0", "user0")  # what begins inside passes


def test_a_pulled_uplink_heals_for_tenants_and_users(run: ClusterContext) -> None:
    run.strike(FRONTEND, "switch front-spine0 down")
    try:
        within(30, lambda: reaches(run, "h0", "h2"), "h0 reaches h2 by the other spine")
        within(30, lambda: reaches(run, "user0", "h1"), "user0 reaches h1 by the other spine")
    finally:
        run.strike(FRONTEND, "heal")
    assert not reaches(run, "h0", "h1")


def test_a_filter_stands_in_for_vrfs(tmp_path: Path) -> None:
    spec = SPEC.replace("networks=frontend", "networks=frontend,isolation=filter,tenant_subnets=2")
    with running_cluster(spec, tmp_path) as run:
        frontend = run.cluster.labs[FRONTEND]
        with run.watched("h1", "filtered", "icmp") as path:
            assert reaches(run, "h0", "h2")  # the other subnet of its tenant
            assert not reaches(run, "h0", "h1")
            assert not reaches(run, "h2", "h1")
        assert shown(path, "-Y", "icmp", "-T", "fields", "-e", "ip.src") == []
        assert isolation.crossed(frontend) == 2
