"""The containerlab file, read back; and its cables and commands carried out in namespaces.

What containerlab makes of a file is taken from its source: keys are read strictly
(types.NodeDefinition, links.LinkBriefRaw), endpoints are unique and name interfaces as Linux does
(links.Endpoint), a node with an eth0 of its own has no management network (nodes/linux), and
commands run in a node as soon as its own cables are plugged in (core.scheduleNodeWorkerF).
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from emulator.cli import graph_verb
from emulator.errors import UserError
from emulator.fabric import capabilities, namespaces
from emulator.fabric.containerlab import to_containerlab
from topologies import catalogue
from topologies.addressing import gpu_address
from topologies.model import Topology

SPECS = (
    "rail_clos",
    "clos:nic_ports=2,hosts=2,gpus_per_host=2",
    "clos:gpus_per_nic=2,hosts=2,gpus_per_host=2,rails_per_switch=2",
)
#: Of a node and of a link, as containerlab's schema has them.
NODE_KEYS = {"kind", "image", "group", "network-mode", "sysctls", "exec"}
LINK_KEYS = {"endpoints", "vars"}


def loaded(topology: Topology) -> dict:
    content: dict = YAML(typ="safe").load(to_containerlab(topology))
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


@pytest.mark.parametrize("design", [d for d in catalogue.DESIGNS if d != "single_rail_per_switch"])
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
    """But that for a setting which older kernels do not have, and so has its own."""
    for name, node in loaded(catalogue.load())["topology"]["nodes"].items():
        with_shell = [c for c in node["exec"] if re.search(r"[|&;<>$`\\\"'*?]", c)]
        assert len(with_shell) == (0 if name.startswith("h") else 1)
        for command in with_shell:
            shell, option, _script = shlex.split(command)
            assert (shell, option) == ("sh", "-c")


def test_another_control_plane_is_told() -> None:
    profile = dataclasses.replace(catalogue.load().profile, control_plane="ebgp:bfd=on")
    topology = dataclasses.replace(catalogue.load(), profile=profile)
    told, _, rest = to_containerlab(topology).partition("\n")
    assert told == "# The control plane is ebgp; routes here are static."
    assert rest == to_containerlab(catalogue.load())


def test_rails_are_vlans_of_one_bridge_where_the_fabric_wants_it() -> None:
    topology = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,rails_per_switch=2,vlans=on")
    commands = loaded(topology)["topology"]["nodes"]["rail0"]["exec"]
    assert [words for words in commands if "type bridge" in words] == [
        "ip link add name br0 address 02:10:00:00:00:00 type bridge vlan_filtering 1"
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


def inside(prefix: str, node: str, argv: list[str], printing: str | None = None) -> None:
    """Run ``argv`` in the namespace of ``node``; it must succeed, and print that if given."""
    done = namespaces.visitor().inside(
        Path("/run/netns", f"{prefix}{node}"),
        lambda: subprocess.run(argv, capture_output=True, text=True),
    )
    assert done.returncode == 0, (node, argv, done.stderr)
    assert printing is None or done.stdout == printing, (node, argv)


def ping(prefix: str, node: str, address: str) -> int:
    argv = ["ping", "-c", "1", "-W", "5", address]
    return namespaces.visitor().inside(
        Path("/run/netns", f"{prefix}{node}"),
        lambda: subprocess.run(argv, capture_output=True).returncode,
    )


def deploy(content: dict, prefix: str) -> None:
    """As containerlab with one worker, on a host that drops what comes back another way.

    A cable is made on the host when the first of its nodes is there; its far end waits there.
    """
    host = f"{prefix}host"
    ip("netns", "add", host)
    made: set[int] = set()
    for node, entry in content["nodes"].items():
        ip("netns", "add", f"{prefix}{node}")
        inside(prefix, node, ["sysctl", "-w", "net.ipv4.conf.default.rp_filter=1"])
        settings = content["kinds"][entry["kind"]]["sysctls"] | entry.get("sysctls", {})
        inside(prefix, node, ["sysctl", "-w", *(f"{key}={settings[key]}" for key in settings)])
        ip("-n", f"{prefix}{node}", "link", "set", "lo", "up")
        for number, link in enumerate(content["links"]):
            for side, end in enumerate(link["endpoints"]):
                name, port = end.split(":")
                if name != node:
                    continue
                if number not in made:
                    kind = ("type", "veth", "peer", "name", f"e{number}.1", "mtu", str(VETH_MTU))
                    ip("-n", host, "link", "add", f"e{number}.0", "mtu", str(VETH_MTU), *kind)
                    made.add(number)
                place = ("netns", f"{prefix}{node}", "name", port)
                ip("-n", host, "link", "set", f"e{number}.{side}", *place)
                ip("-n", f"{prefix}{node}", "link", "set", port, "up")
        for words in entry["exec"]:
            inside(prefix, node, shlex.split(words))


@pytest.mark.root
@pytest.mark.parametrize(
    "spec",
    [
        "rail_clos:hosts=2,gpus_per_host=2",
        "clos:nic_ports=2,hosts=2,gpus_per_host=1",
        "clos:gpus_per_nic=2,hosts=2,gpus_per_host=2",
        "dragonfly:gpus_per_host=1,routing=valiant",
        pytest.param(
            "clos:hosts=2,gpus_per_host=2,rails_per_switch=2,vlans=on",
            marks=pytest.mark.skipif(
                not capabilities.has("vlan"),
                reason="this kernel has no VLANs; a test boots one that has",
            ),
        ),
    ],
)
def test_what_containerlab_would_do_makes_a_fabric(spec: str, prefix: str) -> None:
    """Namespaces for containers, veth pairs for links, and every command: all GPUs are reached."""
    topology = catalogue.load(spec)
    deploy(loaded(topology)["topology"], prefix)
    for node in topology.switches:
        inside(prefix, node.name, ["sysctl", "-n", "net.ipv4.ip_forward"], printing="1\n")
        if Path("/proc/sys", *HASH_SEED).exists():
            seed = f"{node.hash_seed}\n"
            inside(prefix, node.name, ["sysctl", "-n", ".".join(HASH_SEED)], printing=seed)
    lost = [
        (one.name, other.name)
        for one, other in permutations(topology.gpus, 2)
        if ping(prefix, one.name, str(gpu_address(other).ip))
    ]
    assert lost == []


def test_stretched_rails_are_refused() -> None:
    with pytest.raises(UserError, match="a stretched subnet needs a control plane: take subnets"):
        to_containerlab(catalogue.load("clos:segments=2,hosts=1,subnets=stretched"))
