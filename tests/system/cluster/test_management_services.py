"""The services of the management network, each with a real client in another machine."""

import json
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from emulator.cluster.cluster_lab import ClusterLab, dilations
from emulator.cluster.services.cabling import cabling
from emulator.cluster.services.machine_map import MachineMap
from emulator.cluster.services.service_plan import plan_services
from emulator.cluster.services.service_runner import Services
from emulator.dataplane.settings import FabricSettings
from emulator.errors import UserError
from tests.harness.lab.traffic import within
from topologies import catalogue
from topologies.model import FRONTEND, MANAGEMENT

pytestmark = pytest.mark.root

SPEC = "cluster:hosts=2,gpus_per_host=1,spines=0,storage_nodes=1,networks=frontend+management"
SMALLEST = "cluster:hosts=1,gpus_per_host=1,spines=0,storage_nodes=1,networks=management"
SERVICES = "dns,lldp,metrics,ntp,prometheus,ptp,redfish,rendezvous,ssh"
CLIENT = """
import sys
from emulator.cluster.services.rendezvous_store import RendezvousClient
with RendezvousClient(sys.argv[1], 29500) as store:
    rank = store.add("rank", 1)
    store.barrier("start", 2)
    store.set(f"rank {rank}", "here")
    print(store.get("rank 1"), store.get("rank 2"))
"""


class Running:
    """A cluster with all of its services; ``head`` is the head node's management address."""

    def __init__(self, cluster: ClusterLab, services: Services) -> None:
        self.cluster, self.services = cluster, services
        self.machines = MachineMap(cluster.backend.topology)
        self.head = self.machines.address("head0", MANAGEMENT)

    def on(self, machine: str, *argv: str) -> str:
        lab = self.cluster.lab_of(machine)
        return lab.exec(machine, argv, timeout=60).stdout

    def answers(self, address: str) -> bool:
        lab = self.cluster.lab_of("user0")
        return lab.exec("user0", ["ping", "-c1", "-W1", address], timeout=20).returncode == 0


@contextmanager
def started(spec: str, services: str) -> Iterator[Running]:
    """Yield a cluster of ``spec`` with ``services``; it is gone afterwards."""
    topology = catalogue.load(spec)
    settings = FabricSettings(spec=spec, seed=1, dilation=1000, persistent=True)
    cluster = ClusterLab.create(
        f"c-{secrets.token_hex(4)}", topology, dilations=dilations(topology, []), backend=settings
    )
    try:
        planned = plan_services(services, MachineMap(topology))
        yield Running(cluster, Services.start(cluster, planned))
    finally:
        cluster.discard()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with started(SPEC, SERVICES) as cluster:
        yield cluster


def test_dns_knows_machines_in_each_network(running: Running) -> None:
    for name, network in (("h1", MANAGEMENT), ("h1.front", FRONTEND)):
        printed = running.on("h0", "busybox", "nslookup", name, running.head)
        assert running.machines.address("h1", network) in printed


def test_dhcp_gives_a_machine_its_own_address(running: Running) -> None:
    argv = ("busybox", "udhcpc", "-i", "mgmt0", "-n", "-q", "-f", "-s", "/bin/true")
    lab = running.cluster.lab_of("h1")
    printed = lab.exec("h1", argv, timeout=60).stderr
    assert f"lease of {running.machines.address('h1', MANAGEMENT)} obtained" in printed


def test_ssh_lets_in_who_has_the_key(running: Running) -> None:
    address = running.machines.address("h1", MANAGEMENT)
    key = running.services.folder("ssh@h1") / "id_ed25519"
    other = running.services.folder("ssh@h0") / "id_ed25519"
    options = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
    login = (f"root@{address}", "ip", "link", "show", "mgmt0")
    mac = running.cluster.labs[MANAGEMENT].topology.node("h1").ports[0].mac
    with_key = running.on("h0", "ssh", "-o", "BatchMode=yes", "-i", str(key), *options, *login)
    refused = running.on("h0", "ssh", "-o", "BatchMode=yes", "-i", str(other), *options, *login)
    assert mac in with_key
    assert not refused


def test_a_client_measures_its_time_and_no_clock_is_set(running: Running) -> None:
    socket = running.services.folder("ntp@h0") / "chronyd.sock"

    def synchronised() -> bool:
        printed = running.on("h0", "chronyc", "-h", str(socket), "-n", "-c", "tracking")
        return running.head in printed.split(",")

    within(60, synchronised, "chronyd of h0 follows the head node")


def test_ptp_measures_the_grandmaster_on_the_management_network(running: Running) -> None:
    """Sync, Follow_Up and Delay_Req are message types 0, 8 and 1 (IEEE 1588-2008, table 19)."""
    socket = running.services.folder("ptp@h0") / "ptp4l.sock"
    asked = ("pmc", "-u", "-b", "0", "-s", str(socket), "GET TIME_STATUS_NP")

    def measured() -> bool:
        words = running.on("h0", *asked).split()
        values = dict(pairwise(words))
        return values.get("gmPresent") == "true" and values["ingress_time"] != "0"

    within(60, measured, "ptp4l of h0 follows the grandmaster")
    own = running.machines.address("h0", MANAGEMENT)
    head = running.head
    ports = "udp port 319 or 320"
    capture = ("tshark", "-i", "mgmt0", "-a", "duration:3", "-f", ports)
    fields = ("-T", "fields", "-e", "ip.src", "-e", "ptp.v2.messagetype")
    passing = {f"{head}\t0x00", f"{head}\t0x08", f"{own}\t0x01"}
    watch = ("timeout", "5", "tcpdump", "-ni", "front0", "-c", "1", ports)
    elsewhere = running.cluster.lab_of("h0").popen("h0", watch, stderr=-1, text=True)
    within(
        60,
        lambda: passing <= set(running.on("h0", *capture, *fields).splitlines()),
        "Sync and Follow_Up arrive, Delay_Req leave",
    )
    assert "0 packets captured" in elsewhere.communicate(timeout=60)[1]


def test_lldp_reports_the_cabling_of_the_model(running: Running) -> None:
    topology = running.cluster.backend.topology

    def heard() -> bool:
        return all(row.right for row in cabling(topology, running.services))

    within(60, heard, "every end of a cable has heard from the other")
    rows = list(cabling(topology, running.services))
    assert len(rows) == sum(2 * len(one.links) for one in topology.networks)
    with pytest.raises(UserError, match="no node of the cluster runs lldp"):
        next(cabling(topology, Services(running.cluster.backend.directory)))


def test_ranks_find_each_other(running: Running) -> None:
    client = (sys.executable, "-c", CLIENT, running.head)
    first = running.cluster.lab_of("h0").popen("h0", client, stdout=-1, text=True)
    assert running.on("h1", *client) == "here here\n"
    out, _ = first.communicate(timeout=60)
    assert out == "here here\n"


def test_prometheus_collects_the_backends_ports(running: Running) -> None:
    address = running.machines.address("telemetry0", MANAGEMENT)

    def values(query: str) -> dict[str, str]:
        url, words = f"http://{address}:9090/api/v1/query", f"query={query}"
        answer = running.on("h1", "curl", "-sG", url, "--data-urlencode", words)
        found = json.loads(answer or "{}").get("data", {})
        return {one["metric"]["job"]: one["value"][1] for one in found.get("result", ())}

    within(60, lambda: values("up") == {"uetemu": "1", "prometheus": "1"}, "both targets are up")
    directions = str(2 * len(running.cluster.backend.topology.links))
    links = "sum by (job) (uetemu_tier_links)"
    within(60, lambda: values(links) == {"uetemu": directions}, "it has the backend's links")


def test_prometheus_ends_with_the_lab() -> None:
    with started(SMALLEST, "metrics,prometheus") as running:
        records = {record.kind: record for record in running.services.records}
        assert set(records) == {"metrics", "prometheus"}
        assert records["prometheus"].alive
    within(20, lambda: not records["prometheus"].alive, "Prometheus has ended")
    within(20, lambda: not records["metrics"].alive, "what it collects has ended")


def test_redfish_powers_a_server_off_and_on(running: Running) -> None:
    system = f"http://{running.head}:8001/redfish/v1/Systems/h0"
    address = running.machines.address("h0", FRONTEND)

    def reset(kind: str) -> None:
        body = json.dumps({"ResetType": kind})
        action = f"{system}/Actions/ComputerSystem.Reset"
        assert running.on("h1", "curl", "-sf", "-X", "POST", "-d", body, action) == ""
        state = json.loads(running.on("h1", "curl", "-s", system))["PowerState"]
        assert state == ("Off" if kind == "ForceOff" else "On")

    assert running.answers(address)
    reset("ForceOff")
    assert not running.answers(address)
    reset("On")
    within(20, lambda: running.answers(address), "h0 answers again")
    refused = running.on("h1", "curl", "-s", "-X", "POST", "-d", "[]", system + "/Actions/x")
    assert "there is no action" in refused
