"""An endpoint makes its state for a peer when it first needs it, as if it had been there."""

import random
from ipaddress import ip_address

import pytest

from tests.harness.uet.network import MACS, endpoint
from uet.config import FepConfig
from uet.congestion.spraying.paths import draw_evs
from uet.congestion.spraying.reps import Reps
from uet.encapsulation_choice import EncapsulationError
from uet.fep import FabricEndpoint
from uet.transport import SendRequest

HERE, LAST = "10.0.1.1", "10.0.1.9"
SEED = 5


def test_peers_are_made_on_demand_with_the_evs_that_were_drawn_in_order() -> None:
    fep = endpoint(HERE, seed=SEED, spraying="reps")
    assert not fep.peers
    fep.post(SendRequest(peer=LAST, payload=memoryview(b"x")))
    fep.transmit(0, 1)
    (key,) = fep.peers
    assert key == ip_address(LAST).packed
    rng = random.Random(SEED)
    drawn = [draw_evs(rng, 256) for _ in range(len(MACS) - 1)]
    paths = fep.peers[key].congestion.paths
    assert isinstance(paths, Reps)
    assert [paths.pick() for _ in range(8)] == drawn[-1][1:9]


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
