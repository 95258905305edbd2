"""Every named design in the kernel: who is to be reached is, and who is not to be is not."""

from contextlib import ExitStack
from ipaddress import IPv4Address

import pytest

from emulator.dataplane.lab import Lab
from emulator.dataplane.switch import switch_choice as choice
from tests.harness.lab.echoes import Asker, listen
from tests.system.conftest import LabFactory
from topologies.addressing import gpu_address
from topologies.model import CableEnd, Node, Topology
from topologies.routing.paths import paths_from

pytestmark = pytest.mark.root

#: Every design: as it is, or smaller but of the same shape where that has more than 64 GPUs.
JOINED = [
    "nic_per_gpu",
    "shared_nic",
    "single_rail_switch",
    "dual_rail_switch",
    "host_segment",
    "host_segment:homing=paths,hosts=2",
    "pod",
    "pod:nic_ports=1,rails_per_switch=4,hosts=2",
    "clos:nic_ports=4,nic_rate=100G,hosts=2,segments=2,rails_per_switch=4",
    "clos:nic_ports=4,planes=own,hosts=2,gpus_per_host=2,spines=1",
    "multi_pod:hosts=2,gpus_per_host=4",
    "multi_rail_per_switch",
    "fat_tree",
    "tor:radix=4,gpus_per_host=2",
    "dual_rail_per_switch:hosts=3",
    "single_rail_per_switch:hosts=3",
    "fabric_planes",
    "fabric_planes:spines=2,rails_per_switch=1",
]


def ask_all(lab: Lab) -> dict[str, Asker]:
    """Every GPU asks every other at its address; what came back."""
    topology = lab.topology
    addresses = {gpu.name: gpu_address(gpu).ip for gpu in topology.gpus}
    due = {
        name: {addresses[peer] for peer in reached(topology, name)} - {addresses[name]}
        for name in addresses
    }
    with ExitStack() as stack:
        askers = {
            name: stack.enter_context(Asker(lab, name, address))
            for name, address in addresses.items()
        }
        for name, asker in askers.items():
            asker.ask(address for peer, address in addresses.items() if peer != name)
        listen(askers.values(), due)
    return askers


def reached(topology: Topology, gpu: str) -> set[str]:
    """The GPUs to which cables and switches lead from ``gpu``: looked up in no routing table."""
    paths = paths_from(topology, gpu)
    return {peer.name for peer in topology.gpus if peer.name in paths}


@pytest.mark.parametrize("spec", JOINED)
def test_every_gpu_reaches_every_other(lab: LabFactory, spec: str) -> None:
    built = lab(spec)
    assert built.topology.parameters.get("homing") != "auto"  # but what the kernel can
    addresses = {gpu_address(gpu).ip for gpu in built.topology.gpus}
    for name, asker in ask_all(built).items():
        assert asker.answers.heard == addresses - {asker.source}, name
        assert asker.answers.refused == {}


@pytest.mark.parametrize("spec", ["shared_nic", "dual_rail_switch", "fabric_planes:spines=2"])
def test_ports_that_are_shared_or_doubled_pass_the_switch_asic(lab: LabFactory, spec: str) -> None:
    built = lab(spec, switch=choice.parse("shallow:balance=packet"))
    addresses = {gpu_address(gpu).ip for gpu in built.topology.gpus}
    for name, asker in ask_all(built).items():
        assert asker.answers.heard == addresses - {asker.source}, name


def test_rails_without_a_spine_do_not_reach_each_other(lab: LabFactory) -> None:
    built = lab("rail_only")
    topology = built.topology
    for name, asker in ask_all(built).items():
        gpu = topology.node(name)
        rail = {gpu_address(peer).ip for peer in topology.gpus if peer.rail == gpu.rail}
        assert asker.answers.heard == rail - {asker.source}
        # the gateway says why: it has no route there (it says so a few times a second at most)
        assert set(asker.answers.refused.values()) == {IPv4Address(str(gpu.gateway))}
        assert not set(asker.answers.refused) & rail


def test_two_rails_on_a_switch_reach_each_other_without_a_spine(lab: LabFactory) -> None:
    built = lab("rail_only:rails_per_switch=4,hosts=2")
    for name, asker in ask_all(built).items():
        half = built.topology.node(name).local_rank // 4  # type: ignore[operator]
        near = {
            gpu_address(peer).ip
            for peer in built.topology.gpus
            if (peer.local_rank or 0) // 4 == half
        }
        assert asker.answers.heard == near - {asker.source}


@pytest.mark.parametrize("spec", ["fabric_planes", "fabric_planes:spines=1,rails_per_switch=1"])
def test_a_plane_does_not_lead_to_the_subnets_of_the_other(lab: LabFactory, spec: str) -> None:
    built = lab(spec)
    topology = built.topology
    here, there = (addresses_of(topology, port) for port in ("eth0", "eth1"))
    for port, near, far in (("eth0", here, there), ("eth1", there, here)):
        with ExitStack() as stack:
            askers = [
                stack.enter_context(Asker(built, name, address, port))
                for name, address in near.items()
            ]
            due = {name: set(near.values()) - {address} for name, address in near.items()}
            for asker in askers:
                asker.ask(address for name, address in far.items() if name != asker.node)
                asker.ask(due[asker.node])
            listen(askers, due)
        for asker in askers:
            assert asker.answers.heard == due[asker.node]
            gateway = topology.gateway_of(CableEnd(asker.node, port))
            assert gateway is not None
            assert gateway.gateway is not None
            assert set(asker.answers.refused.values()) == {gateway.gateway.ip}
            assert set(asker.answers.refused) <= set(far.values())


def addresses_of(topology: Topology, port: str) -> dict[str, IPv4Address]:
    def address(gpu: Node) -> IPv4Address:
        interface = gpu.port(port).address
        assert interface is not None
        return interface.ip

    return {gpu.name: address(gpu) for gpu in topology.gpus}
