"""Every way that packets take through a fabric, followed step by step through its tables."""

from collections.abc import Iterator

from topologies.model import Topology
from topologies.routing.forwarding import LookupPlace, Step, forwarding_of

Walk = tuple[Step, ...]
#: Longer than any sound way in the fabrics of these tests: a packet that goes round in a circle.
ENDLESS = 40


def walks(topology: Topology, source: str, owner: str) -> Iterator[Walk]:
    """All ways from the hosts of switch ``source`` to switch ``owner``."""
    forwarding = forwarding_of(topology)
    open_: list[tuple[LookupPlace, Walk]] = [(place, ()) for place in forwarding.entries(source)]
    while open_:
        place, walk = open_.pop()
        if place.node == owner:
            yield walk
            continue
        assert len(walk) < ENDLESS, walk
        steps = forwarding.next_steps(owner, place)
        assert steps, f"nothing leads from {place} to {owner}"
        open_.extend((forwarding.arrival(place, step), (*walk, step)) for step in steps)


def all_walks(topology: Topology) -> Iterator[tuple[str, str, Walk]]:
    """(source, owner, way) for every two switches that have hosts."""
    hosts = forwarding_of(topology).graph.hosts
    for source in hosts:
        for owner in hosts:
            if source != owner:
                yield from ((source, owner, walk) for walk in walks(topology, source, owner))
