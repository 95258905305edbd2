"""Cyclic buffer dependencies: whether a fabric's routes let packets wait for each other for ever.

A switch that never drops (PFC) holds a packet until there is room behind the next link.  So each
link waits for the links that its packets take next.  If these dependencies form a cycle, all its
buffers can be full of packets that wait for the next one, for ever; without a cycle they cannot
(Dally and Seitz, "Deadlock-Free Message Routing in Multiprocessor Interconnection Networks", IEEE
Transactions on Computers, 1987).  Priorities do not change over the way of a packet here, so there
is one set of buffers, and switches have no virtual channels.

Only ways of packets from GPU to GPU count; a GPU takes whatever arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from topologies.model import CableEnd, Topology
from topologies.routing.forwarding import Forwarding, LookupPlace, RouteTable, forwarding_of

#: Channel -> the channels that packets over it take next.
Waits = Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class SwitchChannel:
    sender: CableEnd
    receiver: CableEnd

    def __str__(self) -> str:
        return f"{self.sender} -> {self.receiver}"


def buffer_cycle(topology: Topology) -> tuple[SwitchChannel, ...]:
    """Channels each of which can wait for the next, and the last for the first; () if none can."""
    channels, waits = _dependencies(forwarding_of(topology))
    for start in _left_over(waits):
        cycle = _cycle(waits, start)
        if cycle:
            return tuple(channels[number] for number in cycle)
    return ()


def _dependencies(forwarding: Forwarding) -> tuple[dict[int, SwitchChannel], Waits]:
    """All channels, and for each the numbers of those that packets over it take next."""
    graph = forwarding.graph
    channels: dict[int, SwitchChannel] = {  # by the number of their step
        step.number: SwitchChannel(CableEnd(name, step.port), CableEnd(step.node, step.arrives))
        for name in graph.switches
        for step in graph.steps[name]
        if step.node in graph.switches
    }
    arrivals = {number: channel.receiver.node for number, channel in channels.items()}
    waits = dict.fromkeys(channels, 0)  # the bits of the steps from where a channel arrives
    note = _by_place if forwarding.lookups else _by_switch
    for owner in _owners(forwarding):
        note(forwarding, owner, [name for name in graph.hosts if name != owner], waits)
    return channels, {
        number: [
            s.number for s in graph.steps[arrivals[number]] if s.bit & mask and s.number in channels
        ]
        for number, mask in waits.items()
    }


def _by_switch(
    forwarding: Forwarding, owner: str, sources: Sequence[str], waits: dict[int, int]
) -> None:
    """Add to ``waits`` the waits of packets to ``owner``, where every switch has one table.

    The packets come from the hosts of ``sources``.
    """
    hops = forwarding.tables(owner)[RouteTable.MAIN]
    leaving = dict.fromkeys(sources, 0)  # the bits of the steps that a switch has
    front = list(sources)
    for name in front:  # which grows
        mask = 0
        for step in hops.get(name, ()):
            mask |= step.bit
            if step.node not in leaving:
                leaving[step.node] = 0
                front.append(step.node)
        leaving[name] = mask
    for name in front:
        for step in hops.get(name, ()):
            if step.node != owner:
                waits[step.number] |= leaving[step.node]


def _by_place(
    forwarding: Forwarding, owner: str, sources: Sequence[str], waits: dict[int, int]
) -> None:
    """Return the waits as :func:`_by_switch`, where next hops depend on a packet's origin."""
    front = [place for name in sources for place in forwarding.entries(name)]
    leaving = dict.fromkeys(front, 0)
    came: list[tuple[int, LookupPlace]] = []
    for place in front:  # which grows
        mask = 0
        for step in forwarding.next_steps(owner, place):
            mask |= step.bit
            if step.node == owner:
                continue
            there = forwarding.arrival(place, step)
            came.append((step.number, there))
            if there not in leaving:
                leaving[there] = 0
                front.append(there)
        leaving[place] = mask
    for number, there in came:
        waits[number] |= leaving[there]


def _owners(forwarding: Forwarding) -> Iterator[str]:
    """Yield where packets to GPUs go: switches with hosts, and GPUs with a fabric address."""
    yield from forwarding.graph.hosts
    yield from (gpu.name for gpu in forwarding.topology.gpus if gpu.loopback is not None)


def _left_over(waits: Waits) -> list[int]:
    """Return the channels of all cycles, and those that lead to one.

    Channels that wait for none of the others are taken away, again and again.
    """
    # networkx 3.6 (components, then a cycle) takes 6 to 24 times as long, for a longer cycle.
    waiting: dict[int, list[int]] = {number: [] for number in waits}
    for number, others in waits.items():
        for other in others:
            waiting[other].append(number)
    counts = {number: len(others) for number, others in waits.items()}
    free = [number for number, count in counts.items() if not count]
    for number in free:  # which grows
        for behind in waiting[number]:
            counts[behind] -= 1
            if not counts[behind]:
                free.append(behind)
    return [number for number, count in counts.items() if count]


def _cycle(waits: Waits, start: int) -> list[int]:
    """Return the shortest cycle through ``start``; empty if there is none."""
    before: dict[int, int] = {}
    queue = deque([start])
    while queue and start not in before:
        number = queue.popleft()
        for other in waits[number]:
            if other not in before:
                before[other] = number
                queue.append(other)
    if start not in before:
        return []
    cycle = [start]
    while (number := before[cycle[-1]]) != start:
        cycle.append(number)
    return cycle[:1] + cycle[:0:-1]
