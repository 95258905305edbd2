"""The containerlab file, read back; and its cables and commands carried out in namespaces.

What containerlab makes of a file is taken from its source: keys are read strictly
(types.NodeDefinition, links.LinkBriefRaw), endpoints are unique and name interfaces as Linux does
(links.Endpoint), a node with an eth0 of its own has no management network (nodes/linux), and
commands run in a node as soon as its own cables are plugged in (core.scheduleNodeWorkerF).
"""

import dataclasses
import json
import os
import re
import secrets
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from emulator.cli.graph import graph_verb
from emulator.dataplane.doctor import capabilities
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.fabric.containerlab import to_containerlab
from emulator.errors import UserError
from tests.harness.lab.traffic import within
from topologies import catalogue
from topologies.addressing import gpu_address
from topologies.model import CableEnd, Topology

SPECS = (
    "rail_clos",
    "clos:nic_ports=2,hosts=2,gpus_per_host=2",
    "clos:nic_ports=4,hosts=2,gpus_per_host=2,rails_per_switch=2",
    "pod:hosts=2",
    "host_segment:homing=paths",
    "clos:gpus_per_nic=2,hosts=2,gpus_per_host=2,rails_per_switch=2",
)
#: Of a node and of a link, as containerlab's schema has them.
NODE_KEYS = {"kind", "image", "group", "network-mode", "sysctls", "exec"}
LINK_KEYS = {"endpoints", "vars"}


def loaded(topology: Topology) -> dict[str, Any]:
    content: dict[str, Any] = YAML(typ="safe").load(to_containerlab(topology))
    return content


@pytest.mark.parametrize("spec", SPECS)
def test_it_reads_back_as_the_topology(spec: str) -> None:
    topology = catalogue.load(spec)
    content = loaded(topology)
    assert set(content) == {"name", "topology"}
    assert re.fullmatch(r"[a-z][a-z0-9-]*", content["name"])
    nodes, links = content["topology"]["nodes"], content["topology"]["links"]
    assert list(nodes) == [node.name for node in topology.nodes]
    for node in topology.nodes:
        entry = nodes[node.name]
        assert NODE_KEYS - {"sysctls"} <= set(entry) <= NODE_KEYS
        assert (entry["kind"], entry["network-mode"]) == ("linux", "none")
        assert ("frr" in entry["image"]) == node.is_switch
        commands = entry["exec"]
        for port in node.ports:
            end = f"{node.name}:{port.name}"
            (mtu,) = {link.mtu for link in topology.links for own in link.ends if str(own) == end}
            assert f"ip link set dev {port.name} address {port.mac} mtu {mtu} up" in commands
            if port.address is not None:
                assert f"ip address add {port.address} dev {port.name}" in commands
            else:
                assert f"ip link set dev {port.name} master {port.bridge}" in commands
        for bridge in node.bridges:
            made = f"ip link add name {bridge.name} address {bridge.mac} type bridge"
            assert commands.index(made) < min(
                place for place, words in enumerate(commands) if words.endswith(bridge.name)
            )
    assert all(set(link) == LINK_KEYS for link in links)
    assert [tuple(link["endpoints"]) for link in links] == [
        (str(link.a), str(link.b)) for link in topology.links
    ]
    assert [link["vars"] for link in links] == [
        {"rate_bps": one.rate_bps, "delay_ns": one.delay_ns, "buffer_bytes": one.buffer_bytes}
        for one in topology.links
    ]


@pytest.mark.parametrize("design", list(catalogue.DESIGNS))
def test_containerlab_takes_every_design(design: str) -> None:
    topology = catalogue.load(design)
    text = to_containerlab(topology)
    assert "{{" not in text  # it is a template of Go's
    assert "$" not in text  # and then one of variables
    topo = YAML(typ="safe").load(text)["topology"]
    assert set(topo) == {"kinds", "nodes", "links"}
    ends = Counter(end for link in topo["links"] for end in link["endpoints"])
    assert set(ends.values()) == {1}
    assert text.count('endpoints: ["') == len(topo["links"])
    for end in ends:
        node, interface = end.split(":")
        assert topo["nodes"][node]["network-mode"] == "none"  # else eth0 is not ours
        assert re.fullmatch(r"[a-z0-9]{1,15}", interface)
    for name, node in topo["nodes"].items():
        assert re.fullmatch(r"[a-z][a-z0-9-]{,62}", name)  # a container's and a host's name
        assert name not in {"host", "mgmt-net", "macvlan"}  # links to these are of another kind
        assert node["exec"]  # the schema wants one
        assert all(isinstance(value, str) for value in node.get("sysctls", {}).values())


def test_no_command_needs_a_shell() -> None:
    """No command needs one, but that for a setting which older kernels do not have."""
    for name, node in loaded(catalogue.load())["topology"]["nodes"].items():
        with_shell = [c for c in node["exec"] if re.search(r"[|&;<>$`\\\"'*?]", c)]
        assert len(with_shell) == (0 if name.startswith("h") else 1)
        for command in with_shell:
            shell, option, _script = shlex.split(command)
            assert (shell, option) == ("sh", "-c")


def test_bonds_and_their_backups_are_written() -> None:
    spec = "clos:hosts=2,gpus_per_host=1,nic_ports=2,spines=0,homing=bond,vlans=on"
    topology = catalogue.load(spec)
    nodes = loaded(topology)["topology"]["nodes"]
    gpu, switch = nodes["h0g0"]["exec"], nodes["rail1"]["exec"]
    mac = topology.node("h0g0").port("eth1").mac
    for port in ("eth0", "eth1"):  # containerlab has set it up, and a bond takes what is down
        down = gpu.index(f"ip link set dev {port} address {mac} mtu 9000 down")
        assert gpu[down + 1] == f"ip link set dev {port} master bond0"
    assert gpu.index("ip link set dev bond0 up") > gpu.index("ip link set dev eth1 master bond0")
    assert "ip address add 10.0.1.2/24 dev bond0" in gpu
    # one gateway, whichever of the two a frame is heard by
    assert nodes["rail0"]["exec"].count("ip address add 10.0.1.1/24 dev rail0") == 1
    assert switch.count("ip address add 10.0.1.1/24 dev rail0") == 1
    assert f"ip neighbour replace 10.0.1.2 lladdr {mac} dev rail0 nud permanent" in switch
    quiet = "bridge link set dev peer0 learning off flood off mcast_flood off bcast_flood off"
    assert switch.count(quiet) == 1
    # a bridge may have learned the address before, and is told so that it does not forget it
    assert f"bridge fdb replace {mac} dev down0 master static vlan 101" in switch
    assert "bridge link set dev down0 backup_port peer0" in switch
    assert not any("dev peer0 master static" in words for words in switch)


def test_another_control_plane_is_told() -> None:
    profile = dataclasses.replace(catalogue.load().profile, control_plane="ebgp:bfd=on")
    topology = dataclasses.replace(catalogue.load(), profile=profile)
    reported, _, rest = to_containerlab(topology).partition("\n")
    assert reported == "# The control plane is ebgp; routes here are static."
    assert rest == to_containerlab(catalogue.load())


def test_rails_are_vlans_of_one_bridge_where_the_fabric_wants_it() -> None:
    topology = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,rails_per_switch=2,vlans=on")
    commands = loaded(topology)["topology"]["nodes"]["rail0"]["exec"]
    assert [words for words in commands if "type bridge" in words] == [
        "ip link add name br0 address 12:10:00:00:00:00 type bridge vlan_filtering 1"
        " vlan_default_pvid 0"
    ]
    for vlan in (101, 102):
        assert sum(words.endswith(f"vid {vlan} pvid untagged") for words in commands) == 2


@pytest.mark.parametrize("suffix", [".clab.yml", ".clab.yaml"])
def test_the_suffix_says_it(suffix: str, tmp_path: object) -> None:
    target = f"{tmp_path}/fabric{suffix}"
    assert CliRunner().invoke(graph_verb.command, ["rail_clos", "-o", target]).exit_code == 0
    with open(target) as stream:
        assert stream.readline() == "name: rail-clos\n"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def batch(namespace: str, lines: list[str]) -> None:
    words = ["ip", "-n", namespace, "-batch", "-"]
    subprocess.run(words, input="\n".join(lines), check=True, capture_output=True, text=True)


@pytest.fixture
def prefix() -> Iterator[str]:
    if os.geteuid() != 0:
        pytest.skip("builds namespaces: needs root")
    name = f"clab{secrets.token_hex(4)}-"
    yield name
    found = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    for line in found.splitlines():
        if line.startswith(name):
            ip("netns", "delete", line.split()[0])


HASH_SEED = ("net", "ipv4", "fib_multipath_hash_seed")
VETH_MTU = 9500  # containerlab's, unless a link has its own


def inside(prefix: str, node: str, argv: list[str]) -> str:
    """Return what ``argv`` prints in the namespace of ``node``; it must succeed."""
    done = namespaces.visitor().inside(
        Path("/run/netns", f"{prefix}{node}"),
        lambda: subprocess.run(argv, capture_output=True, text=True),
    )
    assert done.returncode == 0, (node, argv, done.stderr)
    return done.stdout


def ping(prefix: str, node: str, address: str) -> int:
    argv = ["ping", "-c", "1", "-W", "5", address]
    return namespaces.visitor().inside(
        Path("/run/netns", f"{prefix}{node}"),
        lambda: subprocess.run(argv, capture_output=True).returncode,
    )


def deploy(
    content: dict[str, Any], prefix: str, run: Callable[[str, list[str]], str] | None = None
) -> None:
    """Deploy as containerlab with one worker, on a host that drops what comes back another way.

    ``run`` carries out a command in a node, by default in its namespace.

    A cable is made on the host when the first of its nodes is there; its far end waits there.
    """
    host = f"{prefix}host"
    ip("netns", "add", host)
    made: set[int] = set()
    for node, entry in content["nodes"].items():
        ip("netns", "add", f"{prefix}{node}")
        settings = content["kinds"][entry["kind"]]["sysctls"] | entry.get("sysctls", {})
        words = ["net.ipv4.conf.default.rp_filter=1", *(f"{k}={v}" for k, v in settings.items())]
        inside(prefix, node, ["sysctl", "-w", *words])
        there, here = [], ["link set lo up"]
        for number, link in enumerate(content["links"]):
            for side, end in enumerate(link["endpoints"]):
                name, port = end.split(":")
                if name != node:
                    continue
                cable = f"e{number}"
                if number not in made:
                    far = f"type veth peer name {cable}.1 mtu {VETH_MTU}"
                    there.append(f"link add {cable}.0 mtu {VETH_MTU} {far}")
                    made.add(number)
                there.append(f"link set {cable}.{side} netns {prefix}{node} name {port}")
                here.append(f"link set {port} up")
        batch(host, there)
        batch(f"{prefix}{node}", here)
        for words in entry["exec"]:
            if run is None:
                inside(prefix, node, shlex.split(words))
            else:
                run(node, shlex.split(words))


def deployed(spec: str, prefix: str) -> Topology:
    topology = catalogue.load(spec)
    deploy(loaded(topology)["topology"], prefix)
    return topology


def unreached(topology: Topology, prefix: str) -> list[tuple[str, str]]:
    return [
        (one.name, other.name)
        for one, other in permutations(topology.gpus, 2)
        if ping(prefix, one.name, str(gpu_address(other).ip))
    ]


def setting(prefix: str, node: str, name: str) -> int:
    return int(inside(prefix, node, ["sysctl", "-n", name]))


def mii_status(prefix: str, node: str, port: str) -> str:
    (found,) = json.loads(inside(prefix, node, ["ip", "-j", "-d", "link", "show", port]))
    return str(found["linkinfo"]["info_slave_data"]["mii_status"])


@pytest.mark.root
@pytest.mark.parametrize(
    "spec",
    [
        "rail_clos:hosts=2,gpus_per_host=2",
        "clos:nic_ports=2,hosts=2,gpus_per_host=1",
        "clos:gpus_per_nic=2,hosts=2,gpus_per_host=2",
        "dragonfly:gpus_per_host=1,routing=valiant",
    ],
)
def test_what_containerlab_would_do_makes_a_fabric(spec: str, prefix: str) -> None:
    """Namespaces for containers, veth pairs for links, and every command: all GPUs are reached."""
    topology = deployed(spec, prefix)
    for node in topology.switches:
        assert setting(prefix, node.name, "net.ipv4.ip_forward") == 1
        if Path("/proc/sys", *HASH_SEED).exists():
            assert setting(prefix, node.name, ".".join(HASH_SEED)) == node.hash_seed
    assert unreached(topology, prefix) == []


@pytest.mark.root
class TestWithVlansAndBonds:
    """A test boots a kernel that has them."""

    def test_rails_are_vlans(self, prefix: str) -> None:
        if not capabilities.has("vlan"):
            pytest.skip("this kernel has no VLANs")
        spec = "clos:hosts=2,gpus_per_host=2,rails_per_switch=2,spines=1,vlans=on"
        assert unreached(deployed(spec, prefix), prefix) == []

    @pytest.mark.parametrize("vlans", ["off", "on"])
    def test_a_bond_outlives_a_port(self, vlans: str, prefix: str) -> None:
        if not capabilities.has("bonding"):
            pytest.skip("this kernel has no bonding")
        spec = "clos:hosts=3,gpus_per_host=1,nic_ports=2,spines=0,homing=bond"
        topology = deployed(f"{spec},vlans={vlans}", prefix)
        assert unreached(topology, prefix) == []
        dead = topology.far_end(CableEnd("h0g0", "eth0"))
        inside(prefix, dead.node, ["ip", "link", "set", dead.port, "down"])
        within(30, lambda: mii_status(prefix, "h0g0", "eth0") == "DOWN", "the bond saw it")
        assert unreached(topology, prefix) == []


def test_ethernet_segments_are_refused() -> None:
    spec = "clos:hosts=2,gpus_per_host=2,nic_ports=2,subnets=stretched,homing=esi"
    with pytest.raises(UserError, match="homing=esi needs a control plane: take homing=bond or"):
        to_containerlab(catalogue.load(spec))
