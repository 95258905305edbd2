"""One function for each way of routing: the next steps of all switches towards one owner.

An owner is a switch (with its subnets and its loopback) or a GPU with a fabric address.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from topologies.model import TopologyError
from topologies.routing.steps import Graph, Hops, Step, Table

FAR = 1 << 60


def shortest(graph: Graph, owner: str) -> Hops:
    """All paths of the fewest hops; each of several parallel cables is a path."""
    peers = graph.peers
    distance = {owner: 0}
    queue = [owner]
    for name in queue:  # which grows
        further = distance[name] + 1
        for other in peers[name]:
            if other not in distance:
                distance[other] = further
                queue.append(other)
    del queue[0]
    return _nearer(graph, queue, distance)


def _nearer(graph: Graph, names: Iterable[str], distance: Mapping[str, int]) -> Hops:
    """The steps of each of ``names`` to who is nearer by one."""
    hops: dict[str, tuple[Step, ...]] = {}
    for name in names:
        near = distance[name] - 1
        hops[name] = tuple([s for s in graph.steps[name] if distance.get(s.node) == near])
    return hops


def dimension_order(graph: Graph, owner: str) -> Hops:
    """Along the first dimension in which the position differs, the shorter way round."""
    goal = graph.switches[owner].position
    sizes = graph.sizes
    hops: dict[str, tuple[Step, ...]] = {}
    for name, switch in graph.switches.items():
        here = switch.position
        turn = next((d for d, place in enumerate(here) if place != goal[d]), None)
        if turn is None:
            continue
        far = _around(here[turn], goal[turn], sizes[turn])
        hops[name] = tuple(
            step
            for step in graph.steps[name]
            if (there := graph.switches[step.node].position)[:turn] == here[:turn]
            and there[turn + 1 :] == here[turn + 1 :]
            and _around(there[turn], goal[turn], sizes[turn]) < far
        )
    return hops


def _around(a: int, b: int, size: int) -> int:
    return min((a - b) % size, (b - a) % size)


def minimal(graph: Graph, owner: str) -> Hops:
    """Over local links, at most one global link, and local links, in the fewest hops of that kind.

    Raises TopologyError for a group that has no link to the owner's.
    """
    pods, local, across = graph.pods, graph.local, graph.across
    home = pods[owner]
    distance = {owner: 0}
    heap: list[tuple[int, str]] = [(0, owner)]
    done: set[str] = set()
    while heap:  # towards the sources: first within the owner's group, then out of it
        far, name = heapq.heappop(heap)
        if name in done:
            continue
        done.add(name)
        for step in (*local[name], *across[name]) if pods[name] == home else local[name]:
            if far + 1 < distance.get(step.node, FAR):
                distance[step.node] = far + 1
                heapq.heappush(heap, (far + 1, step.node))
    lost = next((name for name in graph.switches if name not in distance), None)
    if lost is not None:
        raise TopologyError(
            f"{lost} has no way to {owner} with one global link: join every two groups, or take "
            "routing=shortest"
        )
    return {
        name: tuple(
            step
            for step in graph.steps[name]
            if distance.get(step.node) == far - 1 and pods[step.node] in (pods[name], home)
        )
        for name, far in distance.items()
        if name != owner
    }


def valiant(graph: Graph, owner: str) -> Mapping[Table, Hops]:
    """What the tables ``HOSTS`` and ``GROUP`` add to :func:`minimal`.

    Packets of a switch's hosts to another group leave by any global link of the switch, or go to
    any switch of the group that has one; that takes any of its global links.  From there on they
    are routed minimally, so that the group in between is any other, and at most one.
    """
    local, across, home = graph.local, graph.across, graph.pods[owner]
    hosts: dict[str, tuple[Step, ...]] = {}
    group: dict[str, tuple[Step, ...]] = {}
    for name in graph.switches:
        if graph.pods[name] == home:
            continue
        own = across[name]
        if name in graph.hosts:
            hosts[name] = (*own, *(step for step in local[name] if across[step.node]))
        if own:
            group[name] = own
    return {Table.HOSTS: hosts, Table.GROUP: group}


def up_down(graph: Graph, owner: str) -> Hops:
    """Up*/down* without memory: who has a way of only down steps takes the shortest such, else up.

    Up is towards the root of a breadth-first tree.  As a packet that has gone down is where a way
    down exists, it never goes up again, and links wait for each other in one order only.
    """
    order, peers = graph.order, graph.peers
    below = {owner: 0}
    queue = [owner]
    for name in queue:  # upwards from the owner: who reaches it by going down
        rank, further = order.get(name, FAR), below[name] + 1
        for other in peers[name]:
            if other not in below and order[other] < rank:
                below[other] = further
                queue.append(other)
    distance = dict(below)
    above: dict[str, list[str]] = {}
    for name in order:  # from the root on: who is above is known before
        if name not in below:
            above[name] = [other for other in peers[name] if order[other] < order[name]]
            distance[name] = 1 + min((distance[other] for other in above[name]), default=FAR)
    hops: dict[str, tuple[Step, ...]] = {}
    for name, far in distance.items():
        if name == owner or far > FAR:
            continue
        if name in below:
            ways = [s for s in graph.steps[name] if below.get(s.node) == far - 1]
            ways = [s for s in ways if order.get(s.node, FAR) > order[name]]
        else:
            uphill = above[name]
            ways = [
                s for s in graph.steps[name] if s.node in uphill and distance[s.node] == far - 1
            ]
        hops[name] = tuple(ways)
    return hops
