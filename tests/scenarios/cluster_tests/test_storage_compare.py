"""Rows over TCP and by RDMA stand beside each other, with what bounds them."""

import pytest

from emulator.errors import UserError
from scenarios.cluster_tests.storage_compare import Parameters, beside, bound_by, storage_alone
from topologies import catalogue
from topologies.model import STORAGE

TCP = {
    "what": "epoch 2",
    "transport": "nvme/tcp",
    "clock": "host/100",
    "octets": 0,
    "hit_share": 1.0,
    "time_us": 3.0,
    "compare": "octets, hits",
}


@pytest.mark.parametrize(
    ("port_share", "busy_share", "bound"),
    [
        (0.85, 1.0, "network"),
        (0.8, 0.0, "network"),
        (0.79, 0.8, "machine"),
        (0.2, 0.79, "neither"),
    ],
)
def test_ports_bind_first_then_the_machine(
    port_share: float, busy_share: float, bound: str
) -> None:
    assert bound_by(port_share, busy_share) == bound


def test_each_work_has_the_rows_of_all_transports() -> None:
    rows: list[dict[str, object]] = [
        {"what": "epoch 1", "transport": "uet", "compare": ""},
        {"what": "epoch 2", "transport": "rocev2", "time_us": 2.0, "compare": ""},
    ]
    uet, rocev2 = beside(TCP, rows, ("uet", "rocev2"))
    assert rocev2 == {
        "what": "epoch 2",
        "transport": "rocev2",
        "time_us": 2.0,
        "compare": "octets, hits",
    }
    assert (uet["transport"], uet["clock"], uet["bound_by"]) == ("uet", "virtual", "cache")
    assert (uet["octets"], uet["hit_share"], uet["time_us"]) == (0, 1.0, None)


def test_states_of_no_whole_blocks_are_refused() -> None:
    with pytest.raises(UserError, match="state is 1000 octets, no whole blocks of 4096"):
        Parameters(state=1000)


def test_a_storage_network_alone_is_that_of_its_cluster() -> None:
    cluster = catalogue.load("cluster:segments=2,hosts=2,storage_nodes=3,storage_rate=100Gbps")
    alone = catalogue.load(storage_alone(cluster))
    network = cluster.network_named(STORAGE)
    assert (alone.nodes, alone.links) == (network.nodes, network.links)
