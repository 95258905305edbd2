"""The examples of the room's manual are fabrics that can be built, with the addresses it names."""

import importlib
import re
import sys
from collections.abc import Iterator

import pytest

from tests import CHECKOUT
from topologies import catalogue
from topologies.exports.address_table import rows
from topologies.model import Role, Topology, TopologyError

MANUAL = (CHECKOUT / "topologies" / "README.md").read_text()
ADDRESSING = MANUAL.partition("## Addressing\n")[2].partition("\n## ")[0]


@pytest.fixture
def with_example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The catalogue, with the manual's design from a file of its own."""
    monkeypatch.syspath_prepend(CHECKOUT / "tests" / "examples")
    importlib.import_module("one_spine")
    yield
    catalogue.DESIGNS.remove("one_spine")
    del sys.modules["one_spine"]


@pytest.mark.usefixtures("with_example")
def test_the_design_of_the_manual_is_found_and_built() -> None:
    topology = catalogue.load("one_spine:leaves=3,hosts=4,nic_rate=200Gbps")
    assert (len(topology.gpus), len(topology.switches), len(topology.links)) == (12, 4, 15)
    assert {link.rate_bps for link in topology.links} == {200 * 10**9}
    assert catalogue.load(catalogue.spec_of(topology)) == topology
    assert "Leaves under one spine, with servers of one GPU." in catalogue.describe()
    with pytest.raises(TopologyError, match="leaves is 1"):
        catalogue.load("one_spine:leaves=1")


def test_the_addresses_of_the_manual_are_those_of_its_example() -> None:
    (spec,) = re.findall(r"^`(clos:\S+)`:$", ADDRESSING, flags=re.MULTILINE)
    built = {(row.node, row.port): (row.mac, row.address) for row in rows(catalogue.load(spec))}
    stated = {
        (cells[0], cells[1]): (cells[2], cells[3])
        for line in ADDRESSING.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 5
        and cells[0] not in ("node", "---")
    }
    assert len(stated) == 11
    assert stated == {place: built[place] for place in stated}


def subnets(topology: Topology) -> list[str]:
    found = (row.subnet for row in rows(topology) if row.subnet)
    return list(dict.fromkeys(found))


def addresses(topology: Topology) -> list[str]:
    """Addresses of all GPU ports."""
    return [str(port.address.ip) for gpu in topology.gpus for port in gpu.ports if port.address]


@pytest.mark.parametrize(
    ("parameter", "spec", "first"),
    [
        (
            "subnet_prefix=28",
            "clos:subnet_prefix=28,rails_per_switch=2",
            ["10.0.1.0/28", "10.0.2.0/28"],
        ),
        ("subnet_prefix=22", "clos:subnet_prefix=22", ["10.0.4.0/22", "10.0.8.0/22"]),
        (
            "subnets=divided",
            "clos:subnets=divided,subnet_prefix=25,rails_per_switch=2",
            ["10.0.1.0/25", "10.0.1.128/25"],
        ),
        ("no rails", "tor:leaves=2,radix=4,gpus_per_host=2", ["10.0.1.0/24", "10.0.2.0/24"]),
    ],
)
def test_parameters_cut_subnets_as_the_manual_has_it(
    parameter: str, spec: str, first: list[str]
) -> None:
    (row,) = (
        line
        for line in ADDRESSING.splitlines()
        if line.startswith((f"- {parameter}", f"- `{parameter}`"))
    )
    assert all(subnet in row for subnet in first)
    assert subnets(catalogue.load(spec))[:2] == first


def test_a_gpu_of_two_planes_has_two_addresses_and_one_mac() -> None:
    topology = catalogue.load("fabric_planes")
    first = topology.node("h0g0")
    assert [str(port.address.ip) for port in first.ports if port.address] == [
        "10.1.1.2",
        "10.2.1.2",
    ]
    assert len({port.mac for port in first.ports}) == 1


def test_the_gpus_of_a_shared_nic_follow_each_other() -> None:
    topology = catalogue.load("clos:gpus_per_nic=4,gpus_per_host=4,hosts=2,spines=0")
    assert addresses(topology)[:4] == ["10.0.1.2", "10.0.1.3", "10.0.1.4", "10.0.1.5"]


@pytest.mark.parametrize(
    ("spec", "mac"),
    [
        ("clos:subnets=stretched,segments=2,hosts=2", "12:10:ff:ff:00:01"),
        ("clos:nic_ports=2,homing=bond,hosts=2,spines=0", "12:10:00:01:00:01"),
    ],
)
def test_several_switches_have_one_gateway_mac_for_a_rail(spec: str, mac: str) -> None:
    topology = catalogue.load(spec)
    found = [
        bridge.mac
        for switch in topology.switches
        if switch.role is Role.RAIL
        for bridge in switch.bridges
        if bridge.rail == 1
    ]
    assert len(found) == 2
    assert set(found) == {mac}
