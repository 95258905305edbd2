"""Test that connections made on demand are those of a table of all, which no end keeps."""

import gc
import random
import zlib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest

from emulator.rocev2.config import HcaConfig
from emulator.rocev2.connections import Connection, FullMesh, MeshAddresses, full_mesh
from emulator.rocev2.hca import HostChannelAdapter
from tests.harness.uet.network import MACS, Network
from uet.addresses import Neighbours, NeighbourTable, ip_of
from uet.config_checks import ConfigurationError
from uet.transport import WriteRequest

ADDRESSES = list(MACS)
KEY = 0x77
DESTINATION_QP = slice(14 + 20 + 8 + 5, 14 + 20 + 8 + 8)
WORK_ERROR = "there is no queue pair for delivery 'uc' to 10.0.1.2; it has rc, and ud"


def table_of_all(own: int, qps: int, seed: int, life: int) -> dict[str, tuple[Connection, ...]]:
    """Return every connection of one end, as all ends have agreed on them."""
    seed += life << 64

    def base(place: int) -> int:
        return 0x100 + random.Random(f"qpn {seed} {place}").getrandbits(20)

    def psn(source: int, destination: int, number: int) -> int:
        return zlib.crc32(f"{seed} {source} {destination} {number}".encode()) & 0xFF_FFFF

    return {
        peer: tuple(
            Connection(
                local_qpn=base(own) + place * qps + number,
                remote_qpn=base(place) + own * qps + number,
                first_psn=psn(own, place, number),
                expected_psn=psn(place, own, number),
            )
            for number in range(qps)
        )
        for place, peer in enumerate(ADDRESSES)
        if place != own
    }


def config(own: int, connections: Mapping[str, tuple[Connection, ...]]) -> HcaConfig:
    address = ADDRESSES[own]
    return HcaConfig(
        address=address,
        mac=MACS[address],
        neighbours={peer: mac for peer, mac in MACS.items() if peer != address},
        connections=connections,
        timeout=5,
        mtu=1024,
        endless_receives=True,
    )


def end(own: int, connections: Mapping[str, tuple[Connection, ...]]) -> HostChannelAdapter:
    return HostChannelAdapter(config(own, connections))


@pytest.mark.parametrize("qps", [1, 3, 4])
@pytest.mark.parametrize("seed", [1, 7])
@pytest.mark.parametrize("life", [0, 2])
def test_they_are_those_of_a_table_of_all(qps: int, seed: int, life: int) -> None:
    for own in range(len(ADDRESSES)):
        expected = table_of_all(own, qps, seed, life)
        mesh = full_mesh(ADDRESSES, own, qps, seed, life)
        assert dict(mesh) == expected
        assert list(mesh) == list(expected)
        assert len(mesh) == len(expected)
        by_number = {
            one.local_qpn: (ip_of(peer).packed, one)
            for peer, several in expected.items()
            for one in several
        }
        around = range(min(by_number) - 2 * qps, max(by_number) + 2 * qps)
        assert {qpn: mesh.find(qpn) for qpn in around} == {q: by_number.get(q) for q in around}
        assert [qpn for qpn in around if mesh.holds(qpn)] == sorted(by_number)
        for peer, several in expected.items():
            turns = mesh.numbers(ip_of(peer).packed)
            assert list(turns) == [one.local_qpn for one in several]


def test_who_is_no_peer() -> None:
    mesh = full_mesh(ADDRESSES, 0, 2, seed=1)
    for nobody in (ADDRESSES[0], "10.0.9.9", "here"):
        assert nobody not in mesh
        assert mesh.get(nobody) is None
    assert not mesh.numbers(ip_of(ADDRESSES[0]).packed)
    assert not mesh.numbers(ip_of("10.0.9.9").packed)


@pytest.mark.parametrize("qps", [1, 3])
def test_packets_are_those_of_a_table_of_all(qps: int) -> None:
    """Octet by octet, whoever sends first, and whichever queue pair has its turn."""
    seen: list[list[bytes]] = []
    counters = []
    for make in (table_of_all, lambda *several: full_mesh(ADDRESSES, *several)):
        ends = [end(own, make(own, qps, 5, 1)) for own in range(4)]
        # Its annotation names the endpoints of UET, of which it uses what these have as well.
        network = Network(
            {one.config.address: one for one in ends},  # type: ignore[misc]
            random.Random(1),
            keep=True,
        )
        for one in ends:
            one.register(memoryview(bytearray(5_000)), key=KEY)
        for source, peer in ((0, 1), (2, 0), (0, 3), (0, 1), (1, 0), (0, 1), (0, 1)):
            ends[source].post(
                WriteRequest(
                    peer=ADDRESSES[peer],
                    key=KEY,
                    offset=0,
                    payload=memoryview(bytes(5_000)),
                    header_data=1,
                )
            )
        network.settle()
        seen.append(network.sent)
        counters.append([one.counters() for one in ends])
    assert seen[0] == seen[1]
    assert len(seen[0]) > 7
    assert counters[0] == counters[1]
    assert [one["qps_open"] for one in counters[1]] == [qps + 2, qps, 1, 1]


def test_other_numbers_are_unknown() -> None:
    """Below, above, and where the numbers toward the end itself would be."""
    qps, one = 2, end(0, full_mesh(ADDRESSES, 0, 2, seed=1))
    first = min(several[0].local_qpn for several in table_of_all(0, qps, 1, 0).values())
    own, above = first - 1, first + (len(ADDRESSES) - 1) * qps
    for count, unknown in enumerate((own - 1, own, own - qps, above, 0xFF_FFFE), 1):
        back = table_of_all(1, qps, 1, 0)[ADDRESSES[0]][0]
        stray = Connection(local_qpn=back.local_qpn, remote_qpn=unknown)
        other = end(1, {ADDRESSES[0]: (stray,)})
        other.post(WriteRequest(peer=ADDRESSES[0], key=KEY, offset=0, payload=memoryview(b"x")))
        one.receive([memoryview(b"".join(frame)) for frame in other.transmit(0, 8)], 0)
        assert one.counters()["rx_drop_unknown_qp"] == count
    assert one.counters()["qps_open"] == 0


def test_a_number_of_a_connection_is_refused_before_it_is_made() -> None:
    mesh = full_mesh(ADDRESSES, 2, 2, seed=1)
    one = end(2, mesh)
    taken = mesh[ADDRESSES[8]][1].local_qpn
    with pytest.raises(ValueError, match="already; choose another number"):
        one.add_queue_pair(taken)
    assert one.counters()["qps_open"] == 0
    free = mesh[ADDRESSES[1]][1].local_qpn + 1  # where its own would be
    assert one.add_queue_pair(free).qpn == free
    with pytest.raises(ValueError, match="already; choose another number"):
        one.add_queue_pair(free)


def test_a_connection_added_later_takes_its_turn_behind_the_others() -> None:
    one = end(0, full_mesh(ADDRESSES, 0, 2, seed=1))
    peer = ADDRESSES[1]
    added = Connection(local_qpn=0x70_0000, remote_qpn=0x70_0001)
    one.connect(peer, added)
    for _ in range(4):
        one.post(WriteRequest(peer=peer, key=KEY, offset=0, payload=memoryview(b"x")))
    frames = [b"".join(frame) for frame in one.transmit(0, 8)]
    toward = [int.from_bytes(frame[DESTINATION_QP], "big") for frame in frames]
    first, second = (connection.remote_qpn for connection in one.config.connections[peer])
    assert sorted(toward) == sorted([first, second, added.remote_qpn, first])
    assert toward[-1] == added.remote_qpn
    assert one.counters()["qps_open"] == 3


def test_another_service_is_refused_with_those_there_are() -> None:
    one = end(0, full_mesh(ADDRESSES, 0, 2, seed=1))
    request = WriteRequest(
        peer=ADDRESSES[1], key=KEY, offset=0, payload=memoryview(b"x"), delivery="uc"
    )
    with pytest.raises(ValueError, match=WORK_ERROR):
        one.post(request)


def _connections_alive() -> int:
    gc.collect()
    return sum(isinstance(one, Connection) for one in gc.get_objects())


def test_no_end_has_connections_that_it_does_not_use() -> None:
    before = _connections_alive()
    table = MeshAddresses(ADDRESSES)
    ends = [end(own, full_mesh(table, own, 4, seed=1)) for own in range(len(ADDRESSES))]
    assert _connections_alive() == before
    ends[0].post(WriteRequest(peer=ADDRESSES[5], key=KEY, offset=0, payload=memoryview(b"x")))
    assert _connections_alive() <= before + 1
    assert ends[0].counters()["qps_open"] == 1


class Watched(Mapping[str, str]):
    """MACs by address, which count how often one is looked up."""

    def __init__(self, macs: Mapping[str, str]) -> None:
        self.macs, self.looks = macs, 0

    def __getitem__(self, address: str) -> str:
        return self.macs[address]

    def __contains__(self, address: object) -> bool:
        self.looks += 1
        return address in self.macs

    def __iter__(self) -> Iterator[str]:
        return iter(self.macs)

    def __len__(self) -> int:
        return len(self.macs)


def shared(own: int, mesh: FullMesh, neighbours: NeighbourTable) -> HcaConfig:
    address = ADDRESSES[own]
    return HcaConfig(
        address=address,
        mac=MACS[address],
        neighbours=Neighbours(neighbours, address),
        connections=mesh,
    )


def test_a_shared_table_of_neighbours_is_looked_through_once() -> None:
    macs, table = Watched(MACS), MeshAddresses(ADDRESSES)
    neighbours = NeighbourTable(macs)
    looks = []
    for own in range(len(ADDRESSES)):
        shared(own, full_mesh(table, own, 1, seed=1), neighbours)
        looks.append(macs.looks)
    further = [later - sooner for sooner, later in pairwise(looks)]
    assert looks[0] >= len(ADDRESSES)
    assert max(further) < len(ADDRESSES) / 2


def test_a_peer_that_is_no_neighbour_is_refused() -> None:
    fewer = {peer: mac for peer, mac in MACS.items() if peer != ADDRESSES[3]}
    complaint = f"connections: {ADDRESSES[3]} is not among the neighbours; add it with its MAC"
    table = MeshAddresses(ADDRESSES)
    with pytest.raises(ConfigurationError, match=complaint):
        shared(0, full_mesh(table, 0, 1, seed=1), NeighbourTable(fewer))
    shared(3, full_mesh(table, 3, 1, seed=1), NeighbourTable(fewer))  # itself
    with pytest.raises(ConfigurationError, match=complaint):
        HcaConfig(
            address=ADDRESSES[0],
            mac=MACS[ADDRESSES[0]],
            neighbours={peer: mac for peer, mac in fewer.items() if peer != ADDRESSES[0]},
            connections=full_mesh(table, 0, 1, seed=1),
        )


def test_the_number_of_datagrams_is_refused_among_those_of_connections() -> None:
    mesh = full_mesh(ADDRESSES, 1, 2, seed=1)
    taken = mesh[ADDRESSES[4]][0].local_qpn
    fields: dict[str, Any] = {
        "address": ADDRESSES[1],
        "mac": MACS[ADDRESSES[1]],
        "neighbours": {peer: mac for peer, mac in MACS.items() if peer != ADDRESSES[1]},
        "connections": mesh,
    }
    with pytest.raises(ConfigurationError, match=f"the QP number {taken} is taken twice"):
        HcaConfig(**fields, ud_qpn=taken)
    free = mesh[ADDRESSES[0]][1].local_qpn + 1
    assert HcaConfig(**fields, ud_qpn=free).ud_qpn == free


def test_more_numbers_than_there_are() -> None:
    most = (0xFF_FFFF - 0x100 - 2**20) // len(ADDRESSES)
    last = list(full_mesh(ADDRESSES, 0, most, seed=1).numbers(ip_of(ADDRESSES[8]).packed))[-1]
    assert last < 0xFF_FFFF
    with pytest.raises(ConfigurationError, match=f"choose at most {most} queue pairs"):
        full_mesh(ADDRESSES, 0, most + 1, seed=1)


def test_tables_of_the_same_addresses_are_equal() -> None:
    """Stages of a run whose transports are equal share their endpoints."""
    one, other = MeshAddresses(ADDRESSES), MeshAddresses(list(ADDRESSES))
    assert one == other
    assert len({one, other}) == 1
    assert one != MeshAddresses(ADDRESSES[1:])
