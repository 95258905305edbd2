"""Ranks that share one table of addresses see all of it but their own."""

import pickle

import pytest

from emulator.sim.endpoint.peer_addresses import PeerAddresses, RankAddresses, ranks_at

ADDRESSES = ["10.0.1.2", "10.0.1.3", "10.0.1.4"]


def test_a_rank_sees_all_others() -> None:
    peers = PeerAddresses(RankAddresses(ADDRESSES), 1)
    assert dict(peers) == {0: "10.0.1.2", 2: "10.0.1.4"}
    assert len(peers) == 2
    for missing in (1, -1, 3):
        assert missing not in peers
        with pytest.raises(KeyError):
            peers[missing]
    assert dict(pickle.loads(pickle.dumps(peers))) == dict(peers)


def test_ranks_are_found_by_address_in_both_kinds_of_tables() -> None:
    shared = PeerAddresses(RankAddresses(ADDRESSES), 1)
    assert all(ranks_at(dict(shared))[one] == ranks_at(shared)[one] for one in shared.values())
