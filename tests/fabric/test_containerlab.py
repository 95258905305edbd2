"""The containerlab file, read back; and its cables and commands carried out in namespaces."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from emulator.cli import graph_verb
from emulator.errors import UserError
from emulator.fabric import capabilities
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
NODE_KEYS = {"kind", "image", "group", "network-mode", "exec"}
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
        assert set(entry) == NODE_KEYS
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


def test_no_command_needs_a_shell() -> None:
    for node in loaded(catalogue.load())["topology"]["nodes"].values():
        for words in node["exec"]:
            assert not re.search(r"[|&;<>$`\\\"'*?]", words), words


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
    """Namespaces for containers, veth pairs for links, then every command: all GPUs are reached."""
    topology = catalogue.load(spec)
    content = loaded(topology)["topology"]
    for node in content["nodes"]:
        ip("netns", "add", f"{prefix}{node}")
        ip("-n", f"{prefix}{node}", "link", "set", "lo", "up")
    for link in content["links"]:
        (one, port), (other, far_port) = (end.split(":") for end in link["endpoints"])
        ends = ("netns", f"{prefix}{one}", "type", "veth", "peer", "name", far_port)
        ip("link", "add", port, *ends, "netns", f"{prefix}{other}")
    for node, entry in content["nodes"].items():
        for words in entry["exec"]:
            inside = ["ip", "netns", "exec", f"{prefix}{node}", *shlex.split(words)]
            done = subprocess.run(inside, capture_output=True, text=True)
            assert done.returncode == 0, (node, words, done.stderr)
    first, *others = topology.gpus
    for gpu in others:
        target = str(gpu_address(gpu).ip)
        command = ["ip", "netns", "exec", f"{prefix}{first.name}", "ping", "-c", "1", "-W", "5"]
        done = subprocess.run([*command, target], capture_output=True, text=True)
        assert done.returncode == 0, (gpu.name, done.stdout)


def test_stretched_rails_are_refused() -> None:
    with pytest.raises(UserError, match="a stretched subnet needs a control plane: take subnets"):
        to_containerlab(catalogue.load("clos:segments=2,hosts=1,subnets=stretched"))
