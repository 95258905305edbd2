"""The containerlab file of a tunnelled frontend, carried out in what FRR needs of containers.

Each switch has a mount namespace with directories of its own for FRR, where ``zebra`` runs before
any command, as FRR's image has it.
"""

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.dataplane.control_plane.daemons import FIXED_PLACES, GROUP, MANAGEMENT, PROGRAMS, USER
from emulator.dataplane.doctor import capabilities
from emulator.dataplane.kernel.fabric.containerlab import NOT_PROVEN, to_containerlab
from tests.harness.lab.traffic import within
from tests.system.fabric import test_containerlab as plain
from tests.system.fabric.test_containerlab import inside, loaded, ping, prefix
from topologies import catalogue
from topologies.model import FRONTEND, Topology

__all__ = ["prefix"]  # a fixture

SHAPE = "cluster:hosts=4,gpus_per_host=1,tenant_subnets=2"
BUDGET_S = 90.0


def frontend(isolation: str) -> Topology:
    return catalogue.load(f"{SHAPE},isolation={isolation}").network_named(FRONTEND)


@pytest.mark.parametrize("isolation", ["auto", "filter"])
def test_every_switch_speaks(isolation: str) -> None:
    topology = frontend(isolation)
    text = to_containerlab(topology)
    assert text.startswith("# The control plane is evpn, spoken by FRR.\n")
    assert (NOT_PROVEN in text) == (isolation != "filter")
    assert "$" not in text.replace("$\n", "")
    nodes = loaded(topology)["topology"]["nodes"]
    for switch in topology.switches:
        commands = nodes[switch.name]["exec"]
        assert "/usr/lib/frr/bgpd --daemon" in commands
        words = shlex.split(commands[-1])
        assert words[:3] == ["vtysh", "-c", "configure terminal"]
        assert not any(word.startswith(("log", "!", "hostname")) for word in words)
        vrfs = [words[at] for at in range(len(words)) if words[at].startswith("vrf ")]
        assert vrfs == [f"vrf {vrf.name}" for vrf in switch.vrfs]
    leaf = nodes["front-leaf0"]["exec"]
    prohibited = [words for words in leaf if words.endswith("prohibit")]
    assert len(prohibited) == (4 if isolation == "filter" else 0)
    made = [words for words in leaf if "type vrf" in words]
    assert len(made) == (0 if isolation == "filter" else 2)


class Containers:
    """The switches' containers: a process that holds each one's mounts."""

    def __init__(self, topology: Topology, prefix: str, folder: Path) -> None:
        self._prefix = prefix
        self._held: dict[str, subprocess.Popen[bytes]] = {}
        self._switches = {switch.name: folder / switch.name for switch in topology.switches}

    def run(self, node: str, argv: list[str]) -> str:
        if node not in self._switches:
            return inside(self._prefix, node, argv)
        if node not in self._held:
            self._start(node)
        held = self._held[node]
        return inside(self._prefix, node, ["nsenter", "-t", str(held.pid), "-m", *argv])

    def _start(self, node: str) -> None:
        folder = self._switches[node]
        folder.mkdir()
        folder.chmod(0o777)
        shutil.chown(folder, USER, GROUP)
        binds = [f"mount --bind {folder} {place}" for place in FIXED_PLACES if place.is_dir()]
        script = "; ".join(["set -e", *binds, "echo ready", "exec sleep infinity"])
        held = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            stdout=subprocess.PIPE,
        )
        self._held[node] = held
        assert held.stdout is not None
        assert held.stdout.readline() == b"ready\n"
        (folder / "vtysh.conf").write_text("")
        for daemon in (MANAGEMENT, "zebra"):
            if (PROGRAMS / daemon).exists():
                self.run(node, [str(PROGRAMS / daemon), "--daemon"])

    def stop(self) -> None:
        for node, held in self._held.items():
            for pid in self._switches[node].glob("*.pid"):
                subprocess.run(["kill", pid.read_text().strip()], check=False)
            held.kill()
            held.communicate()


@pytest.fixture
def deployed(request: pytest.FixtureRequest, prefix: str, tmp_path: Path) -> Iterator[Topology]:
    if request.param == "vrf" and not capabilities.has("vrf"):
        pytest.skip("this kernel has no VRF devices")
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    topology = frontend(request.param)
    containers = Containers(topology, prefix, tmp_path)
    try:
        plain.deploy(loaded(topology)["topology"], prefix, containers.run)
        yield topology
    finally:
        containers.stop()


def address(topology: Topology, machine: str) -> str:
    port = topology.node(machine).ports[0]
    assert port.address is not None
    return str(port.address.ip)


@pytest.mark.alone
@pytest.mark.root
@pytest.mark.parametrize("deployed", ["vrf", "filter"], indirect=True)
def test_tenants_reach_their_own_and_users(deployed: Topology, prefix: str) -> None:
    def reached(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return [pair for pair in pairs if ping(prefix, pair[0], address(deployed, pair[1])) == 0]

    own = [("h0", "h2"), ("h1", "h3"), ("h0", "user0"), ("user0", "h3"), ("h1", "head0")]
    within(BUDGET_S, lambda: reached(own) == own, "all are reached that may be")
    assert reached([("h0", "h1"), ("h0", "h3"), ("h2", "h1"), ("h3", "h2")]) == []
