"""Endpoints of a fabric share what they know of their neighbours, whatever subnet they are in."""

from emulator.transports.shared_neighbours import shared_neighbours
from topologies.addressing import next_hops
from topologies.catalogue import load
from topologies.model import Topology
from uet.addresses import NeighbourTable, ip_of


def _tables(topology: Topology) -> list[NeighbourTable]:
    tables = [shared_neighbours(topology, gpu).table for gpu in topology.gpus]
    return list({id(table): table for table in tables}.values())


def test_tables_of_all_subnets_have_the_addresses_of_the_fabric_in_common() -> None:
    topology = load("rail_clos:hosts=3,gpus_per_host=4,spines=2")
    tables = _tables(topology)
    assert len(tables) == 4  # one for each rail
    assert len({id(one.known) for one in tables}) == 1
    # Of each there are the MACs of the subnet and the gateway's, not one for each GPU.
    assert {len(one.hops) for one in tables} == {3 + 1}
    for gpu in topology.gpus:
        known = shared_neighbours(topology, gpu)
        assert dict(known) == next_hops(topology, gpu.name)
        assert [known.find(ip_of(one).packed) for one in known] == list(known.items())


def test_in_a_single_subnet_no_gateway_is_known() -> None:
    topology = load("rail_clos:hosts=3,gpus_per_host=1,spines=1")
    (table,) = _tables(topology)
    assert table.hops == {gpu.ports[0].mac for gpu in topology.gpus}
