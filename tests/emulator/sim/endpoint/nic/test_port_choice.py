"""Test which port a frame chooses: by its entropy value, evenly, and never one that is down."""

from collections import Counter

import pytest

from emulator.rocev2.connections import full_mesh
from emulator.rocev2.wire.codes import flow_label, source_port
from emulator.sim.gpu_port import hash_of
from uet.carrier_codec import PeerEnvelope
from uet.congestion.spraying.paths import EV_FIRST, EV_LAST
from uet.congestion.spraying.port_entropy import Ports, choices, remaining
from uet.congestion.spraying.port_entropy import hash_of as hash_of_ev
from uet.encapsulation_choice import Encapsulation

FOUR = ("10.0.0.1", "10.0.0.2")
SIX = ("fd00::1", "fd00::2")


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("addresses", [FOUR, SIX])
def test_the_entropy_value_of_every_encapsulation_is_found(
    addresses: tuple[str, str], native: bool
) -> None:
    own = Encapsulation(address=addresses[0], mac="02:00:00:00:00:01", native=native)
    envelope = PeerEnvelope(own, addresses[1], "02:00:00:00:00:02")
    header, _ = envelope.wrap(0, 0xC0A5, b"head", b"payload")
    assert hash_of(header) == hash_of_ev(0xC0A5)
    assert hash_of(envelope.wrap(0, 0xC0A6, b"head", b"payload")[0]) == hash_of_ev(0xC0A6)


@pytest.mark.parametrize("ports", [(0, 1), (0, 1, 2), (0, 1, 2, 3)])
def test_ports_share_the_entropy_values(ports: tuple[int, ...]) -> None:
    choice = choices(ports)
    counted = Counter(choice[hash_of_ev(ev)] for ev in range(EV_FIRST, EV_LAST + 1))
    mean = (EV_LAST + 1 - EV_FIRST) / len(ports)
    assert set(counted) == set(ports)
    assert max(counted.values()) < 1.02 * mean
    assert min(counted.values()) > 0.98 * mean


@pytest.mark.parametrize(("count", "working"), [(2, (1,)), (4, (0, 2, 3)), (4, (0, 2))])
def test_a_port_that_is_not_usable_gets_nothing(count: int, working: tuple[int, ...]) -> None:
    before, after = choices(range(count)), remaining(count, working)
    assert set(after) == set(working)
    kept = [port for port, then in zip(before, after, strict=True) if port == then]
    assert sorted(kept) == sorted(port for port in before if port in working)
    moved = Counter(t for p, t in zip(before, after, strict=True) if p not in working)
    assert max(moved.values()) - min(moved.values()) <= 4  # of 64 or more


@pytest.mark.parametrize(("count", "working"), [(2, (1,)), (4, (0, 2, 3)), (4, (3,))])
def test_a_redirected_entropy_value_leaves_by_the_port_that_it_is_of(
    count: int, working: tuple[int, ...]
) -> None:
    """The peer answers by the port of the EV; the NIC must have sent by the same."""
    ports, here = Ports(count), remaining(count, working)
    ports.use(working)
    everywhere = choices(range(count))
    for ev in range(EV_FIRST, EV_FIRST + 2000):
        value = hash_of_ev(ports.redirect(ev))
        assert here[value] == everywhere[value]
        assert here[value] in working


def test_few_flows_of_rocev2_do_not_all_take_one_port() -> None:
    """Its source ports come from products of queue pair numbers, of which most are even."""
    choice = choices((0, 1))
    addresses = [f"10.0.0.{host}" for host in range(1, 9)]
    for own in range(8):
        mesh = full_mesh(addresses=addresses, own=own, qps=4, seed=1)
        ports = [
            source_port(flow_label(one.local_qpn, one.remote_qpn))
            for connections in mesh.values()
            for one in connections
        ]
        taken = Counter(choice[hash_of_ev(port)] for port in ports)
        assert min(taken[0], taken[1]) >= len(ports) / 5
