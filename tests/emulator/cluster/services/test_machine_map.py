"""A server's tenant is that of its port at a leaf, also where all tenants have equal addresses."""

import pytest

from emulator.cluster.services.machine_map import MachineMap
from topologies import catalogue


@pytest.mark.parametrize("parameters", ["users=1", "users=0,tenant_addresses=equal"])
def test_servers_belong_to_the_tenants_in_turn(parameters: str) -> None:
    machines = MachineMap(catalogue.load(f"cluster:{parameters}"))
    assert [machines.tenant(server) for server in machines.servers] == [
        "tenant0",
        "tenant1",
        "tenant0",
        "tenant1",
    ]


def test_other_machines_and_other_networks_have_none() -> None:
    assert MachineMap(catalogue.load("cluster")).tenant("telemetry0") is None
    for parameters in ("tenants=0", "networks=storage+management"):
        assert MachineMap(catalogue.load(f"cluster:{parameters}")).tenant("h0") is None
