"""Scale-up networks: who is joined with whom, at what rate, and what of it cannot be."""

import dataclasses
import json

import pytest

from emulator.topology_file import from_json, from_record, to_json
from topologies.catalogue import load, spec_of
from topologies.exports.dot import to_dot
from topologies.exports.mermaid import as_data, to_mermaid
from topologies.exports.picture import picture
from topologies.model import ScaleUp, TopologyError
from topologies.parts.scale_up import ScaleUpDomains

RATE = 3_600_000_000_000
GPUS = "rail_clos:hosts=4,gpus_per_host=4"


def peers(spec: str, gpu: str) -> dict[str, int]:
    return dict(ScaleUpDomains(load(spec)).peers(gpu))


def test_a_switch_joins_the_gpus_of_a_server_at_the_whole_rate() -> None:
    assert peers(GPUS, "h1g2") == {"h1g0": RATE, "h1g1": RATE, "h1g3": RATE}
    assert peers("rail_clos:gpus_per_host=1", "h0g0") == {}


def test_the_rate_of_a_gpu_divides_over_the_links_of_a_mesh() -> None:
    assert peers(f"{GPUS},scale_up=mesh", "h1g2") == dict.fromkeys(
        ("h1g0", "h1g1", "h1g3"), RATE // 3
    )
    assert peers("rail_clos:gpus_per_host=2,scale_up=mesh", "h0g1") == {"h0g0": RATE}


def test_a_ring_joins_neighbours_at_half_the_rate() -> None:
    assert peers(f"{GPUS},scale_up=ring", "h1g0") == {"h1g1": RATE // 2, "h1g3": RATE // 2}
    # two GPUs have both links to each other
    assert peers("rail_clos:gpus_per_host=2,scale_up=ring", "h0g0") == {"h0g1": RATE}
    assert peers("rail_clos:gpus_per_host=1,scale_up=ring", "h0g0") == {}


def test_a_domain_spans_servers() -> None:
    spec = f"{GPUS},scale_up_hosts=2"
    assert set(peers(spec, "h0g0")) == {
        *("h0g1", "h0g2", "h0g3"),
        *("h1g0", "h1g1", "h1g2", "h1g3"),
    }
    assert not ScaleUpDomains(load(spec)).joins("h1g3", "h2g0")
    assert set(peers(f"{spec},scale_up=ring", "h0g3")) == {"h0g2", "h1g0"}
    assert set(peers(f"{spec},scale_up=mesh", "h3g3")) == {
        f"h{host}g{rank}" for host in (2, 3) for rank in range(4)
    } - {"h3g3"}


def test_a_rack_of_72() -> None:
    topology = load("rail_clos:hosts=36,gpus_per_host=4,scale_up_hosts=18")
    domains = ScaleUpDomains(topology)
    assert {len(domains.peers(gpu.name)) for gpu in topology.gpus} == {71}
    assert len(set(topology.scale_up_domains.values())) == 2


@pytest.mark.parametrize(
    ("product", "gigabytes"),
    [
        ("nvswitch1", 150),
        ("nvswitch2", 300),
        ("nvswitch2,scale_up_links=10", 250),
        ("nvswitch3", 450),
        ("nvswitch4,scale_up_hosts=4", 900),
        ("mi300x", 64),  # by the link to that peer, however many peers there are
        ("ualink,scale_up_links=4", 400),
    ],
)
def test_products_have_the_rate_of_their_links(product: str, gigabytes: int) -> None:
    spec = f"{GPUS},scale_up={product}"
    assert set(peers(spec, "h1g2").values()) == {gigabytes * 8_000_000_000}
    assert from_record(json.loads(json.dumps(as_data(load(spec))))) == load(spec)


@pytest.mark.parametrize("spec", ["fat_tree", "torus:gpus_per_host=2", "dragonfly", "pod"])
def test_every_design_has_the_shapes(spec: str) -> None:
    colon = "," if ":" in spec else ":"
    topology = load(f"{spec}{colon}scale_up=mesh,scale_up_hosts=2")
    assert load(spec_of(topology)) == topology
    first, second, *_ = topology.servers
    assert (first.domain, second.domain) == (first.name, first.name)
    assert first.scale_up == ScaleUp(shape="mesh", hosts=2)


def test_records_have_shapes_and_domains() -> None:
    topology = load(f"{GPUS},scale_up=ring,scale_up_hosts=4")
    assert from_json(to_json(topology)) == topology
    assert from_record(json.loads(json.dumps(as_data(topology)))) == topology
    drawn = to_mermaid(topology)
    assert 'subgraph n_scale_up_h0["scale-up ring"]' in drawn
    assert "scale-up" not in to_mermaid(load(GPUS))


def test_drawings_tell_what_is_not_a_switch_of_each_server() -> None:
    assert not any("scale-up" in line for line in picture(load(GPUS)).title)
    for parameters, stated in (
        ("scale_up=ring", "scale-up: a ring for each server"),
        ("scale_up_hosts=2", "scale-up: a switch for 2 servers each"),
    ):
        assert stated in picture(load(f"{GPUS},{parameters}")).title
        assert stated in to_dot(load(f"{GPUS},{parameters}"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (f"{GPUS},scale_up_hosts=3", "scale_up_hosts is 3, which does not divide 4 servers"),
        (f"{GPUS},scale_up=star", "scale_up is 'star'; it is one of switch, mesh, ring, nvswitch1"),
        (f"{GPUS},scale_up_hosts=0", "scale_up_hosts is 0"),
        (f"{GPUS},scale_up=ualink", "scale_up_links is left out, and a GPU with scale_up=ualink"),
        (f"{GPUS},scale_up=nvswitch2,scale_up_links=13", "scale_up_links is 13, .* has 12"),
        (f"{GPUS},scale_up=mi300x,scale_up_rate=1Tbps", "scale_up_rate is 1 Tbps and changes"),
        (f"{GPUS},scale_up_links=3", "scale_up_links is 3 and changes nothing: it needs a prod"),
        (f"{GPUS},scale_up=mi300x,scale_up_hosts=4", "7 scale-up links, and a mesh needs one"),
    ],
)
def test_bad_parameters_are_named(spec: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        load(spec)


def test_servers_of_a_domain_have_one_network() -> None:
    topology = load(f"{GPUS},scale_up_hosts=2")
    first, second, *others = topology.servers
    slower = dataclasses.replace(second, scale_up=ScaleUp(rate_bps=RATE // 2, hosts=2))
    with pytest.raises(TopologyError, match="h1: its scale-up network is another"):
        dataclasses.replace(topology, servers=(first, slower, *others))
    odd = dataclasses.replace(first, scale_up=ScaleUp(shape="star"), domain=None)
    with pytest.raises(TopologyError, match="h0: the scale-up network is a 'star'"):
        dataclasses.replace(topology, servers=(odd, second, *others))
