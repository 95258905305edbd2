"""A job has a rank for each GPU of its servers, at addresses of the network for its parameters."""

from types import SimpleNamespace
from typing import cast

import pytest

from emulator.cluster.run.cluster_context import ClusterContext
from emulator.cluster.run.job_start import (
    JobPlan,
    carrier,
    rank_tasks,
    tenants_servers,
)
from emulator.cluster.services.machine_map import MachineMap
from topologies import catalogue


def cluster(parameters: str) -> ClusterContext:
    """Return what a running cluster of the design ``cluster`` knows of itself."""
    topology = catalogue.load(f"cluster:{parameters}")
    machines = MachineMap(topology)
    store = SimpleNamespace(address=machines.address("head0", "management"))
    return cast(
        ClusterContext,
        SimpleNamespace(
            machines=machines,
            services=SimpleNamespace(of_kind=lambda kind: [store]),
            cluster=SimpleNamespace(labs=[network.network for network in topology.networks]),
            seed=3,
        ),
    )


def job(*servers: str) -> JobPlan:
    return JobPlan(name="job", servers=servers, octets=1000, layout="tree", timeout_s=5.0)


def test_the_gpus_of_a_server_have_ranks_that_follow_each_other() -> None:
    run = cluster("hosts=4,gpus_per_host=2")
    found = rank_tasks(run, job("h0", "h2"))
    assert [(task.rank, task.gpu, task.host) for task in found] == [
        (0, "h0g0", "h0"),
        (1, "h0g1", "h0"),
        (2, "h2g0", "h2"),
        (3, "h2g1", "h2"),
    ]
    assert {task.ranks for task in found} == {4}
    assert {task.store for task in found} == {run.machines.address("head0", "management")}
    assert [task.own for task in found[::2]] == [
        run.machines.address(server, "frontend") for server in ("h0", "h2")
    ]


@pytest.mark.parametrize(
    ("networks", "expected"),
    [
        ("frontend+storage+management", "frontend"),
        ("storage+management", "storage"),
        ("management", "management"),
    ],
)
def test_parameters_take_the_frontend_where_there_is_one(networks: str, expected: str) -> None:
    run = cluster(f"networks={networks}")
    assert carrier(run) == expected
    (first, *_) = rank_tasks(run, job("h0"))
    assert first.own == run.machines.address("h0", expected)


def test_every_tenant_has_a_job_of_its_own() -> None:
    assert tenants_servers(cluster("tenants=2")) == {
        "tenant0": ["h0", "h2"],
        "tenant1": ["h1", "h3"],
    }
    assert tenants_servers(cluster("tenants=0")) == {None: ["h0", "h1", "h2", "h3"]}
