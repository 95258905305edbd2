"""An endpoint makes its state for a peer when it first needs it, as if it had been there."""

from ipaddress import ip_address

import pytest

from tests.harness.uet.network import MACS, endpoint
from uet.config import FepConfig
from uet.congestion.controls.nscc import Nscc
from uet.congestion.spraying.paths import EV_SET_SIZE
from uet.congestion.spraying.policies import SPRAYING
from uet.encapsulation_choice import EncapsulationError
from uet.fep import FabricEndpoint
from uet.transport import SendRequest

HERE, OTHER, LAST = "10.0.1.1", "10.0.1.2", "10.0.1.9"
SEED = 5
#: More EVs than a set has: what is drawn when it has been used up is among them, too.
PICKED = 2 * EV_SET_SIZE + 9


def test_peers_are_made_on_demand() -> None:
    fep = endpoint(HERE, seed=SEED, spraying="reps")
    assert not fep.peers
    fep.post(SendRequest(peer=LAST, payload=memoryview(b"x")))
    fep.transmit(0, 1)
    assert list(fep.peers) == [ip_address(LAST).packed]


@pytest.mark.parametrize("ports", [1, 2])
@pytest.mark.parametrize("spraying", SPRAYING)
def test_what_is_drawn_for_a_peer_depends_on_seed_and_address_only(
    spraying: str, ports: int
) -> None:
    def fep(seed: int) -> FabricEndpoint:
        return endpoint(HERE, seed=seed, spraying=spraying, ports=ports)

    def evs(of: FabricEndpoint, peer: str) -> list[int]:
        paths = of.peers[ip_address(peer).packed].congestion.paths
        return [paths.pick() for _ in range(PICKED)]

    alone, late, few = fep(SEED), fep(SEED), _that_learned_of(LAST, spraying, ports)
    drawn = evs(alone, LAST)
    assert evs(late, OTHER) != drawn
    late.post(SendRequest(peer="10.0.1.3", payload=memoryview(bytes(20_000))))
    late.transmit(5_000, 64)  # draws identifiers of a PDC, and picks EVs
    assert evs(late, LAST) == drawn == evs(few, LAST)
    assert evs(fep(SEED + 1), LAST) != drawn


def _that_learned_of(peer: str, spraying: str, ports: int) -> FabricEndpoint:
    """Return an endpoint that knows ``peer`` only, by no configuration."""
    config = FepConfig(address=HERE, mac=MACS[HERE], neighbours={}, spraying=spraying, ports=ports)
    fep = FabricEndpoint(config, seed=SEED)
    fep.add_peer(peer, MACS[peer])
    return fep


def test_a_peer_that_is_met_late_has_the_congestion_control_of_the_start() -> None:
    early, late = (endpoint(HERE, seed=SEED, cc="nscc") for _ in range(2))
    key = ip_address(LAST).packed
    first = early.peers[key].congestion.window
    late.transmit(1_000_000, 1)
    second = late.peers[key].congestion.window
    assert isinstance(first, Nscc)
    assert isinstance(second, Nscc)
    assert second.last_adjusted == first.last_adjusted == 0


def test_who_is_no_neighbour_is_not_met() -> None:
    fep = endpoint(HERE)
    assert fep.peers.meet(ip_address("10.9.9.9").packed) is None
    assert not fep.peers


@pytest.mark.parametrize(
    ("peer", "mac"), [("10.0.1.2", "02:00:00"), ("224.0.0.1", "02:00:00:00:00:02")]
)
def test_a_bad_neighbour_is_refused_before_it_is_needed(peer: str, mac: str) -> None:
    config = FepConfig(address=HERE, mac=MACS[HERE], neighbours={peer: mac})
    with pytest.raises(EncapsulationError):
        FabricEndpoint(config, seed=SEED)
