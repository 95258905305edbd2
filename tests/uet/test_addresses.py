"""Endpoints that share one table of neighbours know what those with tables of their own know."""

import pickle

import pytest

from tests.harness.uet.network import MACS
from uet.addresses import Neighbours, NeighbourTable, ip_of
from uet.config import FepConfig
from uet.encapsulation_choice import EncapsulationError
from uet.fep import FabricEndpoint

OWN = sorted(MACS)[1]


def test_it_has_all_entries_but_its_own() -> None:
    shared = Neighbours(NeighbourTable(MACS), OWN)
    others = {address: mac for address, mac in MACS.items() if address != OWN}
    assert dict(shared) == others
    assert len(shared) == len(others)
    assert OWN not in shared
    with pytest.raises(KeyError):
        shared[OWN]
    assert dict(pickle.loads(pickle.dumps(shared))) == others


def test_it_finds_the_others_by_packed_address() -> None:
    shared = Neighbours(NeighbourTable(MACS), OWN)
    assert shared.find(ip_of(OWN).packed) is None
    assert shared.find(ip_of("10.9.9.9").packed) is None
    found = [shared.find(ip_of(address).packed) for address in shared]
    assert found == list(shared.items())


def test_an_endpoint_meets_shared_neighbours_with_the_same_entropy_values() -> None:
    others = {address: mac for address, mac in MACS.items() if address != OWN}
    shared = Neighbours(NeighbourTable(MACS), OWN)
    one, other = (
        FabricEndpoint(FepConfig(address=OWN, mac=MACS[OWN], neighbours=known), seed=3)
        for known in (others, shared)
    )
    for address in reversed(others):
        first, second = (fep.peers[ip_of(address).packed] for fep in (one, other))
        picked = [[peer.congestion.paths.pick() for _ in range(9)] for peer in (first, second)]
        assert picked[0] == picked[1]
        assert first.envelope.prologue(0, 64) == second.envelope.prologue(0, 64)


def test_addresses_of_another_version_or_none_are_refused() -> None:
    for macs in ({**MACS, "2001:db8::1": "02:00:00:00:00:77"}, {**MACS, "x": "02:00:00:00:00:77"}):
        table = NeighbourTable(macs)
        with pytest.raises(ValueError, match="neighbours"):
            FepConfig(address=OWN, mac=MACS[OWN], neighbours=_sharing(table))


def _sharing(table: NeighbourTable) -> Neighbours:
    made = Neighbours(NeighbourTable(MACS), OWN)
    made.table = table
    return made


def test_a_mac_that_is_none_is_refused_before_it_is_needed() -> None:
    table = NeighbourTable({**MACS, "10.9.9.9": "02:00"})
    config = FepConfig(address=OWN, mac=MACS[OWN], neighbours=Neighbours(table, OWN))
    with pytest.raises(EncapsulationError):
        FabricEndpoint(config, seed=1)
