"""Fabrics of public documents have the documents' numbers, and their ratios at every scale."""

import inspect
from collections import Counter

import pytest

from tests import CHECKOUT
from tests.harness.nightly import nightly
from tests.topologies.designs.test_designs import numbers
from topologies import catalogue
from topologies.analysis.capacity import format_ratio, oversubscription
from topologies.designs.references import Reference
from topologies.exports.htsim import to_htsim
from topologies.model import CableEnd, Role, Topology

README = (CHECKOUT / "topologies" / "README.md").read_text()
NAMES = [
    name for name, design in catalogue.DESIGNS.items() if issubclass(design.parameters, Reference)
]
#: GPUs, switches from the lowest tier up, links below each of these, and oversubscription, by spec.
DOCUMENTS = {
    "dgx_superpod:scale=1": ([1024, 32, 16], [1024, 1024], ["1:1"]),
    "dgx_superpod:scale=1,segments=2,spines=8": ([512, 16, 8], [512, 512], ["1:1"]),
    "dgx_superpod:scale=1,segments=1,spines=4": ([256, 8, 4], [256, 256], ["1:1"]),
    "meta_24k:scale=1,pods=1,super_spines=0": ([3072, 192, 16], [3072, 3072], ["1:1"]),
    "ue_leaf_spine:scale=1": ([8192, 128, 64], [8192, 8192], ["1:1"]),
    "mrc:scale=8": ([2048, 512, 256], [16384, 16384], ["1:1"]),
    "alibaba_hpn:scale=1": ([15360, 240, 120], [30720, 14400], ["1.07:1"]),
    "mrc:scale=1": ([131_072, 4096, 2048], [1 << 20, 1 << 20], ["1:1"]),
    "meta_24k:scale=1": ([24576, 1536, 128, 28], [24576, 24576, 3584], ["1:1", "6.86:1"]),
}
LARGE = ("alibaba_hpn:scale=1", "meta_24k:scale=1", "mrc:scale=1")
TIERS = (Role.GPU, Role.RAIL, Role.SPINE, Role.SUPER_SPINE)


def counted(topology: Topology) -> tuple[list[int], list[int], list[str]]:
    roles = Counter(node.role for node in topology.nodes)
    below = Counter(topology.node(link.b.node).role for link in topology.links)
    return (
        [roles[role] for role in TIERS if roles[role]],
        [below[role] for role in TIERS[1:] if below[role]],
        [format_ratio(ratio) for ratio in oversubscription(topology).values()],
    )


@pytest.mark.parametrize("spec", [nightly(spec) if spec in LARGE else spec for spec in DOCUMENTS])
def test_a_fabric_has_the_numbers_of_its_document(spec: str) -> None:
    assert counted(catalogue.load(spec)) == DOCUMENTS[spec]


def test_a_plane_of_more_segments_than_an_octet_has_room_for_goes_on_in_others() -> None:
    topology = catalogue.load("mrc:scale=1,segments=256,hosts=1,gpus_per_host=1,spines=0")
    first, last = topology.node("h0g0"), topology.node("h255g0")
    assert [str(port.address) for port in first.ports[:2]] == ["10.1.1.2/26", "10.2.1.2/26"]
    assert [str(port.address) for port in last.ports[:2]] == ["10.11.1.2/26", "10.12.1.2/26"]


@pytest.mark.nightly
def test_the_file_of_uet_htsim_is_what_its_export_writes() -> None:
    """Its ``leaf_spine_8192_800g.topo`` has all of these lines, and a bundle of one by default."""
    written = to_htsim(catalogue.load("ue_leaf_spine:scale=1"))
    settings = [line for line in written.splitlines() if line and not line.startswith("#")]
    assert sorted(set(settings) - {"Bundle 1"}) == [
        "Downlink_Latency_ns 1000",
        "Downlink_speed_Gbps 800",
        "Nodes 8192",
        "Oversubscribed 1",
        "Podsize 8192",
        "Radix_Down 128",
        "Radix_Down 64",
        "Radix_Up 64",
        "Switch_Latency_ns 0",
        "Tier 0",
        "Tier 1",
        "Tiers 2",
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [20, 33, 100, 500])
def test_ratios_and_nics_are_those_of_the_full_size(name: str, scale: int) -> None:
    kind = catalogue.DESIGNS[name].parameters
    assert issubclass(kind, Reference)
    full = kind(scale=1)
    trunks = full.plan.trunks
    down = full.hosts * full.plan.tiers.rails_of_switch * full.nic_rate
    wanted = [down / (trunks.up * trunks.uplink_bps)]
    if full.super_spines:
        above = full.super_spines * trunks.parallel_super * trunks.super_bps
        wanted.append(full.segments * trunks.parallel * trunks.uplink_bps / above)
    topology = catalogue.load(f"{name}:scale={scale}")
    found = [float(ratio) for ratio in oversubscription(topology).values()]
    assert found == pytest.approx(wanted, rel=1e-9)
    for gpu in topology.gpus:
        links = [topology.link_at(CableEnd(gpu.name, port.name)) for port in gpu.ports]
        assert [link.rate_bps for link in links] == [full.nic_rate] * full.nic_ports


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_and_the_manual_have_the_numbers(name: str) -> None:
    topology = catalogue.load(name)
    words = " ".join((inspect.getdoc(catalogue.DESIGNS[name].parameters) or "").split())
    assert numbers(topology) in words
    assert catalogue.load(catalogue.spec_of(topology)) == topology
    row, _ = (line for line in README.splitlines() if line.startswith(f"| `{name}` |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    nodes, _, ratios = DOCUMENTS[f"{name}:scale=1"]
    assert cells[-3:] == [
        " / ".join(f"{count:,}" for count in nodes),
        ", ".join(ratios),
        f"{len(topology.gpus)} / {len(topology.switches)}",
    ]
