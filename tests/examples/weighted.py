"""Load balancing of one's own: the first next hop of a route gets a larger share of the packets.

uetemu run permutation --plugin ./weighted.py --fabric model --switch shallow:balance=weighted
"""

from emulator.dataplane.model.port import draw
from emulator.dataplane.switch.balancing import METHODS, Arrival, BalancingMethod


def smaller(arrival: Arrival) -> int:
    """The smaller one of two random numbers."""
    return min(draw(arrival.seed, 4 + stream, arrival.number) for stream in range(2))


METHODS.register(
    BalancingMethod(name="weighted", meaning="random, more to the first hops", choose=smaller)
)
