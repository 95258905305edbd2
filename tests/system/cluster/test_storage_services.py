"""One machine of a cluster stores by S3, NFS or NBD, and another one gets it.

They fail, and do not skip, where a server or client is missing: provision.sh installs all, and moto
is of the extra ``test``.
"""

import json
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emulator.cluster.cluster_lab import ClusterLab, dilations
from emulator.cluster.services import kinds
from emulator.cluster.services.machine_map import MachineMap
from emulator.cluster.services.service_plan import ServiceKind, plan_services
from emulator.cluster.services.service_runner import Services
from emulator.dataplane.settings import FabricSettings
from tests.harness.lab.traffic import within
from tests.harness.runs.processes import forked
from topologies import catalogue

pytestmark = pytest.mark.root

SPEC = (
    "cluster:hosts=2,gpus_per_host=1,spines=0,networks=storage,"
    "storage_leaves=1,storage_spines=0,storage_nodes=1"
)
#: Any key is taken.
SIGNED = ("curl", "-sS", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", "any:key")
CODE = ("-o", "/dev/null", "-w", "%{http_code}")
SIZE = 5_000_000
DISK_OCTETS = 2**25

Execute = Callable[..., str]


@pytest.fixture(scope="module", name="cluster")
def storing_cluster() -> Iterator[ClusterLab]:
    topology = catalogue.load(SPEC)
    planned = plan_services("s3,nfs,nbd", MachineMap(topology), [f"nbd.size={DISK_OCTETS}"])
    settings = FabricSettings(spec=SPEC, seed=1, dilation=1000)
    with ClusterLab.create(
        f"c-{secrets.token_hex(4)}", topology, dilations=dilations(topology, []), backend=settings
    ) as cluster:
        Services.start(cluster, planned)
        yield cluster


@pytest.fixture(name="execute")
def command_of_a_machine(cluster: ClusterLab) -> Execute:
    def execute(machine: str, *argv: str) -> str:
        done = cluster.lab_of(machine).exec(machine, argv, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return execute


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    path = tmp_path / "sent"
    path.write_bytes(secrets.token_bytes(SIZE))
    return path


def address(cluster: ClusterLab, kind: ServiceKind) -> str:
    (record,) = Services.of_lab(cluster.backend.directory).of_kind(kind)
    assert record.alive
    return record.address


def test_an_object_of_one_server_is_another_ones(
    cluster: ClusterLab, execute: Execute, sent: Path
) -> None:
    bucket = f"http://{address(cluster, kinds.s3)}:{kinds.s3.port}/models"
    received = sent.with_name("received")
    assert execute("h0", *SIGNED, *CODE, "-X", "PUT", bucket) == "200"
    assert execute("h0", *SIGNED, *CODE, "-T", str(sent), f"{bucket}/weights") == "200"
    assert "<Key>weights</Key>" in execute("h1", *SIGNED, bucket)
    execute("h1", *SIGNED, "-o", str(received), f"{bucket}/weights")
    assert received.read_bytes() == sent.read_bytes()
    assert execute("h1", *SIGNED, *CODE, f"{bucket}/none") == "404"


@pytest.mark.parametrize("reading", ["", "?version=4"])
def test_a_file_that_one_server_writes_another_one_reads(
    cluster: ClusterLab, execute: Execute, sent: Path, reading: str
) -> None:
    remote = f"nfs://{address(cluster, kinds.nfs)}{kinds.EXPORT}/{secrets.token_hex(4)}"
    received = sent.with_name("received")
    execute("h0", "nfs-cp", str(sent), remote)
    execute("h1", "nfs-cp", f"{remote}{reading}", str(received))
    assert received.read_bytes() == sent.read_bytes()


def test_blocks_that_one_server_writes_another_one_reads(
    cluster: ClusterLab, execute: Execute, sent: Path
) -> None:
    remote = f"nbd://{address(cluster, kinds.nbd)}/"
    received = sent.with_name("received")
    assert int(execute("h0", "nbdinfo", "--size", remote)) == DISK_OCTETS
    execute("h0", "nbdcopy", str(sent), remote)
    execute("h1", "nbdcopy", remote, str(received))
    assert received.read_bytes()[:SIZE] == sent.read_bytes()


def test_a_user_loads_the_block_device_with_fio(cluster: ClusterLab) -> None:
    """The command is that of the manual, with blocks verified and JSON printed."""
    argv = ["fio", "--name=b", "--ioengine=nbd", f"--uri=nbd://{address(cluster, kinds.nbd)}/"]
    argv += ["--rw=randwrite", "--verify=crc32c", "--bs=128k", "--iodepth=16", "--size=4M"]
    argv += ["--verify_state_save=0"]
    process = forked("exec", f"{cluster.name}-stor:h0", "--", *argv, "--output-format=json")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    (job,) = json.loads(out[out.index("{") :])["jobs"]  # a line of fio's NBD stands before it
    assert job["error"] == 0
    assert job["write"]["io_bytes"] == job["read"]["io_bytes"] == 2**22


def test_the_end_of_a_server_behind_a_shell_is_noticed(cluster: ClusterLab) -> None:
    """This test stands last, since it takes the service away."""
    (record,) = Services.of_lab(cluster.backend.directory).of_kind(kinds.nbd)
    children = Path(f"/proc/{record.process.pid}/task/{record.process.pid}/children")
    (server,) = children.read_text().split()
    os.kill(int(server), signal.SIGTERM)
    within(30, lambda: not record.alive, "the service has ended")
