"""The object store of a cluster takes objects of one machine and gives them to another.

It fails, and does not skip, where moto is missing: the extra ``test`` has it.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from emulator.cluster.cluster_lab import ClusterLab
from emulator.cluster.network_dilation import dilations
from emulator.services.machine_map import MachineMap
from emulator.services.service_plan import plan_services
from emulator.services.service_runner import Services
from topologies import catalogue

pytestmark = pytest.mark.root

SPEC = (
    "cluster:hosts=2,gpus_per_host=1,spines=0,tenants=0,networks=storage,"
    "storage_leaves=1,storage_spines=0,storage_nodes=1"
)
#: Any key is taken.
SIGNED = ("curl", "-sS", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", "any:key")
CODE = ("-o", "/dev/null", "-w", "%{http_code}")


def test_an_object_of_one_server_is_another_ones(tmp_path: Path) -> None:
    topology = catalogue.load(SPEC)
    planned = plan_services("s3", MachineMap(topology))
    settings = {"dilation": 1000.0, "seed": 1, "spec": SPEC}
    sent, received = tmp_path / "sent", tmp_path / "received"
    sent.write_bytes(secrets.token_bytes(200_000))
    with ClusterLab.create(
        f"c-{secrets.token_hex(4)}", topology, dilations=dilations(topology, []), backend=settings
    ) as cluster:
        (store,) = Services.start(cluster, planned).records

        def ask(machine: str, *arguments: str) -> str:
            done = cluster.lab_of(machine).exec(machine, [*SIGNED, *arguments], timeout=60)
            assert done.returncode == 0, done.stderr
            return done.stdout

        bucket = f"http://{store.address}:{store.port}/models"
        assert ask("h0", *CODE, "-X", "PUT", bucket) == "200"
        assert ask("h0", *CODE, "-T", str(sent), f"{bucket}/weights") == "200"
        assert "<Key>weights</Key>" in ask("h1", bucket)
        ask("h1", "-o", str(received), f"{bucket}/weights")
        assert received.read_bytes() == sent.read_bytes()
        assert ask("h1", *CODE, f"{bucket}/none") == "404"
