"""One function for each way of routing: the next steps of all switches towards one owner.

An owner is a switch (with its subnets and its loopback) or a GPU with a fabric address.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping

from topologies.model import TopologyError
from topologies.routing.steps import Graph, Hops, RouteTable, Step

FAR = 1 << 60


def shortest(graph: Graph, owner: str) -> Hops:
    """Return the steps on all paths of the fewest hops; each parallel cable is a path."""
    # networkx 3.6 on a graph kept ready takes 0.8 to 1.3 times as long, and 0.14 s for its import.
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
    """Return the steps of each of ``names`` to nodes that are nearer by one.

    Most owners are reached by the same ones, which are kept once.
    """
    hops: dict[str, tuple[Step, ...]] = {}
    for name in names:
        near = distance[name] - 1
        steps = [s for s in graph.steps[name] if distance.get(s.node) == near]
        hops[name] = graph.kept(steps)
    return hops


def dimension_order(graph: Graph, owner: str) -> Hops:
    """Return steps along the first dimension that differs, the shorter way round."""
    goal = graph.switches[owner].position
    known = graph.turns
    ranked: dict[tuple[int, int], dict[str, tuple[Step, ...]]] = defaultdict(dict)
    for name, switch in graph.switches.items():
        here = switch.position
        if here == goal:
            continue
        turn = 0
        while here[turn] == goal[turn]:
            turn += 1
        key = name, turn, goal[turn]
        found = known.get(key)
        if found is None:
            found = known[key] = _turn(graph, name, turn, goal[turn])
        rank, steps = found
        ranked[rank][name] = steps
    hops: dict[str, tuple[Step, ...]] = {}
    for rank in sorted(ranked):  # whoever is one step nearer comes before
        hops |= ranked[rank]
    return hops


def _turn(
    graph: Graph, name: str, turn: int, goal: int
) -> tuple[tuple[int, int], tuple[Step, ...]]:
    """Return the steps along dimension ``turn`` nearer to ``goal``, and the rank of ``name``.

    The rank is that among those that go there: the last dimension is that of the nearest.
    """
    here, size = graph.switches[name].position, graph.sizes[turn]
    far = _around(here[turn], goal, size)
    steps = tuple(
        step
        for step in graph.steps[name]
        if (there := graph.switches[step.node].position)[:turn] == here[:turn]
        and there[turn + 1 :] == here[turn + 1 :]
        and _around(there[turn], goal, size) < far
    )
    return (-turn, far), steps


def _around(a: int, b: int, size: int) -> int:
    return min((a - b) % size, (b - a) % size)


def minimal(graph: Graph, owner: str) -> Hops:
    """Return steps over local links with at most one global link between, in the fewest hops.

    Raises TopologyError for a group that has no link to the owner's.
    """
    pods, local, across = graph.pods, graph.local, graph.across
    home = pods[owner]
    # networkx 3.6 takes 1.7 to 2.3 times as long for the distances alone: each owner has a graph.
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


def valiant(graph: Graph, owner: str) -> Mapping[RouteTable, Hops]:
    """Return what the tables ``HOSTS`` and ``GROUP`` add to :func:`minimal`.

    Packets of a switch's hosts to another group leave by any global link of the switch. Or they go
    to any switch of the group that has one; that takes any of its global links.  From there on they
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
    return {RouteTable.HOSTS: hosts, RouteTable.GROUP: group}


def up_down(graph: Graph, owner: str) -> Hops:
    """Return the steps of up*/down* without memory: the shortest way of down steps only, else up.

    Up is towards the root of a breadth-first tree.  A packet that has gone down is where a way down
    exists, so it never goes up again. So links wait for each other in one order only.
    """
    order, peers = graph.order, graph.peers
    # networkx 3.6 takes 1.9 to 3.3 times as long on a directed graph kept ready.
    below = {owner: 0}
    queue = [owner]
    for name in queue:  # upwards from the owner: who reaches it by going down
        rank, further = order.get(name, FAR), below[name] + 1
        for other in peers[name]:
            if other not in below and order[other] < rank:
                below[other] = further
                queue.append(other)
    hops: dict[str, tuple[Step, ...]] = {}
    for name, far in below.items():
        if name != owner:
            rank, near = order[name], far - 1
            ways = [step for step in graph.steps[name] if below.get(step.node) == near]
            hops[name] = tuple([step for step in ways if order.get(step.node, FAR) > rank])
    distance = dict(below)
    for name, uphill in graph.uphill.items():  # from the root on: who is above is known before
        if name not in below:
            near = min([distance[step.node] for step in uphill], default=FAR)
            distance[name] = near + 1
            if near < FAR:
                hops[name] = tuple([step for step in uphill if distance[step.node] == near])
    return hops
